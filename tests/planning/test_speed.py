"""What a plan says of speed: ranges that measurements narrow, what bounds a step, how it scales."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from benchmarks.plan_parts import speed as published
from fsdpkit.config.training.presets import PRESETS
from fsdpkit.errors import UsageError
from fsdpkit.planning.efficiency import NAMES, UncertainValue, machine_for
from fsdpkit.planning.speed import Beside, Goal, in_words, predict, scaling
from fsdpkit.planning.speed_calibration import (
    MeasuredStep,
    calibrated,
    doubt_of,
    uncalibrated,
    with_bandwidths,
)
from fsdpkit.planning.speed_layers import Sharded
from fsdpkit.planning.speed_models import t5_work
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.work import StepWork

H100 = uncalibrated(machine_for("H100", 400))


def t5(size: str = "base", *, nodes: int = 1, rows: int = 32, **sharded) -> StepWork:
    return t5_work(
        PRESETS[f"t5-v1.1-{size}"],
        Sharded(ranks=8 * nodes, ranks_per_node=8, **sharded),
        rows=rows,
        source=512,
        target=128,
        compiled=True,
    )


def test_work_counts_the_flops_that_the_trainer_reports():
    from flops import flops_per_sequence
    from model import T5Config

    counted = flops_per_sequence(T5Config(**PRESETS["t5-v1.1-base"]), 512, 128)
    assert t5().model_flops == 32 * counted


def test_parameters_are_counted_as_submit_counts_them():
    from fsdpkit.config.training.footprint import parameter_count

    counted = parameter_count(PRESETS["t5-v1.1-base"])
    assert t5().parameters == pytest.approx(counted, rel=1e-4)  # but the tables of positions


def test_one_measured_step_makes_the_model_agree_with_it_and_narrows_the_range():
    work = t5()
    slow = 1.5 * simulate(work, H100.machine.rates()).step_s
    after = calibrated(H100, [MeasuredStep(work=work, step_s=slow, source="run 7")])
    assert simulate(work, after.machine.rates()).step_s == pytest.approx(slow, rel=0.05)
    assert doubt_of(work, after) < doubt_of(work, H100) / 2
    assert after.samples == ("run 7",)
    told = {name for name, value in after.machine.values.items() if "run 7" in value.source}
    assert "matmul_share" in told
    assert "host_copy_bytes" not in told


def test_what_a_run_inside_a_node_cannot_tell_stays_in_doubt():
    inside = t5("xl", rows=1)
    across = t5("xl", rows=1, nodes=8)
    seconds = simulate(inside, H100.machine.rates()).step_s
    after = calibrated(H100, [MeasuredStep(work=inside, step_s=seconds, source="one node")])
    assert after.machine.values["node_bytes"] == H100.machine.values["node_bytes"]
    assert doubt_of(across, after) > 1.5 * doubt_of(inside, after)


def test_the_same_step_measured_twice_tells_little_more():
    work = t5()
    sample = MeasuredStep(
        work=work, step_s=1.3 * simulate(work, H100.machine.rates()).step_s, source="a"
    )
    once, often = calibrated(H100, [sample]), calibrated(H100, [sample] * 5)
    assert doubt_of(work, often) == pytest.approx(doubt_of(work, once), rel=0.35)
    assert doubt_of(work, often) >= 0.05  # a model is never surer than it is good


def test_preflight_bandwidths_replace_what_was_assumed():
    work = t5("xl", rows=1, nodes=8)
    slow = with_bandwidths(H100, "check --nodes", in_node_gb_s=None, between_gb_s=10)
    assert slow.machine.values["node_bytes"] == UncertainValue(10e9, 1.1, "check --nodes")
    assert slow.machine.values["in_node_bytes"] == H100.machine.values["in_node_bytes"]
    assert predict(work, slow).tokens_per_s.middle < predict(work, H100).tokens_per_s.middle
    assert predict(work, slow).bound == "network"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_step_that_took_no_time_calibrates_nothing(seconds):
    with pytest.raises(ValueError, match="more than 0 s"):
        calibrated(H100, [MeasuredStep(work=t5(), step_s=seconds, source="broken")])


BOUNDS = {
    "compute": ({}, t5("large", rows=64)),
    "memory": ({"peak_flops": 100.0, "memory_bytes": 0.02}, t5()),
    "network": ({"node_bytes": 0.002}, t5(nodes=2)),
    "in-node links": ({"in_node_bytes": 0.002}, t5()),
    "launches": ({"launch_s": 50.0}, t5(rows=1)),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_each_bound_is_reached_and_named(bound):
    changed, work = BOUNDS[bound]
    values = {
        name: msgspec.structs.replace(
            H100.machine.values[name], value=H100.machine.values[name].value * factor
        )
        for name, factor in changed.items()
    }
    found = predict(work, uncalibrated(H100.machine.replace(**values)))
    assert found.bound == bound
    assert in_words(bound)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_hours_are_those_of_the_steps_that_the_goal_takes():
    work = t5()
    by_tokens = predict(work, H100, Goal(tokens=1000 * work.tokens * work.ranks - 1))
    by_steps = predict(work, H100, Goal(steps=1000))
    assert by_tokens.steps == by_steps.steps == 1000
    assert by_steps.hours.middle == pytest.approx(1000 * by_steps.step_s.middle / 3600)
    assert by_steps.gpu_hours.high == pytest.approx(8 * by_steps.hours.high)
    assert predict(work, H100).hours is None
    low, middle, high = (getattr(by_steps.tokens_per_s, end) for end in ("low", "middle", "high"))
    assert low < middle < high
    assert middle == pytest.approx(work.tokens * 8 / by_steps.step_s.middle)


def test_slow_loading_and_saving_add_what_no_step_hides():
    work = t5()
    alone = predict(work, H100).step_s.middle
    starved = Beside(samples_per_s=work.samples / (2 * alone))
    assert predict(work, H100, beside=starved).step_s.middle == pytest.approx(2 * alone)
    assert predict(work, H100, beside=Beside(samples_per_s=1e9)).step_s.middle == alone
    saving = Beside(save_every_steps=10, checkpoint_bytes=10**10, write_bytes_per_s=1e10)
    blocking = msgspec.structs.replace(saving, background=False)
    assert predict(work, H100, beside=blocking).step_s.middle == pytest.approx(alone + 0.1)
    assert predict(work, H100, beside=saving).step_s.middle < alone + 0.1


def test_scaling_is_told_against_the_fewest_nodes():
    found = scaling(lambda nodes: t5("xl", rows=1, nodes=nodes), H100, [4, 1, 2])
    assert [each.nodes for each in found] == [1, 2, 4]
    assert found[0].efficiency == 1
    assert found[2].efficiency < found[1].efficiency < 1


def test_work_that_takes_no_time_is_refused():
    empty = msgspec.structs.replace(t5(), operations=())
    with pytest.raises(UsageError, match="no work"):
        predict(empty, H100)


def test_an_unknown_gpu_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match=r"'tpu-v5' are known: name one of .*a100"):
        machine_for("tpu-v5")


@pytest.mark.parametrize(
    ("name", "same_as"),
    [("NVIDIA H100 80GB HBM3", "h100-80"), ("NVIDIA A100-SXM4-40GB", "a100-40")],
)
def test_a_gpu_is_known_by_its_driver_name_and_by_its_own(name, same_as):
    assert machine_for(name).values == machine_for(same_as).values


def test_every_rate_has_a_value_a_doubt_and_a_source():
    for name in NAMES:
        value = H100.machine.values[name]
        assert value.value > 0
        assert value.factor >= 1
        assert value.source


def test_published_runs_are_predicted_from_one_of_their_system():
    """Three systems of the benchmark, which takes all; the bar is issue 18's."""
    facts = json.loads(published.PUBLISHED.read_text("utf-8"))
    few = [s for s in facts["systems"] if s["name"].startswith(("torchtitan", "fms"))]
    assert len(few) == 3
    rows = [row for system in few for row in published.rows_of(system, facts["models"])]
    found = published.summary(rows)
    assert found["predicted"] == 9
    assert found["median_error"] <= 0.1
    assert sum(row["status"] == "calibrates" for row in rows) == 3


def test_every_published_row_says_what_it_is():
    facts = json.loads(published.PUBLISHED.read_text("utf-8"))
    for system in facts["systems"]:
        assert system["source"].startswith("https://")
        assert sum(row.get("calibrates", False) for row in system["rows"]) == 1
        for row in system["rows"]:
            rates = {"tokens_per_s_per_gpu", "samples_per_s_per_gpu"} & row.keys()
            assert len(rates) == 1
            assert "not_modelled" in row or row["model"] in {**facts["models"], **PRESETS}
