"""`--wait` and `--follow` say how it stands: the queue, the start, then only what is new."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from fsdpkit.cli import telling
from fsdpkit.reporting.status.watching import ASKING, RunEvent, View

PENDING = View(run="r", state="PENDING", why="others come first", starts="expected to start soon")
BEGUN = replace(
    PENDING,
    state="RUNNING",
    why=None,
    starts=None,
    attempt=0,
    events=(RunEvent(time_s=1.0, words="attempt 0 began"),),
)


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("on_terminal", [True, False])
def test_nothing_is_silent_for_long_on_a_terminal(
    on_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [replace(PENDING, state=ASKING), PENDING, PENDING, BEGUN, BEGUN, replace(BEGUN)]
    views += [replace(BEGUN, over=True)]
    screen = _Screen() if on_terminal else io.StringIO()
    clock = iter(range(0, 1000, 20))

    class Watched:
        def __init__(self, *_: object) -> None:
            self.close = lambda: None

        def look(self) -> View:
            return views.pop(0)

    monkeypatch.setattr(telling, "Watcher", Watched)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(telling.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(telling, "passing", lambda text: screen.write(f"<{text}>"))
    told = telling._Telling(None)  # type: ignore[arg-type]
    while not told.over():
        pass
    said = screen.getvalue()
    lines = [
        line for line in said.splitlines() if line.startswith("fsdpkit: ") or "fsdpkit:" in line
    ]
    assert [one.split("  ")[-1] for one in lines] == [
        "PENDING, others come first",
        "attempt 0 began",
        "RUNNING",
    ]
    assert ("PENDING, others come first, expected to start soon>" in said) == on_terminal
    assert ("the scheduler has not answered yet>" in said) == on_terminal
    assert ("RUNNING, no step yet>" in said) == on_terminal
    assert not on_terminal or said.endswith("<>")
