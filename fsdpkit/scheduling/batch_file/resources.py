"""The `#SBATCH` lines of a batch script, as keys of a job.

What has a key is taken, what fsdpkit decides itself is not needed, what has neither is said to have
no home.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from fsdpkit.config.job import Resources
from fsdpkit.config.sbatch_spellings import KEYS, OTHERWISE
from fsdpkit.config.slurm_options import why_refused
from fsdpkit.config.units import parse_array, parse_memory_mb
from fsdpkit.errors import UsageError
from fsdpkit.rendering.directives import DirectiveError, split_directive
from fsdpkit.scheduling.batch_file.options import SBATCH
from fsdpkit.scheduling.batch_file.shape import (
    BatchFileError,
    Counts,
    Given,
    Option,
    RankShape,
    gres_of_gpus,
)

Fate = Literal["taken", "not needed", "no home"]
Outcome = tuple[Fate, str]


@dataclass(frozen=True)
class LineOutcome:
    """What becomes of a piece of the script. `note`: the key of what is taken, else why."""

    line: int
    text: str
    fate: Fate
    note: str


@dataclass
class Tables:
    """The job's tables as they are filled in, with what becomes of each option."""

    resources: dict[str, Any]
    environment: dict[str, Any]
    options: dict[str, bool | str] = field(default_factory=dict)
    notify: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    array: str | None = None
    findings: list[LineOutcome] = field(default_factory=list)


_OF_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
_NOT_NEEDED = {
    name: OTHERWISE[name]
    for name in "output error open-mode signal requeue get-user-env wait parsable gpu-bind "  # noqa: SIM905
    "export".split()
}
_NOT_NEEDED |= dict.fromkeys(("quiet", "verbose"), OTHERWISE["parsable"])
_NO_HOME = {
    "input": "ranks read no standard input",
    "module": "environment.modules loads modules; these are of a container",
    "volume": "the profile says what its containers see",
    "image": "a container of another engine: environment.container names one of the profile's",
}
"""Options of plugins that know an engine of containers, and one of sbatch."""
_MAIL = {"END": ["end"], "FAIL": ["failure"], "REQUEUE": ["requeue"]}
_MAIL["ALL"] = ["end", "failure", "requeue"]
_PLAIN = re.compile(r"[^\s$`<>{}\"'-][^\s$`<>{}\"']*")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def read_options(text: str) -> tuple[dict[str, Option], list[LineOutcome]]:
    """As sbatch reads them: up to the first command. Raises BatchFileError for what it refuses."""
    last: dict[str, Option] = {}
    findings, reading = [], True
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("#SBATCH"):
            reading = reading and (line.startswith("#") or not line.strip())
            continue
        if not reading:
            why = "sbatch does not read it either: it stands behind the first command"
            findings.append(LineOutcome(number, line, "not needed", why))
            continue
        try:
            split = SBATCH.split(split_directive(line.removeprefix("#SBATCH")))
        except DirectiveError as error:
            raise BatchFileError(f"line {number}: sbatch cannot read this line: {error}") from error
        if "hetjob" in split.rest or "packjob" in split.rest:
            raise BatchFileError(
                f"line {number}: a heterogeneous job; fsdpkit asks for nodes that are alike: keep "
                f"the options of one part"
            )
        for name, value, written in split.options:
            if (before := last.pop(name, None)) and name == "mail-type":  # sbatch adds them up
                value = f"{before.value},{value}"
            elif before:
                again = f"--{name} stands again in line {number}"
                findings.append(LineOutcome(before.line, before.written, "not needed", again))
            last[name] = Option(number, name, value or "", written)
        if split.rest:
            findings.append(LineOutcome(number, " ".join(split.rest), "no home", "not an option"))
    return last, findings


def fill_in(said: Mapping[str, Option], counts: Counts, shape: RankShape, given: Given) -> Tables:
    """The tables of a job, with what becomes of each option."""
    tables = Tables(
        {"nodes": shape.nodes, "gpus": shape.gpus, "time": given.time or "01:00:00"},
        {"modules": [], "variables": {}, "prepend": {}},
    )
    if given.account is not None:
        tables.resources["account"] = given.account
    flags = {"nodes": given.nodes, "time": given.time, "account": given.account}
    flags |= dict.fromkeys(_OF_GPUS, given.gpus)
    for option in said.values():
        placed: Iterator[Outcome] | list[Outcome] = _placed(option, said, counts, shape, tables)
        if flags.get(option.name) or (option.name == "account" and given.no_account):
            placed = [("not needed", "a flag says otherwise")]
        for fate, note in placed:
            tables.findings.append(LineOutcome(option.line, option.written, fate, note))
    if given.nodes is None and not {"nodes", "ntasks"} & said.keys():
        by = "sbatch" if shape.nodes == counts.nodes else "its launcher"
        note = f"resources.nodes = {shape.nodes}, as by {by}"
        tables.findings.append(LineOutcome(0, "no --nodes", "taken", note))
    if given.time is None and "time" not in said:
        text, note = (
            "no --time, so the partition's own limit",
            "resources.time is an hour: check it",
        )
        tables.findings.append(LineOutcome(0, text, "no home", note))
    return tables


def _placed(
    option: Option, said: Mapping[str, Option], counts: Counts, shape: RankShape, tables: Tables
) -> Iterator[Outcome]:
    name, value, key = option.name, option.value, KEYS.get(option.name, "")
    if name in _OF_GPUS:
        yield from _gpus(name, value, shape)
    elif name == "nodes":
        yield "taken", f"resources.nodes = {shape.nodes}"
    elif "tasks" in name:
        yield "not needed", "fsdpkit starts the ranks of a node from one task"
    elif name in ("cpus-per-gpu", "cpus-per-task"):
        yield _cores(name, value, counts, shape, tables)
    elif name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        yield _memory(name, value, counts, shape, tables)
    elif name == "exclusive" and not value:
        tables.resources["exclusive"] = True
        yield "taken", key
    elif key.startswith("resources.") and name not in ("exclusive", "no-kill"):
        yield _as_written(name, value, tables)
    elif name == "job-name":
        yield _named(value, tables)
    elif name == "mail-user" and _PLAIN.fullmatch(value):
        tables.notify["mail"] = value
        yield "taken", key
    elif name == "mail-type":
        yield from _mailed(value, tables, said.get("mail-user"))
    elif name == "export" and value != "ALL":
        yield "no home", "set environment.variables; environment.pass hands on those of yours"
    elif name == "array" and _is_array(value):
        tables.array = value
        yield "taken", f"fsdpkit submit --array {value}"
    elif name == "container-image":
        tables.environment["container"] = value
        yield "taken", "environment.container"
    elif name in _NOT_NEEDED:
        yield "not needed", _NOT_NEEDED[name]
    elif name in _NO_HOME or name.startswith("container-"):
        yield "no home", _NO_HOME.get(name, "the profile says how its containers run")
    elif why := why_refused(name):
        if name != "chdir":  # said with the directory in which the launch stands
            yield "no home", why
    else:
        tables.options[name] = value or True
        yield "taken", f"slurm.options.{name}"


def _gpus(name: str, value: str, shape: RankShape) -> Iterator[Outcome]:
    if name != "gres" or gres_of_gpus(value) is not None:
        yield "taken", f"resources.gpus = {shape.gpus}"
    kind = re.search(r"(?:^|gpu:)([A-Za-z][\w.-]*)(?=:\d|$)", value)
    if kind is not None and kind[1] != "gpu":
        yield "no home", f"{kind[1]}: the profile's partition decides the type of the GPUs"
    if name == "gres" and (others := [i for i in value.split(",") if "gpu" not in i]):
        yield "no home", f"{','.join(others)}: what else a partition needs is in the profile"


def _cores(name: str, value: str, counts: Counts, shape: RankShape, tables: Tables) -> Outcome:
    cores = (counts.cpus_per_task or 1) * (counts.tasks or 1)
    if name == "cpus-per-gpu":
        if not value.isdecimal():
            return "no home", "not a number: set resources.cpus_per_gpu"
        cores = int(value) * shape.gpus
    if cores % shape.gpus:
        return "no home", f"{cores} cores by {shape.gpus} GPUs: set resources.cpus_per_gpu"
    tables.resources["cpus_per_gpu"] = cores // shape.gpus
    return "taken", f"resources.cpus_per_gpu = {cores // shape.gpus}"


def _memory(name: str, value: str, counts: Counts, shape: RankShape, tables: Tables) -> Outcome:
    times = shape.gpus if name == "mem-per-gpu" else 1
    if name == "mem-per-cpu":
        times = (counts.cpus_per_task or 1) * (counts.tasks or 1)
    try:
        megabytes = parse_memory_mb(value)
    except ValueError:
        return "no home", "resources.memory is a size by node"
    tables.resources["memory"] = said = value if times == 1 else f"{megabytes * times}M"
    return "taken", f"resources.memory = {said}"


def _as_written(name: str, value: str, tables: Tables) -> Outcome:
    """What has a key of the same name, if that takes the value."""
    if not _PLAIN.fullmatch(value):
        return "no home", f"nothing is expanded in an #SBATCH line: set resources.{name}"
    try:
        msgspec.convert({"nodes": 1, "gpus": 1, "time": "1", name: value}, Resources)
    except msgspec.ValidationError as error:
        return "no home", f"{error}: set resources.{name}"
    tables.resources[name] = value
    return "taken", f"resources.{name}"


def _is_array(value: str) -> bool:
    try:
        return bool(parse_array(value)[0])
    except UsageError:
        return False


def _named(value: str, tables: Tables) -> Outcome:
    if not _JOB_NAME.fullmatch(value):
        return "no home", "a name has letters, digits and . _ + - only, 64 at most"
    tables.name = value
    return "taken", "name"


def _mailed(value: str, tables: Tables, user: Option | None) -> Iterator[Outcome]:
    kinds = [kind.strip().upper() for kind in value.split(",")]
    if events := [event for kind in kinds for event in _MAIL.get(kind, [])]:
        if user is not None and _PLAIN.fullmatch(user.value):
            tables.notify["on"] = list(dict.fromkeys(events))
            yield "taken", "notify.on"
        else:
            yield "no home", "notify.mail says to whom"
    if others := [kind for kind in kinds if kind not in _MAIL]:
        yield "no home", f"{','.join(others)}: notify.on knows end, failure and requeue"
