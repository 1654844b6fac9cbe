"""`python -m tests.publishing.catalogue_pictures`: makes docs/pictures/catalogue-*.png anew.

They are of the made-up centre in shown_centre.py, built and opened as its users would, light and
dark, at a fixed date. Needs what the tests in a browser need.
"""

from __future__ import annotations

import functools
import http.server
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from fsdpkit.publishing.catalogue.build import catalogue_files
from fsdpkit.publishing.catalogue.engine import engine_of
from fsdpkit.publishing.catalogue.reading import read_catalogue
from fsdpkit.publishing.catalogue.runtime import cache_dir, fetch
from fsdpkit.publishing.replacing import CATALOGUE, write
from tests.browsers import binary_of
from tests.publishing.catalogue_pages import SETTLED, Quiet
from tests.publishing.shown_centre import NAME, shown_centre

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
MOST_BYTES = 200 << 10
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
DESK, PHONE = (1200, 800), (390, 780)
SETS = ("training.model.preset=t5-v1.1-large", "training.batch_size=16")
FORM = "generator.html#" + urlencode(
    {"job": "t5", "account": "hrc0042", "work-dir": "/scratch/hrc0042/t5", "sets": "\n".join(SETS)}
)
VIEWS: dict[str, tuple[str, tuple[int, int]]] = {
    "form": (FORM, DESK),
    "refused": (f"{FORM}&nodes=90", DESK),
    "start": ("index.html", DESK),
    "template": ("templates/torchrun.html", DESK),
    "phone": (FORM, PHONE),
}
TODAY = "2026-11-01T12:00:00Z"


def pictures() -> list[str]:
    return [f"catalogue-{view}-{scheme}.png" for view in VIEWS for scheme in SCHEMES]


@contextmanager
def served_centre() -> Iterator[str]:
    """The address of the built catalogue."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-pictures-") as folder:
        top = Path(folder)
        os.environ |= {"FSDPKIT_STATE_DIR": f"{top}/state", "FSDPKIT_CONFIG_DIR": os.devnull}
        engine = engine_of(fetch(cache_dir())).files
        centre = shown_centre(top)
        os.environ["FSDPKIT_SITE_PATH"] = str(centre)
        catalogue = read_catalogue([centre])
        write(CATALOGUE, catalogue_files(catalogue, NAME, engine), top / "pages")
        handler = functools.partial(Quiet, directory=str(top / "pages"))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}"
            server.shutdown()


def take(page: Any, address: str, view: str, path: Path) -> None:
    place, (width, height) = VIEWS[view]
    page.set_viewport_size({"width": width, "height": height})
    page.goto("about:blank")
    page.goto(f"{address}/{place}", timeout=300_000)
    if place.startswith("generator"):
        page.wait_for_selector(SETTLED, timeout=300_000)
        page.evaluate("() => { document.getElementById('speed').textContent = ''; }")
    if view == "template":
        page.locator("details.changes").first.evaluate("(fold) => { fold.open = true; }")
    if view == "phone":
        page.locator("#jump-to").click()
        page.wait_for_timeout(300)
    page.screenshot(path=str(path))


def main() -> None:
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with served_centre() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary_of(), args=flags)
        for scheme in SCHEMES:
            page = browser.new_page(color_scheme=scheme, locale="en-GB", timezone_id="UTC")
            page.clock.set_fixed_time(TODAY)
            for view in VIEWS:
                path = PICTURES / f"catalogue-{view}-{scheme}.png"
                take(page, address, view, path)
                print(f"{path.name}: {path.stat().st_size >> 10} KiB")
        browser.close()


if __name__ == "__main__":
    main()
