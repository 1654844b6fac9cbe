"""Nodes that a person has already, by salloc or in a batch job: what a run started in it may use.

Pure; `scheduling/here/allocation.py` asks Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdpkit.config.job import Resources
from fsdpkit.config.units import format_time
from fsdpkit.errors import UsageError

_SLACK_S = 60
"""By how much a run may ask for more time than is left: it took some to type the command."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A running job of the person's, as Slurm describes it."""

    job_id: str
    nodes: tuple[str, ...]
    gpus: int | None
    """Per node, the least of all nodes; None: Slurm does not say."""
    cpus: int
    """The same."""
    left_s: int
    """Seconds until it ends."""
    partition: str
    account: str | None
    cluster: str | None
    """As the cluster calls itself."""
    submit_s: float
    """When it was submitted, by the cluster's clock."""
    hold: Path | None = None
    """The directory of the run that it is, if it is held for others (`fsdpkit hold`)."""

    @property
    def resources(self) -> dict[str, Any]:
        """What a job takes that asks for nothing itself, by key of [resources]."""
        found = {"nodes": len(self.nodes), "gpus": self.gpus or None, "account": self.account}
        found["time"] = str(max(1, self.left_s // 60))
        return {key: value for key, value in found.items() if value is not None}

    def refuse_more(self, resources: Resources, *, needs_gpus: bool) -> None:
        """Raise UsageError for what the allocation lacks."""
        if lacking := [*self._lacking(resources, needs_gpus)]:
            what, option = ("allocation", "--here") if self.hold is None else ("hold's job", "--on")
            raise UsageError(
                f"the {what} {self.job_id} has {', '.join(lacking)}: ask for less, or leave out "
                f"{option} to queue a job"
            )

    def _lacking(self, resources: Resources, needs_gpus: bool) -> Iterator[str]:
        if resources.nodes_asked > len(self.nodes):
            yield f"{len(self.nodes)} nodes of {resources.nodes_asked}"
        if needs_gpus and self.gpus is not None and resources.gpus > self.gpus:
            yield f"{self.gpus} GPUs per node of {resources.gpus}"
        if resources.time_s > self.left_s + _SLACK_S:
            left, asked = format_time(self.left_s), format_time(resources.time_s)
            yield f"{left} left of {asked}"

    def srun_words(self, nodes: int, run_id: str) -> list[str]:
        """Options of each srun of a script that runs here, on the first `nodes` nodes. The shell
        that it was started from may be a step that holds all there is. By their name the run's
        steps are known from others of the allocation."""
        nodelist = ",".join(self.nodes[:nodes])
        return ["--overlap", f"--nodelist={nodelist}", f"--job-name={run_id}"]
