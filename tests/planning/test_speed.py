"""What a plan says of speed: ranges that measurements narrow, what bounds a step, how it scales."""

from __future__ import annotations

import msgspec
import pytest

from fsdpkit.planning.efficiency import UncertainValue, machine_for
from fsdpkit.planning.forecast import Forecast, unknown_network
from fsdpkit.planning.speed import (
    MeasuredStep,
    SpeedCalibration,
    in_words,
    nearest,
    predict,
    scaling,
)
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.speed_words import lines
from tests.planning.made_work import made_work

H100 = SpeedCalibration(machine_for("H100", 400))


def with_run(work, slower: float = 1.0, source: str = "run 7") -> SpeedCalibration:
    """The H100 with one measured run."""
    step_s = slower * simulate(work, H100.machine.rates()).step_s
    return SpeedCalibration(H100.machine, (MeasuredStep(work=work, step_s=step_s, source=source),))


def with_rate(name: str, value: float, factor: float) -> SpeedCalibration:
    return SpeedCalibration(H100.machine.replace(**{name: UncertainValue(value, factor, "")}))


def wide(found) -> float:
    return found.step_s.high / found.step_s.low


def test_a_measured_job_takes_what_it_took_and_a_like_one_as_much_longer_with_a_narrower_range():
    work, like = made_work(rows=64), made_work(rows=96)
    after = with_run(work, slower=1.5)
    assert predict(work, after).step_s.middle == after.samples[0].step_s
    found, before = predict(like, after), predict(like, H100)
    assert found.step_s.middle == pytest.approx(1.5 * before.step_s.middle, rel=0.05)
    assert wide(found) < wide(before)
    assert found.calibrated_by == ("run 7",)
    assert before.calibrated_by == ()


def test_what_a_run_inside_a_node_cannot_tell_stays_in_doubt():
    inside, across = made_work(rows=1), made_work(rows=1, nodes=8)
    after = with_run(inside)
    assert wide(predict(across, after)) > 1.5 * wide(predict(inside, after))


def test_of_several_runs_the_one_that_depends_on_the_same_rates_counts():
    """Its batch is large, as the job's is: the other says more of the host than of the GPU."""
    small, large = with_run(made_work(rows=1), 3.0, "small"), with_run(made_work(rows=64), 1.2, "l")
    both = SpeedCalibration(H100.machine, (*small.samples, *large.samples))
    job = made_work(rows=48)
    assert nearest(job, both)[1].source == "l"
    plain = simulate(job, H100.machine.rates()).step_s
    assert predict(job, both).step_s.middle == pytest.approx(1.2 * plain, rel=0.05)


def test_a_doubt_that_matters_at_one_end_alone_is_in_the_range():
    """A network just fast enough hides behind computing; a slower one would not."""
    work = made_work(nodes=2, rows=64)
    surer, unsure = with_rate("node_bytes", 400e9, 1.0), with_rate("node_bytes", 400e9, 20.0)
    assert predict(work, surer).step_s.middle == predict(work, unsure).step_s.middle
    assert predict(work, unsure).step_s.high > 1.5 * predict(work, surer).step_s.high
    assert predict(work, unsure).step_s.low == pytest.approx(
        predict(work, surer).step_s.low, rel=0.01
    )


def test_a_step_that_the_host_decides_is_not_predicted_but_bounded_from_below():
    work = made_work(rows=1)
    found = predict(work, H100)
    assert found.host_bound
    text = "\n".join(lines(Forecast(found)))
    assert "not predicted" in text
    assert "80% interval" not in text
    without_host = msgspec.structs.replace(H100.machine.rates(), launch_s=0.0, collective_s=0.0)
    assert 0 < found.step_s.low <= simulate(work, without_host).step_s
    assert not predict(made_work(rows=64), H100).host_bound
    assert not predict(work, with_run(work)).host_bound


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
    found = predict(work, SpeedCalibration(H100.machine.replace(**values)))
    assert found.bound == bound
    assert in_words(bound)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_tokens_a_second_are_those_of_all_ranks():
    work = made_work(rows=64)
    found = predict(work, H100)
    assert found.tokens_per_s.low < found.tokens_per_s.middle < found.tokens_per_s.high
    assert found.tokens_per_s.middle == pytest.approx(work.tokens * 8 / found.step_s.middle)


def test_scaling_is_told_against_the_fewest_nodes():
    slow = with_rate("node_bytes", 40e9, 1.25)
    found = scaling(lambda nodes: made_work(rows=8, nodes=nodes), slow, [16, 1, 4])
    assert [each.nodes for each in found] == [1, 4, 16]
    assert found[0].efficiency == 1
    assert found[2].efficiency < found[1].efficiency < 1
    assert found[2].low < found[2].efficiency < found[2].high


@pytest.mark.parametrize(
    ("name", "same_as"),
    [("NVIDIA H100 80GB HBM3", "h100-80"), ("NVIDIA A100-SXM4-40GB", "a100-40")],
)
def test_a_gpu_is_known_by_its_driver_name_and_by_its_own(name, same_as):
    assert machine_for(name).values == machine_for(same_as).values


# In words


@pytest.mark.parametrize("known", [True, False])
def test_a_network_that_nothing_is_known_of_spans_ethernet_and_infiniband(known):
    calibration = H100 if known else SpeedCalibration(machine_for("H100"))
    scaled = scaling(lambda nodes: made_work(rows=64, nodes=nodes), calibration, [1, 2])
    found = predict(made_work(rows=64, nodes=2), calibration)
    forecast = Forecast(found, tuple(scaled), network=unknown_network(calibration))
    (line,) = (line for line in lines(forecast) if line.startswith("efficiency by nodes"))
    assert ("not known" in line) is not known
    assert (" to " in line.partition("(")[0]) is not known
    ethernet, infiniband = (
        predict(made_work(rows=64, nodes=2), with_rate("node_bytes", gb_s * 0.85e9, 1.0)).step_s
        for gb_s in (1.25, 200)
    )
    inside = found.step_s.low < infiniband.middle and ethernet.middle < found.step_s.high
    assert inside is not known
