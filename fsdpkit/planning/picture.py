"""Memory over one step as an SVG: what is allocated, by kind, stacked. As wide as a phone; alone as
wide as there is room; light or dark as the reader's system is. No torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from fsdpkit.planning.held import last_step
from fsdpkit.planning.tape import KINDS, Kind
from fsdpkit.planning.verdict import MemoryVerdict, course
from fsdpkit.planning.words import NAMES, headline, size

_WIDTH, _PLOT = 390, 260
"""Pixels of the narrowest whole and of the plot's height."""
_LEFT, _ACROSS, _MARGIN = 16, 81, 10
"""Percent of the width left of the plot and in it; pixels around text."""
_LINE, _LETTER = 19, 7.0
"""Of text: from one line to the next, and the width of a letter, generously."""
_MOST_LINES = 4
_POINTS = 240
# Okabe and Ito's palette, which people with any colour vision can tell apart.
_COLOURS: dict[Kind, str] = {
    "weights": "#0072b2",
    "gradients": "#d55e00",
    "optimizer": "#56b4e9",
    "gathered": "#cc79a7",
    "reduction": "#882255",
    "activations": "#009e73",
    "logits": "#e69f00",
    "temporary": "#f0e442",
    "other": "#8c8c8c",
}
_STYLE = """
  svg { color-scheme: light dark; }
  @media (min-width: 500px) { svg:root { width: min(100%, 760px); } }
  .paper { fill: #ffffff; } .ink { fill: #1f2328; } .faint { fill: #59636e; }
  .rule { stroke: #d1d9e0; } .limit { stroke: #b3261e; } .limit-text { fill: #b3261e; }
  text { font: 13px system-ui, sans-serif; } .title { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } .ink { fill: #f0f6fc; } .faint { fill: #9198a1; }
    .rule { stroke: #3d444d; } .limit { stroke: #ff8a80; } .limit-text { fill: #ff8a80; }
  }
"""
Sample = dict[Kind, int]


def draw(found: MemoryVerdict) -> str:
    """The last step that was recorded, in order of events: the host's, and not the clock's."""
    samples = sampled(found)
    top = max((sum(sample.values()) for sample in samples), default=1)
    near = found.room <= 1.6 * top  # a limit far above would press the picture flat
    highest = 1.06 * (max(top, found.room) if near else top)
    name = ": ".join(_titles(found))
    titles = [line for part in _titles(found) for line in _folded(part)]
    head = [*titles, *_folded(_subtitle(found))]
    top_px = _LINE * (len(head) + (1 if near else 2))
    below_px = top_px + _PLOT + 2 * _LINE + 6
    kinds = [kind for kind in reversed(KINDS) if any(sample.get(kind) for sample in samples)]
    height = below_px + _LINE * ((len(kinds) + 1) // 2) + _MARGIN
    y = _Scale(top_px, highest)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(name)}">',
        f"<style>{_STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        *_head(head, len(titles)),
        *_axis(y),
        f'<svg x="{_LEFT}%" width="{_ACROSS}%" height="{below_px}" '
        f'viewBox="0 0 1000 {below_px}" preserveAspectRatio="none">',
        *_areas(samples, y),
        "</svg>",
        *_phases(found, top_px),
        *_legend(kinds, below_px),
    ]
    parts += _limit(found.room, y, near=near)
    return "\n".join([*parts, "</svg>\n"])


def sampled(found: MemoryVerdict) -> list[Sample]:
    """Bytes by kind at `_POINTS` moments of the last step, each the highest of its part."""
    begin, end = last_step(found.tape)
    best: list[Sample] = [{} for _ in range(_POINTS)]
    totals = [-1] * _POINTS
    last: Sample = {}
    for event, sizes in course(found.tape):
        if event > end:
            break
        if event <= begin:
            last = dict(sizes)
            continue
        at = min(_POINTS - 1, (event - begin - 1) * _POINTS // max(1, end - begin))
        if (total := sum(sizes.values())) > totals[at]:
            best[at], totals[at] = dict(sizes), total
    for at, total in enumerate(totals):
        if total < 0:
            best[at] = dict(best[at - 1]) if at else dict(last)
    return best


def _titles(found: MemoryVerdict) -> tuple[str, str]:
    asked = found.asked
    what = asked.model or asked.settings.model.source
    return f"{what}, {asked.nodes} × {asked.gpus} {asked.card.name}", headline(found)


def _subtitle(found: MemoryVerdict) -> str:
    ran = found.replayed
    return (
        f"computed, not measured: allocated {size(ran.allocated)}, reserved {size(ran.reserved)}, "
        f"with what is outside {size(found.total)}"
    )


def _folded(text: str) -> list[str]:
    return textwrap.wrap(
        text, int((_WIDTH - 2 * _MARGIN) / _LETTER), max_lines=_MOST_LINES, placeholder=" …"
    )


def _head(lines: Sequence[str], titles: int) -> Iterator[str]:
    for row, line in enumerate(lines):
        css = "ink title" if row < titles else "faint"
        yield f'<text class="{css}" x="{_MARGIN}" y="{_LINE * (row + 1)}">{escape(line)}</text>'


def _x(share: float) -> str:
    return f"{_LEFT + share * _ACROSS:.2f}%"


class _Scale(NamedTuple):
    """Where a number of bytes lies."""

    top_px: int
    highest: float
    """Bytes at the top."""

    def __call__(self, count: float) -> float:
        return self.top_px + _PLOT * (1 - count / self.highest)


def _axis(y: _Scale) -> Iterator[str]:
    step = _round_step(y.highest / 5)
    for count in range(0, int(y.highest) + 1, step):
        at = y(count)
        yield (
            f'<line class="rule" x1="{_x(0)}" x2="{_x(1)}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="faint" x="{_x(0)}" dx="-6" y="{at + 4:.1f}" text-anchor="end">'
            f"{_short(count)}</text>"
        )


def _round_step(wanted: float) -> int:
    """A power of two of bytes, such as 512 MiB."""
    step = 1024
    while step < wanted:
        step *= 2
    return step


def _short(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return "0"


def _areas(samples: list[Sample], y: _Scale) -> Iterator[str]:
    base = [0] * len(samples)
    for kind in KINDS:
        sizes = [sample.get(kind, 0) for sample in samples]
        if not any(sizes):
            continue
        above = [low + size_ for low, size_ in zip(base, sizes, strict=True)]
        last = max(1, len(samples) - 1)
        up = [f"{1000 * i / last:.1f},{y(v):.1f}" for i, v in enumerate(above)]
        down = [f"{1000 * i / last:.1f},{y(v):.1f}" for i, v in enumerate(base)]
        yield f'<polygon fill="{_COLOURS[kind]}" points="{" ".join([*up, *reversed(down)])}"/>'
        base = above


def _phases(found: MemoryVerdict, top_px: int) -> Iterator[str]:
    """Where forward, backward and the optimizer begin."""
    begin, end = last_step(found.tape)
    first: dict[str, int] = {}
    for block in found.tape.blocks:
        if begin < block.born <= end and block.phase in ("forward", "backward", "optimizer"):
            first.setdefault(block.phase, block.born)
    for phase, event in first.items():
        share = (event - begin) / max(1, end - begin)
        x, foot = _x(share), top_px + _PLOT
        yield f'<line class="rule" x1="{x}" x2="{x}" y1="{top_px}" y2="{foot + 8}"/>'
        leaves = share > 0.97 - _LETTER * len(phase) / (_WIDTH * _ACROSS / 100)
        anchor = ' dx="-3" text-anchor="end"' if leaves else ' dx="3"'
        yield f'<text class="faint" x="{x}" y="{foot + _LINE}"{anchor}>{phase}</text>'


def _legend(kinds: Sequence[Kind], top_px: int) -> Iterator[str]:
    """In two columns, read downwards: the highest in the picture first."""
    rows = (len(kinds) + 1) // 2
    for place, kind in enumerate(kinds):
        column, row = divmod(place, rows)
        x, y = "52%" if column else str(_MARGIN), top_px + _LINE * row
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_COLOURS[kind]}"/>'
        yield f'<text class="ink" x="{x}" dx="18" y="{y + 11}">{escape(NAMES[kind])}</text>'


def _limit(room: int, y: _Scale, *, near: bool) -> list[str]:
    """The line that torch must stay below; where it lies far above, what and how far."""
    at = y(room) if near else y(y.highest)
    line = (
        f'<line class="limit" stroke-dasharray="6 4" stroke-width="1.5" x1="{_x(0)}" '
        f'x2="{_x(1)}" y1="{at:.1f}" y2="{at:.1f}"/>'
    )
    words = (
        f"room for torch: {size(room)}" if near else f"↑ room for torch: {size(room)}, far above"
    )
    return [
        *([line] if near else []),
        f'<text class="limit-text" x="{_x(1)}" y="{at - 5:.1f}" text-anchor="end">{words}</text>',
    ]
