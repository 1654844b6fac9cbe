"""Makes the example's modules importable, as its own directory does when it is run as a script, and
marks the tests that look at what ranks found; and a process group of one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp"
for folder in (EXAMPLE, EXAMPLE.parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "found" in names and item.path.parent == Path(__file__).parent:
            item.add_marker("torch")


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
