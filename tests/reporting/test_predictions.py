"""What was predicted stands beside what was measured, for each job of a run and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from fsdpkit.cli.report import command as report
from fsdpkit.reporting.comparison.compared import compare
from fsdpkit.reporting.comparison.table import rows
from fsdpkit.reporting.predictions import PredictedFigure, Prediction, in_a_line
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.report.predicted import comparisons, predictions
from fsdpkit.reporting.status.overview import one_status
from fsdpkit.reporting.training import trainings_of
from fsdpkit.runs.predicted import Predicted, Span, save_predicted
from fsdpkit.runs.record import JobRecord
from fsdpkit.scheduling.run import Run
from tests.reporting.made_run import T0, ends, launches, made_run, starts, trains

GIB = 2**30
ENDED = {"state": "COMPLETED", "source": "sacct", "exit_code": 0, "exit_signal": 0}


def plan(*, name: str = "a", nodes: int = 2, tokens: float = 100.0, **changed: object) -> Predicted:
    span = Span(0.8 * tokens, tokens, 1.2 * tokens)
    made = Predicted(
        name=name * 64,
        made_s=T0 - 60,
        nodes=nodes,
        gpus=2,
        card="H100-80",
        allocated_bytes=10 * GIB,
        reserved_bytes=12 * GIB,
        tokens_per_s=span,
        step_s=Span(0.9, 1.0, 1.1),
        mfu=Span(0.3, 0.4, 0.5),
        source="closed form",
        rests_on="published figures only",
    )
    return msgspec.structs.replace(made, **changed)


GPU = {"memory_bytes": 11 * GIB, "memory_reserved_bytes": 12 * GIB, "mfu": 0.36}


def trained(directory: Path, predicted: Predicted | None = None, **fields: object) -> Run:
    """Thirty steps of which the first are slow, at 110 tokens a second from then on."""
    run = made_run(directory)
    starts(run.paths.task(), 0, T0)
    launches(run.paths.task(), 0, T0 + 10)
    told = {"tokens_per_s": 110.0, **GPU, **fields}
    at_s = trains(run.paths.task(), 1, 5, T0 + 10, step_s=9.0, **{**told, "tokens_per_s": 12.0})
    ends(run.paths.task(), 0, trains(run.paths.task(), 6, 30, at_s, step_s=1.05, **told))
    save_predicted(run.paths, predicted)
    return run


def found(run: Run, task: int | None = None) -> list[Prediction]:
    (training,) = trainings_of(run, [task], {})
    return comparisons(training)


def figure(one: Prediction, what: str) -> PredictedFigure:
    (mine,) = [each for each in one.figures if each.what == what]
    return mine


def test_speed_memory_and_mfu_are_compared_without_the_steps_in_which_a_run_warms_up(tmp_path):
    (one,) = found(trained(tmp_path / "run", plan()))
    tokens = figure(one, "tokens_per_s")
    assert (tokens.predicted, tokens.low, tokens.high) == (100.0, 80.0, 120.0)
    assert tokens.measured == 110.0
    assert tokens.error == pytest.approx(0.1)
    assert tokens.in_range is True
    assert figure(one, "step_time_s").measured == pytest.approx(1.05)
    mfu = figure(one, "mfu")
    assert (mfu.measured, mfu.in_range) == (0.36, True)
    allocated = figure(one, "memory_bytes")
    assert (allocated.predicted, allocated.measured) == (10 * GIB, 11 * GIB)
    assert figure(one, "memory_reserved_bytes").error == 0
    assert one.lines == 20


def test_the_report_shows_them_and_json_has_them(tmp_path):
    run = trained(tmp_path / "run-1", plan(tokens=300.0))
    html = page(run)
    assert "Predicted and measured" in html
    assert "tokens/s, median; planned 300 (-" in html, "at its head"
    assert "outside the range" in html
    assert "10.00 GiB" in html
    assert "published figures only" in html
    words = [str(run.dir), "--json", "-o", str(tmp_path / "r.html")]
    result = CliRunner().invoke(report, words, standalone_mode=False, catch_exceptions=False)
    (one,) = json.loads(result.output)["predictions"][""]
    assert one["figures"][0]["predicted"] == 300.0


def test_of_a_run_that_nobody_planned_nothing_is_said(tmp_path):
    run = trained(tmp_path / "run")
    assert found(run) == []
    assert predictions(trainings_of(run, [None], {})) == {}
    html = page(run)
    assert "Predicted and measured" not in html
    assert "planned" not in html
    assert one_status(run.dir).predictions == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"schema": "fsdpkit.predicted/1"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema":"fsdpkit.predicted/2"}',
    ],
    ids=["empty", "torn", "poor", "no text", "deep", "newer"],
)
def test_a_plan_that_cannot_be_read_is_as_good_as_none(tmp_path, content):
    run = trained(tmp_path / "run", plan())
    run.paths.plan.write_bytes(content)
    assert found(run) == []
    page(run)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens_per_s": {"low": 5, "middle": 1, "high": 9}},
        {"tokens_per_s": {"low": -1, "middle": 1, "high": 9}},
        {"allocated_bytes": -5},
        {"card": "x" * 400},
        {"name": "../../etc/passwd"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_plan_that_cannot_be_true_is_not_shown(tmp_path, change):
    run = trained(tmp_path / "run", plan())
    whole = json.loads(run.paths.plan.read_text()) | change
    run.paths.plan.write_text(json.dumps(whole))
    assert found(run) == []


def test_hostile_words_in_a_plan_stay_words(tmp_path):
    run = trained(tmp_path / "run", plan(card="<script>alert(1)</script>", rests_on="\x1b[2J$(x)"))
    assert "<script>alert(1)" not in page(run)


def test_a_link_in_the_place_of_a_plan_is_not_followed(tmp_path):
    run = trained(tmp_path / "run", plan())
    other = tmp_path / "other.json"
    run.paths.plan.rename(other)
    run.paths.plan.symlink_to(other)
    assert found(run) == []


def test_without_metrics_the_prediction_stands_alone(tmp_path):
    run = made_run(tmp_path / "run")
    save_predicted(run.paths, plan())
    (one,) = found(run)
    assert one.lines == 0
    assert {each.measured for each in one.figures} == {None}
    assert {each.error for each in one.figures} == {None}
    assert "not measured" in page(run)
    assert in_a_line([one]) == ""


def resumed(directory: Path, first: Predicted | None, second: Predicted | None) -> Run:
    """Ten steps on two nodes at 100 tokens/s, ten more by a second job on four at 190."""
    earlier = JobRecord(job_id="7", nodes=2, ranks_per_node=2, ended={"7": ENDED})
    run = made_run(
        directory,
        nodes=4,
        job_id="8",
        earlier=[earlier],
        first_attempt=1,
        ended={"8": ENDED},
    )
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    ends(task, 0, trains(task, 1, 10, T0 + 10, tokens_per_s=100.0), cause="stopped")
    starts(task, 1, T0 + 100)
    launches(task, 1, T0 + 110)
    ends(task, 1, trains(task, 11, 20, T0 + 110, tokens_per_s=190.0))
    save_predicted(run.paths, first)
    if first is not None:
        run.paths.plan.rename(run.dir / "plan.7.json")
    save_predicted(run.paths, second)
    return run


def test_each_job_of_a_resumed_run_is_compared_with_its_own_prediction(tmp_path):
    run = resumed(tmp_path / "run", plan(), plan(name="b", nodes=4, tokens=200.0))
    one, two = found(run)
    assert (one.nodes, figure(one, "tokens_per_s").measured) == (2, 100.0)
    assert (two.nodes, figure(two, "tokens_per_s").measured) == (4, 190.0)
    assert figure(two, "tokens_per_s").error == pytest.approx(-0.05)


def test_a_job_without_a_plan_is_left_out_and_does_not_lend_its_steps(tmp_path):
    (only,) = found(resumed(tmp_path / "run", None, plan(name="b", nodes=4, tokens=200.0)))
    assert figure(only, "tokens_per_s").measured == 190.0


def test_tasks_of_an_array_are_compared_each_by_itself(tmp_path):
    run = made_run(tmp_path / "run", array=[0, 1])
    for task, rate in ((0, 100.0), (1, 50.0)):
        starts(run.paths.task(task), 0, T0)
        trains(run.paths.task(task), 1, 12, T0, tokens_per_s=rate)
    save_predicted(run.paths, plan())
    each = predictions(trainings_of(run, run.record.tasks_of(), {}))
    assert {k: figure(v[0], "tokens_per_s").measured for k, v in each.items()} == {
        "0": 100.0,
        "1": 50.0,
    }
    assert "Task 1" in page(run)
    assert list(predictions(trainings_of(run, [1], {}))) == ["1"]


def test_compare_and_status_show_the_newest_prediction(tmp_path):
    a = trained(tmp_path / "a", plan(tokens=120.0))
    b = trained(tmp_path / "b")
    told, _ = compare([a, b])
    head, first, second = rows(told)
    at = head.index("PLANNED")
    assert (first[at], second[at]) == ("120", "–")
    assert told.runs[0].predictions[0].nodes == 2
    line = in_a_line(one_status(a.dir).predictions)
    assert "tokens/s 120, measured 110 (-8%)" in line
    assert "allocated 10.00 GiB, measured 11.00 GiB (+10%)" in line
