"""How often the scheduler is asked by who watches."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord
from fsdpkit.scheduling import asking
from fsdpkit.scheduling.asking import Pace, PacedAsking
from fsdpkit.scheduling.run_states import Standing
from fsdpkit.scheduling.states import JobState
from tests.scheduling.records import job, run_of

RUNS = JobState("RUNNING", "squeue")


def test_questions_become_rare_and_begin_anew_with_news() -> None:
    pace = Pace()
    at_s, asked_s = 0.0, []
    while at_s < 600:
        asked_s.append(at_s)
        at_s += pace.pause_s()
    assert asked_s[1] < 3
    assert len(asked_s) <= 25
    assert sum(480 <= at <= 600 for at in asked_s) <= 3, "about one a minute"
    pace.news()
    assert pace.pause_s() < 3


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the runs of each round of questions."""
    rounds: list[list[str]] = []

    def answer(runs: list[tuple[RunPaths, RunRecord]]) -> list[Standing]:
        if runs:
            rounds.append([paths.dir.name for paths, _ in runs])
        return [Standing(record, {"1": RUNS}) for _, record in runs]

    monkeypatch.setattr(asking, "standings", answer)
    return rounds


def test_who_looks_every_second_does_not_ask_every_second(asked: list[list[str]]) -> None:
    now = 0.0
    paced = PacedAsking(clock=lambda: now)
    runs = [(RunPaths(Path("a")), run_of(job("1")))]
    for _ in range(600):
        assert paced.standings(runs)[0].states == {"1": RUNS}
        now += 1.0
    assert 8 < len(asked) <= 25
    assert paced.age_s <= 67


def test_what_a_job_was_granted_is_asked_for_once_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def details(
        self: object, paths: RunPaths, record: RunRecord, job_id: str, state: JobState
    ) -> object:
        told.append(state.state)
        return {}, []

    monkeypatch.setattr(asking.Asking, "details", details)
    paced = PacedAsking()
    for word in ("PENDING", "PENDING", "RUNNING", "RUNNING"):
        paced.details(RunPaths(Path("a")), run_of(job("1")), "1", JobState(word, "squeue"))
    assert told == ["PENDING", "RUNNING"]
