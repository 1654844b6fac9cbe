"""A built catalogue in a real browser, once for all tests that look at one.

Needs Chromium, playwright and the archives of the browser's Python. Where one is not there the
tests are skipped; where FSDPKIT_REQUIRE_SLURM=1 says that everything must be there, a missing
browser fails them, and archives that no registry gave are named in the summary, as a root of
Slurm's newest release is.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import FsdpkitError
from fsdpkit.publishing.catalogue.build import catalogue_files
from fsdpkit.publishing.catalogue.engine import engine_of
from fsdpkit.publishing.catalogue.reading import Catalogue, read_catalogue
from fsdpkit.publishing.catalogue.runtime import cache_dir, fetch
from fsdpkit.publishing.replacing import CATALOGUE, write
from tests.publishing.made_centre import HOSTILE, make_centre
from tests.publishing.shown_centre import shown_centre

CACHE = cache_dir()  # before a test gets an XDG_CACHE_HOME of its own
READY_MS = 300_000
SETTLED = "#state.good, #state.bad, #state.missing"
LANE = pytest.mark.xdist_group("catalogue")
"""One worker has the browser, the pages and their Python."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two centres, one that signs; a home with projects, environments of three kinds."""
    top = tmp_path_factory.mktemp("place")
    make_centre(top)
    for project in ("project", "it's a project", "100%"):
        scripts = top / "ann" / project
        (scripts / "sub").mkdir(parents=True)
        for name in ("train.py", "sub/it's.py"):
            (scripts / name).write_text("")
    for venv in ("env", "it's", "project/env", "it's a project/env", "100%/env"):
        # A page cannot see which environments are there: these all are, with nodes' own Python.
        (top / "ann" / venv / "bin").mkdir(parents=True)
        (top / "ann" / venv / "bin" / "python").symlink_to("/only/on/nodes")
    (top / "prefix" / "bin").mkdir(parents=True)
    (top / "venv" / "bin").mkdir(parents=True)
    (top / "venv" / "bin" / "activate").write_text("")
    (top / "conda" / "conda-meta").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSDPKIT_STATE_DIR", str(top / "state"))
        patch.setenv("FSDPKIT_CONFIG_DIR", str(top / "config"))
        shown_centre(top, reason=f"asks {HOSTILE}")
    return top


def centres_of(place: Path) -> list[Path]:
    """The nearest first."""
    return [place / "heron", place / "centre"]


@pytest.fixture(scope="session")
def catalogue(place: Path) -> Catalogue:
    """What the pages are made of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place / "ann"))
        patch.setenv("FSDPKIT_STATE_DIR", str(place / "state"))
        patch.setenv("FSDPKIT_SITE_PATH", ":".join(map(str, centres_of(place))))
        read = read_catalogue(centres_of(place), clusters=("hrc-heron", "zoo-hostile"))
    assert read.problems == []
    return read


@pytest.fixture(scope="session")
def pages(place: Path, catalogue: Catalogue) -> Path:
    """The built catalogue."""
    try:
        engine = engine_of(fetch(CACHE)).files
    except FsdpkitError as error:
        pytest.skip(f"missing: {error}")
    write(CATALOGUE, catalogue_files(catalogue, "The zoo <b>&", engine), place / "pages")
    return place / "pages"


@pytest.fixture(scope="session")
def address(pages: Path) -> Iterator[str]:
    """Of a web server of this machine that has them."""
    handler = functools.partial(Quiet, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *about: Any) -> None:
        pass


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


@pytest.fixture(scope="session")
def form(browser: Any, address: str) -> Iterator[Shown]:
    """The form with its Python ready: one for all tests, for that takes seconds."""
    permissions = ["clipboard-read", "clipboard-write"]
    url = f"{address}/generator.html"
    with opened(browser, url, permissions=permissions) as shown:
        shown.page.wait_for_selector(SETTLED, timeout=READY_MS)
        yield shown
