"""Whether a trial would be accepted if it were submitted alone, and what came nearest to fitting
where none would be.

What a submission knows without torch is asked: the plan that `fsdpkit plan` made of this very
trial, else what weights, gradients and the optimizer's state alone take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdpkit.config.array_tasks import text
from fsdpkit.config.job_loading import LoadedJob, load_job
from fsdpkit.config.partition import NodeType
from fsdpkit.config.placement import place
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import FsdpkitError
from fsdpkit.scheduling.job_checks import check_settings, does_not_fit, least_gpu_bytes
from fsdpkit.sweeps.space import Settings, told

_GIB = 2**30
_MOST_DOUBLINGS = 6
_FULL = "training.sharding.strategy=full_shard"
_OFFLOAD = "training.sharding.cpu_offload=true"


def trial_job(
    job: str, settings: Settings, sets: Sequence[str], more: Sequence[str] = ()
) -> LoadedJob:
    """A trial as a job of its own; `more`: `KEY=VALUE` over what it sets itself."""
    own, args = told(settings)
    return load_job(job, sets=[*sets, *own, *more], args=args)


@dataclass(frozen=True)
class Miss:
    """A trial that does not fit its GPUs. Bytes of one GPU."""

    trial: int
    needed: int
    usable: int
    how: str
    """What `needed` was found out by."""

    @property
    def excess(self) -> int:
        return self.needed - self.usable


@dataclass
class Trials:
    """Trials of one job on one kind of node. sets: for every trial, with how far the first rung
    goes, for what is too short for a warm-up fails there."""

    job: str
    sets: Sequence[str]
    site: LoadedSite
    node: NodeType
    work_dir: Path = field(default_factory=Path.cwd)
    misses: list[Miss] = field(default_factory=list)

    def refusal(self, number: int, settings: Settings) -> str | None:
        """Why a submission would refuse it; None if it would not."""
        try:
            one = trial_job(self.job, settings, self.sets)
        except FsdpkitError as error:
            return str(error)
        try:
            check_settings(one, self.node, self.work_dir)
        except FsdpkitError as error:
            if (miss := self._miss(number, one)) is not None:
                self.misses.append(miss)
            return str(error)
        return None

    def _miss(self, number: int, one: LoadedJob) -> Miss | None:
        """None for a trial that is refused for other reasons than memory."""
        planned = does_not_fit(one, self.node, self.work_dir)
        if planned is not None:
            return Miss(number, planned.total, planned.usable, "by its plan")
        needed = least_gpu_bytes(one, self.node, self.work_dir)
        if needed is None or self.node.gpu_memory_gb is None:
            return None
        usable = round(self.node.gpu_memory_gb * _GIB)
        how = "weights, gradients and optimizer state alone"
        return Miss(number, needed, usable, how) if needed > usable else None

    def nearest_miss(self, drawn: Sequence[Settings], first: int) -> str:
        """Of trials none of which fits its GPUs: which came nearest, by how much it missed, and
        what would fit; empty if memory is not what they lack. first: the first one's number."""
        if not self.misses:
            return ""
        miss = min(self.misses, key=lambda one: (one.excess, one.trial))
        settings = drawn[miss.trial]
        point = ", ".join(f"{key} = {text(value)}" for key, value in settings.items())
        lines = [
            f"nearest miss: trial {first + miss.trial} ({point})",
            f"  takes {miss.needed / _GIB:.1f} GiB of each GPU ({miss.how}), which has "
            f"{miss.usable / _GIB:.1f} GiB: {miss.excess / _GIB:.1f} GiB ({miss.excess:,} bytes) "
            "too much",
        ]
        fitting = next(self._would_fit(settings), None)
        if fitting is None:
            lines.append("  nothing tried here would fit: a smaller model, or larger GPUs")
        else:
            lines.append(f"  would be accepted: {' '.join(fitting)}")
        return "\n".join(lines)

    def _would_fit(self, settings: Settings) -> Iterator[tuple[str, ...]]:
        """Changes with which the point would be submitted, the least costly first."""
        one = trial_job(self.job, settings, self.sets)
        planned = does_not_fit(one, self.node, self.work_dir)
        nodes = one.spec.resources.nodes
        larger = [f"resources.nodes={nodes << n}" for n in range(1, _MOST_DOUBLINGS + 1)]
        for more in (
            *([tuple(planned.would_fit)] if planned and planned.would_fit else []),
            (_FULL,),
            *((_FULL, each) for each in larger),
            (_OFFLOAD,),
            (_FULL, _OFFLOAD),
        ):
            try:
                changed = trial_job(self.job, settings, self.sets, more)
                place(changed.spec.resources, self.site)
                check_settings(changed, self.node, self.work_dir)
            except FsdpkitError:
                continue
            yield more
