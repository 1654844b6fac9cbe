"""The fault matrix: what is broken, in which phase, and how the run gets over it.

`CORE` has every fault once while training, and the other phases where they take another way through
the code: start-up, checkpointing and shutdown for warnings, crashes and lost nodes. T5 is what is
trained in one case of each phase; elsewhere a light trainer will do. What torch itself does when a
rank hangs, or finds torn files, tests/slurm/test_hung_script.py and
tests/training/test_checkpoint_faults.py try.
`ALL` has every phase of every fault; tests take it with FSDPKIT_ALL_FAULTS=1, benchmarks/faults.py
takes it always, both with T5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tests.faults import injectors as by
from tests.faults.trial import HELD_AT, LIGHT, PHASES, T5, Bed, Phase, Trial

How = Literal["restart", "requeue", "spare", "undisturbed"]
"""In the job by starting the ranks again, by another attempt, with a spare node, or not at all."""


@dataclass(frozen=True)
class Fault:
    """One thing that clusters do. causes: what the run's records may call it."""

    name: str
    inject: Callable[[Trial], None]
    how: How
    causes: tuple[str, ...] = ()
    told: str = ""
    """Words that the sentence about it must have: who it was."""
    lost: str | None = None
    """The node that is not to be used again."""
    saves: bool = False
    """Whether there is time for a checkpoint, so that no step is repeated."""
    recorded: bool = True
    """Whether the batch shell lives long enough to write down how the attempt ended."""
    sets: tuple[str, ...] = ()
    spare: int = 0
    raises: bool = False
    """A rank raises an exception with the words `told` at the held step."""
    elsewhere: dict[Phase, How] = field(default_factory=dict)
    """Phases that get over it in another way."""
    phases: tuple[Phase, ...] = PHASES
    core: tuple[Phase, ...] = ("training",)
    with_torch: tuple[Phase, ...] = ()
    """Phases in which the core, too, has T5."""


@dataclass(frozen=True)
class Case:
    fault: Fault
    phase: Phase

    @property
    def how(self) -> How:
        return self.fault.elsewhere.get(self.phase, self.fault.how)

    @property
    def in_core(self) -> bool:
        return self.phase in self.fault.core

    def __str__(self) -> str:
        return f"{self.fault.name} in {self.phase}"

    @property
    def loses_node(self) -> bool:
        """Slurm, too, has to notice it then, for which a case waits a minute."""
        return self.fault.inject in (by.kill_node, by.kill_head_node, by.cut_node)

    @property
    def trainer(self) -> Path:
        """The one that does in the core."""
        return T5 if self.phase in self.fault.with_torch else LIGHT

    def raising(self, step: int) -> dict[str, object]:
        """What tells a rank to raise the exception, once."""
        words = {"error": "RuntimeError", "message": self.fault.told}
        return {"rank": 1, "steps": [step], **words, "once": True}

    def strike(self, bed: Bed, trainer: Path) -> Trial:
        """A run that is held in the phase, broken, and let go."""
        fault = self.fault
        trial = bed.submit(
            trainer=trainer,
            hold=self.phase,
            sets=fault.sets,
            spare=fault.spare,
            breaks=self.raising(HELD_AT[self.phase]) if fault.raises else None,
        )
        trial.strike(fault.inject)
        return trial


_WARNED = Fault(
    "warning",
    by.warn_shell,
    "requeue",
    causes=("time-limit",),
    saves=True,
    elsewhere={"shutdown": "undisturbed"},
    core=PHASES,
)
_LOST = Fault(
    "node lost",
    by.kill_node,
    "requeue",
    causes=("node-failure",),
    told=by.LEFT,
    lost=by.LEFT,
    core=("training", "shutdown"),
)
_CRASHED = Fault(
    "rank killed",
    by.kill_rank,
    "restart",
    causes=("crash",),
    told=f"rank 1 on {by.LEFT}",
    core=PHASES,
)
_AGENT = ("node-failure", "crash", "unknown")

FAULTS = (
    replace(_WARNED, with_torch=("training", "shutdown")),
    replace(_WARNED, name="warning by SIGTERM", inject=by.warn_steps, core=("training",)),
    replace(_WARNED, name="warned twice", inject=by.warn_twice, core=("training",)),
    replace(_WARNED, name="time limit", inject=by.near_time_limit, phases=("training",)),
    replace(
        _WARNED,
        name="preemption with 30 s of grace",
        inject=by.preempt_with_grace,
        causes=("preemption",),
        core=("training",),
    ),
    Fault("preemption at once", by.preempt_at_once, "requeue", recorded=False),
    replace(_CRASHED, with_torch=("start-up", "checkpointing")),
    Fault(
        "exception in a rank",
        lambda trial: None,
        "restart",
        causes=("crash",),
        told="a sample that cannot be read",
        raises=True,
        phases=("training",),
    ),
    Fault(
        "rank hangs",
        by.stop_rank,
        "restart",
        causes=("hang",),
        told="after step",
        sets=("retry.hang_s=10",),
        phases=("training", "checkpointing"),
    ),
    Fault(
        "agent killed",
        by.kill_agent,
        "requeue",
        causes=_AGENT,
        core=("training", "shutdown"),  # there the last checkpoint is being written without it
    ),
    Fault("head's agent killed", by.kill_head_agent, "requeue", causes=_AGENT),
    Fault("head's agent hangs, one spare", by.stop_head_agent, "requeue", causes=_AGENT, spare=1),
    _LOST,
    Fault("head node lost", by.kill_head_node, "requeue", recorded=False),
    replace(_LOST, name="node cut off", inject=by.cut_node, core=("training",)),
    replace(
        _LOST,
        name="node lost, one spare",
        how="spare",
        spare=1,
        core=("start-up", "training"),
    ),
    Fault("slurmd restarted", by.restart_slurmd, "undisturbed"),
    Fault("slurmctld restarted", by.restart_controller, "undisturbed"),
    Fault(
        "newest checkpoint torn, rank killed",
        by.tear_newest_checkpoint_and_kill_rank,
        "restart",
        causes=("crash",),
        told=f"rank 1 on {by.LEFT}",
        phases=("training",),
    ),
)

ALL = tuple(Case(fault, phase) for fault in FAULTS for phase in fault.phases)
CORE = tuple(case for case in ALL if case.in_core)
