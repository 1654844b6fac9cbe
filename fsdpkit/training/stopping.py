"""Stop when asked, all ranks after the same step; and stop, or skip a step, when numbers overflow.

The agent, or a person, touches `stop-requested` in the run's directory. Only rank 0 looks, because
a file may appear to different nodes at different times, and at most once a second, because the
directory lies on a shared file system. Its answer travels with the token counts that the ranks add
up in every step anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.distributed import Ranks, sum_over_ranks

LOOK_EVERY_S = 1.0


class StopRequest:
    """Rank 0's view of the file, and all ranks' common decision.

    Each step: put `wanted()` into a sum over ranks, hand that sum to `decide`, then ask `agreed()`.
    On a GPU the decision is one step old, so that the host need not wait for the step it is in.
    """

    def __init__(
        self, paths: TaskPaths, ranks: Ranks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._ranks, self._clock = paths.stop_requested, ranks, clock
        self._next_look = -float("inf")
        self._seen = False
        self._decisions: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def wanted(self) -> float:
        """1.0 on rank 0 once the file exists, else 0.0."""
        if self._ranks.is_first and not self._seen and self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_EVERY_S
            self._seen = self._file.exists()
        return float(self._seen)

    def decide(self, votes: Tensor) -> None:
        """Take the sum of all ranks' `wanted()`, a scalar on the device."""
        event = None
        if votes.is_cuda:
            host = votes.to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        else:
            host = votes
        self._decisions.append((host, event))

    def agreed(self) -> bool:
        """True on all ranks at the same step, after someone asked to stop."""
        delay = 2 if self._ranks.device.type == "cuda" else 1
        if len(self._decisions) < delay:
            return False
        votes, event = self._decisions.pop(0)
        if event is not None:
            event.synchronize()
        return bool(votes > 0)

    def answered(self) -> None:
        """Remove the file, so that the run can go on when it is started again."""
        if self._ranks.is_first:
            self._file.unlink(missing_ok=True)


def require_finite(value: Tensor, what: str) -> None:
    """Raise FsdpkitError unless the scalar is finite; on a GPU without making the host wait.

    There the check runs on the device, before whatever is queued next, and the process ends with a
    device-side assertion that carries the same sentence.
    """
    message = (
        f"{what} is not finite, so the weights were left as they are. Lower "
        "training.optimizer.lr, or look at the data of this step."
    )
    try:
        torch._assert_async(torch.isfinite(value), message)
    except RuntimeError:
        raise FsdpkitError(message) from None


def may_update(
    grad_norm: Tensor, what: str, non_finite: Literal["stop", "skip"], ranks: Ranks
) -> bool:
    """Whether this step's gradient is fit to be used: the same answer on all ranks.

    With "stop" it is, or the run ends as `require_finite` says. With "skip" False tells the loop
    to leave the step out; then the ranks add up a number and the host waits for it in each step.
    """
    if non_finite == "stop":
        require_finite(grad_norm, what)
        return True
    (bad,) = sum_over_ranks(~torch.isfinite(grad_norm), device=ranks.device).tolist()
    return not bad
