"""Effective training time: formula and simulation, each on known answers and against the other."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks import goodput as bench
from benchmarks.fault_parts.costs import Assumptions, Measured, system_of
from benchmarks.fault_parts.model import (
    Kind,
    Repair,
    System,
    best_interval_s,
    downtime_s,
    exhausted_share,
    goodput,
    losses,
    outcomes,
    young_interval_s,
)
from benchmarks.fault_parts.rates import LLAMA3, LLAMA3_CAUSES, PUBLISHED, shares
from benchmarks.fault_parts.simulation import _Simulation, simulate
from fsdpkit.config.retry import Retry

HOUR_S = 3600.0
SAVES = {
    "saved": [
        {
            "background": [{"bytes": 10**9, "blocked_s": 0.5, "written_s": 9.0}],
            "waiting": [{"bytes": 10**9, "blocked_s": 5.0, "written_s": 5.0}],
        }
    ]
    * 2,
    "resumed": {"2": [{"resume_s": [2.0, 2.5]}, {"resume_s": [1.0, 2.5]}]},
}


@st.composite
def systems(draw: st.DrawFn) -> System:
    """Runs good and bad; a failure every quarter of an hour at worst, every month at best."""
    seconds = st.floats(0, 900)
    repair = st.builds(Repair, seconds, seconds)
    weights = draw(st.lists(st.floats(0.01, 1), min_size=3, max_size=3))
    crash, device, node = (weight / sum(weights) for weight in weights)
    return System(
        nodes=draw(st.integers(2, 1024)),
        failures_per_s=1 / draw(st.floats(900, 30 * 86_400)),
        kinds=(
            Kind("crash", crash, draw(repair)),
            Kind("device", device, draw(repair), replaces=True),
            Kind("node", node, draw(repair), replaces=True, silent=True),
        ),
        spares=draw(st.integers(0, 20)),
        requeue=draw(repair),
        head_requeue=draw(repair),
        blocked_s=draw(st.floats(0.01, 60)),
        written_s=draw(st.floats(0, 300)),
    )


PLAIN = System(
    nodes=100,
    failures_per_s=1 / HOUR_S,
    kinds=(
        Kind("crash", 0.3, Repair(1, 60)),
        Kind("device", 0.5, Repair(1, 120), replaces=True),
        Kind("node", 0.2, Repair(30, 60), replaces=True, silent=True),
    ),
    spares=2,
    requeue=Repair(300, 90),
    head_requeue=Repair(600, 90),
    blocked_s=2.0,
    written_s=20.0,
)


@given(systems(), st.floats(1, 1e5))
def test_goodput_is_a_share_of_time(system: System, interval_s: float) -> None:
    assert 0 <= goodput(system, interval_s) < 1


@given(systems(), st.floats(1.01, 20))
def test_more_failures_leave_less_time(system: System, times: float) -> None:
    worse = replace(system, failures_per_s=times * system.failures_per_s)
    interval_s = best_interval_s(system)
    assert goodput(worse, interval_s) < goodput(system, interval_s)
    assert best_interval_s(worse) <= best_interval_s(system)


@given(systems(), st.floats(1.01, 10))
def test_no_other_interval_is_better_than_the_best(system: System, times: float) -> None:
    best_s = best_interval_s(system)
    assert goodput(system, best_s * times) <= goodput(system, best_s)
    shorter_s = best_s / times
    if shorter_s >= system.shortest_interval_s:
        assert goodput(system, shorter_s) <= goodput(system, best_s)


@given(systems())
def test_a_save_is_written_before_the_next_begins(system: System) -> None:
    assert best_interval_s(system) + system.blocked_s >= system.written_s * (1 - 1e-9)


def test_with_rare_failures_the_best_interval_is_youngs() -> None:
    rare = replace(PLAIN, failures_per_s=1 / (1000 * HOUR_S))
    assert best_interval_s(rare) == pytest.approx(young_interval_s(rare), rel=0.01)
    assert young_interval_s(rare) == pytest.approx(math.sqrt(2 * 2.0 * 1000 * HOUR_S))


def test_with_rare_failures_the_losses_add_up_to_the_rest() -> None:
    rare = replace(PLAIN, failures_per_s=1 / (100 * HOUR_S))
    interval_s = best_interval_s(rare)
    lost = losses(rare, interval_s)
    total = lost.saving + lost.repeated + lost.down
    assert 1 - goodput(rare, interval_s) == pytest.approx(total, rel=0.02)


def test_without_checkpoint_cost_and_downtime_only_steps_since_the_last_save_are_lost() -> None:
    free = Repair(0, 0)
    kinds = (Kind("crash", 1.0, free),)
    system = replace(
        PLAIN, kinds=kinds, requeue=free, head_requeue=free, blocked_s=0.0, written_s=0.0
    )
    x = 0.1  # interval over the mean time between failures
    assert downtime_s(system) == 0
    assert goodput(system, x * HOUR_S) == pytest.approx(x / (math.exp(x) - 1))


@given(systems())
def test_outcomes_are_all_that_can_happen(system: System) -> None:
    shares_of = [probability for probability, _ in outcomes(system)]
    assert min(shares_of) >= 0
    assert sum(shares_of) == pytest.approx(1)


@pytest.mark.parametrize(("spares", "expected"), [(0, 1.0), (1, 1 / 2), (4, 1 / 5)])
def test_one_replacement_more_than_there_are_spares_needs_a_requeue(
    spares: int, expected: float
) -> None:
    assert exhausted_share(spares, replaced=0.5, lost_head=0.0) == pytest.approx(expected)


def test_requeues_for_another_reason_leave_fewer_for_want_of_spares() -> None:
    assert exhausted_share(4, 0.5, 0.1) < exhausted_share(4, 0.5, 0.0)
    # One spare: a lost head fills it before half of the second failures. By hand: of a cycle's
    # events the first takes a spare in 1/2 and the second finds none in 1/4; a cycle has 3/2
    # events, of which half are replacements.
    assert exhausted_share(1, 0.5, 0.5) == pytest.approx((1 / 4) / (3 / 4))


# The same examples each time, and no search for smaller ones, which would simulate for minutes.
@settings(max_examples=15, phases=[Phase.generate])
@given(systems(), st.floats(0.3, 3))
def test_simulation_and_formula_agree(system: System, times: float) -> None:
    interval_s = max(times * best_interval_s(system), system.shortest_interval_s)
    days = 300 / system.failures_per_s / 86_400
    found = simulate(system, interval_s, days=days, runs=150, seed=7)
    assert ((found.runs >= 0) & (found.runs <= 1)).all()
    # Five standard errors, and what the ends of a stretch of 300 failures can do.
    allowed = found.half_width(5) + 1 / 300
    assert found.mean == pytest.approx(goodput(system, interval_s), abs=allowed)


def test_simulation_and_formula_agree_closely_over_many_failures() -> None:
    interval_s = best_interval_s(PLAIN)
    found = simulate(PLAIN, interval_s, days=40, runs=1500, seed=3)
    assert found.half_width() < 4e-4
    assert abs(found.mean - goodput(PLAIN, interval_s)) < found.half_width(4)
    assert found.failures > 900
    probability = sum(p for p, repair in outcomes(PLAIN) if repair.away_s >= 300)
    assert found.requeues / found.failures == pytest.approx(probability, rel=0.02)


def test_the_same_seed_gives_the_same_runs() -> None:
    one, same, other = (
        simulate(PLAIN, 120.0, days=5, runs=4, seed=seed).runs for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one != other).any()


def kept_step_by_step(system: System, interval_s: float, up_s: float) -> float:
    """Trains, saves, and looks what is safe when the failure comes."""
    now = kept = 0.0
    while True:
        now += interval_s
        if now + system.safe_after_s > up_s:
            return kept
        kept += interval_s
        now += system.blocked_s


@given(
    st.floats(0, 5000),
    st.floats(21, 500),
    st.floats(0.1, 30),
    st.floats(0, 20),
)
def test_a_failure_keeps_the_steps_before_the_newest_safe_save(
    up_s: float, interval_s: float, blocked_s: float, written_s: float
) -> None:
    system = replace(PLAIN, blocked_s=blocked_s, written_s=written_s)
    simulation = _Simulation(system, interval_s, 1e6, 1, 0)
    found = simulation._kept(np.array([up_s]))[0]
    expected = kept_step_by_step(system, interval_s, up_s)
    near_a_save = math.isclose(abs(found - expected), interval_s, rel_tol=1e-6)
    remainder = (up_s - interval_s - system.safe_after_s) % (interval_s + blocked_s)
    at_the_border = min(remainder, interval_s + blocked_s - remainder) < 1e-6
    assert math.isclose(found, expected, abs_tol=1e-6) or (near_a_save and at_the_border)


def test_llama_3_had_419_unexpected_interruptions_one_every_three_hours() -> None:
    assert sum(sum(causes.values()) for causes in LLAMA3_CAUSES.values()) == 419
    assert 24 / (LLAMA3.per_node_day * 2048) == pytest.approx(3.1, abs=0.01)
    assert sum(shares().values()) == pytest.approx(1)
    assert all(rate.source for rate in PUBLISHED)


def test_rates_of_a_rank_come_from_the_checkpoint_benchmark() -> None:
    found = Measured.of({}, SAVES)
    assert found.copy_bytes_per_s == 1e9 / 0.5 / 2
    assert found.write_bytes_per_s == 1e9 / 5.0 / 2
    assert found.read_bytes_per_s == 1e9 / 2.25 / 2


def test_times_measured_with_short_patience_are_those_of_the_default_policy() -> None:
    faults = {
        "restart_s": 7.0,
        "requeue_s": 21.0,
        "notice_s": {"crash": 0.4, "hang": 12.5, "node": 8.0},
        "policy": {"hang_s": 10, "lost_s": 6},
    }
    found = Measured.of(faults, SAVES)
    assert found.missing == ()
    assert (found.restart_s, found.requeue_s, found.notice_crash_s) == (7.0, 21.0, 0.4)
    assert found.notice_hang_s == Retry().hang_s + 2.5
    assert found.notice_node_s == Retry().lost_s + 2.0


def test_what_is_not_measured_is_named_in_the_tables() -> None:
    found = Measured.of({"restart_s": 7.0, "notice_s": {"crash": 0.4}}, SAVES)
    assert found.missing == ("requeue_s", "notice_s.hang", "notice_s.node")
    said = bench.told_about_costs(system_of(64, found, Assumptions()), found)
    assert "Not measured yet" in said
    assert "requeue_s" in said


def test_spare_nodes_hold_back_requeues() -> None:
    measured = Measured.of({}, SAVES)
    without = system_of(1024, measured, replace(Assumptions(), nodes_per_spare=0))
    with_them = system_of(1024, measured, Assumptions())
    assert (without.spares, with_them.spares) == (0, 16)
    assert downtime_s(without) > 3 * downtime_s(with_them)


def test_a_broken_device_costs_a_restart_that_fails() -> None:
    kinds = {k.name: k for k in system_of(64, Measured.of({}, SAVES), Assumptions()).kinds}
    assert kinds["device"].repair.start_s > 1.5 * kinds["crash"].repair.start_s
    assert kinds["device"].replaces
    assert not kinds["crash"].replaces
    assert kinds["node"].silent


def test_imports_are_waited_for_where_ranks_start_cold_alone() -> None:
    def starts_s(**given: float) -> tuple[float, float]:
        system = system_of(64, Measured.of({}, SAVES), replace(Assumptions(), **given))
        return {k.name: k for k in system.kinds}["crash"].repair.start_s, system.requeue.start_s

    warm, long, cold = starts_s(), starts_s(import_s=90), starts_s(import_s=90, warm_restarts=0)
    assert warm[0] == long[0] < cold[0]
    assert warm[1] < long[1] == cold[1]


def test_a_broken_device_without_a_spare_costs_a_wait_in_the_queue() -> None:
    given = replace(Assumptions(), spares_for_devices=0)
    kinds = {k.name: k for k in system_of(64, Measured.of({}, SAVES), given).kinds}
    assert kinds["device"].repair.away_s > given.queue_s
    assert not kinds["device"].replaces
    assert kinds["node"].replaces


def test_a_time_limit_costs_a_wait_each_time() -> None:
    interval_s = best_interval_s(PLAIN)
    found = bench.within_limits(PLAIN, interval_s, limit_s=3 * (300 + 90))
    assert found == pytest.approx(goodput(PLAIN, interval_s) * 3 / 4)


def test_a_formula_that_the_simulation_contradicts_is_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "goodput", lambda system, interval_s: 0.5)
    with pytest.raises(RuntimeError, match="one of them is wrong"):
        bench.look_at(PLAIN, runs=20, seed=1)


def test_everything_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "checkpoints-cpu-2.json").write_text(json.dumps({"samples": SAVES}))
    monkeypatch.setattr(bench, "HERE", tmp_path)
    result = json.loads(json.dumps(bench.measure(runs=20)))
    assert [size["nodes"] for size in result["sizes"]] == list(bench.SIZES)
    goodputs = [size["formula"] for size in result["sizes"]]
    assert goodputs == sorted(goodputs, reverse=True)
    assert all(each["source"] for each in result["assumptions"])
    (figure,) = result["figures"]
    assert figure["target"] == 0.99
    assert figure["met"] == (result["sizes"][-1]["simulated"] >= 0.99)
    text = bench.table(result)
    for name in ("queue_s", "Save every", "arXiv 2407.21783", "a requeued job waits 4 hours"):
        assert name in text


@pytest.mark.parametrize(("share", "shown"), [(0.991, "met"), (0.989, "**missed**")])
def test_a_missed_target_is_shown_as_missed(share: float, shown: str) -> None:
    size = replace(bench.look_at(PLAIN, runs=20, seed=1), simulated=share)
    assert bench.table_of_sizes([size]).endswith(f"| {shown} |")
    assert bench.figure(size).met == (share >= 0.99)
