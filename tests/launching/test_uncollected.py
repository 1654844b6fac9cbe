"""What an agent imports is not looked through for garbage, then or at its end."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from fsdpkit.launching.uncollected import uncollected


class Knot:
    """Garbage that only the collector can find."""

    def __init__(self) -> None:
        self.myself = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_nothing_is_collected_within_nor_looked_at_afterwards() -> None:
    with uncollected():
        assert not gc.isenabled()
        within = weakref.ref(Knot())
    after = weakref.ref(Knot())
    gc.collect()
    assert after() is None
    assert within() is not None


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_it_was_also_after_an_import_that_fails(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled() is collects


@pytest.mark.torch
def test_torchelastic_is_imported_and_left_without_one_collection() -> None:
    """The collector tells in its debugging output of each look."""
    program = """
import gc
from fsdpkit.launching.uncollected import uncollected
gc.collect()
gc.callbacks.append(lambda phase, about: phase == "stop" and looks.append(about))
looks = []
with uncollected():
    import fsdpkit.launching.ranks
during = len(looks)
gc.collect()
print(during, len(gc.get_objects()) < 1000 < gc.get_freeze_count())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["0", "True"]


@pytest.mark.parametrize(("binder", "said"), [("nanobind", "collected\n"), ("pybind11", "")])
def test_where_leaks_are_reported_nothing_is_left_when_python_has_ended(
    binder: str, said: str
) -> None:
    program = f"""
from fsdpkit.launching.uncollected import uncollected
class Knot:
    def __init__(self):
        self.myself = self
    def __del__(self, tell=print):
        tell("collected")
with uncollected():
    class nb_type(type):
        __module__ = {binder!r}
    Knot()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
