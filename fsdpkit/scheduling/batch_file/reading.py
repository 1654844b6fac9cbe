"""A batch script as a job: what is taken of it, what is not needed any more, what has no home.

Text in, a record out; nothing is run, and what is unclear is quoted, never guessed. Raises
BatchFileError where no job can be made of it: no launch, more than one, one in a loop.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from fsdpkit.config.sbatch_spellings import LONG_OPTIONS
from fsdpkit.scheduling.batch_file.expansion import is_of_node
from fsdpkit.scheduling.batch_file.launch import StartedProgram, launch_of, starts_training
from fsdpkit.scheduling.batch_file.lines import (
    OF_RANKS,
    OF_SLURM,
    BatchFile,
    BatchLines,
    sets_conda_up,
    short,
)
from fsdpkit.scheduling.batch_file.recognition import check_text
from fsdpkit.scheduling.batch_file.resources import fill_in, read_options
from fsdpkit.scheduling.batch_file.shape import (
    BatchFileError,
    Given,
    Option,
    counts_of,
    shape_of,
    slurm_variables,
)
from fsdpkit.scheduling.batch_file.staging import Staging
from fsdpkit.scheduling.batch_file.walking import Step, Walk


def read(
    text: str, environ: Mapping[str, str], directory: str, given: Given | None = None
) -> BatchFile:
    """A batch script that is submitted from `directory`. Raises BatchFileError."""
    given = given or Given()
    kind = check_text(text)
    text = re.sub("[\U000f0000-\U0010ffff]", "\ufffd", text)
    environ = _passed_on(environ)
    options, findings = read_options(text)
    counts = counts_of(options, given)
    slurm = slurm_variables(options, counts) | {"SLURM_SUBMIT_DIR": directory}
    if account := given.account:
        slurm["SLURM_JOB_ACCOUNT"] = account
    start = options["chdir"].value if "chdir" in options else None
    walk = Walk(slurm, environ, directory)
    walk.enter(start or directory)
    try:
        walk.walk(walk.parsed(text))
    except RecursionError as error:
        raise BatchFileError("it is nested deeper than a script that anybody wrote") from error
    step, launch, staging = _the_launch(walk, given)
    if not options and launch.asks_for_nodes:
        options = _of_srun(walk, step, launch)
        counts = counts_of(options, given)
    shape = shape_of(counts, launch, given)
    tables = fill_in(options, counts, shape, given)
    reader = BatchLines(walk, step, launch, shape, tables, staging)
    reader.findings += [*findings, *tables.findings]
    return reader.read(kind, directory, options_chdir=start)


def _of_srun(walk: Walk, step: Step, launch: StartedProgram) -> dict[str, Option]:
    """The job's options, where no #SBATCH line says them but the srun that asks for the nodes."""
    assert launch.srun is not None
    of_job = [each for each in launch.srun.options if each[0] in LONG_OPTIONS]
    texts = {said for _, _, said in of_job}
    launch.dropped = [each for each in launch.dropped if each[0] not in texts]
    launch.homeless += [said for said in sorted(texts) if walk.unknowns(said)]
    known = [each for each in of_job if not walk.unknowns(each[2])]
    line = step.command.line
    return {name: Option(line, name, value or "", said) for name, value, said in known}


_IN_PLACE_OF_A_LOOP = {"for": "`fsdpkit sweep` makes a run of each value"}


def _passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What sbatch hands on from the submitter's environment, and no node has another value of."""
    kept = {}
    for name, value in environ.items():
        of_node = is_of_node(name) or name in (*OF_RANKS, "SHLVL", "PWD", "_")
        if not of_node and not OF_SLURM.match(name) and "\n" not in value:
            kept[name] = value
    return kept


def _the_launch(walk: Walk, given: Given) -> tuple[Step, StartedProgram, Staging]:
    """The one command that starts the training, and what is copied for it. Raises
    BatchFileError."""
    steps = [step for step in walk.steps if step.words]
    found = [(step, launch) for step in steps if (launch := launch_of(walk, step))]
    if not found:  # an installed command, such as axolotl or fairseq-train
        every = ((step, launch_of(walk, step, any_command=True)) for step in steps)
        found = [(step, launch) for step, launch in every if launch is not None]
    best = max((launch.strength for _, launch in found), default=0)
    # srun with a program, and a launcher without srun, are both the training of many ranks.
    chosen = [each for each in found if each[1].strength >= min(best, 2)]
    if len(chosen) > 1:
        commands = [step.command for step, _ in chosen[:4]]
        listed = "; ".join(f"line {each.line}: {short(each.text)}" for each in commands)
        raise BatchFileError(
            f"it starts {len(chosen)} programs, and a job has one ({listed}): keep one of them and "
            f"make a job file for each"
        )
    if not chosen:
        raise BatchFileError(_why_none(walk))
    step, launch = chosen[0]
    line = step.command.line
    launch.steps = [replace(s, command=replace(s.command, line=line)) for s in launch.steps]
    staging = Staging(walk, step, launch, given.local)
    if why := _why_not(walk, step, launch, given):
        raise BatchFileError(f"line {line}: {short(step.command.text)}: {why}")
    return step, launch, staging


def _why_not(walk: Walk, step: Step, launch: StartedProgram, given: Given) -> str | None:
    """Why no job can be made of the command that starts the training."""
    if launch.evaluated:
        written = short(walk.shown(launch.entry))
        return f"eval runs text that the script puts together; write the command itself: {written}"
    if launch.shell_file is not None:
        return (
            f"it starts another shell script, {walk.shown(launch.shell_file)}, which is not read: "
            f"put the command that it starts in its place"
        )
    if launch.srun is not None and ":" in launch.args:
        return "srun starts several programs, divided by a colon, and a job has one: keep one"
    for block in step.within:
        if block.kind in ("for", "while", "until"):
            return (
                f"it stands in a loop (line {block.line}: {short(block.text)}); a job starts it "
                f"once: {_IN_PLACE_OF_A_LOOP.get(block.kind, '[retry] says when it starts again')}"
            )
    if walk.unknowns(launch.entry) and not given.script:
        return (
            f"what it starts, {walk.shown(launch.entry)}, is known only where the script runs: "
            f"init --from names it with --script"
        )
    return None


def _why_none(walk: Walk) -> str:
    none = "nothing that it starts with torchrun, accelerate launch, deepspeed, srun or python was"
    for step in walk.steps:
        words, why = step.words, ""
        if step.command.here_document:
            why = "the here-document is not read"
        elif words[:1] == ("sbatch",):
            why = "what it submits is not read"
        elif words[:1] == ("eval",) and not sets_conda_up(walk, step):
            why = "eval runs text that the script puts together, which is not read"
        elif words and words[0] != "srun" and any(map(starts_training, words[1:])):
            why = "none of these starts it"
        elif words and (starts_training(words[0]) or words[0] == "srun"):
            why = "what it starts is an argument of the script, not known, or no Python"
        if why:
            said = short(step.command.text)
            return f"{none} found; line {step.command.line}: {said}: {why}: write the command"
    return f"{none} found"


def command_of(found: BatchFile, entry: str) -> str:
    """The `fsdpkit submit` that starts the same; `entry`: how it is named here."""
    resources = found.tables["resources"]
    words = ["fsdpkit", "submit", *entry.split(" ", 1 if entry.startswith("-m ") else 0)]
    for key in ("nodes", "gpus", "time", "account", "partition"):
        if key in resources:
            words += [f"--{key}", str(resources[key])]
    words += ["--array", found.array] if found.array is not None else []
    return shlex.join([*words, *(["--", *found.args] if found.args else [])])
