"""A batch script as a job: what is taken of it, what is not needed any more, what has no home.

Text in, a record out; nothing is run, and what is unclear is quoted, never guessed. Raises
BatchFileError where no job can be made of it: no launch, more than one, one in a loop.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from fsdpkit.scheduling.batch_file.bash import parse
from fsdpkit.scheduling.batch_file.expansion import is_of_node, is_unknown
from fsdpkit.scheduling.batch_file.launch import StartedProgram, launch_of, starts_training
from fsdpkit.scheduling.batch_file.lines import (
    OF_RANKS,
    OF_SLURM,
    BatchFile,
    BatchLines,
    sets_conda_up,
    short,
)
from fsdpkit.scheduling.batch_file.options import SRUN
from fsdpkit.scheduling.batch_file.recognition import check_text
from fsdpkit.scheduling.batch_file.resources import (
    OF_ALLOCATION,
    BatchFileError,
    Given,
    Option,
    counts_of,
    fill_in,
    read_options,
    shape_of,
    slurm_variables,
)
from fsdpkit.scheduling.batch_file.walking import Step, Walk


def read(
    text: str, environ: Mapping[str, str], directory: str, given: Given | None = None
) -> BatchFile:
    """A batch script that is submitted from `directory`. Raises BatchFileError."""
    given = given or Given()
    kind = check_text(text)
    text = re.sub("[\U000f0000-\U0010ffff]", "\ufffd", text)
    options, findings = read_options(text)
    if not options:
        options = _asked_by_srun(text, environ, directory, given)
    counts = counts_of(options, given)
    slurm = slurm_variables(options, counts)
    slurm["SLURM_SUBMIT_DIR"] = directory
    if account := given.account:
        slurm["SLURM_JOB_ACCOUNT"] = account
    start = next((o.value for o in options if o.name == "chdir"), None)
    walk = _walked(text, slurm, environ, directory, start)
    step, launch = _the_launch(walk, given)
    taken = {option.written for option in options if option.line == step.command.line}
    launch.dropped = [piece for piece in launch.dropped if piece[0] not in taken]
    shape = shape_of(counts, launch, given)
    tables = fill_in(options, counts, shape, given)
    reader = BatchLines(walk, step, launch, shape, tables, environ)
    reader.findings += [*findings, *tables.findings]
    return reader.read(kind, directory, options_chdir=start)


def _walked(
    text: str,
    slurm: Mapping[str, str],
    environ: Mapping[str, str],
    directory: str,
    start: str | None = None,
) -> Walk:
    """The script, walked from its first line to its last. Raises BatchFileError."""
    walk = Walk(slurm, _passed_on(environ), directory)
    if start:
        walk.enter(start)
    try:
        walk.walk(parse(text))
    except RecursionError as error:
        raise BatchFileError("it is nested deeper than a script that anybody wrote") from error
    return walk


def _asked_by_srun(
    text: str, environ: Mapping[str, str], directory: str, given: Given
) -> list[Option]:
    """The options of the line that trains, as far as they are known: where the script has none for
    sbatch, srun itself asks for the allocation. Raises BatchFileError where they hide its nodes."""
    walk = _walked(text, {}, environ, directory)
    step, launch = _the_launch(walk, given)
    options, hidden = [], []
    for name, value, written in launch.srun.options if launch.srun else ():
        if not walk.unknowns(written):
            options.append(Option(step.command.line, name, value, written))
        elif name in ("", "nodes", "ntasks"):
            hidden.append(walk.shown(written))
    if hidden and given.nodes is None and all(option.name != "nodes" for option in options):
        raise BatchFileError(
            f"line {step.command.line}: {' '.join(hidden)} is known only where the script runs, "
            f"and says on how many nodes: say it with --nodes, and the GPUs of each with --gpus"
        )
    return [option for option in options if option.name in OF_ALLOCATION]


def _passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What sbatch hands on from the submitter's environment, and no node has another value of."""
    kept = {}
    for name, value in environ.items():
        of_node = is_of_node(name) or name in (*OF_RANKS, "SHLVL", "_")
        if not of_node and not OF_SLURM.match(name) and "\n" not in value:
            kept[name] = value
    return kept


def _the_launch(walk: Walk, given: Given) -> tuple[Step, StartedProgram]:
    """The one command that starts the training. Raises BatchFileError."""
    found = []
    for step in walk.steps:
        if step.words and (launch := launch_of(walk, step)) is not None:
            found.append((step, launch))
    best = max((launch.strength for _, launch in found), default=0)
    # srun with a program, and a launcher without srun, are both the training of many ranks.
    chosen = [each for each in found if each[1].strength >= min(best, 2)]
    if len(chosen) > 1:
        steps = [step.command for step, _ in chosen[:4]]
        listed = "; ".join(f"line {each.line}: {short(each.text)}" for each in steps)
        raise BatchFileError(
            f"it starts {len(chosen)} programs, and a job has one ({listed}): keep one of them and "
            f"make a job file for each"
        )
    if not chosen:
        raise BatchFileError(_why_none(walk))
    step, launch = chosen[0]
    line, said = step.command.line, short(step.command.text)
    if launch.evaluated or step.words[0] == "eval":
        raise BatchFileError(
            f"line {line}: eval runs text that the script puts together; write the command itself: "
            f"{short(walk.shown(' '.join(step.words[1:])))}"
        )
    if launch.shell_file is not None:
        raise BatchFileError(
            f"line {line} ({said}) starts another shell script, {walk.shown(launch.shell_file)}, "
            f"which is not read: put the command that it starts in its place"
        )
    for block in step.within:
        if block.kind in ("for", "while", "until", "select"):
            raise BatchFileError(
                f"line {line}: {said} stands in a loop (line {block.line}: {short(block.text)}); "
                f"a job starts it once: `fsdpkit sweep` makes a run of each value"
            )
    if walk.unknowns(launch.entry) and not given.script:
        raise BatchFileError(
            f"line {line}: what it starts, {walk.shown(launch.entry)}, is known only where the "
            f"script runs: init --from names it with --script"
        )
    return step, launch


def _why_none(walk: Walk) -> str:
    tried = "torchrun, accelerate launch, deepspeed, srun or python"
    for step in walk.steps:
        line = step.command.line
        if step.words[:1] == ("eval",) and not sets_conda_up(walk, step):
            return (
                f"line {line}: eval runs text that the script puts together, which is not read: "
                f"write the command itself"
            )
        if step.command.here_document:
            return (
                f"nothing that it starts with {tried} was found; the here-document in line {line} "
                f"is not read: write its command as a line of the script"
            )
        if (
            "@" in step.names
            and step.words
            and step.words[0] in ("srun", "python", "python3", "torchrun")
        ):
            return f"line {line} starts what the script is given as an argument: write the command"
        if step.words[:1] and step.words[0] in ("srun", "bash", "sh") and _is_hidden(step):
            return (
                f"line {line}: {short(step.command.text)}: what it starts is known only where the "
                f"script runs; write the command"
            )
    return f"nothing that it starts with {tried} was found"


def _is_hidden(step: Step) -> bool:
    """Whether a step of srun, or a shell's, runs what is known only on the node."""
    words = step.words
    if words[0] == "srun":
        words = SRUN.split(words[1:], starts_training).rest
    return bool(words) and (is_unknown(words[0]) or is_unknown(words[-1]))


def command_of(found: BatchFile, entry: str) -> str:
    """The `fsdpkit submit` that starts the same; `entry`: how it is named here."""
    resources = found.tables["resources"]
    words = ["fsdpkit", "submit", *entry.split(" ", 1 if entry.startswith("-m ") else 0)]
    for key in ("nodes", "gpus", "time", "account", "partition"):
        if key in resources:
            words += [f"--{key}", str(resources[key])]
    words += ["--array", found.array] if found.array is not None else []
    return shlex.join([*words, *(["--", *found.args] if found.args else [])])
