"""Memory over one step as an SVG: what is allocated, by kind, stacked. Light or dark, as the
reader's system is. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from fsdpkit.planning.held import last_step
from fsdpkit.planning.tape import KINDS, Kind
from fsdpkit.planning.verdict import Verdict, course
from fsdpkit.planning.words import NAMES, headline, size

_WIDTH, _HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 214, 58, 46
_POINTS = 480
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
  .paper { fill: #ffffff; } .ink { fill: #1f2328; } .faint { fill: #59636e; }
  .rule { stroke: #d1d9e0; } .limit { stroke: #b3261e; } .limit-text { fill: #b3261e; }
  text { font: 13px system-ui, sans-serif; } .title { font-size: 16px; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } .ink { fill: #f0f6fc; } .faint { fill: #9198a1; }
    .rule { stroke: #3d444d; } .limit { stroke: #ff8a80; } .limit-text { fill: #ff8a80; }
  }
"""
Sample = dict[Kind, int]


def draw(found: Verdict) -> str:
    """The last step that was recorded, in order of events: the host's, and not the clock's."""
    samples = sampled(found)
    top = max((sum(sample.values()) for sample in samples), default=1)
    near = found.room <= 1.6 * top  # a limit far above would press the picture flat
    highest = 1.06 * (max(top, found.room) if near else top)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(_title(found))}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="ink title" x="{_LEFT}" y="26">{escape(_title(found))}</text>',
        f'<text class="faint" x="{_LEFT}" y="45">{escape(_subtitle(found))}</text>',
        *_axis(highest),
        *_areas(samples, highest),
        *_phases(found),
        *_legend(samples),
    ]
    if near:
        parts += _limit(found.room, highest)
    return "\n".join([*parts, "</svg>\n"])


def sampled(found: Verdict) -> list[Sample]:
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


def _title(found: Verdict) -> str:
    asked = found.asked
    what = asked.model or asked.settings.model.source
    return f"{what}, {asked.nodes} × {asked.gpus} {asked.card.name}: {headline(found)}"


def _subtitle(found: Verdict) -> str:
    ran = found.replayed
    return (
        f"computed, not measured: allocated {size(ran.allocated)}, reserved {size(ran.reserved)}, "
        f"with what is outside {size(found.total)}"
    )


def _x(at: float) -> float:
    return _LEFT + at * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _axis(highest: float) -> Iterator[str]:
    step = _round_step(highest / 5)
    for number in range(int(highest / step) + 1):
        y = _y(number * step / highest)
        yield (
            f'<line class="rule" x1="{_LEFT}" x2="{_x(1):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="faint" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_short(number * step)}</text>"
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


def _areas(samples: list[Sample], highest: float) -> Iterator[str]:
    base = [0] * len(samples)
    for kind in KINDS:
        sizes = [sample.get(kind, 0) for sample in samples]
        if not any(sizes):
            continue
        above = [low + size_ for low, size_ in zip(base, sizes, strict=True)]
        last = max(1, len(samples) - 1)
        up = [f"{_x(i / last):.1f},{_y(v / highest):.1f}" for i, v in enumerate(above)]
        down = [f"{_x(i / last):.1f},{_y(v / highest):.1f}" for i, v in enumerate(base)]
        yield f'<polygon fill="{_COLOURS[kind]}" points="{" ".join([*up, *reversed(down)])}"/>'
        base = above


def _phases(found: Verdict) -> Iterator[str]:
    """Where forward, backward and the optimizer begin."""
    begin, end = last_step(found.tape)
    first: dict[str, int] = {}
    for block in found.tape.blocks:
        if begin < block.born <= end and block.phase in ("forward", "backward", "optimizer"):
            first.setdefault(block.phase, block.born)
    for phase, event in first.items():
        x = _x((event - begin) / max(1, end - begin))
        y = _HEIGHT - _BOTTOM
        yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y + 8}"/>'
        anchor = ' text-anchor="end"' if phase == "optimizer" and x > _x(0.9) else ""
        yield f'<text class="faint" x="{x + 3:.1f}" y="{y + 20}"{anchor}>{phase}</text>'


def _legend(samples: list[Sample]) -> Iterator[str]:
    shown = [kind for kind in reversed(KINDS) if any(sample.get(kind) for sample in samples)]
    for row, kind in enumerate(shown):
        y = _TOP + 8 + 21 * row
        x = _x(1) + 16
        yield f'<rect x="{x:.1f}" y="{y}" width="12" height="12" fill="{_COLOURS[kind]}"/>'
        yield f'<text class="ink" x="{x + 18:.1f}" y="{y + 11}">{escape(NAMES[kind])}</text>'


def _limit(room: int, highest: float) -> list[str]:
    y = _y(room / highest)
    return [
        f'<line class="limit" stroke-dasharray="6 4" stroke-width="1.5" x1="{_LEFT}" '
        f'x2="{_x(1):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text class="limit-text" x="{_x(1) + 6:.1f}" y="{y + 4:.1f}">room for torch</text>',
    ]
