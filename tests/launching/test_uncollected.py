"""What an agent imports is not looked through for garbage, then or at its end."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fsdpkit.launching.uncollected import uncollected


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_it_was_also_after_an_import_that_fails(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled() is collects
