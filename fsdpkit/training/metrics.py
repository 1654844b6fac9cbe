"""What a run records of itself: one line of metrics.jsonl for each logged step, by rank 0.

Between two logged steps numbers stay on the device, so that the host never waits for the GPU; at a
logged step the ranks' sums are added and read once.

Fields of a line: `step` (steps done), `loss` (mean per target token since the last line),
`grad_norm` (last step's, before clipping), `lr`, `step_time_s` (mean), `tokens_per_s` (source and
target tokens of all ranks, padding left out), `tokens` (target tokens trained on since the run
began), `memory_bytes` (this rank's peak: allocated on a GPU, resident on a CPU) and, on a GPU,
`memory_reserved_bytes` and `alloc_retries`. A line with `eval_loss` closes a run. A resumed run
appends: steps that were lost with a crash occur twice, and the later line counts.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from torch import Tensor

from fsdpkit.errors import StorageError
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.distributed import Ranks, sum_over_ranks


class Metrics:
    """Gathers a training loop's numbers; `step` after each optimizer step, `log` when it is due.

    Raises StorageError when rank 0 cannot write the file.
    """

    def __init__(self, paths: TaskPaths, ranks: Ranks, tokens: int = 0) -> None:
        self.ranks = ranks
        try:
            self.file = JsonLines(paths.metrics) if ranks.is_first else None
        except OSError as error:
            raise StorageError(f"{paths.metrics} cannot be written: {error.strerror}.") from error
        self.tokens = tokens
        self._restart()

    def _restart(self) -> None:
        zero = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        self._loss, self._target_tokens, self._all_tokens = zero, zero.clone(), zero.clone()
        self._steps, self._since = 0, time.perf_counter()

    def step(self, loss_sum: Tensor, target_tokens: Tensor, all_tokens: Tensor) -> None:
        """Add one step: this rank's summed loss, and all ranks' token counts; all on the device."""
        self._loss = self._loss + loss_sum.detach()
        self._target_tokens = self._target_tokens + target_tokens
        self._all_tokens = self._all_tokens + all_tokens
        self._steps += 1

    def log(self, step: int, *, lr: float, grad_norm: Tensor) -> dict[str, Any]:
        """Write a line and return its fields; a collective, and the host waits for the device."""
        loss = sum_over_ranks(self._loss, device=self.ranks.device)[0]
        target_tokens = int(self._target_tokens)
        elapsed_s = time.perf_counter() - self._since
        self.tokens += target_tokens
        fields: dict[str, Any] = {
            "step": step,
            "loss": float(loss) / max(1, target_tokens),
            "grad_norm": float(grad_norm),
            "lr": lr,
            "step_time_s": elapsed_s / max(1, self._steps),
            "tokens_per_s": float(self._all_tokens) / elapsed_s,
            "tokens": self.tokens,
            **memory(self.ranks.device),
        }
        self.record(**fields)
        self._restart()
        return fields

    def settle(self) -> int:
        """Target tokens trained on since the run began, up to the last step; the host waits."""
        return self.tokens + int(self._target_tokens)

    def record(self, **fields: Any) -> None:
        """Write a line of any other numbers, for instance an evaluation's."""
        if self.file:
            self.file.write(**fields)

    def close(self) -> None:
        if self.file:
            self.file.close()


def memory(device: torch.device) -> dict[str, int]:
    """This process's peak memory in bytes; on a GPU also how often the allocator started over."""
    if device.type == "cuda":
        return {
            "memory_bytes": torch.cuda.max_memory_allocated(device),
            "memory_reserved_bytes": torch.cuda.max_memory_reserved(device),
            "alloc_retries": torch.cuda.memory_stats(device).get("num_alloc_retries", 0),
        }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"memory_bytes": peak if sys.platform == "darwin" else peak * 1024}
