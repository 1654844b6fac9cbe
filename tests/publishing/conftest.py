"""A centre that two people may publish to, and whose user the test is; a live cluster's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.publishing.called import call, small
from tests.publishing.catalogue_pages import address, catalogue, form, pages, place
from tests.publishing.centres import Centre, make_key
from tests.publishing.live_answers import slurm_says

__all__ = ["address", "call", "catalogue", "form", "pages", "place"]
__all__ += ["slurm_says", "small"]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("keys")
    for name in ("alex", "kim", "eve"):
        make_key(place / name)
    return place


@pytest.fixture
def centre(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Centre:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    made = Centre.made(tmp_path, keys)
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(made.dir))
    return made
