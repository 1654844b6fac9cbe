"""The plots by node: CPU, memory, network and GPUs over time.

Up to four nodes are drawn as one line each; for more, the median and the spread are drawn, and
outliers are named.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fsdpkit.reporting.report.figures import DrawnFigure, thinned
from fsdpkit.reporting.report.plots import TONES, Band, Chart, PlotLine, draw
from fsdpkit.reporting.scales import Axis, clock, linear
from fsdpkit.reporting.series import Columns, Floats, on_grid, read_samples
from fsdpkit.reporting.words import number
from fsdpkit.runs.bounds import Bounds, shift_s
from fsdpkit.runs.history import Attempt, History

FEW_NODES = 4
_MOST_SAMPLES, _MOST_COLUMNS = 1000, 120
"""Where many nodes are put together: samples of an attempt and a node, and stretches of time. The
last samples of a long attempt are a 360th of it apart (`launching.sampling`)."""


@dataclass(frozen=True)
class _Quantity:
    name: str
    title: str
    unit: str
    scale: float
    outlier: Callable[[Floats], np.intp]
    """Which of the nodes' means is worth a name."""


_QUANTITIES = (
    _Quantity("gpu_percent", "GPU utilisation", "%", 1, np.nanargmin),
    _Quantity("gpu_memory_bytes", "GPU memory", "GiB", 2**30, np.nanargmax),
    _Quantity("gpu_power_w", "GPU power of a node", "W", 1, np.nanargmin),
    _Quantity("cpu_percent", "CPU", "%", 1, np.nanargmax),
    _Quantity("memory_used_bytes", "Host memory", "GiB", 2**30, np.nanargmax),
    _Quantity("network_received_bytes_per_s", "Network, received", "MB/s", 1e6, np.nanargmin),
    _Quantity("network_sent_bytes_per_s", "Network, sent", "MB/s", 1e6, np.nanargmin),
)


def machine_figures(history: History, bounds: Sequence[Bounds], now_s: float) -> list[DrawnFigure]:
    """CPU, memory, network and GPUs by node, over time, attempt after attempt."""
    spans = [(b, e if e is not None else now_s) for b, e in bounds if b is not None]
    if not spans:
        return []
    begin_s, end_s = min(b for b, _ in spans), max(e for _, e in spans)
    names = {node.name for attempt in history.attempts for node in attempt.nodes}
    files = [len(list(a.dir.glob("node-*.samples.jsonl"))) for a in history.attempts]
    few = max(files, default=0) <= FEW_NODES and len(names) <= len(TONES)
    nodes: dict[str, list[Columns]] = {}
    for attempt in history.attempts:
        for name, columns in _samples(attempt, None if few else _MOST_SAMPLES):
            nodes.setdefault(name, []).append(columns)
    if not few:
        nodes = _on_one_grid(nodes, begin_s, end_s)
    axis = clock(begin_s, end_s, ticks=4)
    drawn = (_machine_figure(quantity, nodes, axis, few) for quantity in _QUANTITIES)
    return [figure for figure in drawn if figure is not None]


def _samples(attempt: Attempt, most: int | None) -> list[tuple[str, Columns]]:
    found = []
    for file, story in attempt.sampled():
        columns = read_samples(file, most)
        if story is not None:
            columns["time_s"] = columns["time_s"] + shift_s(attempt, story)
        found.append(((story and story.name) or file.name.split(".")[0].replace("-", " "), columns))
    return sorted(found, key=lambda pair: pair[0])


def _on_one_grid(
    nodes: Mapping[str, Sequence[Columns]], begin_s: float, end_s: float
) -> dict[str, list[Columns]]:
    """All nodes' samples, averaged over the same intervals, as long as between two samples."""
    longest = max((len(p["time_s"]) for parts in nodes.values() for p in parts), default=0)
    count = min(_MOST_COLUMNS, max(1, round(longest / 1.5)))
    edges = np.linspace(begin_s, max(end_s, begin_s + 1), count + 1)
    found: dict[str, list[Columns]] = {}
    for name, parts in nodes.items():
        time_s = np.concatenate([part["time_s"] for part in parts])
        grid = {"time_s": (edges[:-1] + edges[1:]) / 2}
        for q in _QUANTITIES:
            grid[q.name] = on_grid(time_s, np.concatenate([part[q.name] for part in parts]), edges)
        found[name] = [grid]
    return found


Series = dict[str, tuple[Floats, Floats]]
"""By node: times, and values."""
Drawn = tuple[list[PlotLine], list[Band], list[tuple[str, str]], str]
"""Lines, bands, numbers (tone, text) and a remark."""


def _machine_figure(
    quantity: _Quantity, nodes: dict[str, list[Columns]], axis: Axis, few: bool
) -> DrawnFigure | None:
    series = {
        name: _one_after_another(parts, quantity.name)
        if few
        else (parts[0]["time_s"], parts[0][quantity.name])
        for name, parts in nodes.items()
    }
    series = {name: pair for name, pair in series.items() if not np.isnan(pair[1]).all()}
    if not series:
        return None
    high = max(float(np.nanmax(y)) for _, y in series.values())
    low = min(0.0, *(float(np.nanmin(y)) for _, y in series.values()))
    scale, unit = quantity.scale, quantity.unit
    if unit == "MB/s" and high >= 1e9:
        scale, unit = 1e9, "GB/s"
    series = {name: (x, y / scale) for name, (x, y) in series.items()}
    lines, bands, values, remark = (
        _each_node(series, unit) if few else _spread(series, unit, quantity.outlier)
    )
    chart = Chart(
        key=quantity.name,
        title=f"{quantity.title} by node over time",
        description=f"{', '.join(text for _, text in values)}. {remark}",
        x=axis,
        y=linear(low / scale, 100.0 if unit == "%" else high / scale, unit),
        lines=lines,
        bands=bands,
        height=120,
    )
    return DrawnFigure(
        title=quantity.title, drawing=draw(chart), values=tuple(values), remark=remark
    )


def _one_after_another(parts: Sequence[Columns], name: str) -> tuple[Floats, Floats]:
    """The attempts' samples with a gap behind each."""
    parts = [part for part in parts if len(part["time_s"])]
    if not parts:
        return np.empty(0), np.empty(0)
    times = [time_s for part in parts for time_s in (part["time_s"], part["time_s"][-1:])]
    values = [value for part in parts for value in (part[name], np.array([np.nan]))]
    return np.concatenate(times), np.concatenate(values)


def _each_node(series: Series, unit: str) -> Drawn:
    lines = [
        thinned(name, x, y, tone)
        for tone, (name, (x, y)) in zip(TONES, sorted(series.items()), strict=False)
    ]
    means = {name: number(float(np.nanmean(y))) for name, (_, y) in series.items()}
    return (
        lines,
        [],
        [(line.tone, f"{line.name} {means[line.name]}") for line in lines],
        f"{unit}, mean",
    )


def _spread(series: Series, unit: str, outlier: Callable[[Floats], np.intp]) -> Drawn:
    names, stacked = list(series), np.array([y for _, y in series.values()])
    means = np.nanmean(stacked, axis=1)
    x = next(iter(series.values()))[0]
    line = PlotLine(name="median node", x=x, y=_nan(np.nanmedian, stacked))
    band = Band(x=x, low=_nan(np.nanmin, stacked), high=_nan(np.nanmax, stacked))
    odd = int(outlier(means))
    word = "lowest" if outlier is np.nanargmin else "highest"
    remark = f"{word} on average: {names[odd]}, {number(float(means[odd]))} {unit}; "
    values = [("a", f"median {number(float(np.median(means)))} {unit}")]
    return [line], [band], values, f"{remark}band: all {len(names)} nodes"


def _nan(reduce: Callable[..., Floats], rows: Sequence[Floats] | Floats) -> Floats:
    """Over the first axis; NaN where all are, without numpy's warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(reduce(np.asarray(rows), axis=0))
