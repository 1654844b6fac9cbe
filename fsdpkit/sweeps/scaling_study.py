"""A scaling study on a cluster: one run a number of nodes, all submitted at once.

A study is the runs that bear its name: `mine-weak-4` is its run of four nodes with the same batch
per rank. There is no other record, so sizes are added by submitting more of them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fsdpkit.config.job_loading import load_job
from fsdpkit.config.trust import Consent
from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.reporting.series import read_metrics
from fsdpkit.runs.predicted import predicted_of
from fsdpkit.runs.store import all_runs, runs_dir
from fsdpkit.scheduling.job_checks import prediction_of, training_of
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.submission import SubmitRequest, plan, submit_plan
from fsdpkit.sweeps.scaling import MODES, MeasuredSize, Mode, RunSpeed, Size, compared, speed_of

Plans = Mapping[tuple[Mode, int], Plan]
"""By mode and number of nodes."""


@dataclass(frozen=True)
class StudyRequest:
    """What a person asked for, unchecked."""

    nodes: Sequence[int]
    modes: Sequence[Mode]
    job: str | None = None
    name: str | None = None
    sets: Sequence[str] = ()
    cluster: str | None = None
    batch: str | None = None
    """`args.NAME=N`: how a script is told its samples per rank, and those of the smallest size."""
    runs: str | os.PathLike[str] | None = None
    consent: Consent = field(default_factory=Consent)


@dataclass(frozen=True)
class CheckedStudy:
    """A study whose every size may be submitted."""

    name: str
    runs: Path
    plans: Plans
    why_site: str


@dataclass(frozen=True)
class _Batch:
    """Samples per rank on the smallest size of the study; None: the script decides."""

    samples: int | None
    argument: str | None
    """Of a script that reads no [training]: `batch-size` where it takes --batch-size=N."""
    smallest: int
    """Nodes."""

    def words(self, mode: Mode, nodes: int) -> tuple[list[str], list[str]]:
        """What tells a size its batch: `KEY=VALUE`, and words for a script. Raises ConfigError."""
        if mode == "weak" and self.argument is None:
            return [], []
        if self.samples is None:
            raise ConfigError(
                "--strong keeps the batch of all ranks, and this script does not read [training]: "
                "name its argument and the samples per rank on the smallest size, such as "
                "--batch args.batch-size=64"
            )
        key = f"--{self.argument}" if self.argument else "training.batch_size"
        whole = self.samples * (nodes if mode == "weak" else self.smallest)
        if whole % nodes:
            raise ConfigError(
                f"--strong: {whole} samples ({key} {self.samples} on {self.smallest} nodes) "
                f"cannot be shared evenly by {nodes} times as many ranks: choose a {key} that all "
                "sizes divide"
            )
        word = f"{key}={whole // nodes}"
        return ([], [word]) if self.argument else ([word], [])


def prepare(asked: StudyRequest) -> CheckedStudy:
    """Checks every size and writes nothing. Raises FsdpkitError: one fails, none is submitted."""
    sizes = sorted(asked.nodes)
    if len(set(sizes)) != len(sizes):
        raise UsageError("--nodes: name different numbers, such as 1,2,4,8")
    base = load_job(asked.job, sets=[*asked.sets, f"resources.nodes={sizes[0]}"])
    name, runs = asked.name or f"scale-{base.spec.name}"[:48], runs_dir(asked.runs)
    smallest = _smallest(name, runs, asked.modes, sizes)
    training = base.spec.training
    samples = None if training is msgspec.UNSET else getattr(training, "batch_size", None)
    argument = None
    if asked.batch is not None:
        if samples is not None:
            raise UsageError("--batch is for a script that reads no [training], and this one does")
        argument, samples = _batch(asked.batch)
    request = SubmitRequest(job=asked.job, sets=asked.sets, cluster=asked.cluster, runs=asked.runs)
    batch = _Batch(samples, argument, smallest)
    return CheckedStudy(name, runs, *_plans(name, batch, sizes, request, asked))


def _smallest(name: str, runs: Path, modes: Sequence[Mode], sizes: Sequence[int]) -> int:
    """Nodes of the smallest size, with those that the study has. Raises UsageError for a size that
    it has, and for one that would change what others are compared with."""
    known = _runs_of(name, runs)
    taken = [size for size in known if size[0] in modes and size[1] in sizes]
    if not all(_ended_badly(known[size]) for size in taken):
        raise UsageError(
            f"study {name} has {taken[0][1]} nodes ({taken[0][0]}) already: choose another name "
            "with --name"
        )
    smallest = min([nodes for _, nodes in known], default=sizes[0])
    if sizes[0] < smallest:
        raise UsageError(
            f"study {name} compares with {smallest} nodes, its smallest size: for fewer, start "
            "another with --name"
        )
    return smallest


def _ended_badly(run: Path) -> bool:
    with contextlib.suppress(FsdpkitError):
        state = Run.open(run).state()
        return state is not None and state.over and not state.succeeded
    return False


def _plans(
    name: str, batch: _Batch, sizes: Sequence[int], request: SubmitRequest, asked: StudyRequest
) -> tuple[Plans, str]:
    """Each of these sizes, checked, and why this site. Raises ConfigError with all refusals."""
    plans: dict[tuple[Mode, int], Plan] = {}
    refused, why = [], ""
    for mode in asked.modes:
        for nodes in sizes:
            try:
                sets, args = batch.words(mode, nodes)
                own = [f"name={name}-{mode}-{nodes}", f"resources.nodes={nodes}", *sets]
                sized = replace(request, sets=[*request.sets, *own], args=args)
                plans[mode, nodes], why = plan(sized, asked.consent)
            except FsdpkitError as error:
                refused.append(f"  {nodes} nodes ({mode}): {error}")
    if refused:
        raise ConfigError(
            f"study {name}: {len(refused)} of {len(sizes) * len(asked.modes)} sizes would be "
            "refused, so none is submitted\n" + "\n".join(refused[:5])
        )
    return plans, why


def _batch(text: str) -> tuple[str, int]:
    """Raises UsageError."""
    found = re.fullmatch(r"args\.([A-Za-z0-9][A-Za-z0-9._-]*)=([1-9][0-9]{0,8})", text)
    if found is None:
        raise UsageError(
            f"--batch {text!r}: write args.NAME=N for a script that takes --NAME=N, such as "
            "args.batch-size=64"
        )
    return found[1], int(found[2])


def submit(study: CheckedStudy, consent: Consent) -> Iterator[tuple[str, str]]:
    """Submit each size in turn; its mode and nodes (`weak 2`), and its run. Raises FsdpkitError:
    sizes submitted before are runs as any."""
    for (mode, nodes), decided in study.plans.items():
        yield f"{mode} {nodes}", submit_plan(decided, study.runs, consent).id


def planned(study: CheckedStudy) -> dict[Mode, list[Size]]:
    """The sizes of a study that is not submitted, with what `fsdpkit plan` said of them."""
    found: dict[Mode, list[MeasuredSize]] = {}
    for (mode, nodes), decided in study.plans.items():
        rate = prediction_of(decided, training_of(decided.job, decided.work_dir))
        tokens = None if rate is None or rate.tokens_per_s is None else rate.tokens_per_s.middle
        ranks = nodes * decided.job.spec.ranks_per_node
        one = MeasuredSize(nodes, ranks, None, "not submitted", RunSpeed(), tokens)
        found.setdefault(mode, []).append(one)
    return {mode: compared(mode, sizes) for mode, sizes in found.items()}


def measured(name: str, runs: Path) -> dict[Mode, list[Size]]:
    """All sizes of a study as of now, the smallest first. Raises NotFoundError."""
    found: dict[Mode, list[MeasuredSize]] = {}
    for (mode, nodes), run in sorted(_runs_of(name, runs).items()):
        found.setdefault(mode, []).append(_measure(run, nodes))
    if not found:
        raise NotFoundError(
            f"there is no study {name!r} in {runs}: no run there is named {name}-weak-N or "
            f"{name}-strong-N. Give --runs DIR, the directory of runs that it was started in."
        )
    return {mode: compared(mode, found[mode]) for mode in MODES if mode in found}


def _measure(where: Path, nodes: int) -> MeasuredSize:
    with contextlib.suppress(FsdpkitError):
        run = Run.open(where)
        plan_of, state = predicted_of(run.paths), run.state()
        tokens = None if plan_of is None or plan_of.tokens_per_s is None else plan_of.tokens_per_s
        speed = RunSpeed()
        # Of a run that failed or goes on, the second half of what it logged is no measure.
        if state is not None and state.succeeded:
            speed = speed_of(read_metrics(run.paths.task().metrics))
        return MeasuredSize(
            nodes,
            nodes * run.record.ranks_per_node,
            where.name,
            "UNKNOWN" if state is None else state.word,
            speed,
            None if tokens is None else tokens.middle,
        )
    return MeasuredSize(nodes, nodes, where.name, "UNKNOWN", RunSpeed(), None)


def _runs_of(name: str, runs: Path) -> dict[tuple[Mode, int], Path]:
    """The newest run of each size. Raises StorageError."""
    pattern = re.compile(rf"{re.escape(name)}-(weak|strong)-([1-9]\d{{0,4}})-\d{{8}}-\d{{6}}-\w+")
    found: dict[tuple[Mode, int], Path] = {}
    for run in all_runs(runs):
        if size := pattern.fullmatch(run.name):
            mode: Mode = "weak" if size[1] == "weak" else "strong"
            found.setdefault((mode, int(size[2])), run)
    return found
