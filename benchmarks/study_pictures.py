"""The pictures in docs/sweeps.md: a sweep and a scaling study that were run, and drawn from what
they measured.

    python -m benchmarks.study_pictures run     # both, on this machine's local cluster: minutes
    python -m benchmarks.study_pictures draw    # from docs/pictures/studies.json

They are drawn by the code of `fsdpkit sweep report` and of `fsdpkit scale write`; the sweep is as
wide as a phone, and light or dark as its reader's system is.
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

from fsdpkit.sweeps.page import parallel
from fsdpkit.sweeps.results import Result
from fsdpkit.sweeps.scaling import Mode, Size
from fsdpkit.sweeps.scaling_tables import figure
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
        (PICTURES / name).write_bytes(text)
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
    """One size after another, for all share this machine's cores."""
    sets = (
        f"training.steps={SCALE_STEPS}",
        "training.metrics.every_steps=1",
        "training.batch_size=8",
    )
    given = [word for each in sets for word in ("--set", each)]
    study = ("scale", "t5", f"--{mode}", *local, "--name", mode, *given, "--nodes")
    for nodes in map(str, NODES):
        fsdpkit(directory, *study, nodes)
        found = list(_until_over(directory, "scale", mode, "sizes"))
    return found


def _until_over(directory: str, kind: str, name: str, rows: str = "trials") -> Any:
    while True:
        found = fsdpkit(directory, kind, "status", name)[rows]
        if not {one["state"] for one in found} & _OPEN:
            return found
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


def pictures(measured: Mapping[str, Any]) -> dict[str, bytes]:
    sizes: dict[Mode, list[Size]] = {
        mode: msgspec.convert(measured["sizes"][mode], list[Size]) for mode in MODES
    }
    title = f"A small T5 on a local cluster of {measured['cores']} cores"
    return {
        "sweep.svg": sweep_picture(measured["sweep"]).encode(),
        "scale.svg": figure(sizes, title, "svg"),
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
            job_id=None,
            rung=one["rung"],
            state=one["state"],
            over=True,
            succeeded=True,
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


if __name__ == "__main__":
    sys.exit(main())
