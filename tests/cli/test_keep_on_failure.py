"""`submit --keep-on-failure`: a corrected script runs again on the nodes that the first try had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdpkit import Run
from tests.cli.terminal import on_terminal
from tests.programs import until

pytestmark = pytest.mark.local

WORDS = ("submit", "train.py", "--cluster", "local", "--nodes", "1", "--gpus", "1")


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(3)\n")
    return script


def runs() -> list[Run]:
    found = [Run.open(path.parent) for path in Path("runs").glob("*/run.json")]
    return sorted(found, key=lambda run: run.record.created_s)


def ended(hold: Run) -> str:
    until(lambda: (state := hold.state()) and state.over)
    return hold.state().state


def test_the_corrected_script_is_tried_on_the_same_nodes_and_success_gives_them_back(
    script: Path,
) -> None:
    def correct(said: str) -> str | None:
        if "press Enter" not in said:
            return None
        script.write_text("print('well')\n")
        return "\n"

    words = (*WORDS, "--set", "resources.time=10")
    on_terminal(*words, "--keep-on-failure", "2m", answered=correct)
    hold, first, second = runs()
    assert hold.record.holds
    assert [run.record.on for run in (first, second)] == [hold.id, hold.id]
    outcomes = [state.state for run in (first, second) if (state := run.state())]
    assert outcomes == ["FAILED", "COMPLETED"]
    whole, *left = (json.loads(run.paths.job.read_text())["resources"]["time"] for run in runs())
    assert whole == "10"
    assert 10 > int(left[0]) >= int(left[1]) > 0, "a try has what the hold has left"
    assert ended(hold) == "COMPLETED"


def test_whoever_does_not_try_again_gives_the_nodes_back(script: Path) -> None:
    on_terminal(
        *(*WORDS, "--keep-on-failure", "2m"),
        status=3,
        answered=lambda said: "\x04" if "press Enter" in said else None,
    )
    hold, _ = runs()
    assert ended(hold) == "COMPLETED"
