"""The pictures of docs/sweeps.md are of the committed runs, and can be read anywhere."""

from __future__ import annotations

import json

from benchmarks.study_pictures import PICTURES, RESULTS, sweep_picture
from tests.packaging.installation import ROOT

MEASURED = json.loads(RESULTS.read_text(encoding="utf-8"))


def text_of(name: str) -> str:
    return (PICTURES / name).read_text(encoding="utf-8")


def test_the_sweep_is_drawn_from_the_committed_runs() -> None:
    drawn = sweep_picture(MEASURED["sweep"])
    assert text_of("sweep.svg") == drawn, "run python -m benchmarks.study_pictures draw"
    assert "pictures/sweep.svg" in (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
