"""Makes the example's modules importable, as its own directory does when it is run as a script, and
lets all plans of the tests share a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.planning.apart import one_child

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp"
for folder in (EXAMPLE, EXAMPLE.parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="package", autouse=True)
def _one_child() -> Iterator[None]:
    with one_child():
        yield
