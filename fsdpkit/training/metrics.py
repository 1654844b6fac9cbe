"""What a run records of itself: one line of metrics.jsonl for each logged step, by rank 0.

Between two logged steps numbers stay on the device, so that the host never waits for the GPU; at a
logged step the ranks' sums are added and read once.

Fields of a line, where "mean" is over the steps since the last line:

- `step`: steps done, skipped ones included
- `loss`: mean per target token; absent if every step was skipped
- `grad_norm`: the last step's, before clipping
- `lr`: the schedule's, before a group's own factor
- `step_time_s`: mean seconds
- `loading_s`: seconds since the last line in which rank 0 waited for data, if the loop says when
- `tokens_per_s`: source and target tokens of all ranks per second, padding left out
- `tokens`: target tokens trained on since the run began
- `planned_steps`: steps after which the run is done, if the loop says it
- `skipped`: steps left out since the run began, because their gradient was not finite
- `tflops_per_device`: model FLOPs per second and rank / 10¹², if the loop counts them
- `mfu`: that as a share of the dense peak, if the peak is known
- `memory_bytes`: this rank's peak since the start, allocated on a GPU and resident on a CPU;
  on a GPU also `memory_reserved_bytes` and `alloc_retries`
- `compiled_blocks`, `blocks`: under `compile`, how many of the model's blocks rank 0 has run as
  compiled graphs only, evaluations included, and how many there are
- `slowest_rank`, `slowest_host`, `slowest_ratio` (its computing time over the median rank's): on
  every `stragglers_every`-th line, see `fsdpkit.training.stragglers`

A line with `eval_loss` is an evaluation. A resumed run appends: steps that were lost with a crash
occur twice, and the later line counts. A number that is not finite is written as null, and
`not_finite` says by name what it was: `nan`, `inf` or `-inf`.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from fsdpkit.config.training import MetricsSettings
from fsdpkit.errors import StorageError
from fsdpkit.runs.events import JsonLines, finite
from fsdpkit.runs.heartbeat import HeartbeatFile, own_heart
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.compilation import COMPILED, CompiledBlocks
from fsdpkit.training.distributed import Ranks, sum_over_ranks
from fsdpkit.training.stragglers import SLOW, Stopwatch, slowest


class Metrics:
    """Gathers a training loop's numbers; `step` after each optimizer step, `log` when it is due.

    Numbers stay on the device between two lines, so that the host does not wait for a GPU.

    Args:
        paths: Where `metrics.jsonl` is.
        ranks: From `process_group`.
        tokens: Target tokens trained on before, in a run that goes on.
        skipped: Steps left out before.
        planned_steps: Steps of the whole run, earlier ones included.
        settings: `[training.metrics]`: how often, and where else.
        peak_tflops: Dense peak of one device in Tflop/s, by which MFU is computed
            (`fsdpkit.training.hardware`).
        model: What `shard` has returned, to be watched for slow ranks and uncompiled blocks.

    Raises:
        StorageError: Rank 0 cannot write the file.
    """

    def __init__(
        self,
        paths: TaskPaths,
        ranks: Ranks,
        tokens: int = 0,
        *,
        skipped: int = 0,
        planned_steps: int | None = None,
        settings: MetricsSettings | None = None,
        peak_tflops: float | None = None,
        model: nn.Module | None = None,
    ) -> None:
        settings = settings or MetricsSettings()
        self.ranks, self.tokens, self.skipped = ranks, tokens, skipped
        self._peak = peak_tflops
        self._planned = {"planned_steps": planned_steps} if planned_steps else {}
        try:
            self.file = JsonLines(paths.metrics) if ranks.is_first else None
        except OSError as error:
            raise StorageError(f"{paths.metrics} cannot be written: {error.strerror}.") from error
        self._every_steps = settings.every_steps
        self._lines, self._stragglers_every = 0, settings.stragglers_every
        self._stopwatch = (
            Stopwatch(model, ranks.device)
            if model is not None and ranks.world_size > 1 and settings.stragglers_every
            else None
        )
        self._compiled: CompiledBlocks | None = getattr(model, COMPILED, None)
        self._said_uncompiled = False
        self._heart: HeartbeatFile | None = None
        self._logged = 0
        with suppress(OSError):
            self._heart = own_heart(ranks.local_rank)
        self._restart()

    def _restart(self) -> None:
        zero = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        self._loss, self._target_tokens, self._all_tokens = zero, zero.clone(), zero.clone()
        self._flops, self._steps = 0.0, 0
        self._loading_s: float | None = None
        if self._stopwatch:
            self._stopwatch.running = self._comparing
        self._since = time.perf_counter()

    @property
    def _comparing(self) -> bool:
        """Whether the next line compares the ranks."""
        return (self._lines + 1) % self._stragglers_every == 0 if self._stopwatch else False

    def step(
        self, loss_sum: Tensor, target_tokens: Tensor, all_tokens: Tensor, *, flops: float = 0.0
    ) -> None:
        """Add one step.

        Args:
            loss_sum: This rank's loss summed over its target tokens: a scalar on the device.
            target_tokens: All ranks' target tokens: a scalar on the device.
            all_tokens: All ranks' source and target tokens: a scalar on the device.
            flops: The model's floating-point operations (FLOPs) in this rank's step, forward and
                backward, recomputation left out.
        """
        self._loss = self._loss + loss_sum.detach()
        self._target_tokens = self._target_tokens + target_tokens
        self._all_tokens = self._all_tokens + all_tokens
        self._flops += flops
        self._count()

    def skip(self) -> None:
        """Count a step whose update was left out: its time counts, its tokens and loss do not."""
        self.skipped += 1
        self._count()

    def _count(self) -> None:
        """Each step is a heartbeat, unless the loop has a Heartbeat, which knows more."""
        self._steps += 1
        if self._heart is not None:
            self._heart.log_beat(self._logged + self._steps)

    def due(self, step: int, *, last: bool = False) -> bool:
        """Whether a line is to be logged now.

        Args:
            step: Steps done.
            last: Whether that was the last step.

        Returns:
            The same on all ranks.
        """
        return last or step % self._every_steps == 0

    def log(self, step: int, *, lr: float, grad_norm: Tensor) -> dict[str, Any]:
        """Write a line; a collective, and the host waits for the device.

        Args:
            step: Steps done.
            lr: The schedule's learning rate.
            grad_norm: What `clip_gradients` returned: a float32 scalar on the device.

        Returns:
            The line's fields, which the module's docstring explains.
        """
        sums = sum_over_ranks(self._loss, self._flops, device=self.ranks.device)
        same = torch.stack([self._target_tokens, self._all_tokens, grad_norm.double()])
        # One read for all numbers: each would make the host wait anew.
        loss, flops, target_tokens, all_tokens, norm = torch.cat([sums, same]).tolist()
        elapsed_s = time.perf_counter() - self._since
        self.tokens += int(target_tokens)
        fields: dict[str, Any] = {
            "step": step,
            **({"loss": loss / target_tokens} if target_tokens else {}),
            "grad_norm": norm,
            "lr": lr,
            "step_time_s": elapsed_s / max(1, self._steps),
            **({} if self._loading_s is None else {"loading_s": self._loading_s}),
            "tokens_per_s": all_tokens / elapsed_s,
            "tokens": self.tokens,
            "skipped": self.skipped,
            **self._planned,
            **self._speed(flops / elapsed_s / self.ranks.world_size / 1e12),
            **memory(self.ranks.device),
            **self._compiled_blocks(),
            **self._compare_ranks(),
        }
        self.record(**fields)
        self._lines, self._logged = self._lines + 1, step
        self._restart()
        return fields

    def _speed(self, tflops: float) -> dict[str, float]:
        if not tflops:
            return {}
        mfu = {"mfu": tflops / self._peak} if self._peak else {}
        return {"tflops_per_device": tflops, **mfu}

    def _compiled_blocks(self) -> dict[str, int]:
        if self._compiled is None:
            return {}
        found = self._compiled.take()
        if found["compiled_blocks"] < found["blocks"] and not self._said_uncompiled:
            self._said_uncompiled = True
            self.ranks.say(
                f"compiled {found['compiled_blocks']} of {found['blocks']} blocks: the others ran "
                "uncompiled; TORCH_LOGS=recompiles says why, training.data.buckets makes few shapes"
            )
        return found

    def _compare_ranks(self) -> dict[str, Any]:
        if not (self._stopwatch and self._comparing):
            return {}
        found = slowest(self._stopwatch.take_s())
        if found and found.ratio > SLOW:
            self.ranks.say(str(found))
        return found.fields if found else {}

    def settle(self) -> int:
        """Target tokens trained on since the run began, up to the last step; the host waits.

        Returns:
            The sum over all ranks.
        """
        return self.tokens + int(self._target_tokens)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the seconds inside (an evaluation, a checkpoint) out of times and speeds.

        Yields:
            Nothing: use it with `with`.
        """
        began = time.perf_counter()
        try:
            yield
        finally:
            self._since += time.perf_counter() - began

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the seconds inside as waiting for data.

        Yields:
            Nothing: use it with `with` where the loop takes its next batch.
        """
        began = time.perf_counter()
        try:
            yield
        finally:
            self._loading_s = (self._loading_s or 0.0) + time.perf_counter() - began

    def record(self, **fields: Any) -> None:
        """Write a line of any other numbers, for instance an evaluation's; rank 0 does.

        Args:
            **fields: By name; `step` should be among them.
        """
        if self.file:
            self.file.write(**finite(fields))

    def close(self) -> None:
        """Close the file."""
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
