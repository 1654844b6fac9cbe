"""What `--json` prints of runs and nodes: structs around those of the rooms that read them.

`Status`, `Diagnosis` and `Comparison` are printed as they are (reporting). See json_answers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from fsdpkit.reporting.logs.errors import FailedAttempt
from fsdpkit.reporting.predictions import Prediction
from fsdpkit.reporting.stacks import CodePlace
from fsdpkit.reporting.status.status_record import Printed, Status
from fsdpkit.reporting.usage import NodeUsage
from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.node_report import NodeReport, NodeVerdict
from fsdpkit.runs.stack_requests import NodeStacks
from fsdpkit.scheduling.checks import CheckResult
from fsdpkit.scheduling.pruning import SpareCheckpoint
from fsdpkit.scheduling.reachability import Reach


class Statuses(Struct, frozen=True, kw_only=True):
    """All runs in the directory of runs, newest first."""

    schema: Literal["fsdpkit.status-all/1"] = "fsdpkit.status-all/1"
    runs: list[Status]


class Stacks(Struct, frozen=True, kw_only=True):
    """Where the ranks of a running job are."""

    schema: Literal["fsdpkit.stacks/1"] = "fsdpkit.stacks/1"
    run: str
    job_id: str
    places: list[CodePlace]
    odd_one: int | None = None
    """The rank that the others wait for; null: none stands out."""
    nodes: list[NodeStacks]
    silent: list[SilentNode]


class SilentNode(Struct, frozen=True, kw_only=True):
    """A node whose agent gave no answer."""

    node: int
    name: str
    ranks: list[int]


class Change(Struct, frozen=True, kw_only=True):
    """Something new in a run that is watched; each is an object of its own."""

    schema: Literal["fsdpkit.watch/1"] = "fsdpkit.watch/1"
    run: str
    job_id: str | None
    time_s: float
    state: str
    """The run's by now, as Slurm calls it, with what belongs to it."""
    step: int | None
    """Steps that are done by now, by what was logged."""
    steps: int | None
    """Steps in all."""
    words: str
    """What is new, for a person."""
    printed: Printed | None = None
    """What the output of rank 0 says by now, in the script's own words and as read from them."""


class WatchEnded(Struct, frozen=True, kw_only=True):
    """The end of a run that was watched: the last object."""

    schema: Literal["fsdpkit.watch-end/1"] = "fsdpkit.watch-end/1"
    run: str
    job_id: str | None
    state: str
    exit_status: int
    """The run's own, and that of `watch`."""
    why: str
    """Why it ended so, in a sentence; `fsdpkit diagnose` has more."""


class Failures(Struct, frozen=True, kw_only=True):
    """`logs --errors`: of the newest attempt that failed, or of those that were asked for."""

    schema: Literal["fsdpkit.logs-errors/1"] = "fsdpkit.logs-errors/1"
    run: str
    attempts: list[FailedAttempt]


class Usage(Struct, frozen=True, kw_only=True):
    """What each node of a run uses; silent and idle nodes first."""

    schema: Literal["fsdpkit.top/1"] = "fsdpkit.top/1"
    run: str
    job_id: str | None
    attempt: int
    over: bool
    nodes: list[NodeUsage]


class Nodes(Struct, frozen=True, kw_only=True):
    """The nodes that later jobs avoid."""

    schema: Literal["fsdpkit.nodes/1"] = "fsdpkit.nodes/1"
    nodes: list[AvoidedNode]


class Checked(Struct, frozen=True, kw_only=True):
    """`check` of the login node."""

    schema: Literal["fsdpkit.check/1"] = "fsdpkit.check/1"
    ok: bool
    checks: list[CheckResult]


class NodesMeasured(Struct, frozen=True, kw_only=True):
    """`check --nodes`: what a job measured on the nodes."""

    schema: Literal["fsdpkit.check-nodes/1"] = "fsdpkit.check-nodes/1"
    run: str
    dir: str
    nodes: list[NodeVerdict]
    remarks: list[str]
    reachability: list[Reach]
    measured: NodeReport | None


class Written(Struct, frozen=True, kw_only=True):
    """A run's report, as one HTML file."""

    schema: Literal["fsdpkit.report/1"] = "fsdpkit.report/1"
    run: str
    path: str
    predictions: dict[str, list[Prediction]] | None = {}
    """What `fsdpkit plan` had predicted of each of its jobs, beside what it measured; by array
    task, of a run that is none by "". Empty without a plan; null with --host, which
    brings the page alone."""


class Held(Struct, frozen=True, kw_only=True):
    """What a run holds. `chosen`: --yes deletes its spare ones; `why_not`: why it is left alone."""

    run: str
    dir: Path
    bytes: int
    ended_s: float | None
    kept: Sequence[Path]
    spare: Sequence[SpareCheckpoint]
    chosen: bool
    why_not: str | None


class Pruned(Struct, frozen=True, kw_only=True):
    """What ended runs hold, and what `prune` deleted."""

    schema: Literal["fsdpkit.prune/1"] = "fsdpkit.prune/1"
    runs: list[Held]
    deleted: list[Path]
    problems: list[str]
