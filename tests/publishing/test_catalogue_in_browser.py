"""The catalogue in a real browser: its form writes what the command line writes.

Needs Chromium, playwright and the archives of the browser's Python. Where one is not there the
tests are skipped; where FSDPKIT_REQUIRE_SLURM=1 says that everything must be there, a missing
browser fails them, and archives that no registry gave are named in the summary, as a root of
Slurm's newest release is.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.cli.in_page import Answered, dry_run
from fsdpkit.config.surroundings import of_this_process
from fsdpkit.errors import FsdpkitError
from fsdpkit.publishing.catalogue.build import catalogue_files
from fsdpkit.publishing.catalogue.reading import read_catalogue
from fsdpkit.publishing.catalogue.runtime import cache_dir, fetch, runtime_files
from fsdpkit.publishing.catalogue.writing import write
from tests.publishing.drawn import Drawn, drawn
from tests.publishing.made_centre import make_centre

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CACHE = cache_dir()  # before a test gets an XDG_CACHE_HOME of its own
READY_MS = 300_000
REQUESTS = 500


def not_here(what: str) -> None:
    if os.environ.get("FSDPKIT_REQUIRE_SLURM") == "1":
        pytest.fail(f"required here, but missing: {what}")
    pytest.skip(f"missing: {what}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A centre, a home with projects, environments of three kinds, nothing else."""
    top = tmp_path_factory.mktemp("place")
    make_centre(top)
    for project in ("project", "it's a project", "100%"):
        scripts = top / "ann" / project
        (scripts / "sub").mkdir(parents=True)
        for name in ("train.py", "sub/it's.py"):
            (scripts / name).write_text("")
    (top / "prefix" / "bin").mkdir(parents=True)
    (top / "venv" / "bin").mkdir(parents=True)
    (top / "venv" / "bin" / "activate").write_text("")
    (top / "conda" / "conda-meta").mkdir(parents=True)
    return top


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    """The built catalogue on a web server of this machine."""
    try:
        engine = runtime_files(fetch(CACHE))
    except FsdpkitError as error:
        pytest.skip(f"missing: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place / "ann"))
        catalogue = read_catalogue([place / "centre"])
    assert catalogue.problems == []
    write(catalogue_files(catalogue, "The zoo <b>&", engine), place / "pages")
    handler = functools.partial(_Quiet, directory=str(place / "pages"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *about: Any) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        not_here("playwright")
    if binary is None:
        not_here("Chromium")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=binary, args=flags, timeout=180_000)
        yield started
        started.close()


@dataclass
class Shown:
    """An open page, what it said and what it asked for."""

    page: Any
    said: list[str]
    requests: list[str]


@contextlib.contextmanager
def opened(browser: Any, url: str, **context: Any) -> Iterator[Shown]:
    with browser.new_context(locale="en-GB", **context) as made:
        page = made.new_page()
        shown = Shown(page, [], [])
        page.on("console", lambda message: shown.said.append(message.text))
        page.on("pageerror", lambda error: shown.said.append(str(error)))
        page.on("request", lambda request: shown.requests.append(request.url))
        page.goto(url, timeout=READY_MS)
        yield shown


@pytest.fixture(scope="module")
def form(browser: Any, address: str) -> Iterator[Shown]:
    """The form with its Python ready: one for all tests, for that takes seconds."""
    with opened(browser, f"{address}/generator.html") as shown:
        shown.page.wait_for_selector("#state.good, #state.bad", timeout=READY_MS)
        yield shown


# ---- The script


def surroundings(place: Path, request: Drawn, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Go where the request is typed; the same as the form would say it."""
    home = place / "ann"
    own = home / ".config" / "fsdpkit" / "defaults.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.unlink(missing_ok=True)
    if request.defaults:
        own.write_text(request.defaults)
    for name in ("FSDPKIT_CONFIG_DIR", "FSDPKIT_RUNS", "SBATCH_ACCOUNT", "CONDA_EXE"):
        patch.delenv(name, raising=False)
    patch.setenv("HOME", str(home))
    patch.setenv("PATH", "/nowhere")  # no Slurm is asked
    patch.setenv("FSDPKIT_SITE_PATH", str(place / "centre"))
    if request.runs is not None:
        patch.setenv("FSDPKIT_RUNS", request.runs)
    if request.sbatch_account is not None:
        patch.setenv("SBATCH_ACCOUNT", request.sbatch_account)
    if request.python == "conda":
        patch.setenv("CONDA_EXE", "/opt/conda's/bin/conda")
    patch.setattr(sys, "prefix", str(place / request.python))
    patch.setattr(sys, "executable", str(place / "prefix" / "bin" / "python"))
    patch.chdir(home / request.below)
    here = of_this_process()
    files = {str(own): request.defaults} if request.defaults else {}
    files |= {str(home / request.below / name): "" for name in ("train.py", "sub/it's.py")}
    said = asdict(replace(here, variables=dict(here.variables)))
    return {
        "words": list(request.words),
        "surroundings": said,
        "centres": [str(place / "centre")],
        "files": files,
    }


def seen_from_anywhere(answered: Answered) -> Answered:
    """Without what a page cannot see: how much room a file system has."""
    lines = answered.err.splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("fsdpkit: the file system of ")]
    return Answered(answered.status, answered.out, "".join(kept))


def answers(form: Shown, asked: Sequence[dict[str, Any]]) -> list[Answered]:
    """What the page's own Python says to each."""
    told = form.page.evaluate(
        """async (asked) => {
            const { Answering } = await import(new URL("static/answering.js", document.baseURI));
            const answering = (window.inTest ??= new Answering());
            const told = [];
            for (const one of asked) told.push(await answering.ask(one));
            return told;
        }""",
        list(asked),
    )
    return [Answered(**one) for one in told]


def test_five_hundred_drawn_requests_give_the_command_lines_script_or_error(
    form: Shown, place: Path
) -> None:
    requests = list(drawn(REQUESTS, seed=19))
    expected, asked = [], []
    for request in requests:
        with pytest.MonkeyPatch.context() as patch:
            asked.append(surroundings(place, request, patch))
            expected.append(seen_from_anywhere(dry_run(list(request.words))))
    got = answers(form, asked)
    different = [
        (request, want, have)
        for request, want, have in zip(requests, expected, got, strict=True)
        if want != have
    ]
    assert different == []
    statuses = [one.status for one in expected]
    assert min(statuses.count(0), len(statuses) - statuses.count(0)) > REQUESTS // 4
    assert {2, 65, 66} <= {*statuses}


def test_a_dozen_are_the_same_as_a_process_of_their_own_writes(form: Shown, place: Path) -> None:
    python = sys.executable
    for request in drawn(12, seed=7):
        with pytest.MonkeyPatch.context() as patch:
            asked = surroundings(place, replace(request, python="venv"), patch)
            # Its own Python decides which environment is activated: that of these tests.
            patch.undo()
        with pytest.MonkeyPatch.context() as patch:
            surroundings(place, request, patch)
            done = subprocess.run(
                [python, "-m", "fsdpkit", "submit", "--dry-run", *request.words],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        asked["surroundings"]["python"] = asdict(of_this_process().python)
        (got,) = answers(form, [asked])
        want = seen_from_anywhere(Answered(done.returncode, done.stdout, done.stderr))
        assert got == want, request
