"""The pictures in docs/sweeps.md: a sweep and a scaling study that were run, and drawn from what
they measured.

    python -m benchmarks.study_pictures run     # both, on this machine's local cluster: minutes
    python -m benchmarks.study_pictures draw    # from docs/pictures/studies.json

The sweep is drawn by the code of `fsdpkit sweep report`. Both pictures are as wide as a phone, and
light or dark as their reader's system is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.scheduling.states import JobState
from fsdpkit.sweeps.parallel import parallel
from fsdpkit.sweeps.results import Result
from fsdpkit.sweeps.scaling import Mode, Size, knee
from fsdpkit.sweeps.space import parameters

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
RESULTS = PICTURES / "studies.json"

SWEEP = """\
schema = "fsdpkit.sweep/1"
name = "lr"
job = "t5"
sampler = "random"
trials = 18
limit = 2
metric = "eval_loss"

[parameters]
training.optimizer.lr = { log_uniform = [3e-4, 1e-1] }
training.optimizer.warmup_steps = { int = [0, 15] }
training.optimizer.name = ["adamw", "adafactor"]

[halving]
rungs = 2
factor = 3
"""
"""As docs/sweeps.md has it, but for `limit`."""
STEPS, SCALE_STEPS = 90, 60
NODES = (1, 2, 4)
MODES: tuple[Mode, ...] = ("weak", "strong")
_OPEN = {"PENDING", "RUNNING", "UNKNOWN"}


def main() -> int:
    words = sys.argv[1:]
    if words == ["run"]:
        RESULTS.write_text(json.dumps(run(), indent=1) + "\n", encoding="utf-8")
        words = ["draw"]
    if words != ["draw"]:
        print(__doc__, file=sys.stderr)
        return 2
    for name, text in pictures(json.loads(RESULTS.read_text(encoding="utf-8"))).items():
        (PICTURES / name).write_text(text, encoding="utf-8")
        print(PICTURES / name)
    return 0


# ---- Running


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fsdpkit-studies-") as directory:
        (Path(directory) / "lr.toml").write_text(SWEEP, encoding="utf-8")
        local = ("--cluster", "local", "--gpus", "1")
        given = ("--nodes", "1", "--set", f"training.steps={STEPS}")
        fsdpkit(directory, "sweep", "lr.toml", *local, *given)
        _until_over(directory, "sweep", "lr")
        fsdpkit(directory, "sweep", "advance", "lr")  # what a small job does on Slurm
        _until_over(directory, "sweep", "lr")
        sweep = fsdpkit(directory, "sweep", "status", "lr")
        del sweep["dir"]
        sizes = {mode: _study(directory, mode, local) for mode in MODES}
    return {"cores": os.cpu_count(), "sweep": sweep, "sizes": sizes}


def _study(directory: str, mode: Mode, local: Sequence[str]) -> list[Any]:
    """One size after another, for all share this machine's cores: with a bound that none misses,
    each is submitted when the one before is over."""
    words = ("scale", "t5", "--nodes", ",".join(map(str, NODES)), f"--{mode}", "--bound", "0.01")
    sets = (
        f"training.steps={SCALE_STEPS}",
        "training.metrics.every_steps=1",
        "training.batch_size=8",
    )
    given = [word for each in sets for word in ("--set", each)]
    fsdpkit(directory, *words, *local, "--name", mode, *given)
    while True:
        sizes = fsdpkit(directory, "scale", "status", mode)["sizes"]
        if {one["state"] for one in sizes} & _OPEN:
            time.sleep(5)
        elif "submitted" not in fsdpkit(directory, "scale", "advance", mode)["modes"][mode]:
            return list(sizes)


def _until_over(directory: str, kind: str, name: str) -> None:
    while {one["state"] for one in fsdpkit(directory, kind, "status", name)["trials"]} & _OPEN:
        time.sleep(5)


def fsdpkit(directory: str, *words: str) -> Any:
    command = [sys.executable, "-m", "fsdpkit", *words, "--json"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout)


# ---- Drawing: 400 wide, so that text keeps its size on a phone

_WIDTH, _MARGIN = 400, 34
_STYLE = """
  svg { color-scheme: light dark; }
  text { font: 12px system-ui, sans-serif; fill: #1f2328; } .title { font-weight: 600; }
  .paper { fill: #ffffff; } .tick { fill: #59636e; } .axis, .rule { stroke: #818b98; }
  .halo { paint-order: stroke; stroke: #ffffff; stroke-width: 3px; }
  .line { fill: none; stroke-width: 1.6; vector-effect: non-scaling-stroke; }
  .a { stroke: #0969da; } .b { stroke: #bc4c00; stroke-width: 3; } .muted { stroke: #afb8c1; }
  .faint { opacity: 0.8; } .fill-a { fill: #0969da; } .fill-b { fill: #bc4c00; }
  .dashed { stroke-dasharray: 5 4; } .even { stroke-width: 2; } .chart { overflow: visible; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .paper { fill: #0d1117; } .tick { fill: #9198a1; }
    .axis, .rule { stroke: #656c76; } .halo { stroke: #0d1117; }
    .a { stroke: #58a6ff; } .b { stroke: #ff9a57; } .muted { stroke: #4a515a; }
    .fill-a { fill: #58a6ff; } .fill-b { fill: #ff9a57; }
  }
"""


def pictures(measured: Mapping[str, Any]) -> dict[str, str]:
    return {
        "sweep.svg": sweep_picture(measured["sweep"]),
        "scale.svg": scale_picture(measured["sizes"], measured["cores"]),
    }


def _svg(height: int, title: str, subtitle: str, inside: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}: '
        f'{escape(subtitle)}">\n<style>{_STYLE}</style>\n'
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>\n'
        f'<text class="title" x="12" y="20">{escape(title)}</text>\n'
        f'<text class="tick" x="12" y="37">{escape(subtitle)}</text>\n{inside}\n</svg>\n'
    )


def sweep_picture(told: Mapping[str, Any]) -> str:
    """Parallel coordinates of the trials at the end of the first rung and after, the best last."""
    import tomllib

    space = parameters(tomllib.loads(SWEEP)["parameters"])
    trials = [
        Result(
            trial=one["trial"],
            settings=one["settings"],
            run=one["run"],
            rung=one["rung"],
            state=JobState(one["state"], "sacct", outcome="done"),
            dropped=one["state"] == "DROPPED",
            step=one["step"],
            value=one["value"],
            problem=one["problem"],
        )
        for one in told["trials"]
        if one["value"] is not None
    ]
    trials.sort(key=lambda one: (-one.rung, one.value))
    best, worst = trials[0], max(one.value or 0 for one in trials)
    drawn = parallel(space, trials, told["metric"], height=230)
    inside = (
        f'<svg x="{_MARGIN + 20}" y="48" width="{_WIDTH - 2 * _MARGIN - 26}" height="276" '
        f'overflow="visible">{drawn}</svg>'
    )
    of_all = len(told["trials"])
    about = f"best of {of_all}: trial {best.trial}, {told['metric']} {best.value:.3f}"
    return _svg(
        342, f"Sweep {told['name']} of a small T5", f"{about}; the worst {worst:.3f}", inside
    )


def scale_picture(told: Mapping[str, Sequence[Mapping[str, Any]]], cores: int) -> str:
    """Speedup above, efficiency below, over nodes."""
    sizes: dict[Mode, list[Size]] = {
        mode: msgspec.convert(told[mode], list[Size]) for mode in MODES if mode in told
    }
    nodes = sorted({one.nodes for found in sizes.values() for one in found})
    parts = [*_panel(sizes, nodes, 66, 110, "speedup", nodes[-1] / nodes[0])]
    parts += _panel(sizes, nodes, 226, 110, "efficiency", 1.0)
    for row, mode in enumerate(sizes):
        x, tone = 250 + 70 * row, "ab"[row]
        parts.append(f'<rect class="fill-{tone}" x="{x}" y="50" width="9" height="9"/>')
        parts.append(f'<text x="{x + 13}" y="59">{mode}</text>')
    knees = {mode: knee(found) for mode, found in sizes.items()}
    where = ", ".join(f"{mode} {at}" for mode, at in knees.items() if at is not None)
    about = f"local cluster, {cores} cores; knee at nodes: {where or 'none'}"
    return _svg(376, "Scaling study of a small T5", about, "\n".join(parts))


def _panel(
    sizes: Mapping[Mode, Sequence[Size]],
    nodes: Sequence[int],
    top: int,
    height: int,
    what: str,
    most: float,
) -> list[str]:
    """One pair of axes, the sizes at equal distances; dashed: a cluster without communication."""
    left, right = _MARGIN + 18, _WIDTH - 16

    def x(count: int) -> float:
        return left + (right - left) * nodes.index(count) / max(1, len(nodes) - 1)

    def y(value: float) -> float:
        return top + height * (1 - value / (1.08 * most))

    def path(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)

    parts = [f'<text x="12" y="{top - 8}">{what}</text>']
    for share in (0.0, 0.5, 1.0):
        label = f"{share:.0%}" if what == "efficiency" else f"{share * most:g}"
        at = y(share * most)
        parts.append(
            f'<line class="rule" opacity="0.4" x1="{left}" x2="{right}" '
            f'y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
        )
    ideal = [(x(n), y(n / nodes[0] if what == "speedup" else 1.0)) for n in nodes]
    parts.append(f'<path class="line muted dashed" d="{path(ideal)}"/>')
    for tone, found in zip("ab", sizes.values(), strict=False):
        known = [(one.nodes, getattr(one, what)) for one in found if one.efficiency is not None]
        points = [(x(n), y(value)) for n, value in known]
        if points:
            parts.append(f'<path class="line {tone} even" d="{path(points)}"/>')
        for (n, value), (a, b) in zip(known, points, strict=True):
            shown = f"{value:.0%}" if what == "efficiency" else f"{value:.2f}"
            parts.append(
                f'<circle class="fill-{tone}" cx="{a:.1f}" cy="{b:.1f}" r="4">'
                f"<title>{n} nodes: {shown}</title></circle>"
            )
    for n in nodes:
        anchor = "end" if n == nodes[-1] else "middle"
        unit = {nodes[0]: " node", nodes[-1]: " nodes"}.get(n, "")
        parts.append(
            f'<text class="tick" x="{x(n):.1f}" y="{top + height + 16}" text-anchor="{anchor}">'
            f"{n}{unit}</text>"
        )
    return parts


if __name__ == "__main__":
    sys.exit(main())
