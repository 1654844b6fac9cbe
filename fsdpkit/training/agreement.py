"""What one rank notices and all ranks act on after the same step: a request to stop or to save.

Files appear to different nodes at different times, and clocks differ. So whoever looks puts its
answer into a sum, which travels with the token counts that the ranks add up in every step anyway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from fsdpkit.config.training import CheckpointSettings
from fsdpkit.runs.heartbeat import HeartbeatDir, looked_whether_to_stop
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import wish
from fsdpkit.training.distributed import Ranks, sum_over_ranks

LOOK_EVERY_S = 1.0
"""The run's directory lies on a shared file system: no look at each step."""


class Agreement:
    """Rank 0's yes or no, acted on by all ranks after the same step. Each step: put rank 0's answer
    into a sum over ranks, hand that sum to `decide`, then ask `agreed`. On a GPU the decision is
    one step old, so that the host need not wait for the step it is in."""

    def __init__(self, ranks: Ranks) -> None:
        self._delay = 2 if ranks.device.type == "cuda" else 1
        self._decisions: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def decide(self, votes: Tensor) -> None:
        """Take the sum of all ranks' answers.

        Args:
            votes: A scalar on the device, equal on all ranks; yes if it is positive.
        """
        event = None
        if votes.is_cuda:
            host = votes.to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        else:
            host = votes
        self._decisions.append((host, event))

    def agreed(self) -> bool:
        """Whether the ranks act now: True on all of them after the same step.

        Returns:
            The answer of this step's sum; on a GPU that of the step before.
        """
        if len(self._decisions) < self._delay:
            return False
        votes, event = self._decisions.pop(0)
        if event is not None:
            event.synchronize()
        return bool(votes > 0)


def is_due(done: int, every: int) -> bool:
    """Whether what comes every so many steps, or epochs, comes after `done` of them; 0: never."""
    return every > 0 and done > 0 and done % every == 0


class StopRequest(Agreement):
    """Whether the run is to save and stop; `wanted()` goes into a sum over ranks.

    The agent on the node says so where it can be read at every step. Without an agent rank 0 looks
    for `stop-requested` in the run's directory, which a person touches.

    Args:
        paths: Where the run's files are.
        ranks: From `process_group`.
        clock: A monotonic clock in seconds; tests pass their own.
    """

    def __init__(
        self, paths: TaskPaths, ranks: Ranks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(ranks)
        self._clock = clock
        self._next_look = -float("inf")
        self._seen = False
        node = HeartbeatDir.of_this_node()
        self._own = None if node else paths.stop_requested
        self._file = node.stop if node else paths.stop_requested
        self._looks = ranks.local_rank == 0 if node else ranks.is_first
        self._pause_s = 0.0 if node else LOOK_EVERY_S
        if node and self._looks:
            looked_whether_to_stop(node)

    def wanted(self) -> float:
        """This rank's part of the sum.

        Returns:
            1.0 on a rank that has seen the request, else 0.0.
        """
        if self._looks and not self._seen and self._clock() >= self._next_look:
            self._next_look = self._clock() + self._pause_s
            self._seen = os.path.exists(self._file)  # no error where a file server fails to say
        return float(self._seen)

    def wanted_before(self, ranks: Ranks) -> bool:
        """Whether the request was there before the first step; a collective.

        Args:
            ranks: From `process_group`.

        Returns:
            The same on all ranks.
        """
        return bool(sum_over_ranks(torch.tensor(self.wanted()), device=ranks.device)[0] > 0)

    def answered(self) -> None:
        """Remove the request where no agent does, so that a run that is started again can go on."""
        if self._own is not None and self._looks:
            self._own.unlink(missing_ok=True)


class SaveClock(Agreement):
    """When to save a checkpoint; `wanted()` goes into a sum over ranks.

    It is time after every so many minutes, steps or epochs, when somebody asks
    (`fsdpkit checkpoint save`; needs `paths`), before the run stops, and at its end.

    Args:
        ranks: From `process_group`.
        every_minutes: Minutes since the last checkpoint; 0: never by time.
        clock: A monotonic clock in seconds; tests pass their own.
        paths: Where requests for a checkpoint are looked for; None: nowhere.
        every_steps: Optimizer steps between checkpoints; 0: never by steps.
        every_epochs: Epochs between checkpoints; 0: never by epochs.
        at_end: Whether the last step is saved.
    """

    def __init__(
        self,
        ranks: Ranks,
        every_minutes: float,
        clock: Callable[[], float] = time.monotonic,
        paths: TaskPaths | None = None,
        *,
        every_steps: int = 0,
        every_epochs: int = 0,
        at_end: bool = True,
    ) -> None:
        super().__init__(ranks)
        self._every_s, self._clock, self._paths = every_minutes * 60, clock, paths
        self._every_steps, self._every_epochs = every_steps, every_epochs
        self._at_end = at_end
        self._first = ranks.is_first
        self._next_look = -float("inf")
        self._wish: str | None = None
        self.saved()

    @classmethod
    def of(cls, settings: CheckpointSettings, ranks: Ranks, paths: TaskPaths) -> SaveClock:
        """A clock as `[training.checkpoint]` says; what is exported at the end is saved there, too.

        Args:
            settings: The table of the job.
            ranks: From `process_group`.
            paths: Where requests for a checkpoint are looked for.

        Returns:
            The clock; its time begins now.
        """
        return cls(
            ranks,
            settings.every_minutes,
            paths=paths,
            every_steps=settings.every_steps,
            every_epochs=settings.every_epochs,
            at_end=settings.at_end or settings.export,
        )

    def due(self, step: int, *, last: bool, stopping: bool, epoch: int = 0) -> bool:
        """Whether to save now; ask after each step, on all ranks.

        Args:
            step: Steps done.
            last: Whether that was the last step.
            stopping: Whether the run stops after it.
            epoch: Epochs that are complete, if the step completed one, else 0.

        Returns:
            The same on all ranks.
        """
        late = self.agreed()
        on_this_step = is_due(step, self._every_steps) or is_due(epoch, self._every_epochs)
        return stopping or late or on_this_step or (last and self._at_end)

    def wanted(self) -> float:
        """This rank's part of the sum.

        Returns:
            1.0 on rank 0 once per interval, and once per request; else 0.0.
        """
        if not self._first:
            return 0.0
        due = self._every_s > 0 and self._clock() - self._since >= self._every_s
        if due:
            self.saved()
        return float(self._asked() or due)

    def _asked(self) -> bool:
        """Whether there is a wish that was not there when we looked before."""
        if self._paths is None or self._clock() < self._next_look:
            return False
        self._next_look = self._clock() + LOOK_EVERY_S
        before, self._wish = self._wish, wish(self._paths)
        return self._wish not in (None, before)

    def decide(self, votes: Tensor) -> None:
        """Take the sum of all ranks' answers.

        Args:
            votes: A scalar on the device, equal on all ranks; yes if it is positive.
        """
        if self._every_s or self._paths:  # otherwise nobody asks, and no host need look
            super().decide(votes)

    def saved(self) -> None:
        """A checkpoint is made: the time begins anew."""
        self._since = self._clock()


class Votes:
    """One sum over ranks a step, in which wishes travel with what a step counts anyway.

    Args:
        ranks: From `process_group`.
        *wishes: Whose `wanted()` is summed, and whose `decide` gets the sum.
    """

    def __init__(self, ranks: Ranks, *wishes: StopRequest | SaveClock) -> None:
        self._ranks, self._wishes = ranks, wishes

    def begin(self, *counts: float | Tensor) -> Callable[[], Tensor]:
        """Begin to sum each count over all ranks; what is `wanted` goes along.

        Whatever is computed until the sums are needed does not wait for the slowest rank. On a GPU
        the host waits neither here nor there.

        Args:
            *counts: This rank's numbers, or scalar tensors on any device.

        Returns:
            A function to call once, on all ranks. It returns the sums, float64 [len(counts)] on the
            device, and hands the wishes' sums to each `decide`.
        """
        values = [*counts, *(each.wanted() for each in self._wishes)]
        device = self._ranks.device
        total = torch.stack(
            [torch.as_tensor(v, dtype=torch.float64).to(device, non_blocking=True) for v in values]
        )
        under_way = dist.all_reduce(total, async_op=True)

        def end() -> Tensor:
            under_way.wait()
            for each, votes in zip(self._wishes, total[len(counts) :], strict=True):
                each.decide(votes)
            return total[: len(counts)]

        return end

    def sum(self, *counts: float | Tensor) -> Tensor:
        """Each count summed over all ranks: `begin`, and its end at once.

        Args:
            *counts: This rank's numbers, or scalar tensors on any device.

        Returns:
            float64 [len(counts)] on the device, equal on all ranks.
        """
        return self.begin(*counts)()


class TokenBudget(Agreement):
    """When `budget` target tokens are trained on, `used` of them by now; without a budget never."""

    def __init__(self, ranks: Ranks, budget: int, used: int = 0) -> None:
        super().__init__(ranks)
        self._budget = budget
        self._used = torch.tensor(float(used), dtype=torch.float64, device=ranks.device)
        self.spent = 0 < budget <= used

    def spend(self, tokens: Tensor) -> bool:
        """Count a step's tokens, the sum over ranks; True on all ranks once none are left."""
        if not self._budget:
            return False
        self._used = self._used + tokens
        self.decide((self._used >= self._budget).double())
        self.spent = self.agreed()
        return self.spent
