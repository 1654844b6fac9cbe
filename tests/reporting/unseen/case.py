"""One failure as it lies in a run directory, and what a careful expert says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TakenFor = Literal[
    "crash", "hang", "out-of-memory", "node-failure", "storage", "settings", "preflight", "any"
]


@dataclass(frozen=True)
class Rank:
    """What one rank left.

    A rank that would end later than torchelastic looks after the first on its node (0.1 s), or than
    the head node's agent waits for other nodes (3 s), is ended by its agent: its texts stay, its
    status does not come to be.
    """

    err: str = ""
    """Its standard error, whole."""
    out: str = ""
    status: int | None = None
    """Exit status; 128 + signal if a signal ended it. None: it went on until it was ended."""
    after_s: float = 0.0
    """When it ended, in seconds after the first rank that ended."""


@dataclass(frozen=True)
class Want:
    """What a careful expert would say who knows the world, and of the run this directory only."""

    causes: frozenset[str]
    """Accepted names of causes."""
    best: str
    rank: int | Literal["any"] | None = None
    """None: none may be named. "any": not judged."""
    node: str | Literal["any"] | None = None
    forbid: str = ""
    """Regular expression (ignoring case) that neither sentence nor action may match."""
    retry: TakenFor = "any"
    """What the agents should take it for. "any": not judged."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Ranks are numbered node by node: rank r is on `node<r // gpus + 1>`, whose number, as in
    SLURM_NODEID and in the names of files, is r // gpus."""

    name: str
    source: str
    """Where the words stand: a URL, or `strerror(3)` and the like."""
    nodes: int
    gpus: int
    ranks: Mapping[int, Rank] = field(default_factory=dict)
    """Those that said or did something of their own."""
    others: Rank = field(default_factory=Rank)
    step: int | None = None
    """Steps done, if the script beats fsdpkit's heart. None: a plain script."""
    hung: tuple[int, ...] = ()
    """Ranks that the agents see making no progress."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """By rank: what faulthandler wrote of it."""
    batch: str = ""
    """More lines of the job's log: srun's and slurmstepd's."""
    node_logs: Mapping[int, str] = field(default_factory=dict)
    """By node number: more lines of that node's standard error, before its agent's last."""
    lost: tuple[int, ...] = ()
    """Numbers of nodes that fell silent."""
    slurm: str = "FAILED|1:0"
    """State and ExitCode of the job as sacct has them, and after another bar squeue's reason. What
    the job's status was says the agents' ending, where there is one."""
    memory_share: Mapping[int, float] = field(default_factory=dict)
    """By node number: the largest part of its memory that was seen in use."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Other files below the run directory, which replace those made."""
    before_ranks: bool = False
    """It failed before ranks were started."""
    want: Want

    def rank(self, number: int) -> Rank:
        return self.ranks.get(number, self.others)

    @property
    def size(self) -> int:
        return self.nodes * self.gpus

    def node_name(self, node: int) -> str:
        return f"node{node + 1}"


def wanted(
    best: str,
    *others: str,
    rank: int | Literal["any"] | None = None,
    node: str | Literal["any"] | None = None,
    forbid: str = "",
    retry: TakenFor = "any",
) -> Want:
    """The cause that is best, and others that would do."""
    return Want(frozenset((best, *others)), best, rank, node, forbid, retry)
