"""`fsdpkit submit`."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import (
    AFTERWARDS,
    HOW,
    RESOURCES,
    WHAT,
    WithTrainerArgs,
    as_typed,
    complete,
    for_seconds,
    fsdpkit_as_typed,
    going_on,
    grouped,
    here_or_on,
    say_what_is_not_read,
    waiting_options,
    wanted,
)
from fsdpkit.cli.trusting import consent, trust_option
from fsdpkit.listing import first_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from fsdpkit.rendering.script import Plan
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.states import JobState
    from fsdpkit.scheduling.submission import SubmitRequest


class _Submit(WithTrainerArgs):
    """Answers command lines of other launchers with its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from fsdpkit.config.launchers import refuse_launcher

        at = args.index("--") if "--" in args else len(args)
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        words: list[str] = []
        with contextlib.suppress(click.UsageError):
            said, rest, _ = parser.parse_args(args[:at])
            words = [*([job] if isinstance(job := said.get("job"), str) else []), *rest]
        refuse_launcher([*words, *(args[at + 1 :] if words else [])], "submit")
        if stray := [*itertools.takewhile(lambda word: not word.startswith("-"), words[1:])]:
            refuse_launcher(words, "submit", "accelerate", "deepspeed")
            raise click.UsageError(f"{_BEHIND}: … -- {shlex.join(stray)}")
        return super().parse_args(ctx, args)


_KEEP = "--keep-on-failure"
_BEHIND = "Arguments of the program go after --"


@answer("fsdpkit.submit/1")
def submitted(run: str, job_id: str | None, cluster: str, dir: Path) -> None:
    """A run that was submitted, or resumed."""


@answer("fsdpkit.dry-run/1")
def rendered(script: str) -> None:
    """`--dry-run`: what sbatch would get; nothing was submitted."""


@answer("fsdpkit.submit-check/1")
def _judged(answer: str) -> None:
    """`submit --check`: Slurm would take the script; nothing was submitted. In Slurm's words."""


@click.command("submit", cls=_Submit)
@click.pass_obj
@click.argument("job", required=False, shell_complete=complete("job"))
@grouped(WHAT, "-m", "module", metavar="MODULE", help="Start a module, as python -m does.")
@wanted("sets", "array", "snapshot")
@wanted("nodes", "gpus", "time", "cluster", "partition", "account", "spare")
@grouped(
    RESOURCES,
    "--sbatch-option",
    "sbatch_options",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Any other option of sbatch, such as licenses=scratch.",
)
@wanted("after", "runs")
@trust_option
@here_or_on
@grouped(HOW, "--dry-run", is_flag=True, help="Print only the script; submit nothing.")
@grouped(
    HOW,
    "--no-plan",
    "by_plan",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Submit even if fsdpkit plan says it does not fit.",
)
@grouped(
    HOW,
    "--soonest",
    is_flag=True,
    help="Take the partition in which it ends first, by Slurm's estimate of when each starts it.",
)
@grouped(HOW, "--check", is_flag=True, help="Let Slurm validate the script; submit nothing.")
@waiting_options
@grouped(
    AFTERWARDS,
    _KEEP,
    "keep_s",
    metavar="TIME",
    callback=for_seconds,
    help="If it fails, keep the nodes so long (10m), to try again at once; implies --wait.",
)
@json_option(submitted, rendered, _judged, group=AFTERWARDS)
def command(
    args: tuple[str, ...],
    trust: tuple[str, ...],
    dry_run: bool,
    check: bool,
    soonest: bool,
    wait: bool,
    follow: bool,
    keep_s: int | None,
    as_json: bool,
    job: str | None,
    module: str | None,
    **asked: Any,
) -> int:
    """Submit JOB: a name (`fsdpkit jobs`), a .toml file, a training script, or a command of the
    job's environment. Its own arguments stand behind --.

    \b
      fsdpkit submit --nodes 2 --gpus 4
      fsdpkit submit --nodes 2 --gpus 4 --set training.steps=500 --follow
      fsdpkit submit my_train.py --nodes 1 --gpus 4 -- --lr 1e-4
      fsdpkit submit -m my_package.train --gpus 4 -- --run exp1
      fsdpkit submit litgpt --gpus 4 -- pretrain --config pretrain.yaml

    Without JOB and options: the job t5 (T5 on Python's documentation), on 2 nodes x 4 GPUs of this
    machine's cluster, for an hour at most.

    Standard output is the run's id and how to follow it. Exit status with --wait: the job's own;
    75 if it stopped on request with its work saved, 70 if it is unknown whether it did any work.
    """
    from fsdpkit.scheduling import submission

    say_what_is_not_read()
    if dry_run and check:
        raise click.UsageError("--dry-run prints the script, --check asks Slurm: choose one.")
    at_once = "--here" if asked["here"] else "" if asked["on"] is None else "--on"
    if asked["here"] and asked["on"] is not None:
        raise click.UsageError("--here is this shell's allocation, --on a hold: choose one.")
    for option, given in (("--check", check), ("--soonest", soonest), (_KEEP, keep_s)):
        if given and at_once:
            raise click.UsageError(
                f"{option} asks about a queue, which {at_once} needs not: choose one."
            )
    if module is not None:
        if job is not None:
            raise click.UsageError(f"-m starts a module: leave out {job}, or put it behind --.")
        job = f"-m {module}"
    if job is None and args and not args[0].startswith("-"):
        raise click.UsageError(f"Name what is started before --: fsdpkit submit {args[0]} …")
    request = submission.SubmitRequest(args=args, job=job, **asked)
    if soonest:
        request = _in_soonest(request)
    agreed = consent(trust, submits=not (dry_run or check))
    plan, why = submission.plan(request, agreed)
    say_where(plan, why)
    if keep_s is not None and not check:
        from fsdpkit.cli.keeping import submit_and_keep

        how = {"dry_run": dry_run, "follow": follow, "as_json": as_json}
        return submit_and_keep(request, plan, keep_s, agreed, **how)
    if dry_run:
        print_script(submission.script_of(plan, request.runs), as_json)
        click.echo("fsdpkit: RUN-ID stands for the id that a submission makes", err=True)
        return 0
    if check:
        verdict = submission.check(plan, request.runs)
        if as_json:
            return _judged(verdict)
        click.echo(verdict)
        return 0
    if not at_once:
        say_what_is_left_out(submission.leaked_variables())
    run = submission.submit_plan(plan, request.runs, agreed)
    report(run, as_json)
    say_what_the_copy_lacks(run)
    if wait or follow or at_once:
        with ending(run) if at_once else going_on(run.id):
            if follow:
                print_output(run)
            return outcome(run)
    return 0


def _in_soonest(request: SubmitRequest) -> SubmitRequest:
    """The same job in the partition where it ends first, which standard error shows. Raises
    UsageError where none would start it."""
    from dataclasses import replace

    from fsdpkit.scheduling.expected import expected_s
    from fsdpkit.scheduling.soonest import lines, soonest, starts

    found = starts(request, expected_s)
    first = soonest(found)
    for line in lines(found):
        click.echo(f"fsdpkit: {line}", err=True)
    return replace(request, partition=first.partition)


@contextlib.contextmanager
def ending(run: Run) -> Iterator[None]:
    """Around waiting for a run in this shell's own allocation: Ctrl-C, or the end of the shell,
    ends the run, and the allocation stays."""
    from fsdpkit.errors import SchedulerError

    interrupt_at_end_of_shell()
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nfsdpkit: ending {run.id}; the allocation stays", err=True)
        with contextlib.suppress(SchedulerError):  # it is on file, which the run looks for
            run.cancel()
        click.echo(f"fsdpkit: {run.id}: {run.wait(poll_s=1.0).describe()}", err=True)
        raise


def interrupt_at_end_of_shell() -> None:
    """From now on what ends this process is as Ctrl-C."""
    import signal

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def print_script(script: str, as_json: bool) -> None:
    if as_json:
        rendered(script)
    else:
        sys.stdout.write(script)


def say_where(plan: Plan, why: str = "as asked") -> None:
    """What a person should know of the plan before it is submitted, on standard error."""
    from fsdpkit.scheduling.cluster import cluster_of

    profile = plan.site.profile
    if notice := cluster_of(profile.kind, profile.slurm_clusters).notice:
        reason = "" if why == "as asked" else f"{why}: "
        click.echo(f"fsdpkit: {reason}{notice}", err=True)
    for warning in plan.warnings:
        click.echo(f"fsdpkit: {warning}", err=True)


def say_what_is_left_out(names: list[str]) -> None:
    """Inside an allocation there are dozens; outside, each is somebody's setting."""
    names = [name for name in names if name != "SBATCH_ACCOUNT"]  # that one is in use
    if not names:
        return
    if "SLURM_JOB_ID" in names:
        told = f"inside an allocation: its {len(names)} variables are kept out of the new job"
    else:
        told = f"not passed on to sbatch, because directives decide: {', '.join(names)}"
    click.echo(f"fsdpkit: {told}", err=True)


def say_what_the_copy_lacks(run: Run) -> None:
    """Symbolic links of a snapshot that now lead nowhere."""
    from fsdpkit.runs.provenance import read_provenance

    found = read_provenance(run.paths)
    if found is None or found.snapshot is None or not (names := found.snapshot.dangling):
        return
    click.echo(
        f"fsdpkit: symbolic links whose target is not in the copy: {first_of(names, 3)}",
        err=True,
    )


def report(run: Run, as_json: bool) -> None:
    """The run's id, its job, and how to follow it."""
    if as_json:
        submitted(run.id, run.job_id, run.record.cluster or run.record.site, run.dir)
        return
    click.echo(run.id)
    click.echo(f"job {run.job_id}, in {run.dir}")
    typed, where = fsdpkit_as_typed(), as_typed(run.dir)
    click.echo(f"  {typed} logs {where} --follow\n  {typed} status {where}")


def print_output(run: Run, first_attempt: int = 0) -> None:
    """Rank 0's output until the run ends, of an array that of the first task."""
    from fsdpkit.cli.logs import print_lines
    from fsdpkit.reporting.logs.following import follow
    from fsdpkit.reporting.logs.lines import LineFilter

    task = run.record.array[0] if run.record.array else None
    choice = LineFilter(first_attempt=first_attempt, streams=frozenset({"out"}), array_task=task)
    print_lines(follow(run, choice), lambda source: "", live=True)


def outcome(run: Run) -> int:
    """Wait for the end and say how it was; the exit status."""
    told: set[str] = set()

    def tell(state: JobState) -> None:
        for line in _never_starts(run, state):
            if line not in told:
                told.add(line)
                click.echo(f"fsdpkit: {run.id}: {line}", err=True)

    state = run.wait(heard=tell)
    click.echo(f"fsdpkit: {run.id}: {state.describe()}", err=True)
    if not state.succeeded:
        for line in failure_lines(run):
            click.echo(f"fsdpkit: {line}", err=True)
        if state.outcome != "stopped":
            command = f"{fsdpkit_as_typed()} diagnose {as_typed(run.dir)}"
            click.echo(f"fsdpkit: why, and what to do: {command}", err=True)
    return state.exit_status


def _never_starts(run: Run, state: JobState) -> list[str]:
    """Why a job will not start by itself, and what to do."""
    from fsdpkit.reporting.pending import PendingEvidence, why

    if state.phase != "pending":
        return []
    evidence = PendingEvidence(
        reason=state.reason, state=state.state, job_id=run.job_id, run=run.id
    )
    answer = why(evidence)
    if not answer.never:
        return []
    words = f"{state.state}: {answer.words}; this will not resolve by itself"
    return [words, *([answer.action] if answer.action else [])]


def failure_lines(run: Run) -> list[str]:
    """The first failure on record of the job, or array task, that says how the run ended, else what
    its script complained of, and where to look."""
    from fsdpkit.reporting.logs.errors import first_words
    from fsdpkit.runs.job_ids import task_of
    from fsdpkit.scheduling.run import Run

    newest = Run.open(run.dir)  # it may have been resumed meanwhile
    job_id, state = newest.decisive_job()
    if job_id is None or (state is not None and state.outcome == "stopped"):
        return [f"to go on: fsdpkit resume {run.id}"]
    return first_words(newest.first_failure(task_of(job_id)), newest.batch_log(job_id))
