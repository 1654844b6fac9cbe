"""`fsdpkit submit`."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import json_option
from fsdpkit.cli.options import (
    AFTERWARDS,
    HOW,
    RESOURCES,
    WHAT,
    WithTrainerArgs,
    complete,
    for_seconds,
    going_on,
    grouped,
    here_or_on,
    say_what_is_not_read,
    waiting_options,
    wanted,
)
from fsdpkit.cli.submitting import (
    ending,
    judged,
    outcome,
    print_script,
    rendered,
    report,
    say_announcements,
    say_what_is_left_out,
    say_what_the_copy_lacks,
    say_where,
    submitted,
)
from fsdpkit.cli.trusting import consent, trust_option

if TYPE_CHECKING:
    from fsdpkit.scheduling.submission import SubmitRequest


class _Submit(WithTrainerArgs):
    """Answers command lines of other launchers with its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from fsdpkit.cli.misnamed import DASHES
        from fsdpkit.config.launchers import refuse_launcher

        at = args.index("--") if "--" in args else len(args)
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        words: list[str] = []
        module: list[str] = []
        with contextlib.suppress(click.UsageError):
            said, rest, _ = parser.parse_args(args[:at])
            words = [*([job] if isinstance(job := said.get("job"), str) else []), *rest]
            module = [named] if isinstance(named := said.get("module"), str) else []
        starts = [*module, *words]
        refuse_launcher([*starts, *(args[at + 1 :] if starts else [])], "submit")
        if words and re.match("[A-Z_][A-Z0-9_]*=", words[0]):
            named = shlex.quote(f"environment.variables.{words[0]}")
            raise click.UsageError(f"A variable of the job is --set {named}", ctx)
        for word in filter(DASHES.match, args[at + 1 :]):
            raise click.UsageError(f"{word} begins with a dash that is no hyphen.", ctx)
        if stray := [*itertools.takewhile(lambda word: not word.startswith("-"), words[1:])]:
            refuse_launcher(words, "submit", "accelerate", "deepspeed")
            if Path(whole := " ".join([words[0], *stray])).is_file():
                raise click.UsageError(f"A name with spaces needs quotes: {shlex.quote(whole)}")
            if _are_keys(words[0], stray):
                sets = " ".join(f"--set {shlex.quote(word)}" for word in stray)
                raise click.UsageError(f"A key of the job goes behind --set: {sets}")
            raise click.UsageError(f"{_BEHIND}: … -- {shlex.join(stray)}")
        return super().parse_args(ctx, args)


def _are_keys(job: str, words: Sequence[str]) -> bool:
    """Whether the words behind a job's name are keys of it, as `training.steps=5`."""
    from fsdpkit.config import assets
    from fsdpkit.config.job import JobSpec

    key = re.compile(rf"({'|'.join(JobSpec.__struct_fields__)})[.=]")
    return job in assets.available("job") and all(map(key.match, words))


def _is_handed_a_file() -> bool:
    """Whether it is `submit < job.sh`, as with bsub: a file that nothing has read from."""
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.fstat(0).st_mode) and os.lseek(0, 0, os.SEEK_CUR) == 0
    return False


_KEEP = "--keep-on-failure"
_BEHIND = "Arguments of the program go after --"


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
@json_option(submitted, rendered, judged, group=AFTERWARDS)
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
                f"{option} is about a queue, which {at_once} needs not: choose one."
            )
    if module is not None:
        if job is not None:
            raise click.UsageError(f"-m starts a module: leave out {job}, or put it behind --.")
        job = f"-m {module}"
    if job is None and args and not args[0].startswith("-"):
        same = shlex.join(["fsdpkit", "submit", args[0], *(["--"] if args[1:] else []), *args[1:]])
        raise click.UsageError(f"Name what is started before --: {same}")
    if job is None and _is_handed_a_file():
        raise click.UsageError("Standard input is not read: name the file, fsdpkit submit FILE.")
    request = submission.SubmitRequest(args=args, job=job, **asked)
    if soonest:
        request = _in_soonest(request)
    agreed = consent(trust, submits=not (dry_run or check))
    plan, why = submission.plan(request, agreed)
    say_where(plan, why)
    say_announcements(plan, once=not as_json)
    for option in _for_the_script(args, plan.job.entry.file):
        told = f"{option} stands behind --, so it is an argument of {plan.job.entry.path.name}"
        if option in ("--dry-run", "--check") and not (dry_run or check):
            raise click.UsageError(
                f"{told}, and the job would be submitted. For fsdpkit it goes before --; if it is "
                "meant for the program, give it in args of a job file."
            )
        click.echo(f"fsdpkit: {told}; for fsdpkit it goes before --", err=True)
    for before, word in itertools.pairwise(["", *args]):
        if re.match(r"--?[A-Za-z][\w-]* ", word) and not before.startswith("-"):
            told = f"{word!r} is one argument; without its quotes it is {len(word.split())}"
            click.echo(f"fsdpkit: {told}", err=True)
    if keep_s is not None and not check:
        from fsdpkit.cli.keeping import submit_and_keep

        how = {"dry_run": dry_run, "follow": follow, "as_json": as_json}
        return submit_and_keep(request, plan, keep_s, agreed, **how)
    if dry_run:
        print_script(submission.script_of(plan, request.runs), plan, as_json)
        click.echo("fsdpkit: RUN-ID stands for the id that a submission makes", err=True)
        return 0
    if check:
        verdict = submission.check(plan, request.runs)
        if as_json:
            from fsdpkit.planning.cost import asked_by

            return judged(verdict, asked_by(plan), plan.warnings)
        click.echo(verdict)
        return 0
    if not at_once:
        say_what_is_left_out(submission.leaked_variables())
    run = submission.submit_plan(plan, request.runs, agreed)
    report(run, as_json)
    say_what_the_copy_lacks(run)
    if wait or follow or at_once:
        with ending(run) if at_once else going_on(run.id):
            return outcome(run, follow=follow)
    return 0


def _for_the_script(args: Sequence[str], file: Path | None) -> list[str]:
    """Options of `submit` among the script's arguments that do not stand in its source."""
    from fsdpkit.config.script_source import read_source

    ours = {name for one in command.params for name in one.opts if name.startswith("--")}
    found = [option for word in args if (option := word.partition("=")[0]) in ours]
    source = (read_source(file) if found and file else None) or b""
    return [one for one in found if one.encode() not in source.replace(b"_", b"-")]


def _in_soonest(request: SubmitRequest) -> SubmitRequest:
    """The same job in the partition where it ends first. Raises UsageError: none would start it."""
    from fsdpkit.scheduling.expected import expected_s
    from fsdpkit.scheduling.soonest import lines, soonest, starts

    found = starts(request, expected_s)
    first = soonest(found)
    for line in lines(found):
        click.echo(f"fsdpkit: {line}", err=True)
    return replace(request, partition=first.partition)
