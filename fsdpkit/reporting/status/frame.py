"""A view of a run drawn for a terminal of some width and height, line by line. Pure.

Everything has a place: head, progress, curves, nodes, what happened, rank 0. What does not fit
into the height is left out from the bottom of each part, never wrapped.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from fsdpkit.config.units import roughly
from fsdpkit.reporting.printable import one_line, printable
from fsdpkit.reporting.status.progress import left_s, limit_first
from fsdpkit.reporting.status.watching import (
    RunEvent,
    View,
    printed_line,
    progress_line,
)
from fsdpkit.reporting.usage import NodeUsage
from fsdpkit.reporting.words import duration, number, second

_BLOCKS = "▁▂▃▄▅▆▇█"
_QUIET_S = 60.0
"""Silence of the metrics that is worth a word, if it is also ten steps long."""
_SILENT_S = 300.0
"""By how much a node's newest sample may be older than the newest of all; nodes that have run for
long write one every few minutes."""
_NODE_WIDTH = 38


def frame(view: View, width: int, height: int, now_s: float | None = None) -> list[Text]:
    """Exactly `height` lines, none wider than `width` cells, as of now or the Unix time `now_s`."""
    now_s = time.time() if now_s is None else now_s
    lines = [*_head(view, width, now_s), *_progress(view, width, now_s)]
    left = height - len(lines)
    for draw, share in ((_curves, 3), (_nodes, 4), (_events, 3), (_log, 1)):
        part = draw(view, width, max(1, left // share))
        lines += part
        left -= len(part)
    lines = (lines + [Text()] * height)[:height]
    for line in lines:
        line.expand_tabs(4)
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def summary(view: View, diagnosis: str) -> list[str]:
    """What stays on the terminal when the run is over."""
    at = f", at {second(view.since_s)}" if view.since_s else ""
    lines = [f"{', '.join(filter(None, [view.run, view.task]))}: {view.state}{at}"]
    if view.progress.step is not None:
        lines.append(progress_line(view.progress))
    elif view.printed is not None and view.printed.words:
        lines.append(printed_line(view.printed))
    more = [f"what to do: fsdpkit diagnose {view.run} --page"] if view.exit_status else []
    return [*lines, diagnosis, *more]


def _head(view: View, width: int, now_s: float) -> list[Text]:
    since_s = None if view.over else view.since_s
    lasts = "" if since_s is None else f" for {roughly(now_s - since_s)}"
    title = Text.assemble((view.run, "bold"), "  ", (f"{view.state}{lasts}", "bold"))
    place = [f"job {view.job_id}"] if view.job_id else []
    place += [view.task] if view.task else []
    place += [f"attempt {view.attempt}"] if view.attempt is not None else []
    place += [f"on {view.nodes}"] if view.nodes else []
    lines = [title, Text(", ".join(place) or "no job yet")]
    if view.why:
        lines += _wrapped(f"why: {', '.join(filter(None, [view.why, view.starts]))}", width)
    lines += _wrapped(f"to do: {view.action}", width) if view.action else []
    return [*lines, *(Text(f"not known: {one}") for one in view.unread[:2])]


def _wrapped(text: str, width: int, most: int = 3) -> list[Text]:
    """In so many lines; the last has all that is left."""
    lines = textwrap.wrap(text, max(20, width))
    return [Text(one) for one in [*lines[: most - 1], " ".join(lines[most - 1 :])] if one]


def _progress(view: View, width: int, now_s: float) -> list[Text]:
    progress, stage, found = view.progress, view.stage, view.printed
    share, left = None, left_s(progress, now_s)
    numbers = _numbers(view, now_s)
    if stage is not None and stage.goes_on:
        words, share, numbers = ["copying to nodes"], stage.share, [stage.so_far]
    elif progress.step is not None:
        words = [f"step {progress.step:,}" + (f" of {progress.steps:,}" if progress.steps else "")]
        share = min(1.0, progress.step / progress.steps) if progress.steps else None
    elif found is not None and found.words:
        words, left = [found.place or "no step yet"], found.left_s
        if found.total and found.step is not None:
            share = min(1.0, found.step / found.total)
        numbers = [found.words.removeprefix(found.place).removeprefix(", "), found.source]
    else:
        begun = "no step yet" if view.attempt is not None else "not started yet"
        words = [begun, *([view.start] if view.start else [])]
    words += [] if share is None else [f"{share:.0%}"]
    words += [] if left is None else [f"{duration(left)} to go"]
    limit = limit_first(view.limit_s, left, now_s)
    if limit is None and view.limit_s is not None:
        limit = f"time limit in {roughly(view.limit_s - now_s)}"
    lines = [_bar(words, share, width)]
    lines += _wrapped(", ".join(filter(None, [*numbers[:1], limit, *numbers[1:]])), width, 2)
    return [*lines, Text(f"slow: {view.straggler}")] if view.straggler else lines


def _bar(words: Sequence[str], share: float | None, width: int) -> Text:
    front = ", ".join(words) + " "
    bar = Text(front)
    if share is not None and (room := min(width - len(front), 60)) > 0:
        done = round(share * room)
        bar.append("━" * done, "green").append("─" * (room - done), "dim")
    return bar


def _numbers(view: View, now_s: float) -> list[str]:
    progress, found = view.progress, []
    if (pace_s := progress.step_time_s) is not None:
        slow = pace_s >= 1 or not pace_s
        found.append(f"{number(pace_s)} s a step" if slow else f"{number(1 / pace_s)} steps/s")
    if progress.mfu is not None:
        found.append(f"MFU {progress.mfu:.1%}")
    if view.memory_bytes is not None:
        found.append(f"peak memory {_gigabytes(view.memory_bytes)}")
    if progress.checkpoint_step is not None and progress.checkpoint_s is not None:
        age = duration(max(0.0, now_s - progress.checkpoint_s))
        found.append(f"checkpoint of step {progress.checkpoint_step:,}, {age} ago")
    silent_s = now_s - (progress.updated_s or now_s)
    if not view.over and silent_s > max(_QUIET_S, 10 * (progress.step_time_s or 0)):
        found.append(f"no news for {duration(silent_s)}")
    return found


_Panel = tuple[str, Sequence[float | None]]


def _panels(view: View) -> tuple[list[_Panel], list[_Panel]]:
    """What is drawn, at most two: the loss, then the speed, an evaluation, a number of the
    script's own but its epoch; and the rest."""
    known: list[_Panel] = [
        ("tokens/s" if name == "tokens_per_s" else printable(name), values)
        for name, values in view.curves.items()
        if any(value is not None for value in values)
    ]
    known.sort(key=lambda panel: panel[0] == "epoch")
    most = 2 - any(name == "epoch" for name, _ in known[:2])
    return known[:most], known[most:]


def _curves(view: View, width: int, height: int) -> list[Text]:
    """One or two curves beside each other, with a title above each; below, in a line, the newest
    of the other numbers. Where they have no room, the newest of all."""
    panels, others = _panels(view)
    rows = min(height, 8) - 1 - bool(others)
    column = (width - 2 * (len(panels) - 1)) // max(1, len(panels))
    if rows < 1 or column < 1:
        panels, others = [], [*panels, *others]
    parts = []
    for title, values in panels:
        known = [value for value in values if value is not None]
        limits = f"{number(min(known))} to {number(max(known))}"
        # A speed that varies a little must not look like one that collapses.
        zero = title.endswith(("_per_s", "/s"))
        drawn = plot(values, column, rows, from_zero=zero)
        parts.append([f"{title} {number(known[-1], 4)} ({limits})", *drawn])
    drawn_lines = [
        Text("  ".join(f"{one:<{column}}"[:column] for one in line), "cyan" if place else "bold")
        for place, line in enumerate(zip(*parts, strict=True))
    ]
    newest = [
        f"{n} {number(next(v for v in reversed(vs) if v is not None), 4)}" for n, vs in others
    ]
    return [*drawn_lines, *([Text(", ".join(newest))] if newest else [])]


_LEAST_SPREAD = 0.1
"""Of the largest value, what the height of a curve is at least: noise is drawn as noise."""


def plot(
    values: Sequence[float | None], width: int, height: int, *, from_zero: bool = False
) -> list[str]:
    """Columns of block characters, from the lowest value, or zero, to the highest; a gap where
    none is."""
    columns = _resampled(values, width)
    known = [value for value in columns if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    low = min(low, 0.0) if from_zero else min(low, high - _LEAST_SPREAD * abs(high))
    most = 8 * height - 1
    levels = [
        0
        if value is None
        else 1 + (round((value - low) / (high - low) * most) if high > low else most // 2)
        for value in columns
    ]
    rows = []
    for row in reversed(range(height)):
        filled = (min(8, max(0, level - 8 * row)) for level in levels)
        rows.append("".join(_BLOCKS[eighths - 1] if eighths else " " for eighths in filled))
    return rows


def _resampled(values: Sequence[float | None], width: int) -> list[float | None]:
    """The mean of each of `width` stretches; fewer values than that are drawn wider."""
    count = len(values)
    found: list[float | None] = []
    for column in range(width if count else 0):
        begin = column * count // width
        part = values[begin : max(begin + 1, (column + 1) * count // width)]
        known = [value for value in part if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def _nodes(view: View, width: int, height: int) -> list[Text]:
    if height < 2 or not view.used:
        return []
    beside = max(1, width // _NODE_WIDTH)
    names = min(max(len(load.name) for load in view.used), 16)
    newest_s = max(load.time_s or 0.0 for load in view.used)
    cells = [_node(load, names, newest_s) for load in view.used]
    rows = height - 1
    if len(cells) > rows * beside:
        shown = cells[: rows * beside - 1]
        left_out = f"and {len(cells) - len(shown)} more" if shown else f"all {len(cells)}"
        cells = [*shown, f"{left_out}{_spread(view.used)}"]
    lines = [cells[at : at + beside] for at in range(0, len(cells), beside)]
    column = width // beside
    drawn = ["".join(f"{cell:<{column}}" for cell in line).rstrip() for line in lines]
    return [Text("nodes", "bold"), *map(Text, drawn)]


def _node(load: NodeUsage, names: int, newest_s: float) -> str:
    words = [f"{load.name[:names]:<{names}}"]
    if load.time_s is not None and newest_s - load.time_s > _SILENT_S:
        return f"{words[0]}  silent for {duration(newest_s - load.time_s)}"
    words += [f"CPU {load.cpu_percent:3.0f} %"] if load.cpu_percent is not None else []
    if load.gpu_percent is not None:
        words.append(f"GPU {load.gpu_percent:3.0f} %")
        words += [_gigabytes(load.gpu_memory_bytes)] if load.gpu_memory_bytes else []
    elif load.memory_bytes is not None:
        words.append(_gigabytes(load.memory_bytes))
    return "  ".join(words)


def _spread(loads: Sequence[NodeUsage]) -> str:
    known = [load.cpu_percent for load in loads if load.cpu_percent is not None]
    return f", CPU {min(known):.0f} to {max(known):.0f} %" if known else ""


def _events(view: View, width: int, height: int) -> list[Text]:
    return _newest("what happened", [line_of(one) for one in view.events], height)


def _newest(title: str, lines: Sequence[str], height: int) -> list[Text]:
    """The last of them; below their title, if there is room for both."""
    if not lines:
        return []
    head = [Text(title, "bold")] if height > 1 else []
    return [*head, *map(Text, lines[-max(1, height - 1) :])]


def line_of(one: RunEvent) -> str:
    """`00:14:02  rank 1 on node2: …`, in one line."""
    return f"{datetime.fromtimestamp(one.time_s):%H:%M:%S}  {' '.join(one.words.split())}"


def _log(view: View, width: int, height: int) -> list[Text]:
    lines, rank, found = list(view.lines), 0, view.printed
    if found is not None and found.line and found.line not in map(one_line, lines[-height:]):
        lines, rank = [*(lines if found.rank == 0 else []), found.line], found.rank
    return _newest(f"rank {rank} prints", lines, height)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
