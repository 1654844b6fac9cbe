"""Rows of accounts against an account kept by hand."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from fsdpkit.runs.account import Account, Measured
from fsdpkit.runs.tally import Spent, tally, week_of, weeks_since, wrong_in

NOON_S, HOUR_S = 1_795_651_200.0, 3600.0
SAMPLED = Measured(gpu_s=8 * HOUR_S, busy_s=6 * HOUR_S, active_s=4 * HOUR_S, energy_j=7.2e6)


def spent(
    run: str,
    began_h: float,
    hours: float,
    used_h: dict[Any, float],
    project: str = "pas1",
    **more: Any,
) -> Spent:
    """Of one node with two GPUs, unless it is said; `used_h` in node-hours."""
    about = {name: more.pop(name) for name in Spent.__dataclass_fields__.keys() & more.keys()}
    account = Account(
        **{"attempt": 0, "nodes": 1, "gpus": 2, **more},
        began_s=NOON_S + began_h * HOUR_S,
        ended_s=NOON_S + (began_h + hours) * HOUR_S,
        used_s={use: h * HOUR_S for use, h in used_h.items()},
    )
    assert wrong_in(account, NOON_S + 20 * HOUR_S) is None
    about = {"user": 1, "cause": "done", "words": {"project": project}, **about}
    return Spent(account=account, run=run, **about)


FAILED = {"training": 1, "lost": 0.5, "repeated": 0.5}
ASKED: dict[str, Any] = {"nodes": 2, "asked_s": 4 * HOUR_S}
REQUEUED = [
    spent("pre-1", 0, 1, FAILED, cause="node-failure", queued_s=60, **ASKED),
    spent("pre-1", 2, 2, {"training": 4}, attempt=1, queued_s=600, measured=SAMPLED, **ASKED),
]
ARRAY = [
    spent("sweep-2", 0, 0.5, {"startup": 0.5}, task=0, cause="crash", user=7, project="pas2"),
    spent("sweep-2", 0, 1, {"training": 0.5, "idle": 0.5}, task=1, user=7, project="pas2"),
]
HELD = [
    spent("on-4", 1, 3, {"training": 3}, on="hold-3", queued_s=0, asked_s=HOUR_S, project="pas2"),
    spent("hold-3", 0, 10, {"idle": 10}, holds=True, queued_s=7200, measured=SAMPLED),
    spent("on-5", 5, 1, {"training": 1}, on="hold-3"),
]
WITHOUT_GPU = spent("cpu-6", 0, 3, {"unknown": 3}, gpus=0, cause=None, user=2)
ALL = [*REQUEUED, *ARRAY, *HELD, WITHOUT_GPU]


def test_all_hours_that_were_granted_are_counted_once() -> None:
    row, without = tally([*ALL, *REQUEUED], by=())
    assert (row.unit, row.hours) == ("GPU-hours", 4 + 8 + 1 + 2 + 20)
    assert row.used == {"training": 19, "idle": 13, "startup": 1, "lost": 1, "repeated": 1}
    assert row.wasted == {"idle": 13, "after_failures": 2, "failed_at_start": 1}
    assert (row.runs, row.attempts, row.users) == (6, 7, 2)
    assert row.ends == {"done": 5, "node-failure": 1, "crash": 1}
    # The hold's samples are of the GPUs that the runs on it have sampled.
    assert (row.busy_share, row.active_share, row.gpu_kwh) == (0.75, 0.5, 2)
    assert row.measured_share == pytest.approx(8 / 35)
    assert (row.asked_hours, row.asked_used_hours) == (32, 12)
    assert (row.queued_median_s, row.queued_most_s) == (600, 7200)
    assert (without.unit, without.hours, without.ends) == ("node-hours", 3, {})
    assert without.busy_share is without.gpu_kwh is without.queued_median_s is None


def test_rows_go_by_the_words_asked_for_and_add_up_in_any_order() -> None:
    rows = tally(random.sample(ALL, len(ALL)), by=["week", "project"])
    assert [(row.by, row.hours) for row in rows] == [
        ({"week": "2026-W48", "project": "pas1"}, 4 + 8 + 12 + 2),
        ({"week": "2026-W48", "project": "pas1"}, 3),
        ({"week": "2026-W48", "project": "pas2"}, 1 + 2 + 6),
    ]
    (row,) = tally([ARRAY[0]], by=["gpu", "name"])
    assert row.by == {"gpu": None, "name": None}


def test_a_hold_and_the_runs_on_it_count_in_full_where_the_others_are_not_known() -> None:
    assert [row.hours for row in tally([HELD[0], HELD[2]], by=())] == [8]
    (row,) = tally([HELD[1], spent("on-4", 1, 3, {"training": 3}, on="hold-3", user=2)], by=())
    assert (row.hours, row.used["idle"]) == (20 + 6, 20)


def test_a_run_on_a_hold_that_was_queued_again_is_taken_from_the_attempt_it_was_in() -> None:
    held = [spent("hold-3", h, 4, {"idle": 4}, attempt=h, holds=True) for h in (0, 10)]
    (row,) = tally([*held, spent("on-4", 11, 3, {"training": 3}, on="hold-3")], by=())
    assert (row.hours, row.used) == (16, {"idle": 10, "training": 6})


def test_what_fails_after_an_hour_without_a_step_has_not_failed_at_its_start() -> None:
    (row,) = tally([spent("hangs-1", 0, 2, {"startup": 1, "lost": 1}, cause="hang")], by=())
    assert row.wasted == {"after_failures": 2}


def test_weeks_begin_on_monday() -> None:
    assert week_of(NOON_S) == week_of(weeks_since(1, NOON_S)) == "2026-W48"
    assert week_of(weeks_since(1, NOON_S) - 1) == week_of(weeks_since(2, NOON_S)) == "2026-W47"
    assert weeks_since(1, NOON_S) > NOON_S - 7 * 86400


@pytest.mark.parametrize(
    "lie",
    [
        {"ended_s": 1.0},
        {"ended_s": NOON_S + 100 * HOUR_S},
        {"used_s": {"training": 9 * HOUR_S}},
        {"nodes": 1000},
        {"measured": Measured(gpu_s=9 * HOUR_S)},
        {"measured": Measured(gpu_s=8 * HOUR_S, busy_s=9 * HOUR_S)},
    ],
    ids=str,
)
def test_an_account_that_does_not_add_up_is_found(lie: dict[str, Any]) -> None:
    account = REQUEUED[1].account
    assert wrong_in(account, NOON_S + 4 * HOUR_S) is None
    assert wrong_in(msgspec.structs.replace(account, **lie), NOON_S + 4 * HOUR_S)
