"""When a script is to save and stop: a preemption, a time limit near, `fsdpkit cancel --save`.

    if fsdpkit.stop_requested():          # after each step, on every rank
        save(fsdpkit.task_dir() / "checkpoint.pt")
        sys.exit(fsdpkit.STOPPED)

The agent on each node says so through a file in the node's memory. Nodes hear of it at different
times, but ranks have to stop after the same step, or those that go on wait for ever: so they ask
each other, by a sum of one number that does not keep a GPU waiting.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdpkit.runs.heartbeat import HeartbeatDir, looked_whether_to_stop
from fsdpkit.runs.layout import TaskPaths

if TYPE_CHECKING:
    import torch

_LOOK_EVERY_S = 1.0
"""Without an agent the request lies on a shared file system: no look at each step."""
_RELEASE_S = 5.0
_RELEASE_EVERY_S = 0.0001


def task_dir(otherwise: str | os.PathLike[str] = ".") -> Path:
    """The directory for a script's own checkpoints: that of the run, or of this array task.

    It is the same in all attempts, and in a job that `fsdpkit resume` starts.

    Args:
        otherwise: The directory where fsdpkit did not start the script.

    Returns:
        The directory; it exists in a run.

    Examples:
        >>> import fsdpkit
        >>> fsdpkit.task_dir() / "checkpoint.pt"
        PosixPath('checkpoint.pt')
    """
    return TaskPaths.of_this_job(os.fspath(otherwise)).dir


def stop_requested() -> bool:
    """Whether to save, and to exit with `fsdpkit.STOPPED`, now.

    True shortly before the time limit, on preemption, and after `fsdpkit cancel --save`. Call it
    after each step on every rank: where there is a process group, the ranks answer together
    (`torch.distributed.all_reduce` of one number), and all get True after the same step. On GPUs
    that is one step late, so that the host need not wait.

    Returns:
        The same on all ranks. Always False where fsdpkit did not start the script.

    Examples:
        >>> import fsdpkit
        >>> fsdpkit.stop_requested()
        False
    """
    wish = stop_wish()
    return wish.agreed() if wish is not None else False


class StopVotes:
    """Each rank's yes or no to a few questions; the answer is yes once any rank says so. On GPUs
    the answer is that of the call before, so that the host need not wait."""

    def __init__(self) -> None:
        self._before: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def agreed(self, *mine: bool) -> list[bool]:
        """All ranks' answers, the same on each; a collective where there is more than one."""
        if (group := _process_group()) is None:
            return list(mine)
        torch, dist = group
        votes = torch.tensor([float(vote) for vote in mine], device=_device(torch, dist))
        references = sys.getrefcount(votes)
        dist.all_reduce(votes)
        if not votes.is_cuda:
            # gloo's thread needs the interpreter to let go of its message. A script that returns
            # from `main` after its last step may end the process group in a destructor, which
            # keeps the interpreter and waits for that thread: each for the other, for ever.
            until_s = time.monotonic() + _RELEASE_S
            while sys.getrefcount(votes) > references and time.monotonic() < until_s:
                time.sleep(_RELEASE_EVERY_S)
            return [total > 0 for total in votes.tolist()]
        host, copied = votes.to("cpu", non_blocking=True), torch.cuda.Event()
        copied.record()
        before, self._before = self._before, (host, copied)
        if before is None:
            return [False for _ in mine]
        before[1].synchronize()
        return [total > 0 for total in before[0].tolist()]


class StopWish:
    """What this node's agent asks for, and what all ranks make of it."""

    def __init__(self, node: HeartbeatDir | None, task: TaskPaths) -> None:
        self._file = node.stop if node else task.stop_requested
        self._pause_s = 0.0 if node else _LOOK_EVERY_S
        self._next_look_s = 0.0
        self._seen = False
        self._votes = StopVotes()
        if node is not None:
            looked_whether_to_stop(node)

    def seen(self) -> bool:
        """Whether this rank's node has been told; no other rank is asked."""
        if not self._seen and (now := time.monotonic()) >= self._next_look_s:
            self._next_look_s = now + self._pause_s
            self._seen = os.path.exists(self._file)  # no error where a file server fails to say
        return self._seen

    def agreed(self) -> bool:
        """As `stop_requested`."""
        return self._votes.agreed(self.seen())[0]


_wishes: dict[tuple[int, str, str], StopWish] = {}


def stop_wish() -> StopWish | None:
    """One a process; None where no agent and no run directory is."""
    task, node = os.environ.get("FSDPKIT_TASK_DIR"), HeartbeatDir.of_this_node()
    if not task or os.environ.get("FSDPKIT_VISIT"):
        return None
    key = (os.getpid(), task, str(node.dir if node else ""))
    if key not in _wishes:
        _wishes[key] = StopWish(node, TaskPaths(Path(task)))
    return _wishes[key]


def _process_group() -> tuple[Any, Any] | None:
    """torch and torch.distributed, once there is more than one rank to agree with."""
    torch = sys.modules.get("torch")
    dist = sys.modules.get("torch.distributed")
    if torch is None or dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return (torch, dist) if dist.get_world_size() > 1 else None


def _device(torch: Any, dist: Any) -> str:
    """Where the default group can sum: on the host if it can there, which no GPU waits for."""
    if "cpu:gloo" in str(dist.get_backend_config()) or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}"


def wait_for_all() -> None:
    """Until every rank is here, where there is more than one."""
    if (group := _process_group()) is not None:
        _, dist = group
        dist.barrier()


def from_first(value: object) -> object:
    """Rank 0's value, on every rank; small, for it is pickled."""
    if (group := _process_group()) is None:
        return value
    torch, dist = group
    values = [value]
    dist.broadcast_object_list(values, src=0, device=torch.device(_device(torch, dist)))
    return values[0]


def from_all(value: object) -> list[Any]:
    """Every rank's value, in rank order, on every rank; small, for they are pickled."""
    if (group := _process_group()) is None:
        return [value]
    _, dist = group
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
