"""`--wait` and `--follow` say how it stands: the queue, the start, then only what is new."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from fsdpkit.cli import telling
from fsdpkit.reporting.status.progress import TrainingProgress
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.reporting.status.watching import ASKING, RunEvent, View
from tests.terminals import Terminal

PENDING = View(run="r", state="PENDING", why="others come first", starts="expected to start soon")
BEGUN = replace(
    PENDING,
    state="RUNNING",
    why=None,
    starts=None,
    attempt=0,
    events=(RunEvent(time_s=1.0, words="attempt 0 began"),),
)


STARTS = replace(BEGUN, start="1 of 2 nodes passed preflight", events=())


def test_after_a_resume_what_was_before_is_not_told(capsys: Any) -> None:
    for first_attempt in (0, 1):
        said = telling._Said(first_attempt=first_attempt)
        said.show(replace(BEGUN, state=ASKING))
        said.show(replace(BEGUN, events=(*BEGUN.events, RunEvent(time_s=2.0, words="new"))))
        told = capsys.readouterr().err
        assert ("attempt 0 began" in told) == (first_attempt == 0)
        assert "new" in told


def test_what_is_new_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    views = [replace(PENDING, state=ASKING), PENDING, PENDING, BEGUN, BEGUN]
    views += [replace(BEGUN, over=True)]

    class Watched:
        def __init__(self, *_: object) -> None:
            self.close = lambda: None

        def look(self) -> View:
            return views.pop(0)

    monkeypatch.setattr(telling, "Watcher", Watched)
    told = telling._Telling(None)  # type: ignore[arg-type]
    stands = []
    while not told.over():
        stands.append(told.how_it_stands())
    lines = capsys.readouterr().err.splitlines()
    assert [one.split("  ")[-1] for one in lines] == [
        "PENDING, others come first",
        "attempt 0 began",
        "RUNNING",
    ]
    assert stands[:2] == [
        "the scheduler has not answered yet",
        "PENDING, others come first, expected to start soon",
    ]


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (replace(BEGUN, attempt=None), "its script has not begun"),
        (STARTS, "1 of 2 nodes passed preflight"),
        (replace(STARTS, printed=Printed(line="loading")), "rank 0 prints: loading"),
        (replace(STARTS, progress=TrainingProgress(step=7, loss=2.0)), "step 7, loss 2.0"),
    ],
)
def test_how_it_stands_is_told_from_the_queue_to_the_steps(view: View, said: str) -> None:
    telling_it = telling._Said()
    telling_it.show(view)
    assert said in telling_it.how_it_stands()


SILENT = """
import sys, time, click
from fsdpkit.cli import terminal
terminal._SILENT_S = 0.5
terminal.guard()
drawn, draw = [], terminal._passing._draw
terminal._passing._draw = lambda text: (drawn.append(text), draw(text))
with terminal.at_work("outer"), terminal.at_work(lambda: "step " + "7" * 99):
    while terminal._shows_what_passes() and len(drawn) < 2:
        time.sleep(0.1)
    time.sleep(0 if drawn else 3)
    click.echo("a line")
    click.echo("a question? ", nl=False)
    time.sleep(3)
    click.echo("answered")
time.sleep(2)
"""


@pytest.mark.parametrize("where", ["terminal", "pager"])
def test_no_command_is_silent_for_long_on_a_terminal_alone(where: str) -> None:
    command = [sys.executable, "-c", SILENT]
    if where == "pager":
        command = ["sh", "-c", shlex.join(command) + " | cat"]
    screen = Terminal(command, columns=40)
    assert screen.end() == 0
    passed, after = screen.shown.split("a line")
    drawn = passed.split("\r\x1b[K")[1:]
    assert (len(drawn) >= 2) == (where == "terminal")
    assert all(len(line) == 39 and " s: step 777" in line for line in drawn[:-1])
    assert not drawn or drawn[-1] == ""  # there is room for what is printed
    assert after.replace("\r\n", "\n") == "\na question? answered\n"
