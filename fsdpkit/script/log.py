"""`fsdpkit.log(step, loss=…)`: one line in a training loop, for progress, heartbeat and curves.

Every rank may call it. Each call is a heartbeat of its rank, by which the agent finds a rank that
hangs; rank 0's numbers go to metrics.jsonl in the run's directory, where `status`, `watch` and
`report` read them. Numbers on a GPU are copied while it computes and written a call later: the host
never waits for it. A call costs microseconds, and harms no training: what cannot be logged is left
out, and said once on standard error.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import operator
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdpkit.runs.events import JsonLines, finite
from fsdpkit.runs.heartbeat import HeartbeatFile, own_heart
from fsdpkit.runs.layout import TaskPaths

_WRITE_EVERY_S = 1.0
"""How long lines of a fast loop are kept, so that a shared file system is written to once."""
_LOCK_S = 5.0
_MOST_WAITING = 1000
"""Lines kept; each may hold numbers that a GPU has yet to compute."""
_MOST_NUMBERS, _LONGEST_NAME = 200, 100
_LARGEST_STEP = 2**53
_OF_THE_LINE = frozenset({"time_s", "step", "not_finite"})


def log(step: int, **numbers: Any) -> None:
    """Say that `step` steps are done, with any numbers by name.

    Call it on every rank, once a step or every few steps. Each call is a heartbeat, by
    which the agent finds a rank that hangs (`retry.hang_s`). Rank 0's numbers are appended to
    `metrics.jsonl` in the run's directory. It never raises: what cannot be logged is left out, and
    said once on standard error. Outside a run it does nothing.

    `status`, `watch` and `report` know these names; every other one gets a curve of its own:

    - `loss`, `eval_loss`, `grad_norm`, `lr`
    - `planned_steps`: steps after which the run is done
    - `tokens`: trained on since the run began, by all ranks together
    - `step_time_s`, `tokens_per_s`: seconds, and tokens per second of all ranks; computed from the
      calls where they are not given
    - `mfu`: share of the GPUs' peak, 0 to 1

    Args:
        step: Steps done since the run began, counted over all epochs and attempts.
        **numbers: Python's or NumPy's numbers, or tensors of one element on any device. A tensor on
            a GPU is copied while it computes and written a call later. A sharded one (DTensor) is
            left out: reading it would need all ranks. At most 200.

    Examples:
        What a run's agent sets is set here by hand:

        >>> import json, os, pathlib, fsdpkit
        >>> os.environ["FSDPKIT_TASK_DIR"] = os.getcwd()
        >>> fsdpkit.log(1, loss=2.5, lr=1e-4, planned_steps=100)
        >>> line = json.loads(pathlib.Path("metrics.jsonl").read_text())
        >>> line["step"], line["loss"]
        (1, 2.5)
    """
    try:
        _logger().log(step, numbers)
    except Exception as error:  # the account of a training must not end it
        _say_once("failed", f"fsdpkit.log left out step {step!r:.40}: {error!r:.200}")


_loggers: dict[int, _Logger] = {}
_said: set[str] = set()


def _logger() -> _Logger:
    pid = os.getpid()
    if pid not in _loggers:
        _loggers[pid] = _Logger()
    return _loggers[pid]


def _say_once(kind: str, words: str) -> None:
    if kind not in _said:
        _said.add(kind)
        with contextlib.suppress(OSError, ValueError):
            printed = "".join(c if c.isprintable() else "?" for c in words)
            print(f"fsdpkit: {printed}", file=sys.stderr, flush=True)


@dataclass
class _Line:
    """A line that waits to be written, and which of its numbers a GPU has yet to hand over."""

    fields: dict[str, Any]
    pending: dict[str, Any] = field(default_factory=dict)
    """Tensors in the host's memory that are being filled."""
    copied: Any = None
    """A CUDA event after the copies; None where there are none."""

    @property
    def is_ready(self) -> bool:
        return self.copied is None or bool(self.copied.query())

    def complete(self) -> list[dict[str, Any]]:
        """All fields as Python's numbers; an evaluation beside a step gets a line of its own, as
        readers expect. Waits for the copies."""
        if self.copied is not None:
            self.copied.synchronize()
        fields = {**self.fields, **{name: _plain(t.item()) for name, t in self.pending.items()}}
        if not {"loss", "eval_loss"} <= fields.keys():
            return [finite(fields)]
        of_line = {name: fields[name] for name in ("time_s", "step")}
        evaluation = {**of_line, "eval_loss": fields.pop("eval_loss")}
        return [finite(fields), finite(evaluation)]


class _Logger:
    """This process's part: its rank's heart, and on rank 0 the file."""

    def __init__(self) -> None:
        self._heart: HeartbeatFile | None = None
        self._file: JsonLines | None = None
        self._waiting: deque[_Line] = deque()
        self._lock = threading.Lock()
        self._written_s = -math.inf
        self._steps: tuple[int, float, float | None] | None = None  # the last: step, time, tokens
        found = os.environ.get("FSDPKIT_TASK_DIR")
        if not found or os.environ.get("FSDPKIT_VISIT"):
            return
        try:
            self._heart = own_heart()
        except BlockingIOError:
            rank = os.environ.get("RANK", "?")
            _say_once("second", f"another process of rank {rank} logs already; this one's are lost")
            return
        except OSError as error:
            _say_once("heart", f"no heartbeat ({error.strerror}): a hang is not noticed")
        if os.environ.get("RANK", "0") == "0":
            try:
                self._file = JsonLines(TaskPaths(Path(found)).metrics)
            except OSError as error:
                _say_once(
                    "file", f"{found} cannot be written ({error.strerror}); nothing is logged"
                )
            atexit.register(self.close, os.getpid())
            threading.Thread(target=self._write_late, name="fsdpkit-log", daemon=True).start()

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        if self._heart is None and self._file is None:
            return
        number = _step(step)
        if number is None:
            self._beat(self._steps[0] if self._steps else 0)
            _say_once("step", f"{step!r:.40} is no number of steps; the line is left out")
            return
        self._beat(number)
        if self._file is None:
            return
        if self._steps and number < self._steps[0]:
            _say_once(
                "back",
                f"step {number} comes after {self._steps[0]}: the curve goes on from there, as "
                "after a restart; count steps over all epochs",
            )
        line = _line_of(numbers)
        line.fields["step"] = number
        if "loss" in numbers or "eval_loss" not in numbers:
            line.fields = self._with_rates(number, line.fields)
        with self._lock:
            self._waiting.append(line)
            full = len(self._waiting) > _MOST_WAITING
            if full or time.monotonic() - self._written_s >= _WRITE_EVERY_S:
                self._write(wait=full)

    def _write_late(self) -> None:
        """The last lines before a pause, or before the rank hangs, while nobody logs another."""
        while True:
            time.sleep(_WRITE_EVERY_S)
            with contextlib.suppress(Exception), self._lock:
                if time.monotonic() - self._written_s >= _WRITE_EVERY_S:
                    self._write(wait=False)

    def _beat(self, step: int) -> None:
        if self._heart is not None:
            self._heart.log_beat(step)

    def _with_rates(self, step: int, fields: dict[str, Any]) -> dict[str, Any]:
        """`step_time_s` and `tokens_per_s` since the line before, unless the script says them."""
        now, before = time.perf_counter(), self._steps
        tokens = fields.get("tokens")
        tokens = tokens if isinstance(tokens, int | float) else None
        self._steps = (step, now, tokens)
        rates: dict[str, Any] = {"step_time_s": None}
        if before is not None and step > before[0]:
            elapsed_s = max(now - before[1], 1e-9)
            rates["step_time_s"] = elapsed_s / (step - before[0])
            if tokens is not None and before[2] is not None and tokens > before[2]:
                rates["tokens_per_s"] = (tokens - before[2]) / elapsed_s
        elif before is not None and step == before[0]:  # a second line of the same step
            self._steps = (step, before[1], before[2] if tokens is None else tokens)
            return {"step_time_s": None, **fields}
        return {**rates, **_memory(), **fields}

    def _write(self, *, wait: bool) -> None:
        """What is ready, in order; with `wait` all of it."""
        assert self._file is not None
        ready: list[dict[str, Any]] = []
        while self._waiting and (wait or self._waiting[0].is_ready):
            ready += self._waiting.popleft().complete()
        if ready:
            self._file.write_all(ready)
            self._written_s = time.monotonic()

    def close(self, pid: int) -> None:
        """At the process's end; not in one that was forked from it."""
        if pid == os.getpid() and self._file is not None and self._lock.acquire(timeout=_LOCK_S):
            with contextlib.suppress(Exception):
                self._write(wait=True)
            self._lock.release()


def _step(step: Any) -> int | None:
    """A step as a whole number; None for what is none. Never reads from a GPU."""
    try:
        if isinstance(step, float):
            number = int(step) if step.is_integer() else None
        elif getattr(step, "is_cuda", False) or _is_sharded(step):
            number = None
        else:
            number = operator.index(step)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if number is not None and 0 <= number <= _LARGEST_STEP else None


def _is_sharded(value: Any) -> bool:
    """Whether it is a DTensor, one rank's reading of which waits for all others."""
    return hasattr(value, "device_mesh") and hasattr(value, "placements")


def _line_of(numbers: Mapping[str, Any]) -> _Line:
    """The numbers that can be logged; `time_s` is that of the call."""
    line = _Line({"time_s": round(time.time(), 3)})
    for name, value in list(numbers.items())[:_MOST_NUMBERS]:
        if name in _OF_THE_LINE or len(name) > _LONGEST_NAME or not name.isprintable():
            _say_once(f"name {name:.40}", f"{name!r:.60} can be no number's name; it is left out")
        elif _is_sharded(value):
            _say_once(
                f"sharded {name}", f"{name} is sharded, and one rank cannot read it; left out"
            )
        elif getattr(value, "is_cuda", False):
            _add_from_gpu(line, name, value)
        elif (plain := _plain(value)) is not None:
            line.fields[name] = plain
        else:
            what = type(value).__name__
            _say_once(f"kind {name}", f"{name} is no single number ({what:.40}); it is left out")
    if len(numbers) > _MOST_NUMBERS:
        _say_once("many", f"of {len(numbers)} numbers the first {_MOST_NUMBERS} are logged")
    if line.pending:
        import torch

        line.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        line.copied.record()
    return line


def _add_from_gpu(line: _Line, name: str, value: Any) -> None:
    if value.numel() != 1 or value.is_complex():
        _say_once(f"kind {name}", f"{name} is no single number ({tuple(value.shape)}); left out")
        return
    # Into pinned memory, so the copy joins the GPU's queue and the host goes on.
    line.pending[name] = value.detach().to("cpu", non_blocking=True)


def _plain(value: Any) -> int | float | None:
    """Python's number for one of Python's, NumPy's or a tensor's in the host's memory."""
    if isinstance(value, str | bytes):
        return None
    if not isinstance(value, int | float):
        item = getattr(value, "item", None)
        try:
            value = item() if item is not None else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return (
            value if abs(value) <= _LARGEST_STEP else float(value) if abs(value) < 1e300 else None
        )
    return value if isinstance(value, float) else None


def _memory() -> dict[str, int]:
    """This rank's peak on its GPU, in bytes, as far as torch has been used there."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return {}
        return {
            "memory_bytes": torch.cuda.max_memory_allocated(),
            "memory_reserved_bytes": torch.cuda.max_memory_reserved(),
        }
    except (AttributeError, RuntimeError):
        return {}
