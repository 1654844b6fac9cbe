"""The `#SBATCH` lines of a batch script, as keys of a job.

What has a key is taken, what fsdpkit decides itself is not needed, what has neither is said to have
no home. A count that two lines say differently is never chosen between: BatchFileError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsdpkit.config.sbatch_spellings import OTHERWISE
from fsdpkit.config.slurm_options import why_refused
from fsdpkit.config.units import parse_array, parse_memory_mb, parse_time_s
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.rendering.directives import DirectiveError, split_directive
from fsdpkit.scheduling.batch_file.launch import StartedProgram
from fsdpkit.scheduling.batch_file.options import SBATCH

Fate = Literal["taken", "not needed", "no home"]


class BatchFileError(ConfigError):
    """A batch script that cannot become a job as it stands, and what to do."""


@dataclass(frozen=True)
class LineOutcome:
    """What becomes of a piece of the script. `note`: the key of what is taken, else why."""

    line: int
    text: str
    fate: Fate
    note: str


@dataclass(frozen=True)
class Option:
    """One option of an `#SBATCH` line. A flag has no value."""

    line: int
    name: str
    value: str | None
    written: str


@dataclass(frozen=True)
class Given:
    """What flags say in place of the script."""

    nodes: int | None = None
    gpus: int | None = None
    time: str | None = None
    account: str | None = None
    no_account: bool = False
    script: bool = False
    """A script is named."""


@dataclass(frozen=True)
class Counts:
    """What is known of the shape of an allocation; None: the script does not say."""

    nodes: int | None = None
    tasks: int | None = None
    """On each node."""
    gpus: int | None = None
    """On each node."""
    cpus_per_task: int | None = None
    total_tasks: int | None = None


@dataclass
class Tables:
    """The job's tables as they are filled in, with what becomes of each option."""

    resources: dict[str, Any] = field(default_factory=dict)
    options: dict[str, bool | str] = field(default_factory=dict)
    notify: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    container: str | None = None
    array: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    findings: list[LineOutcome] = field(default_factory=list)


_AS_WRITTEN = frozenset(
    "account partition qos constraint reservation nodelist exclude time".split()  # noqa: SIM905
)
"""Whose value is that of the key of `resources` with the same name."""
_COUNTED = frozenset(
    "nodes ntasks ntasks-per-node gpus gpus-per-node gpus-per-task gres ntasks-per-gpu "  # noqa: SIM905
    "tasks-per-node cpus-per-gpu cpus-per-task mem mem-per-cpu mem-per-gpu".split()
)
OF_ALLOCATION = _AS_WRITTEN | _COUNTED | {"job-name"}
"""What says which nodes a job gets, and what of them."""
_OF_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
_NOT_NEEDED = frozenset(
    "output error open-mode signal requeue get-user-env wait parsable gpu-bind "  # noqa: SIM905
    "ntasks-per-socket ntasks-per-core".split()
)
"""What fsdpkit does itself."""
_NO_HOME = {
    "input": "ranks read no standard input",
    "module": "environment.modules loads modules; these are of a container",
    "volume": "the profile says what its containers see",
    "image": "a container of another engine: environment.container names one of the profile's",
}
"""Options of plugins that know an engine of containers, and one of sbatch."""
_PLAIN = re.compile(r"[^\s$`<>{}\"']+")
_MAIL = {"END": ["end"], "FAIL": ["failure"], "REQUEUE": ["requeue"]}
_MAIL["ALL"] = ["end", "failure", "requeue"]
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def read_options(text: str) -> tuple[list[Option], list[LineOutcome]]:
    """As sbatch reads them: up to the first command. Raises BatchFileError for what it refuses."""
    options, findings, reading = [], [], True
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
                f"line {number}: a heterogeneous job; fsdpkit asks for nodes that are alike"
            )
        for name, value, written in split.options:
            options.append(Option(number, name, value, written))
        if split.rest:
            findings.append(LineOutcome(number, " ".join(split.rest), "no home", "not an option"))
    last = {option.name: option for option in options}
    for option in options:
        if last[option.name] is not option:
            again = f"--{option.name} stands again in line {last[option.name].line}"
            findings.append(LineOutcome(option.line, option.written, "not needed", again))
    return list(last.values()), findings


def counts_of(options: list[Option], given: Given) -> Counts:
    """What the options say of nodes, tasks and GPUs. Raises BatchFileError."""
    said = {option.name: option for option in options}
    tasks = _number(said.get("ntasks"))
    each = _number(said.get("ntasks-per-node") or said.get("tasks-per-node"))
    nodes = given.nodes or _nodes(said.get("nodes"))
    if nodes is None and tasks is not None and (each or tasks == 1):
        nodes = -(-tasks // (each or 1))
    if nodes is None and tasks is None and "nodes" not in said:
        nodes = 1
    if each is None and nodes and tasks is not None and not tasks % nodes:
        each = tasks // nodes
    if each is None and tasks is None:
        each = 1
    gpus = _gpus(said, nodes, each)
    if (by_gpu := _number(said.get("ntasks-per-gpu"))) and gpus and each in (None, 1):
        each = by_gpu * gpus
    cpus = _number(said.get("cpus-per-task"))
    return Counts(nodes, each, given.gpus or gpus, cpus, tasks)


def _number(option: Option | None) -> int | None:
    if option is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", option.value or "") or not int(option.value or ""):
        raise BatchFileError(f"line {option.line}: {option.written}: not a number")
    return int(option.value or "")


def _nodes(option: Option | None) -> int | None:
    if option is None:
        return None
    low, dash, high = (option.value or "").partition("-")
    if dash and low != high:
        raise BatchFileError(
            f"line {option.line}: {option.written}: a job has a fixed number of nodes; say which "
            f"with --nodes"
        )
    return _number(replace(option, value=low))


def _gpus(said: Mapping[str, Option], nodes: int | None, tasks: int | None) -> int | None:
    """GPUs on each node."""
    found: dict[str, int] = {}
    if option := said.get("gpus-per-node"):
        found[option.written] = _count(option, option.value or "")
    if (option := said.get("gres")) and (of_gpu := _gres_of_gpus(option.value or "")):
        found[option.written] = _count(option, of_gpu)
    if (option := said.get("gpus-per-task")) and tasks:
        found[option.written] = _count(option, option.value or "") * tasks
    if (option := said.get("gpus")) and not found:
        total = _count(option, option.value or "")
        if nodes is None:
            return None
        if total % nodes:
            raise BatchFileError(
                f"line {option.line}: {option.written} on {nodes} nodes: not the same number on "
                f"each; say how many with --gpus"
            )
        found[option.written] = total // nodes
    if len({*found.values()}) > 1:
        raise BatchFileError(
            f"{' and '.join(found)} say different numbers of GPUs; say how many with --gpus"
        )
    return next(iter(found.values()), None)


def _gres_of_gpus(value: str) -> str | None:
    """What behind `gpu` says how many; of several kinds, nothing that can be counted."""
    kinds = [item for item in value.split(",") if re.match(r"(gres[:/])?gpu\b", item)]
    if not kinds:
        return None
    counted = re.sub(r"\(.*\)$", "", kinds[0])
    return ",".join([re.sub(r"^(gres[:/])?gpu:?", "", counted) or "1", *kinds[1:]])


def _count(option: Option, text: str) -> int:
    """Of `4`, `a100:4` or `a100`."""
    kind, colon, count = text.rpartition(":")
    if not colon and not count.isdigit():
        count = "1"
    if not re.fullmatch(r"[0-9]{1,3}", count) or not int(count) or "," in kind or "," in count:
        raise BatchFileError(f"line {option.line}: {option.written}: say how many with --gpus")
    return int(count)


def slurm_variables(options: list[Option], counts: Counts) -> dict[str, str]:
    """Slurm's variables that follow from the options."""
    said = {option.name: option.value or "" for option in options}
    known: dict[str, Any] = {
        "SLURM_NNODES": counts.nodes,
        "SLURM_JOB_NUM_NODES": counts.nodes,
        "SLURM_NTASKS_PER_NODE": counts.tasks,
        "SLURM_GPUS_ON_NODE": counts.gpus,
        "SLURM_GPUS_PER_NODE": counts.gpus,
        "SLURM_CPUS_PER_TASK": counts.cpus_per_task,
        "SLURM_JOB_NAME": said.get("job-name"),
        "SLURM_JOB_ACCOUNT": said.get("account"),
        "SLURM_JOB_PARTITION": said.get("partition"),
        "SLURM_CPUS_PER_GPU": said.get("cpus-per-gpu"),
    }
    total = counts.total_tasks
    if total is None and counts.nodes and counts.tasks:
        total = counts.nodes * counts.tasks
    known["SLURM_NTASKS"] = known["SLURM_NPROCS"] = total
    if counts.gpus and counts.nodes:
        known["SLURM_GPUS"] = counts.gpus * counts.nodes
    return {name: str(value) for name, value in known.items() if value}


@dataclass(frozen=True)
class RankShape:
    """What is asked for, and how many ranks are started on each node."""

    nodes: int
    gpus: int
    ranks: int
    note: str = ""


def shape_of(counts: Counts, launch: StartedProgram, given: Given) -> RankShape:
    """The job's shape, by the options and by what is started. Raises BatchFileError."""
    nodes = counts.nodes or _whole(launch.nodes)
    srun = launch.srun
    if nodes is None:
        raise BatchFileError("how many nodes it takes is not said; say it with --nodes")
    tasks = counts.tasks or (
        counts.total_tasks // nodes
        if counts.total_tasks and not counts.total_tasks % nodes
        else None
    )
    gpus = counts.gpus
    if srun is not None and launch.launcher == "srun":
        each, total = _whole(srun.last("ntasks-per-node")), _whole(srun.last("ntasks"))
        on = _whole(srun.last("nodes")) or nodes
        tasks = each or (total // on if total and not total % on else tasks)
    if srun is not None and gpus is None:
        gpus = _gpus_of_step(launch, nodes, tasks)
    ranks, counted = _ranks(launch, nodes, tasks, gpus), ""
    if gpus is None:
        gpus, counted = ranks or 1, "the script asks Slurm for no GPUs: one is asked for by rank"
    if ranks is None:
        ranks, counted = gpus, "how many ranks is counted on the node: one on each GPU"
    if given.gpus is not None:
        return RankShape(nodes, given.gpus, given.gpus)
    if ranks > gpus or gpus % ranks:
        raise BatchFileError(
            f"it starts {ranks} ranks on each node, which has {gpus} GPUs in the job; fsdpkit "
            f"starts a rank on each GPU: say how many with --gpus"
        )
    return RankShape(nodes, gpus, ranks, counted)


def _gpus_of_step(launch: StartedProgram, nodes: int, tasks: int | None) -> int | None:
    assert launch.srun is not None
    options = [Option(0, name, value, said) for name, value, said in launch.srun.options]
    try:
        return _gpus({option.name: option for option in options}, nodes, tasks)
    except BatchFileError:
        return None


def _ranks(launch: StartedProgram, nodes: int, tasks: int | None, gpus: int | None) -> int | None:
    """On each node; None: counted on the node."""
    if launch.launcher in ("", "srun"):
        return (tasks or 1) if launch.launcher else 1
    if launch.processes is None:
        return tasks or 1 if launch.launcher == "mpirun" else None
    number = _whole(launch.processes)
    if number is None or not launch.total:
        return number
    if number % nodes:
        raise BatchFileError(f"{number} processes on {nodes} nodes: not the same number on each")
    return number // nodes


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[1-9][0-9]{0,5}", text) else None


def fill_in(options: list[Option], counts: Counts, shape: RankShape, given: Given) -> Tables:
    """The tables of a job, with what becomes of each option."""
    tables = Tables(resources={"nodes": shape.nodes, "gpus": shape.gpus})
    tables.resources["time"] = given.time or "01:00:00"
    if given.account is not None:
        tables.resources["account"] = given.account
    for option in options:
        for fate, note in _placed(option, counts, shape, given, tables):
            tables.findings.append(LineOutcome(option.line, option.written, fate, note))
    names = {option.name for option in options}
    if given.nodes is None and not names & {"nodes", "ntasks"}:
        note = f"resources.nodes = {shape.nodes}, as by sbatch"
        tables.findings.append(LineOutcome(0, "no --nodes", "taken", note))
    if given.time is None and "time" not in names:
        text = "no --time, so the partition's own limit"
        tables.findings.append(
            LineOutcome(0, text, "no home", "resources.time is an hour: check it")
        )
    return tables


def _placed(
    option: Option, counts: Counts, shape: RankShape, given: Given, tables: Tables
) -> Iterator[tuple[Fate, str]]:
    name, value = option.name, option.value or ""
    flags = {"nodes": given.nodes, "time": given.time, "account": given.account}
    flags |= dict.fromkeys(_OF_GPUS, given.gpus)
    if flags.get(name) is not None or (name == "account" and given.no_account):
        yield "not needed", "a flag says otherwise"
    elif name in _COUNTED:
        yield from _counted(option, counts, shape, given, tables)
    elif name in _AS_WRITTEN:
        if not _PLAIN.fullmatch(value):
            yield "no home", "nothing is expanded in an #SBATCH line: set resources." + name
        elif name in ("nodelist", "exclude") and "/" in value:
            yield "no home", f"a file of node names: list them in resources.{name}"
        elif name == "time" and not _reads(parse_time_s, value):
            yield "no home", "not a time limit: set resources.time"
        else:
            tables.resources[name] = value
            yield "taken", f"resources.{name}"
    elif name == "exclusive" and not value:
        tables.resources["exclusive"] = True
        yield "taken", "resources.exclusive"
    elif name == "job-name":
        yield from _named(value, tables)
    elif name == "mail-user" and _PLAIN.fullmatch(value) and not value.startswith("-"):
        tables.notify["mail"] = value
        yield "taken", "notify.mail"
    elif name == "mail-type":
        yield from _mailed(value, tables)
    elif name == "export":
        yield from _exported(value, tables)
    elif name == "array" and _reads(parse_array, value):
        tables.array = value
        yield "taken", f"fsdpkit submit --array {value}"
    elif name == "container-image":
        tables.container = value
        yield "taken", "environment.container"
    elif name in _NOT_NEEDED:
        yield "not needed", OTHERWISE[name]
    elif name in ("quiet", "verbose"):
        yield "not needed", OTHERWISE["parsable"]
    elif name in _NO_HOME or name.startswith("container-"):
        yield "no home", _NO_HOME.get(name, "the profile says how its containers run")
    elif name != "chdir":
        yield from _handed_on(name, value, tables)


def _handed_on(name: str, value: str, tables: Tables) -> Iterator[tuple[Fate, str]]:
    """An option that no key stands for, or whose value its key does not take."""
    if why := why_refused(name):
        yield "no home", why
        return
    tables.options[name] = value or True
    yield "taken", f"slurm.options.{name}"


def _counted(
    option: Option, counts: Counts, shape: RankShape, given: Given, tables: Tables
) -> Iterator[tuple[Fate, str]]:
    name, value = option.name, option.value or ""
    if name in _OF_GPUS:
        if name != "gres" or _gres_of_gpus(value):
            yield "taken", f"resources.gpus = {shape.gpus}"
        kind = re.search(r"(?:^|gpu:)([A-Za-z][\w.-]*)(?=:\d|$)", value)
        if kind is not None and kind[1] != "gpu":
            yield "no home", f"{kind[1]}: the profile's partition decides the type of the GPUs"
        if name == "gres" and (others := [i for i in value.split(",") if "gpu" not in i]):
            yield "no home", f"{','.join(others)}: what else a partition needs is in the profile"
    elif name == "nodes":
        yield "taken", f"resources.nodes = {shape.nodes}"
    elif name.startswith(("ntasks", "tasks")):
        yield "not needed", "fsdpkit starts the ranks of a node from one task"
    elif name == "cpus-per-gpu":
        cpus = _number(option)
        tables.resources["cpus_per_gpu"] = cpus
        yield "taken", f"resources.cpus_per_gpu = {cpus}"
    elif name == "cpus-per-task":
        total = (counts.cpus_per_task or 1) * (counts.tasks or 1)
        if total % shape.gpus:
            yield "no home", f"{total} cores by {shape.gpus} GPUs: set resources.cpus_per_gpu"
            return
        tables.resources["cpus_per_gpu"] = total // shape.gpus
        yield "taken", f"resources.cpus_per_gpu = {total // shape.gpus}"
    else:
        yield from _memory(name, value, counts, shape, tables)


def _memory(
    name: str, value: str, counts: Counts, shape: RankShape, tables: Tables
) -> Iterator[tuple[Fate, str]]:
    times = 1
    if name == "mem-per-gpu":
        times = shape.gpus
    elif name == "mem-per-cpu":
        times = (counts.cpus_per_task or 1) * (counts.tasks or 1)
    if not _reads(parse_memory_mb, value):
        every = ": all of a node is what resources.exclusive gives" if value == "0" else ""
        yield "no home", f"resources.memory is a size by node{every}"
        return
    said = value if times == 1 else f"{parse_memory_mb(value) * times}M"
    tables.resources["memory"] = said
    yield "taken", f"resources.memory = {said}"


def _reads(read: Any, value: str) -> bool:
    try:
        read(value)
    except (ValueError, UsageError):
        return False
    return True


def _named(value: str, tables: Tables) -> Iterator[tuple[Fate, str]]:
    if _JOB_NAME.fullmatch(value):
        tables.name = value
        yield "taken", "name"
    else:
        yield "no home", "a name has letters, digits and . _ + - only, 64 at most"


def _mailed(value: str, tables: Tables) -> Iterator[tuple[Fate, str]]:
    kinds = [kind.strip().upper() for kind in value.split(",")]
    events = [event for kind in kinds for event in _MAIL.get(kind, [])]
    if events:
        tables.notify["on"] = list(dict.fromkeys(events))
        yield "taken", "notify.on"
    if others := [kind for kind in kinds if kind not in _MAIL]:
        yield "no home", f"{','.join(others)}: notify.on knows end, failure and requeue"


def _exported(value: str, tables: Tables) -> Iterator[tuple[Fate, str]]:
    kinds = [item for item in value.split(",") if "=" not in item]
    for item in value.split(","):
        name, equals, text = item.partition("=")
        if equals:
            tables.variables[name] = text
            yield "taken", f"environment.variables.{name}"
    if "NONE" in kinds or "NIL" in kinds:
        yield "no home", "a job has the environment that it is submitted from"
    elif others := [kind for kind in kinds if kind not in ("ALL", "")]:
        yield "no home", f"{','.join(others)}: environment.pass names variables to be passed on"
    else:
        yield "not needed", "the environment is in [environment]"
