"""Effective training time: formula and simulation, each on known answers and against the other."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import goodput as bench
from benchmarks.fault_parts.costs import Assumptions, Measured, system_of
from benchmarks.fault_parts.model import (
    Kind,
    Repair,
    System,
    best_interval_s,
    exhausted_share,
    goodput,
    outcomes,
    young_interval_s,
)
from benchmarks.fault_parts.rates import LLAMA3, LLAMA3_CAUSES, PUBLISHED, shares
from benchmarks.fault_parts.simulation import _Simulation, simulate

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


@given(systems(), st.floats(1.01, 10))
def test_no_other_interval_is_better_than_the_best(system: System, times: float) -> None:
    best_s = best_interval_s(system)
    assert goodput(system, best_s * times) <= goodput(system, best_s)
    shorter_s = best_s / times
    if shorter_s >= system.shortest_interval_s:
        assert goodput(system, shorter_s) <= goodput(system, best_s)


def test_with_rare_failures_the_best_interval_is_youngs() -> None:
    rare = replace(PLAIN, failures_per_s=1 / (1000 * HOUR_S))
    assert best_interval_s(rare) == pytest.approx(young_interval_s(rare), rel=0.01)
    assert young_interval_s(rare) == pytest.approx(math.sqrt(2 * 2.0 * 1000 * HOUR_S))


@pytest.mark.parametrize(("spares", "expected"), [(0, 1.0), (1, 1 / 2), (4, 1 / 5)])
def test_one_replacement_more_than_there_are_spares_needs_a_requeue(
    spares: int, expected: float
) -> None:
    assert exhausted_share(spares, replaced=0.5, lost_head=0.0) == pytest.approx(expected)


def test_simulation_and_formula_agree_closely_over_many_failures() -> None:
    interval_s = best_interval_s(PLAIN)
    found = simulate(PLAIN, interval_s, days=40, runs=1500, seed=3)
    assert found.half_width() < 4e-4
    assert abs(found.mean - goodput(PLAIN, interval_s)) < found.half_width(4)
    assert found.failures > 900
    probability = sum(p for p, repair in outcomes(PLAIN) if repair.away_s >= 300)
    assert found.requeues / found.failures == pytest.approx(probability, rel=0.02)


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


def test_what_is_not_measured_is_named_in_the_tables() -> None:
    found = Measured.of({"restart_s": 7.0, "notice_s": {"crash": 0.4}}, SAVES)
    assert found.missing == ("requeue_s", "notice_s.hang", "notice_s.node")
    said = bench.told_about_costs(system_of(64, found, Assumptions()), found)
    assert "Not measured yet" in said
    assert "requeue_s" in said


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
