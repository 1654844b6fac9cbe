"""What each command prints with `--json`: one struct a shape, named by its `schema`.

Fields are only added to a shape; where one changes its meaning or goes, the number in `schema`
changes. Paths are whole, times are Unix time in seconds, `null` is "not known". After a change here
`python -m fsdpkit.cli.json_schemas` writes the JSON Schemas anew.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from fsdpkit.reporting.comparison.compared import Comparison
from fsdpkit.reporting.diagnosis.diagnose import Diagnosis
from fsdpkit.reporting.stacks import Place
from fsdpkit.reporting.status.overview import Status
from fsdpkit.reporting.usage import NodeUsage
from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.node_report import NodeReport, Verdict
from fsdpkit.runs.stack_requests import NodeStacks
from fsdpkit.scheduling.checks import Finding
from fsdpkit.scheduling.reachability import Reach


class Error(Struct, frozen=True, kw_only=True):
    """What ended the command instead of an answer; standard error says it, too."""

    schema: Literal["fsdpkit.error/1"] = "fsdpkit.error/1"
    kind: Literal[
        "usage",
        "config",
        "not_found",
        "render",
        "scheduler",
        "remote",
        "tracker",
        "storage",
        "damaged",
        "node",
        "node_lost",
        "broken_node",
        "port_taken",
        "function",
        "fsdpkit",
        "missing_dependency",
        "interrupted",
    ]
    """The error's class in fsdpkit.errors, or one of the last two."""
    message: str
    """What was wrong, where, and what to do, for people."""
    exit_status: int


class Submitted(Struct, frozen=True, kw_only=True):
    """A run that was submitted, or resumed."""

    schema: Literal["fsdpkit.submit/1"] = "fsdpkit.submit/1"
    run: str
    job_id: str | None
    cluster: str
    dir: str


class Statuses(Struct, frozen=True, kw_only=True):
    """All runs in the directory of runs, newest first."""

    schema: Literal["fsdpkit.status-all/1"] = "fsdpkit.status-all/1"
    runs: list[Status]


class Stacks(Struct, frozen=True, kw_only=True):
    """Where the ranks of a running job are."""

    schema: Literal["fsdpkit.stacks/1"] = "fsdpkit.stacks/1"
    run: str
    job_id: str
    places: list[Place]
    odd_one: int | None = None
    """The rank that the others wait for; null: nobody stands out."""
    nodes: list[NodeStacks]
    silent: list[SilentNode]


class SilentNode(Struct, frozen=True, kw_only=True):
    """A node whose agent gave no answer."""

    node: int
    name: str
    ranks: list[int]


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
    checks: list[Finding]


class Measured(Struct, frozen=True, kw_only=True):
    """`check --nodes`: what a job measured on the nodes."""

    schema: Literal["fsdpkit.check-nodes/1"] = "fsdpkit.check-nodes/1"
    run: str
    dir: str
    nodes: list[Verdict]
    remarks: list[str]
    reachability: list[Reach]
    measured: NodeReport | None


class Checkpoint(Struct, frozen=True, kw_only=True):
    """One checkpoint. `problem`: what shows without reading the tensors."""

    path: str
    task: int | None
    step: int | None
    saved_at: str | None
    bytes: int | None
    ranks: int | None
    problem: str | None
    resumes: bool
    measured: dict[str, Any]
    best: bool


class Checkpoints(Struct, frozen=True, kw_only=True):
    """The checkpoints of a run, oldest first."""

    schema: Literal["fsdpkit.checkpoint-ls/1"] = "fsdpkit.checkpoint-ls/1"
    checkpoints: list[Checkpoint]


class Sent(Struct, frozen=True, kw_only=True):
    """What one tracker got."""

    run: str
    task: int | None
    tracker: str
    id: str
    place: str
    lines: int


class Tracked(Struct, frozen=True, kw_only=True):
    """What `track` sent."""

    schema: Literal["fsdpkit.tracked/1"] = "fsdpkit.tracked/1"
    sent: list[Sent]


class Spare(Struct, frozen=True, kw_only=True):
    """A checkpoint that may go."""

    path: str
    bytes: int


class Held(Struct, frozen=True, kw_only=True):
    """What a run holds. `chosen`: --yes deletes its spare ones; `why_not`: why it is left alone."""

    run: str
    dir: str
    bytes: int
    ended_s: float | None
    kept: list[str]
    spare: list[Spare]
    chosen: bool
    why_not: str | None


class Pruned(Struct, frozen=True, kw_only=True):
    """What ended runs hold, and what `prune` deleted."""

    schema: Literal["fsdpkit.prune/1"] = "fsdpkit.prune/1"
    runs: list[Held]
    deleted: list[str]
    problems: list[str]


ANSWERS: dict[str, tuple[Any, ...]] = {
    "submit": (Submitted,),
    "resume": (Submitted,),
    "status": (Status, Statuses),
    "diagnose": (Diagnosis,),
    "compare": (Comparison,),
    "stacks": (Stacks,),
    "top": (Usage,),
    "check": (Checked, Measured),
    "nodes": (Nodes,),
    "checkpoint ls": (Checkpoints,),
    "track": (Tracked,),
    "prune": (Pruned,),
}
"""By command."""
