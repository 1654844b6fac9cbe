"""The numbers that a run recorded, as numpy columns, and what plots need from them.

A file is read once. Incomplete lines, and fields of the wrong type, are skipped; a missing file has
no lines. A number that is absent or not finite is NaN here; one too large to compute with
(`LARGEST`) counts as infinite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray

from fsdpkit.bounded import METRICS_BYTES, TAIL_BYTES, lines_in, open_regular, read_end
from fsdpkit.runs.reading import LARGEST, number_in, parsed
from fsdpkit.runs.samples import Sample
from fsdpkit.runs.step_lines import Line, Step, typed_lines

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Columns = dict[str, Floats]
Time = Annotated[float, Meta(ge=0, le=1e11)]
_LONGEST_STEP_S = 1e9


class _MetricsLine(msgspec.Struct, gc=False):
    """Any line of metrics.jsonl (`fsdpkit.training.metrics`)."""

    time_s: Time
    step: Step
    # Absent: not computed. null: not finite, and `not_finite` may say what it was.
    loss: float | UnsetType | None = UNSET
    eval_loss: float | UnsetType | None = UNSET
    grad_norm: float | UnsetType | None = UNSET
    not_finite: dict[str, str] | None = None
    lr: float | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens: float | None = None
    skipped: float | None = None
    planned_steps: Step | None = None
    tflops_per_device: float | None = None
    mfu: float | None = None
    memory_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    checkpoint_bytes: float | None = None
    checkpoint_blocked_s: float | None = None
    checkpoint_written_s: float | None = None
    rank_compute_s: list[float] | None = None


_EVALUATION = ("eval_loss",)
_MAY_BE_UNSET = ("loss", "eval_loss", "grad_norm")
_CHECKPOINT = ("checkpoint_bytes", "checkpoint_blocked_s", "checkpoint_written_s")
_NOT_OF_A_STEP = {*_EVALUATION, *_CHECKPOINT, "rank_compute_s", "not_finite"}
_STEP = tuple(name for name in _MetricsLine.__struct_fields__ if name not in _NOT_OF_A_STEP)


def _no_columns(names: Iterable[str]) -> Columns:
    return {name: np.empty(0) for name in ("time_s", "step", *names)}


@dataclass(frozen=True, kw_only=True)
class MetricsTable:
    """`metrics.jsonl`. Every column has `time_s` (Unix time) and `step` beside it."""

    steps: Columns = field(default_factory=lambda: _no_columns(_STEP))
    """One row a logged step, in the file's order; the names are the file's."""
    evaluations: Columns = field(default_factory=lambda: _no_columns(_EVALUATION))
    checkpoints: Columns = field(default_factory=lambda: _no_columns(_CHECKPOINT))
    compared: Columns = field(default_factory=lambda: _no_columns(()))
    """The rows that compare the ranks, of the newest number of ranks."""
    rank_step_s: NDArray[np.float32] = field(
        default_factory=lambda: np.empty((0, 0), dtype=np.float32)
    )
    """[compared, ranks]: each rank's own computing in one step, seconds."""
    not_finite: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """Of `loss`, `eval_loss` and `grad_norm`, where any was none: step, and what it was instead
    (`NaN`, `infinite`, or `NaN or infinite` where that is not on record), in the file's order."""

    @property
    def superseded(self) -> Flags:
        """[steps]: whether the step was done again later."""
        return superseded(self.steps["step"])

    def counted(self, name: str) -> Floats:
        """The finite values of a step's column, of repeated steps the later ones."""
        values = self.steps[name][~self.superseded]
        return values[np.isfinite(values)]

    def settled(self, of: Flags | None = None) -> NDArray[np.intp]:
        """Places of the steps that count, without the first third, in which speed settles.

        of: [steps] only these."""
        step_s = self.steps["step_time_s"]
        counts = np.nan_to_num(step_s) > 0
        counts &= ~self.superseded & (True if of is None else of)
        return np.flatnonzero(counts)[int(counts.sum()) // 3 :]

    def typical(self, name: str, of: Flags | None = None, fewest: int = 1) -> float | None:
        """The median of a step's column over the settled steps; None of fewer than `fewest`."""
        values = self.steps[name][self.settled(of)]
        values = values[np.isfinite(values) & (values > 0)]
        return float(np.median(values)) if len(values) >= fewest else None

    def last(self, name: str) -> float | None:
        """The newest value of a step's column; None if there is none."""
        values = self.steps[name]
        known = values[~np.isnan(values)]
        return float(known[-1]) if len(known) else None


def superseded(step: Floats) -> Flags:
    """For each of some steps, in the order they were done, whether it was done again later."""
    lowest_after = np.minimum.accumulate(np.append(step[1:], np.inf)[::-1])[::-1]
    return np.asarray(step >= lowest_after)


def read_metrics(path: Path) -> MetricsTable:
    """`metrics.jsonl`, one pass; a missing or unreadable file has no lines."""
    steps: list[_MetricsLine] = []
    evaluations: list[_MetricsLine] = []
    checkpoints: list[_MetricsLine] = []
    compared: list[tuple[float, float, NDArray[np.float32]]] = []
    before: float | None = None
    for line in typed_lines(path, _MetricsLine, METRICS_BYTES):
        if line.eval_loss is not UNSET:
            evaluations.append(line)
        elif line.checkpoint_written_s is not None or line.checkpoint_bytes is not None:
            checkpoints.append(line)
        else:
            steps.append(line)
            if line.rank_compute_s and all(0 <= s <= _LONGEST_STEP_S for s in line.rank_compute_s):
                count = line.step - before if before is not None and line.step > before else 1.0
                row = np.array(line.rank_compute_s, dtype=np.float32) / count
                compared.append((line.time_s, line.step, row))
                line.rank_compute_s = None  # a thousand Python numbers a line
            before = line.step
    ranks = len(compared[-1][2]) if compared else 0
    compared = [one for one in compared if len(one[2]) == ranks]
    return MetricsTable(
        steps=_columns(steps, _STEP),
        evaluations=_columns(evaluations, ("time_s", "step", *_EVALUATION)),
        checkpoints=_columns(checkpoints, ("time_s", "step", *_CHECKPOINT)),
        compared={
            "time_s": np.array([one[0] for one in compared], dtype=np.float64),
            "step": np.array([one[1] for one in compared], dtype=np.float64),
        },
        rank_step_s=np.array([one[2] for one in compared], dtype=np.float32).reshape(
            len(compared), ranks
        ),
        not_finite={
            name: found
            for name in _MAY_BE_UNSET
            if (found := _not_finite(evaluations if name in _EVALUATION else steps, name))
        },
    )


def _not_finite(lines: Sequence[_MetricsLine], name: str) -> list[tuple[float, str]]:
    found = [
        (line.step, (line.not_finite or {}).get(name, "") if value is None else str(value))
        for line in lines
        if (value := getattr(line, name)) is not UNSET
        and (value is None or not abs(value) <= LARGEST)
    ]
    kinds = {"": "NaN or infinite", "nan": "NaN"}
    return [(step, kinds.get(word.lower(), "infinite")) for step, word in found]


_ALSO_KNOWN = {
    *("slowest_rank", "slowest_host", "slowest_ratio", "alloc_retries", "rank_host"),
    *("compiled_blocks", "blocks", "loading_s"),
}
"""Fields of the trainer that other parts of the report show, or that need no curve."""
_MOST_OWN_LINES, _MOST_OWN_NAMES = 20_000, 24


KNOWN_NAMES = _ALSO_KNOWN | set(_MetricsLine.__struct_fields__)
"""What a script logs by any other name is its own."""


def read_own_numbers(path: Path) -> dict[str, tuple[Floats, Floats]]:
    """Numbers that a script logged by names of its own: steps and values, each [lines], by name. Of
    many lines every second is read, or every fourth, and so on. Of steps that were done again the
    later ones count. The first names are kept, in the order in which they came."""
    kept: list[bytes] = []
    stride, number = 1, 0
    with contextlib.suppress(OSError), open_regular(path) as file:
        for number, line in enumerate(lines_in(file, METRICS_BYTES)):
            if number % stride == 0:
                kept.append(line)
            if len(kept) > _MOST_OWN_LINES:
                kept, stride = kept[::2], 2 * stride
    found: dict[str, list[tuple[float, float]]] = {}
    for line in kept:
        try:
            fields = parsed(line)
            step = msgspec.convert(fields["step"], Step)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        own = ((n, number_in(value)) for n, value in fields.items() if n not in KNOWN_NAMES)
        for name, value in own:
            if value is not None and (name in found or len(found) < _MOST_OWN_NAMES):
                found.setdefault(name, []).append((step, value))
    columns = {name: np.array(pairs, dtype=np.float64) for name, pairs in found.items()}
    return {
        name: (pairs[fine, 0], pairs[fine, 1])
        for name, pairs in columns.items()
        for fine in [~superseded(pairs[:, 0])]
    }


def read_samples(path: Path, most: int | None = None) -> Columns:
    """A node's samples: percent, bytes, bytes per second and watts, by time.

    most: of a longer file every second sample is read, or every third, and so on.

    `gpu_percent` and `gpu_memory_bytes` are means over the node's GPUs, `gpu_power_w` is their sum.
    The network's rates come from counters; where a counter fell, it was started anew: NaN.
    """
    lines = _every_line(path, Sample, most)
    columns = _columns(lines, ("time_s", "cpu_percent", "memory_used_bytes"))
    for way in ("sent", "received"):
        total = _columns(lines, (f"network_{way}_bytes",))[f"network_{way}_bytes"]
        columns[f"network_{way}_bytes_per_s"] = _rate(columns["time_s"], total)
    counts = np.array([len(line.gpus) for line in lines], dtype=int)
    gpus = [gpu for line in lines for gpu in line.gpus]
    for name, of_gpu, as_mean in (
        ("gpu_percent", "utilization_percent", True),
        ("gpu_memory_bytes", "memory_used_bytes", True),
        ("gpu_power_w", "power_w", False),
    ):
        columns[name] = _of_gpus(_column(gpus, of_gpu), counts, as_mean=as_mean)
    return columns


def _of_gpus(values: Floats, counts: NDArray[np.int_], *, as_mean: bool) -> Floats:
    """Of each sample's `counts` values the mean or the sum; NaN where none is known."""
    sample, known = np.repeat(np.arange(len(counts)), counts), ~np.isnan(values)
    total = np.bincount(sample[known], weights=values[known], minlength=len(counts))
    number = np.bincount(sample[known], minlength=len(counts))
    found = np.divide(
        total, number if as_mean else 1, out=np.full(len(counts), np.nan), where=number > 0
    )
    return np.asarray(found, dtype=np.float64)


def _rate(time_s: Floats, total: Floats) -> Floats:
    if len(total) < 2:
        return np.full(len(total), np.nan)
    elapsed_s, grown = np.diff(time_s), np.diff(total)
    fine = (elapsed_s > 0) & (grown >= 0)
    rate = np.divide(grown, elapsed_s, out=np.full(len(grown), np.nan), where=fine)
    return np.concatenate([[np.nan], rate])


Item = TypeVar("Item")


def _every_line(path: Path, kind: type[Line], most: int | None) -> list[Line]:
    """As `typed_lines`, faster for a file of some megabytes whose lines are all whole."""
    try:
        data = read_end(path)
        if most is not None and (every := -(-data.count(b"\n") // most)) > 1:
            data = b"\n".join(data.splitlines()[::every])
        return msgspec.json.Decoder(kind).decode_lines(data)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return list(typed_lines(path, kind, TAIL_BYTES))


def _columns(lines: Sequence[msgspec.Struct], names: Iterable[str]) -> Columns:
    return {name: _column(lines, name) for name in names}


def _column(lines: Sequence[msgspec.Struct], name: str) -> Floats:
    values = list(map(attrgetter(name), lines))
    if name in _MAY_BE_UNSET:
        values = [None if value is UNSET else value for value in values]
    column = np.array(values, dtype=np.float64)  # None becomes NaN
    column[~(np.abs(column) <= LARGEST)] = np.nan
    return column


def stretches(flags: Flags) -> list[tuple[int, int]]:
    """Where flags are set: the place of the first of each stretch, and the one behind its last."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return list(zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True))


def every(items: Sequence[Item], most: int) -> Sequence[Item]:
    """All of them, or every second, third and so on: no more than that many remain."""
    return items[:: -(-len(items) // most) or 1]


def thin(x: Floats, y: Floats, points: int) -> tuple[Floats, Floats]:
    """At most about `points` of the pairs, in order of x: the first, the last, and of each stretch
    its lowest and its highest y, and a NaN if it has one, which is a gap."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    if len(x) <= max(points, 4):
        return x, y
    kept = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), max(1, points // 2)):
        gaps = np.isnan(y[part])
        if gaps.any():
            kept.add(int(part[gaps.argmax()]))
        if not gaps.all():
            kept |= {int(part[np.nanargmin(y[part])]), int(part[np.nanargmax(y[part])])}
    chosen = np.array(sorted(kept))
    return x[chosen], y[chosen]


def middle(x: Floats, y: Floats, points: int) -> tuple[Floats, Floats]:
    """The median y of each of `points` stretches of equally many pairs, at their median x."""
    order = np.argsort(x, kind="stable")
    fine = order[~np.isnan(y[order])]
    parts = [part for part in np.array_split(fine, max(1, points)) if len(part)]
    return (
        np.array([np.median(x[part]) for part in parts], dtype=np.float64),
        np.array([np.median(y[part]) for part in parts], dtype=np.float64),
    )


def on_grid(time_s: Floats, values: Floats, edges: Floats) -> Floats:
    """[edges − 1] the mean of the values between two edges each; NaN where there is none."""
    fine = ~np.isnan(values)
    place = np.searchsorted(edges, time_s[fine], side="right") - 1
    # The last edge belongs to the last interval.
    place = np.where(time_s[fine] == edges[-1], len(edges) - 2, place)
    inside = (place >= 0) & (place < len(edges) - 1)
    count = np.bincount(place[inside], minlength=len(edges) - 1)
    total = np.bincount(place[inside], weights=values[fine][inside], minlength=len(edges) - 1)
    return np.asarray(
        np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0), dtype=np.float64
    )
