"""Pages that are opened from a folder are searched: their browser starts no worker."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.packaging.installation import ROOT

_WORKER = (
    "self.onmessage = null; addEventListener('message', (e) => postMessage(`${e.data} back`));"
)
_PAGE = """<!doctype html><body></body><script src="../iframe-worker.js"></script><script>
const worker = new Worker("worker.js");
worker.addEventListener("message", (e) => { document.title += e.data; });
worker.postMessage("there and");
</script>"""


def test_what_searches_runs_in_a_page_from_a_folder(browser: Any, tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "iframe-worker.js", tmp_path)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "worker.js").write_text(_WORKER)
    (tmp_path / "pages" / "index.html").write_text(_PAGE)
    page = browser.new_page()
    page.goto((tmp_path / "pages" / "index.html").as_uri())
    page.wait_for_function("document.title === 'there and back'")
    page.close()
