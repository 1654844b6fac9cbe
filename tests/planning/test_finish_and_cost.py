"""Whether training ends in time, and what it costs: from its length, its speed and the centre's
rates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.billing import Billing, HourlyRates, counting_of, parse_weights
from fsdpkit.config.limits import START_S
from fsdpkit.config.placement import place_to_plan
from fsdpkit.config.trainer import TrainingLength
from fsdpkit.config.training import load_settings
from fsdpkit.planning.cost import cost_lines, cost_of
from fsdpkit.planning.finish import Finish, SavedState, TimeAllowed, finish, finish_lines
from fsdpkit.runs.predicted import Span
from fsdpkit.scheduling.submission import SubmitRequest, asked_for
from fsdpkit.training.offer import TRAINER

HOUR = 3600
STEPS = TrainingLength(steps=3600, source="training.steps")
UNSAVED = SavedState(None, None)


def ends(
    step_s: float | None,
    length: TrainingLength = STEPS,
    saved: SavedState = UNSAVED,
    *,
    training_s: int = HOUR,
    most_s: int | None = None,
    returns: bool = True,
) -> Finish:
    span = None if step_s is None else Span(step_s / 2, step_s, step_s * 2)
    time = TimeAllowed(HOUR + 300, training_s, most_s, returns)
    return finish(length, span, saved, time, "speed is not: no figures")


@pytest.mark.parametrize(
    ("step_s", "verdict", "jobs"),
    [
        (0.4, "finishes", (1, 1, 1)),
        (0.9, "may not finish", (1, 1, 2)),
        (3.0, "does not finish", (2, 3, 6)),
    ],
)
def test_training_ends_in_so_many_jobs(step_s: float, verdict: str, jobs: tuple[int, int, int]):
    found = ends(step_s)
    assert (found.verdict, found.jobs) == (verdict, jobs)
    assert found.seconds is not None
    assert found.seconds.middle == pytest.approx(3600 * step_s + jobs[1] * START_S)


def test_who_brings_the_next_job_and_which_time_is_enough_is_said():
    by_itself, by_hand = ("\n".join(finish_lines(ends(3.0, returns=r))) for r in (True, False))
    assert "[retry]" in by_itself
    assert "resume RUN --chained" in by_hand
    assert ends(3.0).enough == "06:10:00"  # the slow end and what is around it, in ten minutes
    assert ends(3.0, most_s=6 * HOUR).enough is None
    assert ends(0.4).enough is None


def test_what_is_not_known_is_named_and_a_fast_enough_step_is_said_all_the_same():
    slow = ends(None)
    assert slow.verdict == "not known"
    assert "no figures" in slow.why
    assert slow.step_s_at_most == pytest.approx(1.0, rel=1e-3)
    endless = ends(1.0, TrainingLength(source="say it"))
    assert (endless.verdict, endless.seconds) == ("not known", None)
    assert "say it" in endless.why
    assert ends(1.0, training_s=0).verdict == "does not finish"


def test_evaluations_and_saves_that_training_waits_for_take_time():
    def middle(length: TrainingLength, write_s: float = 0.0) -> float:
        found = ends(0.1, length, SavedState(1, write_s)).seconds
        assert found is not None
        return found.middle - START_S

    assert middle(STEPS) == pytest.approx(360)
    evaluated = STEPS._replace(evaluations=10, evaluated=9)
    assert middle(evaluated) == pytest.approx(360 + 10 * 9 * 0.1 / 3)
    assert middle(STEPS._replace(saves=10), write_s=50) == pytest.approx(360 + 500)
    # Every 36 s a save begins: of 50 s of writing, training waits for 14.
    assert middle(STEPS._replace(saves=10, background=True), write_s=50) == pytest.approx(360 + 140)
    assert middle(STEPS._replace(saves=10, background=True), write_s=30) == pytest.approx(360)


def length(*sets: str, ranks: int = 4, work_dir: Path = Path()) -> TrainingLength:
    return TRAINER.length(load_settings({}, sets), ranks, work_dir)


def test_steps_come_from_steps_tokens_or_counted_rows(tmp_path: Path):
    rows = [{"source": f"text {n}", "target": "word"} for n in range(103)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pairs = ("data.source=pairs.jsonl", "data.task=pairs", "batch_size=2", "epochs=3")
    assert length().steps == 100
    assert length("steps=7", "evaluation.every_steps=3").evaluations == 2
    assert length("steps=120").saves == 2
    counted = length(*pairs, "data.held_out=0.1", work_dir=tmp_path)
    assert counted.steps == 3 * -(-93 // 8)  # of 103 rows every tenth is held out
    assert not counted.is_estimate
    assert length(*pairs, "steps=5", work_dir=tmp_path).steps == 5
    tokens = length("tokens=8192", "batch_size=2", "data.target_length=32")
    assert (tokens.steps, tokens.is_estimate) == (8192 // (2 * 4 * 32), True)


def test_what_is_not_counted_before_the_run_is_said(tmp_path: Path):
    windows = length("data.task=span-corruption", "epochs=1")
    missing = length("data.source=gone.jsonl", "data.task=pairs", "epochs=1", work_dir=tmp_path)
    assert (windows.steps, missing.steps) == (None, None)
    assert "span corruption" in windows.source
    assert "gone.jsonl" in missing.source


def test_of_a_large_file_a_part_is_counted_and_the_rest_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fsdpkit.data.counting.COUNTED_BYTES", 1)
    line = json.dumps({"source": "x" * 500, "target": "y"}) + "\n"
    (tmp_path / "pairs.jsonl").write_text(line * 10_000)
    found = length(
        *("data.source=pairs.jsonl", "data.task=pairs", "epochs=1", "data.held_out=0"),
        "batch_size=1",
        ranks=1,
        work_dir=tmp_path,
    )
    assert found.is_estimate
    assert found.steps == pytest.approx(10_000, rel=0.01)


# ---- Cost


NODE = {"cpu": 32.0, "mem": 8 * 1024.0, "node": 1.0, "gres/gpu": 4.0, "gres/gpu:a100": 4.0}


@pytest.mark.parametrize(
    ("weights", "flags", "expected"),
    [
        ("CPU=1.0,Mem=0.25G,GRES/gpu=2.0", "", 32 + 2 + 8),
        ("CPU=1.0,Mem=0.25G,GRES/gpu=2.0", "ACCRUE_ALWAYS,MAX_TRES", 32),
        ("CPU=1.0,Mem=0.25G,GRES/gpu=2.0", "MAX_TRES_GRES", 32 + 8),
        ("mem=.25", "", 2048),
        ("GRES/gpu:a100=3,GRES/gpu:v100=1,node=5,license/x=9", "", 12 + 5),
    ],
)
def test_an_hour_costs_what_slurm_would_bill(weights: str, flags: str, expected: float):
    """The first two are slurm.conf's own example, for another job."""
    rates = HourlyRates(parse_weights(weights), counting_of(flags), "SU", "")
    assert rates.per_hour(NODE, 3) == pytest.approx(3 * expected)
    unknown = rates.per_hour({**NODE, "mem": None}, 3)
    assert (unknown is None) == ("mem" in weights.lower())


@pytest.mark.parametrize("wrong", ["", "gpu", "GRES/gpu=x", "CPU=1K", "CPU=-1", "CPU=1;Mem=2"])
def test_other_weights_and_those_without_a_source_are_refused(wrong: str):
    with pytest.raises(ValueError, match="weight"):
        Billing(weights=wrong or "=", source="a document")
    with pytest.raises(ValueError, match="source"):
        Billing(weights="CPU=1")


def test_a_job_costs_its_gpus_times_its_hours_and_whole_nodes_where_it_gets_those():
    request = SubmitRequest("t5", cluster="osc-ascend", nodes=2, gpus=2, time="02:00:00", spare=1)
    site, _, job = asked_for(request)
    resources, placement = job.spec.resources, place_to_plan(job.spec.resources, site)
    rates = HourlyRates({"gres/gpu": 3.0}, "sum", "SU", "the centre's page")
    hour = Span(HOUR / 2, HOUR, HOUR * 2)
    found = cost_of(resources, placement, rates, hour)
    assert (found.gpus, found.most_gpu_hours, found.most_units) == (6, 12, 36)
    assert found.gpu_hours == Span(3, 6, 12)
    assert found.units == Span(9, 18, 36)
    assert "18 SU" in "\n".join(cost_lines(found))
    whole = replace(placement, way=msgspec.structs.replace(placement.way, whole_nodes="given"))
    assert placement.node_type.gpus == 3
    assert cost_of(resources, whole, None, None).gpus == 3 * 3
    unknown = replace(placement, memory_mb=None)
    lacking = cost_of(resources, unknown, HourlyRates({"mem": 1.0}, "sum", "SU", ""), hour)
    assert lacking.units is None
    assert "resources.memory" in lacking.source
