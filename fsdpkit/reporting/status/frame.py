"""A view of a run drawn for a terminal of some width and height, line by line. Pure.

Everything has a place: head, progress, curves, nodes, what happened, rank 0. What does not fit
into the height is left out from the bottom of each part, never wrapped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from fsdpkit.reporting.printable import one_line, printable
from fsdpkit.reporting.status.watching import (
    RunEvent,
    View,
    printed_line,
    progress_line,
)
from fsdpkit.reporting.usage import NodeUsage
from fsdpkit.reporting.words import duration, number

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
    lines = [*_head(view, width), *_progress(view, width, now_s)]
    left = height - len(lines)
    for draw, share in ((_curves, 3), (_nodes, 4), (_events, 3), (_log, 1)):
        part = draw(view, width, max(0, left // share))
        lines += part
        left -= len(part)
    lines = (lines + [Text()] * height)[:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def summary(view: View, diagnosis: str) -> list[str]:
    """What stays on the terminal when the run is over."""
    lines = [f"{view.run}: {view.state}"]
    if view.progress.step is not None:
        lines.append(progress_line(view.progress))
    elif view.printed is not None and view.printed.words:
        lines.append(printed_line(view.printed))
    more = [f"what to do: fsdpkit diagnose {view.run} --page"] if view.exit_status else []
    return [*lines, diagnosis, *more]


def _head(view: View, width: int) -> list[Text]:
    title = Text.assemble((view.run, "bold"), "  ", (view.state, "bold"))
    place = [f"job {view.job_id}"] if view.job_id else []
    place += [f"on {view.nodes}"] if view.nodes else []
    place += [f"attempt {view.attempt}"] if view.attempt is not None else []
    lines = [title, Text(", ".join(place) or "no job yet")]
    lines += [Text(f"why: {', '.join(filter(None, [view.why, view.starts]))}")] if view.why else []
    lines += [Text(f"to do: {view.action}")] if view.action else []
    return [*lines, *(Text(f"not known: {one}") for one in view.unread[:2])]


def _progress(view: View, width: int, now_s: float) -> list[Text]:
    progress, stage = view.progress, view.stage
    if stage is not None and stage.goes_on:
        front = ["copying to nodes", f"{stage.share:.0%}"]
        return [_bar(front, stage.share, width), Text(stage.so_far)]
    if progress.step is None:
        return _printed(view, width)
    words = [f"step {progress.step:,}"]
    share = None
    if progress.steps:
        share = min(1.0, progress.step / progress.steps)
        words = [f"step {progress.step:,} of {progress.steps:,}", f"{share:.0%}"]
    if progress.eta_s is not None:
        words.append(f"{duration(progress.eta_s)} to go")
    lines = [_bar(words, share, width), Text(", ".join(_numbers(view, now_s)))]
    return [*lines, Text(f"slow: {view.straggler}")] if view.straggler else lines


def _bar(words: Sequence[str], share: float | None, width: int) -> Text:
    front = ", ".join(words) + " "
    bar = Text(front)
    if share is not None and (room := min(width - len(front), 60)) > 0:
        done = round(share * room)
        bar.append("━" * done, "green").append("─" * (room - done), "dim")
    return bar


def _printed(view: View, width: int) -> list[Text]:
    """Of a script that logs no steps: what its output says."""
    found = view.printed
    if found is None or not found.words:
        return [Text("no step yet" if view.attempt is not None else "not started yet")]
    share = min(1.0, found.step / found.total) if found.total and found.step is not None else None
    words = [found.place or "no step yet", *([] if share is None else [f"{share:.0%}"])]
    rest = [found.words.removeprefix(found.place).removeprefix(", "), found.source]
    return [_bar(words, share, width), Text(", ".join(filter(None, rest)))]


def _numbers(view: View, now_s: float) -> list[str]:
    progress, found = view.progress, []
    if progress.step_time_s is not None:
        found.append(f"{number(progress.step_time_s)} s a step")
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
    script's own; and the rest."""
    known: list[_Panel] = [
        ("tokens/s" if name == "tokens_per_s" else printable(name), values)
        for name, values in view.curves.items()
        if any(value is not None for value in values)
    ]
    return known[:2], known[2:]


def _curves(view: View, width: int, height: int) -> list[Text]:
    """One or two curves beside each other, with a title above each; below, in a line, the newest
    of the other numbers."""
    panels, others = _panels(view)
    rows = min(height, 8) - 1 - bool(others)
    column = (width - 2 * (len(panels) - 1)) // max(1, len(panels))
    if rows < 1 or column < 1 or not panels:
        return []
    parts = []
    for title, values in panels:
        known = [value for value in values if value is not None]
        limits = f"{number(min(known))} to {number(max(known))}"
        parts.append([f"{title} {number(known[-1], 4)} ({limits})", *plot(values, column, rows)])
    drawn = [
        Text("  ".join(f"{one:<{column}}"[:column] for one in line), "cyan" if place else "bold")
        for place, line in enumerate(zip(*parts, strict=True))
    ]
    newest = [
        f"{n} {number(next(v for v in reversed(vs) if v is not None), 4)}" for n, vs in others
    ]
    return [*drawn, *([Text(", ".join(newest))] if newest else [])]


def plot(values: Sequence[float | None], width: int, height: int) -> list[str]:
    """Columns of block characters, from the lowest value to the highest; a gap where none is."""
    columns = _resampled(values, width)
    known = [value for value in columns if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
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
        left_out = len(cells) - (rows * beside - 1)
        cells = [*cells[: rows * beside - 1], f"and {left_out} more{_spread(view.used)}"]
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
    if height < 2 or not view.events:
        return []
    lines = [Text("what happened", "bold")]
    return [*lines, *(Text(line_of(one)) for one in view.events[-(height - 1) :])]


def line_of(one: RunEvent) -> str:
    """`00:14:02  rank 1 on node2: …`, in one line."""
    return f"{datetime.fromtimestamp(one.time_s):%H:%M:%S}  {' '.join(one.words.split())}"


def _log(view: View, width: int, height: int) -> list[Text]:
    lines, rank, found = list(view.lines), 0, view.printed
    if found is not None and found.line and found.line not in map(one_line, lines[-height:]):
        lines, rank = [*(lines if found.rank == 0 else []), found.line], found.rank
    if height < 2 or not lines:
        return []
    title = Text(f"rank {rank} prints", "bold")
    return [title, *(Text(line) for line in lines[-(height - 1) :])]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
