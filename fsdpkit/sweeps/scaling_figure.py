"""The figure of an allocation proposal: speedup and efficiency over nodes, as SVG or PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fsdpkit.errors import ConfigError
from fsdpkit.sweeps.scaling import Mode, Size, knee

_COLOURS: dict[Mode, str] = {"weak": "#0b62a8", "strong": "#b34700"}
"""Told apart by colour-blind people, and in grey by their markers."""
_MARKERS: dict[Mode, str] = {"weak": "o", "strong": "s"}


def figure(sizes: Mapping[Mode, Sequence[Size]], title: str, kind: Literal["svg", "png"]) -> bytes:
    """The file's bytes. sizes: by mode, smallest first. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator
    except ImportError as error:
        raise ConfigError(
            "a figure needs matplotlib, which is not installed here: pip install 'fsdpkit[plot]'; "
            "the tables need nothing more: --tables"
        ) from error
    made: Any = Figure(figsize=(7.2, 3.2), layout="constrained")
    speed, efficiency = made.subplots(1, 2)
    nodes = sorted({one.nodes for found in sizes.values() for one in found})
    ideal = [n / nodes[0] for n in nodes]
    speed.plot(nodes, ideal, color="0.6", ls=":", label="ideal")
    for mode, found in sizes.items():
        _draw_mode(mode, found, speed, efficiency)
    efficiency.axhline(100, color="0.6", ls=":")
    for axes, name in ((speed, "speedup"), (efficiency, "efficiency [%]")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(nodes, [str(n) for n in nodes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("nodes")
        axes.set_ylabel(name)
        axes.spines[["top", "right"]].set_visible(False)
    speed.set_yscale("log", base=2)
    speed.set_yticks(ideal, [f"{each:g}" for each in ideal])
    speed.yaxis.set_minor_locator(NullLocator())
    efficiency.set_ylim(0, max(110, efficiency.get_ylim()[1]))
    speed.legend(frameon=False, fontsize=8)
    made.suptitle(title, fontsize=10)
    out = io.BytesIO()
    made.savefig(out, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _draw_mode(mode: Mode, found: Sequence[Size], speed: Any, efficiency: Any) -> None:
    """What was measured, what had been predicted, and the knee."""
    colour = _COLOURS[mode]
    known = [one for one in found if one.speedup is not None]
    style = {"color": colour, "marker": _MARKERS[mode], "markersize": 4}
    at = [one.nodes for one in known]
    speed.plot(at, [one.speedup for one in known], label=mode, **style)
    efficiency.plot(at, [100 * (one.efficiency or 0) for one in known], label=mode, **style)
    base = known[0].tokens_per_s if known else None
    predicted = [
        (one.nodes, one.predicted_tokens_per_s / base)
        for one in found
        if base and one.predicted_tokens_per_s is not None
    ]
    if predicted:
        cross = {"color": colour, "marker": "x", "ls": "--", "markersize": 4}
        speed.plot(*zip(*predicted, strict=True), label=f"{mode}: predicted", **cross)
    if (where := knee(found)) is not None:
        (height,) = (one.speedup for one in known if one.nodes == where)
        ring = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "ls": ""}
        speed.plot([where], [height], color=colour, label=f"{mode}: knee", **ring)
