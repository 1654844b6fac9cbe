"""What commands that submit say: before, while they wait, and of the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer
from fsdpkit.cli.options import as_typed, fsdpkit_as_typed
from fsdpkit.errors import SchedulerError
from fsdpkit.listing import first_of
from fsdpkit.runs.job_ids import task_of

if TYPE_CHECKING:
    from types import FrameType

    from fsdpkit.planning.cost import Asked
    from fsdpkit.rendering.script import Plan
    from fsdpkit.scheduling.run import Run


@answer("fsdpkit.submit/1")
def submitted(run: str, job_id: str | None, cluster: str, dir: Path) -> None:
    """A run that was submitted, or resumed."""


@answer("fsdpkit.dry-run/1")
def rendered(script: str, asks: Asked, warnings: Sequence[str]) -> None:
    """`--dry-run`: what sbatch would get; nothing was submitted.

    asks: what a person should agree to first. warnings: what to know before it is submitted.
    """


@answer("fsdpkit.submit-check/1")
def judged(answer: str, asks: Asked, warnings: Sequence[str]) -> None:
    """`submit --check`: Slurm would take the script; nothing was submitted.

    answer: in Slurm's words. asks, warnings: as with `--dry-run`.
    """


@contextlib.contextmanager
def ending(run: Run) -> Iterator[None]:
    """While a run in this shell's allocation is waited for: Ctrl-C, or the shell's end, ends it."""
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


def print_script(script: str, plan: Plan, as_json: bool) -> None:
    if as_json:
        from fsdpkit.planning.cost import asked_by

        rendered(script, asked_by(plan), plan.warnings)
    else:
        sys.stdout.write(script)


def say_where(plan: Plan, why: str = "as asked") -> None:
    """What a person should know of the plan before it is submitted, on standard error."""
    from fsdpkit.scheduling.cluster import cluster_of
    from fsdpkit.scheduling.sharing import new_notes

    profile = plan.site.profile
    if notice := cluster_of(profile.kind, profile.slurm_clusters).notice:
        reason = "" if why == "as asked" else f"{why}: "
        click.echo(f"fsdpkit: {reason}{notice}", err=True)
    for warning in (*plan.warnings, *new_notes(plan)):
        click.echo(f"fsdpkit: {warning}", err=True)
    if plan.job.spec.staged.environment:
        import logging

        logging.basicConfig(format="fsdpkit: %(message)s")
        logging.getLogger("fsdpkit.scheduling.packing").setLevel(logging.INFO)


def say_announcements(plan: Plan | None = None, *, once: bool) -> None:
    """What the centre tells its users, on standard error. plan: of a submission, which has its
    partition; None: any."""
    from fsdpkit.config.announced import new_lines

    of = None if plan is None else (plan.placement.partition or "").split(",")
    for line in new_lines(of, once=once):
        click.echo(f"fsdpkit: your centre announces: {line}", err=True)


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


def outcome(run: Run, *, follow: bool = False, first_attempt: int = 0) -> int:
    """Wait for the end and say how it was; the exit status. follow: print rank 0's output
    meanwhile, of an array that of the first task."""
    from fsdpkit.cli.logs import print_followed
    from fsdpkit.cli.telling import tell_until_over, telling_states

    if follow:
        print_followed(run, first_attempt)
    elif run.record.array is None:
        tell_until_over(run, first_attempt)
    with telling_states(run) as hear:
        state = run.wait(heard=hear)
    click.echo(f"fsdpkit: {run.id}: {state.describe()}", err=True)
    if not state.succeeded:
        for line in failure_lines(run):
            click.echo(f"fsdpkit: {line}", err=True)
        if state.outcome != "stopped":
            command = f"{fsdpkit_as_typed()} diagnose {as_typed(run.dir)}"
            click.echo(f"fsdpkit: why, and what to do: {command}", err=True)
    return state.exit_status


def failure_lines(run: Run) -> list[str]:
    """The first failure on record of the job, or array task, that says how the run ended, else what
    its script complained of, and where to look."""
    from fsdpkit.reporting.logs.errors import first_words
    from fsdpkit.scheduling.run import Run

    newest = Run.open(run.dir)  # it may have been resumed meanwhile
    job_id, state = newest.decisive_job()
    if job_id is None or (state is not None and state.outcome == "stopped"):
        return [f"to go on: fsdpkit resume {run.id}"]
    return first_words(newest.first_failure(task_of(job_id)), newest.batch_log(job_id))
