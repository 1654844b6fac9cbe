"""A sweep's page needs nothing else and shows foreign text as text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from fsdpkit.sweeps.halving import Decision, JudgedTrial
from fsdpkit.sweeps.page import comparable, page
from fsdpkit.sweeps.record import write_decision
from fsdpkit.sweeps.results import result_of
from tests.reporting.made_run import made_run, write_lines
from tests.sweeps.made_up import DONE, made_up_results, made_up_sweep


def test_every_trial_stands_in_the_table_and_every_line_is_one_that_counts(tmp_path: Path) -> None:
    paths, record = made_up_sweep(tmp_path, 12)
    found = made_up_results(record)
    run = made_run(paths.dir.parent.parent / found[0].run, array=[*range(12)])
    best = min((one.value, one.trial) for one in found if one.value)[1]
    for trial in (best, 3):
        told = {"time_s": 1.0, "eval_loss": 1.5}
        write_lines(run.paths.task(trial).metrics, {**told, "step": 5}, {**told, "step": 9})
    text = page(paths, record, found)
    drawn = re.findall(r"<title>trial (\d+): ", text)
    # Over each of four settings, and over all of them.
    assert sorted(map(int, drawn)) == sorted(5 * [k for k in range(12) if k != 3])
    assert re.findall(r'data-name="(trial \d+)"', text) == [f"trial {best}"]
    assert "eval_loss of 2 trials" in text
    assert "Trial 3: FAILED, exit status 1" in text
    assert "over 11 trials" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_foreign_text_is_no_markup(tmp_path: Path) -> None:
    keys = {"parameters": {"args": {"x": ["<script>alert(1)</script>", "b"], "y": {"int": [1, 9]}}}}
    paths, record = made_up_sweep(tmp_path, 6, **keys)
    found = [
        replace(
            result_of(record, None, {k: ("1", DONE)}, [], k, "r"),
            value=float(k),
            problem="<b>bold</b>",
        )
        for k in range(len(record.trials))
    ]
    text = page(paths, record, found)
    assert "<script>alert" not in text
    assert "<b>bold" not in text


def test_importance_compares_trials_that_trained_as_far(tmp_path: Path) -> None:
    """With rungs, those at the end of the first; later values belong to other lengths."""
    paths, record = made_up_sweep(tmp_path, 9, halving={"rungs": 2})
    decision = Decision(
        rung=1,
        survivors=[0, 1, 2],
        judged=[
            *(JudgedTrial(trial=k, value=10.0 + k) for k in range(8)),
            JudgedTrial(trial=8, lost="x"),
        ],
        jobs_before=1,
        decided_s=1.0,
    )
    write_decision(paths, 0, decision)
    values = [value for _, value in comparable(paths, record, made_up_results(record))]
    assert values == [10.0 + k for k in range(8)]


def test_a_sweep_without_any_value_has_a_page_that_says_so(tmp_path: Path) -> None:
    paths, record = made_up_sweep(tmp_path, 4)
    text = page(paths, record, [])
    assert "Not known from 0 trials" in text
    assert "Parallel coordinates" not in text
