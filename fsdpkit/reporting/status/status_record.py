"""What `fsdpkit status` knows of a run, and prints with `--json`: the fields are the keys, and stay
the same. Filled in by overview.py.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Literal

import msgspec

from fsdpkit.config.units import roughly
from fsdpkit.reporting.predictions import Prediction
from fsdpkit.reporting.staged import StageProgress
from fsdpkit.reporting.status.granted import GrantedDifference
from fsdpkit.reporting.status.held_runs import HoldUse
from fsdpkit.reporting.words import number, second
from fsdpkit.reporting.worth import Hint
from fsdpkit.runs.account import Account
from fsdpkit.runs.printed_words import PRINTED, PrintedText
from fsdpkit.runs.provenance import Provenance
from fsdpkit.scheduling.left_out import LeftOut

Phase = Literal["pending", "running", "succeeded", "stopped", "failed", "unknown"]
"""`stopped`: on request, its work saved. `unknown`: no source says, or it ended and no agent
vouches for what was done."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is pending."""

    reason: str | None
    """Slurm's own word."""
    words: str
    action: str | None
    never: bool
    """Whether this will not clear by itself."""
    start_s: float | None
    """When Slurm expects to start it, Unix time; None: it does not say."""

    @property
    def sentence(self) -> str:
        """Why, and when it will start as far as that is known."""
        words = self.words + (f" ({self.reason})" if self.reason else "")
        if self.never:
            return f"{words}; this will not resolve by itself"
        if self.start_s is None:
            return words
        in_s = self.start_s - time.time()
        when = f"in {roughly(in_s)}" if in_s > 0 else "any moment"
        return f"{words}; Slurm expects to start it {second(self.start_s)}, {when}"


class FirstFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The first failure of the newest attempt that failed."""

    message: PrintedText
    """`rank 2 on node2: ValueError: …`"""
    status: int
    """That process's exit status, 128 + signal."""


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's output says. None: not found at its end."""

    rank: int = 0
    line: PrintedText | None = None
    """Its newest line, in the script's own words, without what a terminal would obey."""
    printed_s: float | None = None
    """When the output last grew, Unix time."""
    step: int | None = None
    """As the script counts, perhaps anew in each epoch."""
    total: int | None = None
    """Of such steps."""
    epoch: float | None = None
    epochs: int | None = None
    loss: float | None = None
    rate: float | None = None
    rate_unit: str = ""
    """`it/s`, `s/it`, `tokens/s`, as printed."""
    remark: str | None = None
    """Why the pattern of `[metrics]` found nothing, if it did not."""
    optimizer_steps: int | None = None
    """Counted by the optimizer, not printed; since its launch began."""

    @property
    def source(self) -> str:
        counted = self.step is None and self.optimizer_steps is not None
        printed = any(x is not None for x in (self.step, self.epoch, self.loss, self.rate))
        said = ["counted"] * counted + ["read from its output"] * printed
        return " and ".join(said)

    @property
    def place(self) -> str:
        """`epoch 1, step 37 of 100`, as far as that is known."""
        parts = []
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch:g}" + (f" of {self.epochs:,}" if self.epochs else ""))
        if self.step is not None:
            parts.append(f"step {self.step:,}" + (f" of {self.total:,}" if self.total else ""))
        elif self.optimizer_steps is not None:
            parts.append(f"{self.optimizer_steps:,} steps of its optimizer")
        return ", ".join(parts)

    @property
    def left_s(self) -> float | None:
        """Seconds to the last step by the rate, unless steps are counted anew in each epoch."""
        if not (self.step and self.total and self.rate) or self.epoch is not None:
            return None
        steps = r"(?:it|iter|iteration|step|batch)(?:e?s)?"
        left = self.total - self.step
        if re.fullmatch(f"{steps}/s", self.rate_unit):
            return left / self.rate
        return left * self.rate if re.fullmatch(f"s/{steps}", self.rate_unit) else None

    @property
    def words(self) -> str:
        """`epoch 1, step 37 of 100, loss 0.027, 5.01 it/s`; empty if nothing was found."""
        loss = [] if self.loss is None else [f"loss {number(self.loss, 4)}"]
        rate = [] if self.rate is None else [f"{number(self.rate)} {self.rate_unit}".strip()]
        return ", ".join([*filter(None, [self.place]), *loss, *rate])


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One training: the run itself, or a task of an array."""

    task: int | None
    """Its number in the array."""
    job_id: str | None
    state: str
    """In words."""
    attempts: list[int] = []
    ending: Annotated[dict[str, Any], PRINTED] | None = None
    """What the newest attempt that has ended left as `ending.json`, with its number."""
    progress: dict[str, Any] | None = None
    """The fields of `progress.Progress`: what was logged, and only that."""
    printed: Printed | None = None
    """What the output of rank 0 says, in the script's own words and as read from them; of an
    array's tasks only those that run."""
    stage: StageProgress | None = None
    """What its newest attempt copies, or has copied, to its nodes' own disks."""
    failure: FirstFailure | None = None
    remarks: list[str] = []
    """Sentences about one that runs (`job_words.remarks`), or was started again."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How one run stands. Times are Unix time in seconds; None: not known."""

    schema: Literal["fsdpkit.status/1"] = "fsdpkit.status/1"
    run: str
    dir: str
    error: str | None = None
    """Why the run's record cannot be read; then nothing else is known."""
    job_id: str | None = None
    """Of the job that says how the run stands; an array's own number."""
    cluster: str | None = None
    submitted_s: float | None = None
    phase: Phase = "unknown"
    """Of the run as a whole: succeeded only if every task has."""
    state: str = "unknown"
    """In words."""
    states: dict[str, str | None] = {}
    """In a word by job id, for each array task: Slurm's, or STOPPED or UNKNOWN by the run's own
    files; None: no source says."""
    exit: str | None = None
    """`ExitCode 1:0, DerivedExitCode 15:0`, of a job that has ended without success."""
    started_s: float | None = None
    """Of an array, when the first task did."""
    ends_s: float | None = None
    """When the time limit is reached, or when it ended; of an array the last of these."""
    elapsed_s: float | None = None
    """Seconds since it started, until it ended if it has."""
    nodes: str | None = None
    """In Slurm's notation."""
    differs: str | None = None
    """Arguments and settings that not all runs of its name have, among the newest 64 of a list;
    read only for a list."""
    shape: dict[str, int] = {}
    """`nodes` that train and `ranks_per_node`, as asked."""
    waiting: Waiting | None = None
    left_out: list[LeftOut] = []
    """Nodes that its job is not to use because they failed a run."""
    differences: list[GrantedDifference] = []
    """What Slurm has otherwise than was asked for; asked for only about a single run."""
    attempts: list[int] = []
    """Of the run, or of the first array task; as the next five."""
    ending: Annotated[dict[str, Any], PRINTED] | None = None
    progress: dict[str, Any] | None = None
    printed: Printed | None = None
    stage: StageProgress | None = None
    failure: FirstFailure | None = None
    remarks: list[str] = []
    """Read only for a single run."""
    tasks: list[Task] = []
    """Of an array, each that has started; read only for a single run."""
    held: HoldUse | None = None
    """What a hold's nodes were used for; read only for a single run."""
    predictions: list[Prediction] = []
    """What `fsdpkit plan` had predicted of each of its jobs, beside what it measured; of an array
    `report` says it. Read only for a single run."""
    used: list[Account] = []
    """Of its attempts, what they used of their grants. Read only for a single run that is no array;
    absent while it takes long to make."""
    hints: list[Hint] = []
    """What to do about that, where it is sure."""
    task_steps: list[int] | None = None
    """Of an array that runs, the fewest and the most steps that a running task has done, and how
    many there are to do (0: not known)."""
    provenance: Provenance | None = None
    """What its newest job was made from; read only for a single run."""
    before: list[dict[str, Any]] = []
    """The record's earlier jobs."""
    others: list[str] = []
    """In words, the jobs before the one that matters now, and those chained behind it."""
    unread: list[str] = []
    """What could not be read or asked, a sentence each."""
