"""How long a catalogue's form keeps a person waiting: `python benchmarks/catalogue.py`, a few
minutes on two cores.

Chromium opens the built pages of a made-up centre (tests/publishing/shown_centre.py) from a web
server of this machine, each time with an empty cache. Usable: the form answers a key with a new
command line. Ready: the first script is on the page. Again: from the question to the renderer to
the script on the page, for one field that changed; the pause that waits for the next key is not in
it. Every sample is kept in results/catalogue-cpu-<cores>.json. `--quick` does each once and writes
nothing.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measured import measured  # noqa: E402
from benchmarks.report import Figure, finish  # noqa: E402
from fsdpkit.publishing.catalogue.build import catalogue_files  # noqa: E402
from fsdpkit.publishing.catalogue.engine import engine_of  # noqa: E402
from fsdpkit.publishing.catalogue.reading import read_catalogue  # noqa: E402
from fsdpkit.publishing.catalogue.runtime import (  # noqa: E402
    PYODIDE,
    cache_dir,
    fetch,
)
from fsdpkit.publishing.replacing import CATALOGUE, write  # noqa: E402
from tests.browsers import binary_of  # noqa: E402
from tests.publishing.catalogue_pages import Quiet  # noqa: E402
from tests.publishing.made_centre import make_centre  # noqa: E402
from tests.publishing.shown_centre import shown_centre  # noqa: E402

OPENED, CHANGES = 7, 40
WAIT_MS = 300_000
LARGE = "cluster=zoo-vast&job=wide&nodes=5000&gpus=4"
"""A profile of 5,000 nodes and a template of 200 parameters."""

USABLE = """() => new Promise((resolve) => {
    const nodes = document.getElementById("nodes"), command = document.getElementById("command");
    const tried = () => {
        nodes.value = "3";
        nodes.dispatchEvent(new Event("input", { bubbles: true }));
        if (command.textContent.includes("--nodes 3")) resolve(performance.now() / 1000);
        else setTimeout(tried, 5);
    };
    tried();
})"""
READY = """() => new Promise((resolve) => {
    const tried = () => document.querySelector("#script span")
        ? resolve(performance.now() / 1000) : setTimeout(tried, 5);
    tried();
})"""
AGAIN = """(value) => new Promise((resolve) => {
    const nodes = document.getElementById("nodes"), script = document.getElementById("script");
    const speed = document.getElementById("speed");
    speed.textContent = "";
    nodes.value = value;
    nodes.dispatchEvent(new Event("input", { bubbles: true }));
    const command = document.getElementById("command").textContent;
    const tried = () => script.dataset.answers === command && speed.textContent
        ? resolve(parseInt(/(\\d+) ms/.exec(speed.textContent)[1], 10) / 1000)
        : setTimeout(tried, 5);
    tried();
})"""


@contextmanager
def served() -> Iterator[str]:
    """The address of the built pages."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-catalogue-") as folder:
        top = Path(folder)
        os.environ |= {"FSDPKIT_STATE_DIR": f"{top}/state", "FSDPKIT_CONFIG_DIR": os.devnull}
        engine = engine_of(fetch(cache_dir())).files
        catalogue = read_catalogue([shown_centre(top), make_centre(top)], clusters=["hrc-heron"])
        write(CATALOGUE, catalogue_files(catalogue, "Heron", engine), top / "pages")
        handler = functools.partial(Quiet, directory=str(top / "pages"))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}/generator.html"
            server.shutdown()


@contextmanager
def opened_at(browser: Any, url: str) -> Iterator[Any]:
    """A page, from an empty cache."""
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(url, wait_until="commit", timeout=WAIT_MS)
        page.wait_for_selector("#nodes", state="attached")
        yield page


def samples(address: str, opened: int, changes: int) -> dict[str, list[float]]:
    """Seconds, by the name of a figure."""
    from playwright.sync_api import sync_playwright

    names = ("usable", "ready", "ready-large", "again", "large")
    found: dict[str, list[float]] = {name: [] for name in names}
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary_of(), args=flags)
        for turn in range(opened):
            with opened_at(browser, f"{address}#{LARGE}") as page:
                found["ready-large"].append(page.evaluate(READY))
            with opened_at(browser, f"{address}#job=pretrain&account=hrc0042") as page:
                found["usable"].append(page.evaluate(USABLE))
                found["ready"].append(page.evaluate(READY))
                if turn:
                    continue
                for number in range(changes):
                    found["again"].append(page.evaluate(AGAIN, str(2 + number % 7)))
                page.evaluate("(text) => { location.hash = text; }", LARGE)
                page.wait_for_timeout(1000)
                for number in range(changes):
                    found["large"].append(page.evaluate(AGAIN, str(4000 + number)))
        browser.close()
    return found


def figures(found: dict[str, list[float]]) -> list[Figure]:
    return [
        _figure("usable", "the form answers a key", 1.0, found["usable"]),
        _figure("ready", "the first script is there, 15 MB of Python loaded", 5.0, found["ready"]),
        _figure(
            "ready-large",
            "the first script of 5,000 nodes and 200 parameters",
            5.0,
            found["ready-large"],
        ),
        _figure("again", "a later script, one field changed", 0.1, found["again"]),
        _figure("large", "the same, 5,000 nodes and 200 parameters", 0.1, found["large"]),
    ]


def _figure(name: str, what: str, target: float, seconds: Sequence[float]) -> Figure:
    middle = statistics.median(seconds)
    return Figure(
        name=name,
        what=what,
        against=None,
        kind="seconds",
        bound="≤",
        target=target,
        ours=middle,
        theirs=None,
        value=middle,
        samples={"ours": [round(each, 4) for each in seconds]},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how long a catalogue's form takes.")
    parser.add_argument("--quick", action="store_true", help="each once; write nothing")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with served() as address:
        opened, changes = (1, 3) if arguments.quick else (OPENED, CHANGES)
        rows = figures(samples(address, opened, changes))
    result: dict[str, Any] = {
        "measured": measured(
            "fsdpkit", pyodide=PYODIDE.file.removeprefix("pyodide-").removesuffix(".tgz")
        ),
        "figures": [asdict(row) for row in rows],
        "notes": [spread(rows)],
        "load_before": round(load, 2),
    }
    path = HERE / "results" / f"catalogue-cpu-{os.cpu_count()}.json"
    return finish(result, None if arguments.quick else path)


def spread(rows: Sequence[Figure]) -> str:
    """The slowest of each, for a median hides it."""
    slowest = ", ".join(f"{row.name} {max(row.samples['ours']):.2f} s" for row in rows)
    return f"Medians; the slowest: {slowest}."


if __name__ == "__main__":
    sys.exit(main())
