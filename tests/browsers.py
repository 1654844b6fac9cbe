"""The distribution's Chromium, one a worker: Playwright starts once a thread."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def binary_of() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def not_here(what: str) -> NoReturn:
    """Where it is required, that is a failure."""
    if os.environ.get("FSDPKIT_REQUIRE_SLURM") == "1":
        pytest.fail(f"required here, but missing: {what}")
    pytest.skip(f"missing: {what}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    binary = binary_of()
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
