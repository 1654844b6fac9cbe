"""What a submission refuses of a job, or has to say of it, before anything is made.

Its settings, its files, the environment that it takes along, and what its GPUs can hold by the plan
that `fsdpkit plan` remembered of it (planning/remembered.py).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fsdpkit.config.array_tasks import check_own
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.profile import NodeType
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.surroundings import stood_in
from fsdpkit.config.trainers import OWN
from fsdpkit.config.units import parse_array
from fsdpkit.errors import ConfigError, FsdpkitError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.predicted import Predicted
from fsdpkit.scheduling.entry import python_of
from fsdpkit.scheduling.room import check_needed, room_for
from fsdpkit.scheduling.run_dir import what_to_know_of

if TYPE_CHECKING:
    from fsdpkit.planning.remembered import Remembered


_GIB = 2**30


def check_environment(job: LoadedJob, site: LoadedSite) -> None:
    """What the shell and its Python must have. Raises ConfigError."""
    _check_passed(job)
    _check_torch(job, site)


def what_is_handed_on(job: LoadedJob, conf: Mapping[str, str]) -> list[str]:
    """Limits of this shell that would end the job's processes, where Slurm hands them on. conf: the
    cluster's settings, as far as they are known (slurm.conf, PropagateResourceLimits)."""
    import resource  # only Unix has it

    handed = conf.get("PropagateResourceLimits") or "ALL"
    kept = conf.get("PropagateResourceLimitsExcept", "").split(",")
    if "propagate" in job.spec.slurm.directives:
        return []
    told = []
    for name, what, option, limit in (
        ("CPU", "seconds of CPU time", "-t", resource.RLIMIT_CPU),
        ("AS", "bytes of address space", "-v", resource.RLIMIT_AS),
    ):
        soft = resource.getrlimit(limit)[0]
        hands_on = name not in kept and (handed == "ALL" or name in handed.split(","))
        if soft != resource.RLIM_INFINITY and hands_on:
            told.append(
                f"this shell allows a process {soft} {what}, and Slurm hands that on to the ranks: "
                f"ulimit -S {option} unlimited before you submit, or --sbatch-option propagate=NONE"
            )
    return told


def look_at_files(job: LoadedJob, runs: Path, work_dir: Path, *, elsewhere: bool) -> list[str]:
    """What to know of the files that the job reads and writes. Raises ConfigError."""
    room = room_for(job, runs, training_of(job, work_dir))
    return [
        *what_to_know_of(runs),
        *([room.note] if room.note else []),
        *check_needed(job, work_dir, elsewhere=elsewhere),
    ]


def check_settings(job: LoadedJob, node: NodeType, work_dir: Path) -> None:
    """What `fit` refuses of a job's settings, for one of many that differ in nothing else, on nodes
    that are chosen already. Raises ConfigError."""
    check_training(job, work_dir)
    check_on(job, node, work_dir)
    check_planned(job, node, work_dir)
    if stood_in() is None:
        check_start(job, work_dir)


def check_training(job: LoadedJob, work_dir: Path) -> None:
    """Raises ConfigError for trainer's settings that contradict one another or their files."""
    training, resources = job.spec.training, job.spec.resources
    if training is msgspec.UNSET:
        return
    wrong = job.trainer.problems(training, resources.ranks, resources.gpus)
    if not wrong and stood_in() is None:
        wrong = job.trainer.file_problems(training, resources.ranks, work_dir)
    if wrong:
        raise ConfigError("\n".join(f"job {job.spec.name}: {text}" for text in wrong))


def check_on(job: LoadedJob, node: NodeType, work_dir: Path) -> list[str]:
    """What to know of the settings on such nodes. Raises ConfigError for what those cannot do."""
    training, resources = training_of(job, work_dir), job.spec.resources
    if training is None:
        return []
    files = stood_in() is None
    verdict = job.trainer.on_gpus(training, resources.ranks, resources.gpus, node, files=files)
    if verdict.problem:
        raise ConfigError(f"job {job.spec.name}: {verdict.problem}")
    return [*verdict.notes]


def check_array(job: LoadedJob, array: str | None, *, chosen: bool = False) -> None:
    """Raises UsageError for arguments that stand for an array task where there is none, unless
    `array` is some `chosen` ones of an array's tasks."""
    given = {"args": job.spec.args, "retry.args_again": job.spec.retry.args_again}
    stands = [key for key, words in given.items() if any("{array_task}" in w for w in words)]
    if array is None and stands:
        raise UsageError(
            f"job {job.spec.name}: {stands[0]}: {{array_task}} stands for the index of an array "
            f"task, but this is not an array: add --array, such as --array 0-15"
        )
    tasks = set() if array is None else {*parse_array(array)[0]}
    for key in ("array_args", "array_settings"):
        if not chosen and (stray := sorted(getattr(job, key).keys() - tasks)):
            raise UsageError(
                f"job {job.spec.name}: {key}.{stray[0]}: the array has no task {stray[0]}: "
                f"{array or 'add --array, such as --array 0-15'}"
            )
    check_own(job)


def check_start(job: LoadedJob, work_dir: Path) -> None:
    """Raise for a start of training that is nothing to begin from."""
    if job.spec.training is not msgspec.UNSET:
        job.trainer.check_start(job.spec.training, work_dir)


def _check_passed(job: LoadedJob) -> None:
    """sbatch hands its environment on, so it must be set here. Raises ConfigError."""
    missing = [name for name in job.spec.environment.passed if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"job {job.spec.name}: environment.pass: {', '.join(missing)}: not set here, so "
            f"there is nothing to pass on; export it before you submit"
        )


def _check_torch(job: LoadedJob, site: LoadedSite) -> None:
    """Refuse an environment without a torch that nodes would take, if the job uses this one. Raises
    ConfigError."""
    from fsdpkit.launching.torch_release import problem_here

    if python_of(job, site) != Path(sys.executable):
        return
    own = job.spec.environment
    variables = {**site.profile.environment.variables, **own.variables, **own.prepend}
    if "PYTHONPATH" not in variables and (problem := problem_here()):
        raise ConfigError(f"job {job.spec.name}: {problem}")


def training_of(job: LoadedJob, work_dir: Path) -> Any:
    """The trainer's settings with whole paths of what describes the model; None without any."""
    training = job.spec.training
    return None if training is msgspec.UNSET else job.trainer.in_place(training, work_dir)


def least_gpu_bytes(job: LoadedJob, node: NodeType, work_dir: Path) -> int | None:
    """Memory that each GPU needs whatever else it holds; None where nobody knows it."""
    training, resources = training_of(job, work_dir), job.spec.resources
    if training is None:
        return None
    files = stood_in() is None
    return job.trainer.least_gpu_bytes(training, resources.ranks, resources.gpus, node, files=files)


def check_planned(job: LoadedJob, node: NodeType, work_dir: Path) -> str | None:
    """What to know of the plan that `fsdpkit plan` made of this very job on such GPUs; None if it
    fits, or none was made. Raises ConfigError for a job that by its plan does not fit."""
    from fsdpkit.planning.remembered import NARROW

    found = _recalled(job, node, work_dir)
    if found is None or (found.fit == "fits" and found.total < NARROW * found.usable):
        return None
    day = time.strftime("%Y-%m-%d", time.localtime(found.made_s))
    sizes = f"{found.total / _GIB:.1f} GiB of {found.usable / _GIB:.1f} GiB on {found.card}"
    if does_not_fit(job, node, work_dir):
        would = " ".join(f"--set {each}" for each in found.would_fit)
        raise ConfigError(
            f"job {job.spec.name} does not fit its GPUs according to the plan of {day} (fsdpkit "
            f"plan, computed): {sizes}.\n"
            + (f"What would fit: {would}. " if would else "")
            + "To submit it anyway: --no-plan"
        )
    return f"barely fits its GPUs according to the plan of {day} (fsdpkit plan, computed): {sizes}"


def does_not_fit(job: LoadedJob, node: NodeType, work_dir: Path) -> Remembered | None:
    """The plan by which a submission of this very job would be refused, if there is one."""
    training, found = training_of(job, work_dir), _recalled(job, node, work_dir)
    if found is None or training is None or training.micro_batch == "auto":
        return None
    return found if found.fit == "does not fit" else None


def _recalled(job: LoadedJob, node: NodeType, work_dir: Path) -> Remembered | None:
    training = training_of(job, work_dir)
    name = _name_of_plan(job, node, training) if training is not None else None
    if name is None or stood_in() is not None:
        return None
    from fsdpkit.planning.remembered import recall

    return recall(name)


def _name_of_plan(job: LoadedJob, node: NodeType, training: Any) -> str | None:
    """By which a plan of this very job on such GPUs is remembered; None: nobody makes one."""
    if node.gpu_memory_gb is None or job.spec.trainer_name != OWN:
        return None
    from fsdpkit.planning.cards import card_of
    from fsdpkit.planning.remembered import name_of

    resources, args = job.spec.resources, job.spec.args if training is None else None
    card = card_of(node, "")
    return name_of(training, resources.nodes, resources.gpus, card, job.entry.path, args)


def prediction_of(plan: Plan, training: Any, before: Predicted | None = None) -> Predicted | None:
    """The newest plan of the job, for its run to keep, or `before`, the run's own, if that was of
    the same job; None without any. training: what the trainer reads; None for a script with
    arguments alone."""
    try:
        name = _name_of_plan(plan.job, plan.placement.node_type, training)
    except (FsdpkitError, OSError):
        return None  # a model that is read from a file which is not there: the job itself says so
    if name is None:
        return None
    from fsdpkit.planning.remembered import recall

    found = recall(name)
    if found is not None and found.predicted is not None and found.predicted.name == name:
        return found.predicted
    return before if before is not None and before.name == name else None
