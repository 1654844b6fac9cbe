"""The wheel of the sdist, built and installed once a session; or the one that a release tries."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.packaging.installation import ROOT, Installation, install
from tests.packaging.release import WHEEL_VARIABLE, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get(WHEEL_VARIABLE):
        return Path(given)
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv")
