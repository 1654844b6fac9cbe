"""How many nodes, tasks and GPUs a batch script asks for, and how many ranks it starts on each.

A count that two options say differently is never chosen between: BatchFileError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsdpkit.errors import ConfigError
from fsdpkit.scheduling.batch_file.launch import StartedProgram


class BatchFileError(ConfigError):
    """A batch script that cannot become a job as it stands, and what to do."""


@dataclass(frozen=True)
class Option:
    """One option of an `#SBATCH` line. A flag has no value."""

    line: int
    name: str
    value: str
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
    local: str | None = None
    """`storage.local` of the profile, empty if it names none; None: nothing is to be copied."""


@dataclass(frozen=True)
class Counts:
    """What is known of the shape of an allocation; None: the script does not say."""

    nodes: int | None
    tasks: int | None
    """On each node."""
    gpus: int | None
    """On each node."""
    cpus_per_task: int | None
    total_tasks: int | None
    nodes_said: bool
    """Whether the number of nodes is not only what sbatch takes where nothing is said."""


@dataclass(frozen=True)
class RankShape:
    """What is asked for, and how many ranks are started on each node."""

    nodes: int
    gpus: int
    ranks: int
    note: str = ""


def counts_of(said: Mapping[str, Option], given: Given) -> Counts:
    """What the options say of nodes, tasks and GPUs. Raises BatchFileError."""
    total = _number(said.get("ntasks"))
    tasks = _number(said.get("ntasks-per-node") or said.get("tasks-per-node"))
    nodes = given.nodes or _nodes(said.get("nodes"))
    nodes_said = nodes is not None or total is not None
    if nodes is None and total is None:
        nodes = 1
    elif nodes is None and total is not None and (tasks or total == 1):
        nodes = -(-total // (tasks or 1))
    tasks = tasks or _share(total, nodes)
    gpus = _gpus(said, nodes, tasks)
    if tasks is None and total is None:  # Slurm divides the GPUs by those of a task
        by_task = _count(of_task, of_task.value) if (of_task := said.get("gpus-per-task")) else None
        tasks, gpus = _share(gpus, by_task) or 1, gpus or by_task
    if (by_gpu := _number(said.get("ntasks-per-gpu"))) and gpus and tasks in (None, 1):
        tasks = by_gpu * gpus
    cpus = _number(said.get("cpus-per-task"))
    return Counts(nodes, tasks, given.gpus or gpus, cpus, total, nodes_said)


def _share(total: int | None, nodes: int | None) -> int | None:
    return total // nodes if total and nodes and not total % nodes else None


def _number(option: Option | None) -> int | None:
    if option is None:
        return None
    if (number := _whole(option.value)) is None:
        raise BatchFileError(f"line {option.line}: {option.written}: not a number")
    return number


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"0*[1-9][0-9]{0,5}", text) else None


def _nodes(option: Option | None) -> int | None:
    if option is not None and _whole(option.value) is None:
        raise BatchFileError(
            f"line {option.line}: {option.written}: a job has a fixed number of nodes; say which "
            f"with --nodes"
        )
    return _number(option)


def _gpus(said: Mapping[str, Option], nodes: int | None, tasks: int | None) -> int | None:
    """GPUs on each node."""
    found: dict[str, int] = {}
    if option := said.get("gpus-per-node"):
        found[option.written] = _count(option, option.value)
    if (option := said.get("gres")) and (of_gpu := gres_of_gpus(option.value)) is not None:
        found[option.written] = _count(option, of_gpu)
    if (option := said.get("gpus-per-task")) and tasks:
        found[option.written] = _count(option, option.value) * tasks
    if (option := said.get("gpus")) and not found and nodes:
        share = _share(_count(option, option.value), nodes)
        if share is None:
            raise BatchFileError(
                f"line {option.line}: {option.written} on {nodes} nodes: not the same number on "
                f"each; say how many with --gpus"
            )
        found[option.written] = share
    if len({*found.values()}) > 1:
        raise BatchFileError(
            f"{' and '.join(found)} say different numbers of GPUs; say how many with --gpus"
        )
    return next(iter(found.values()), None)


def gres_of_gpus(value: str) -> str | None:
    """What stands behind `gpu` in the value of --gres; None: it asks for none."""
    asked = [item for item in value.split(",") if re.match(r"(gres[:/])?gpu\b", item)]
    return re.sub(r"^(gres[:/])?gpu:?|\(.*\)$", "", ",".join(asked)) if asked else None


def _count(option: Option, text: str) -> int:
    """Of `4`, `a100:4`, `a100` or nothing."""
    found = re.fullmatch(r"(?:[A-Za-z][^,:]*(?::|$))?([1-9][0-9]{0,2})?", text)
    if found is None:
        raise BatchFileError(f"line {option.line}: {option.written}: say how many with --gpus")
    return int(found[1] or 1)


def slurm_variables(said: Mapping[str, Option], counts: Counts) -> dict[str, str]:
    """Slurm's variables that follow from the options."""
    nodes, tasks, gpus = counts.nodes, counts.tasks, counts.gpus
    total = counts.total_tasks or (nodes * tasks if nodes and tasks else None)
    known: dict[str, Any] = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        "SLURM_NTASKS_PER_NODE": tasks,
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), total),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), gpus),
        "SLURM_GPUS": gpus * nodes if gpus and nodes else None,
        "SLURM_CPUS_PER_TASK": counts.cpus_per_task,
    }
    for variable, name in (
        ("SLURM_JOB_NAME", "job-name"),
        ("SLURM_JOB_ACCOUNT", "account"),
        ("SLURM_JOB_PARTITION", "partition"),
        ("SLURM_CPUS_PER_GPU", "cpus-per-gpu"),
    ):
        known[variable] = said[name].value if name in said else None
    return {name: str(value) for name, value in known.items() if value}


def shape_of(counts: Counts, launch: StartedProgram, given: Given) -> RankShape:
    """The job's shape, by the options and by what is started. Raises BatchFileError."""
    told = _whole(launch.nodes)
    nodes = counts.nodes if counts.nodes_said else told or counts.nodes
    nodes = nodes or told
    if nodes is None:
        raise BatchFileError("how many nodes it takes is not said; say it with --nodes")
    on = total = None
    if launch.srun is not None:
        total = _whole(launch.srun.last("ntasks"))
        on = _whole(launch.srun.last("nodes")) or (min(total, nodes) if total else None)
    for number in (on, told):
        if number not in (None, nodes) and given.nodes is None:
            raise BatchFileError(
                f"it asks for {nodes} nodes and starts the program for {number}; fsdpkit starts it "
                f"on all of them: say how many with --nodes"
            )
    tasks, gpus = counts.tasks or _share(counts.total_tasks, nodes), counts.gpus
    if (srun := launch.srun) is not None and launch.launcher == "srun":
        tasks = _whole(srun.last("ntasks-per-node")) or _share(total, on or nodes) or tasks
    ranks, note = _ranks(launch, nodes, tasks), ""
    if gpus is None:
        gpus, note = ranks or 1, "the script asks Slurm for no GPUs: one is asked for by rank"
    if ranks is None:
        ranks, note = gpus, "how many ranks is counted on the node: one on each GPU"
    if given.gpus is not None:
        return RankShape(nodes, given.gpus, given.gpus)
    if ranks > gpus or gpus % ranks:
        raise BatchFileError(
            f"it starts {ranks} ranks on each node, which has {gpus} GPUs in the job; fsdpkit "
            f"starts a rank on each GPU: say how many with --gpus"
        )
    return RankShape(nodes, gpus, ranks, note)


def _ranks(launch: StartedProgram, nodes: int, tasks: int | None) -> int | None:
    """On each node; None: counted on the node."""
    if not launch.launcher:
        return 1
    if launch.launcher == "srun":
        return tasks or 1
    number = _whole(launch.processes)
    if number is None or not launch.total:
        return number
    if number % nodes:
        raise BatchFileError(f"{number} processes on {nodes} nodes: not the same number on each")
    return number // nodes
