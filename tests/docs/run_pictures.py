"""`python -m tests.docs.run_pictures`: makes docs/pictures/watch-*.png and report-*.png anew.

A small T5 trains on this machine's local cluster; one of its ranks is killed half-way. `watch` is
drawn after the ranks have started again, the report when the run is over: both as on a phone, light
and dark. Needs what the tests in a browser need, and some minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Literal

from rich.console import Console

from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.status.frame import frame
from fsdpkit.reporting.status.looking import Watcher
from fsdpkit.reporting.status.watching import View
from fsdpkit.scheduling.run import Run
from tests.browsers import binary_of

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
MOST_BYTES = 200 << 10
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTH_PX, HEIGHT_PX, SCALE = 390, 700, 2
COLOURS = 256
COLUMNS, LINES, FONT_PX, LINE_PX = 52, 49, 12, 14
PADDING_PX = 7
RANK = 5
STEPS, KILL_AT, DRAW_AT = 120, 50, 90
SETTINGS = (
    f"training.steps={STEPS}",
    "training.checkpoint.every_steps=20",
    "training.evaluation.every_steps=20",
    "training.metrics.every_steps=2",
    "retry.backoff_s=1",
)
PATIENCE_S = 1800.0
PAGE = """<!DOCTYPE html><meta charset="utf-8">
<meta name="color-scheme" content="light dark"><style>
body {{ margin: 0; background: #ffffff; color: #1f2328; }}
pre {{ margin: 0; padding: {padding}px; font: {font}px/{line}px "DejaVu Sans Mono", monospace; }}
.bold {{ font-weight: 700; }} .cyan {{ color: #0969da; }} .green {{ color: #1a7f37; }}
.dim {{ color: #818b98; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #0d1117; color: #f0f6fc; }}
.cyan {{ color: #58a6ff; }} .green {{ color: #3fb950; }} .dim {{ color: #656c76; }} }}
</style><pre>{text}</pre>
"""


def pictures() -> list[str]:
    return [f"{view}-{scheme}.png" for view in ("watch", "report") for scheme in SCHEMES]


def started(runs: Path) -> Run:
    words = ["submit", "--cluster", "local", "--nodes", "2", "--gpus", "4", "--runs", str(runs)]
    words += [word for each in SETTINGS for word in ("--set", each)]
    done = subprocess.run(
        [sys.executable, "-m", "fsdpkit", *words], cwd=runs.parent, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return Run.open(done.stdout.split()[0], runs=str(runs))


def watched_until(watcher: Watcher, reached: Callable[[View], bool]) -> View:
    """Raises SystemExit if the run ends before that, or takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached(view := watcher.look()):
        if view.over or time.monotonic() > deadline:
            raise SystemExit(f"{view.run}: {view.state} at step {view.progress.step}")
        time.sleep(0.5)
    return view


def kill_rank(run: Run) -> None:
    """A rank that this program's own run has started."""
    (pid,) = {
        pids[str(RANK)]
        for events in run.dir.glob("attempt-0/node-*.events.jsonl")
        for pids in _pids(events)
        if str(RANK) in pids
    }
    os.kill(pid, signal.SIGKILL)


def _pids(events: Path) -> Iterator[dict[str, int]]:
    for line in events.read_text(encoding="utf-8").splitlines():
        if (event := json.loads(line))["event"] == "ranks-started":
            yield event["pids"]


def drawn(view: View) -> str:
    """The frame of `fsdpkit watch`, as HTML."""
    console = Console(width=COLUMNS)
    lines = [
        "".join(f'<span class="{part.style}">{escape(part.text)}</span>' for part in parts)
        for parts in (console.render(line) for line in frame(view, COLUMNS, LINES, time.time()))
    ]
    return PAGE.format(font=FONT_PX, line=LINE_PX, padding=PADDING_PX, text="".join(lines))


def take(pages: dict[str, str], folder: Path) -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    binary = binary_of()
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=flags)
        for scheme in SCHEMES:
            context = browser.new_context(
                color_scheme=scheme,
                viewport={"width": WIDTH_PX, "height": HEIGHT_PX},
                device_scale_factor=SCALE,
            )
            shown = context.new_page()
            for view, text in pages.items():
                (folder / f"{view}.html").write_text(text, encoding="utf-8")
                shown.goto((folder / f"{view}.html").as_uri())
                path = PICTURES / f"{view}-{scheme}.png"
                shown.screenshot(path=str(path))
                few = Image.open(path).quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
                few.save(path, optimize=True)
                print(f"{path.name}: {path.stat().st_size >> 10} KiB")
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fsdpkit-pictures-") as folder:
        run = started(Path(folder) / "runs")
        watcher = Watcher(run, None)
        try:
            watched_until(watcher, lambda view: (view.progress.step or 0) >= KILL_AT)
            kill_rank(run)
            view = watched_until(watcher, lambda view: (view.progress.step or 0) >= DRAW_AT)
            pages = {"watch": drawn(view)}
            watched_until(watcher, lambda view: view.over)
        finally:
            watcher.close()
        pages["report"] = page(run)
        take(pages, Path(folder))


if __name__ == "__main__":
    main()
