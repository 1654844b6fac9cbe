"""What a plan says of speed: ranges that measurements narrow, what bounds a step, how it scales."""

from __future__ import annotations

import json

import msgspec
import pytest

from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.planning.efficiency import UncertainValue, machine_for
from fsdpkit.planning.forecast import Forecast, assumed_network
from fsdpkit.planning.speed import Goal, in_words, predict, scaling
from fsdpkit.planning.speed_calibration import (
    MeasuredStep,
    calibrated,
    load,
    save,
    span,
    uncalibrated,
    with_value,
)
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.speed_words import lines
from tests.planning.made_work import made_work

H100 = uncalibrated(machine_for("H100", 400))


def wide(work, calibration) -> float:
    """How far the doubts of the rates reach, slower and faster together."""
    _, slower, faster = span(work, calibration)
    return slower + faster


def test_one_measured_step_makes_the_model_agree_with_it_and_narrows_the_range():
    work = made_work(rows=16)
    slow = 1.5 * simulate(work, H100.machine.rates()).step_s
    after = calibrated(H100, [MeasuredStep(work=work, step_s=slow, source="run 7")])
    assert simulate(work, after.machine.rates()).step_s == pytest.approx(slow, rel=0.05)
    assert wide(work, after) < wide(work, H100) / 2
    assert after.samples == ("run 7",)
    told = {name for name, value in after.machine.values.items() if "run 7" in value.source}
    assert "matmul_share" in told
    assert "host_copy_bytes" not in told


def test_what_a_run_inside_a_node_cannot_tell_stays_in_doubt():
    inside, across = made_work(rows=1), made_work(rows=1, nodes=8)
    seconds = simulate(inside, H100.machine.rates()).step_s
    after = calibrated(H100, [MeasuredStep(work=inside, step_s=seconds, source="one node")])
    assert after.machine.values["node_bytes"] == H100.machine.values["node_bytes"]
    assert wide(across, after) > 1.5 * wide(inside, after)


def test_a_doubt_that_matters_at_one_end_alone_is_in_the_range():
    """A network just fast enough hides behind computing; a slower one would not."""
    work = made_work(nodes=2, rows=64)
    surer = with_value(H100, "node_bytes", UncertainValue(400e9, 1.0, ""))
    unsure = with_value(H100, "node_bytes", UncertainValue(400e9, 20.0, ""))
    assert predict(work, surer).step_s.middle == predict(work, unsure).step_s.middle
    assert predict(work, unsure).step_s.high > 1.5 * predict(work, surer).step_s.high
    assert predict(work, unsure).step_s.low == pytest.approx(
        predict(work, surer).step_s.low, rel=0.01
    )


BOUNDS = {
    "compute": ({}, made_work(rows=64)),
    "memory": ({"peak_flops": 100.0, "memory_bytes": 0.02}, made_work()),
    "network": ({"node_bytes": 0.002}, made_work(nodes=2)),
    "in-node links": ({"in_node_bytes": 0.002}, made_work()),
    "launches": ({"launch_s": 50.0}, made_work(rows=1)),
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
    work = made_work()
    by_tokens = predict(work, H100, Goal(tokens=1000 * work.tokens * work.ranks - 1))
    by_steps = predict(work, H100, Goal(steps=1000))
    assert by_tokens.steps == by_steps.steps == 1000
    assert by_steps.hours.middle == pytest.approx(1000 * by_steps.step_s.middle / 3600)
    assert by_steps.gpu_hours.high == pytest.approx(8 * by_steps.hours.high)
    assert predict(work, H100).hours is None
    low, middle, high = (getattr(by_steps.tokens_per_s, end) for end in ("low", "middle", "high"))
    assert low < middle < high
    assert middle == pytest.approx(work.tokens * 8 / by_steps.step_s.middle)


def test_scaling_is_told_against_the_fewest_nodes():
    found = scaling(lambda nodes: made_work(rows=1, nodes=nodes), H100, [16, 1, 4])
    assert [each.nodes for each in found] == [1, 4, 16]
    assert found[0].efficiency == 1
    assert found[2].efficiency < found[1].efficiency < 1


@pytest.mark.parametrize(
    ("name", "same_as"),
    [("NVIDIA H100 80GB HBM3", "h100-80"), ("NVIDIA A100-SXM4-40GB", "a100-40")],
)
def test_a_gpu_is_known_by_its_driver_name_and_by_its_own(name, same_as):
    assert machine_for(name).values == machine_for(same_as).values


# The file of a calibration


def test_a_calibration_is_read_back_as_it_was_written(tmp_path):
    before = calibrated(H100, [MeasuredStep(work=made_work(), step_s=0.5, source="run 7")])
    save(before, tmp_path / "speed.json")
    assert load(tmp_path / "speed.json") == (before, None)
    with pytest.raises(NotFoundError):
        load(tmp_path / "another.json")


@pytest.mark.parametrize("text", ["", "[]", "\xff", '{"schema": "other"}'])
def test_a_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "speed.json").write_text(text, "latin-1")
    with pytest.raises(ConfigError, match="speed calibration"):
        load(tmp_path / "speed.json")


@pytest.mark.parametrize(
    ("key", "value"), [("value", -1.0), ("value", 0.0), ("factor", 0.5), ("value", 1e30)]
)
def test_a_rate_that_cannot_be_is_refused(tmp_path, key, value):
    path = tmp_path / "speed.json"
    save(H100, path)
    whole = json.loads(path.read_text())
    whole["calibration"]["machine"]["values"]["memory_bytes"][key] = value
    path.write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match="not a positive number"):
        load(path)


# In words


@pytest.mark.parametrize(
    ("calibration", "known"),
    [
        (uncalibrated(machine_for("H100")), False),
        (H100, True),
        (with_value(H100, "node_bytes", UncertainValue(40e9, 1.1, "fsdpkit check, x")), True),
    ],
    ids=["nothing", "the site's profile", "a check"],
)
def test_a_network_that_nothing_is_known_of_is_said_beside_the_efficiency(calibration, known):
    work = made_work(nodes=2)
    scaled = tuple(scaling(lambda nodes: made_work(nodes=nodes), calibration, [1, 2]))
    found = Forecast(predict(work, calibration), scaled, network=assumed_network(calibration))
    (line,) = (line for line in lines(found) if line.startswith("efficiency by nodes"))
    assert ("not known" in line) is not known
