"""Stop, or skip a step, when numbers overflow."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fsdpkit.errors import FsdpkitError
from fsdpkit.training.distributed import Ranks, sum_over_ranks


def require_finite(value: Tensor, what: str) -> None:
    """Refuse a number that is not finite; on a GPU without making the host wait.

    There the check runs on the device, before whatever is queued next, and the process ends with a
    device-side assertion that has the same text.

    Args:
        value: A scalar on any device, such as a loss or a gradient's norm.
        what: What it is, for the error: `"The gradient of step 7"`.

    Raises:
        FsdpkitError: It is infinite or not a number.

    Examples:
        >>> import torch
        >>> from fsdpkit import training
        >>> training.require_finite(torch.tensor(float("nan")), "The loss of step 7")
        Traceback (most recent call last):
        fsdpkit.errors.FsdpkitError: The loss of step 7 is not finite, so the weights were left ...
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
