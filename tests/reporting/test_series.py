"""Metrics and samples read back as columns, whatever became of the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.reporting import series
from fsdpkit.reporting.series import (
    MetricsTable,
    on_grid,
    read_metrics,
    read_own_numbers,
    read_samples,
    superseded,
    thin,
)
from tests.reporting.made_run import T0, write_lines


def read(tmp_path: Path, *lines: dict[str, object] | str) -> MetricsTable:
    write_lines(tmp_path / "metrics.jsonl", *lines)
    return read_metrics(tmp_path / "metrics.jsonl")


def test_steps_evaluations_and_checkpoints_are_told_apart(tmp_path: Path) -> None:
    metrics = read(
        tmp_path,
        {"time_s": 1, "step": 5, "loss": 2.5, "mfu": 0.4, "their_own_number": [1]},
        {"time_s": 2, "step": 5, "eval_loss": 2.75},
        {"time_s": 3, "step": 5, "checkpoint_bytes": 7, "checkpoint_blocked_s": 0.5},
        {"time_s": 4, "step": 10, "loss": 2.0},
    )
    assert metrics.steps["step"].tolist() == [5, 10]
    assert metrics.steps["loss"].tolist() == [2.5, 2.0]
    assert metrics.steps["mfu"][0] == 0.4
    assert np.isnan(metrics.steps["mfu"][1]), "absent is no number"
    assert metrics.evaluations["eval_loss"].tolist() == [2.75]
    assert metrics.checkpoints["checkpoint_blocked_s"].tolist() == [0.5]
    assert metrics.last("mfu") == 0.4


def test_torn_and_strange_lines_are_passed_over_and_a_missing_file_has_none(tmp_path: Path) -> None:
    good = {"time_s": 1, "step": 1, "loss": 3.0}
    lines = ['{"time_s": 1, "st\n', "[]\n", "\n", {"step": 1}, {**good, "loss": "high"}, "\x00\n"]
    metrics = read(tmp_path, *lines, good, '{"time_s": 2, "step": 2, "loss"')
    assert metrics.steps["loss"].tolist() == [3.0]
    nothing = read_metrics(tmp_path / "none.jsonl")
    assert len(nothing.steps["step"]) == 0
    assert nothing.rank_step_s.shape == (0, 0)
    assert nothing.last("loss") is None


def test_a_line_without_end_is_passed_over_and_of_a_huge_file_the_newest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, step = "x" * (3 << 20), {"time_s": 1, "step": 5, "loss": 2.0}
    steps = [{**step, "step": number} for number in range(4)]
    lines = [steps[0], {**step, "step": 7, "of": long}, steps[1], f"{long}\n", *steps[2:], long]
    assert read(tmp_path, *lines).steps["step"].tolist() == [0, 1, 2, 3]
    monkeypatch.setattr(series, "METRICS_BYTES", len(long) + 60)
    assert read_metrics(tmp_path / "metrics.jsonl").steps["step"].tolist() == [3]


def test_a_loss_that_was_not_finite_is_counted_and_no_number(tmp_path: Path) -> None:
    """As fsdpkit's trainer writes it, as Python's json does, and as a number no float holds."""
    null = {"time_s": 1, "step": 5, "loss": None}
    metrics = read(
        tmp_path,
        null,
        {**null, "step": 6, "not_finite": {"loss": "nan"}},
        {**null, "step": 7, "loss": float("nan")},
        {**null, "step": 8, "loss": float("-inf")},
        '{"time_s": 1, "step": 9, "loss": 1e400}\n',
        {"time_s": 2, "step": 10},
    )
    found = metrics.not_finite["loss"]
    assert [step for step, _ in found] == [5, 6, 7, 8, 9], "an absent one was not computed"
    words = [word for _, word in found]
    assert words == ["NaN or infinite", "NaN", "NaN", "infinite", "infinite"]
    assert np.isnan(metrics.steps["loss"]).all()


def test_steps_that_a_resumed_run_did_again_are_known(tmp_path: Path) -> None:
    steps = [5, 10, 15, 20, 15, 20, 25, 25, 30]
    metrics = read(tmp_path, *({"time_s": t, "step": s} for t, s in enumerate(steps)))
    assert np.flatnonzero(metrics.superseded).tolist() == [2, 3, 6]


@given(st.lists(st.integers(0, 30), max_size=40))
def test_what_counts_of_the_steps_is_each_once_and_in_order(steps: list[int]) -> None:
    counted = np.array(steps, dtype=float)[~superseded(np.array(steps, dtype=float))]
    assert (np.diff(counted) > 0).all()
    assert counted[-1:].tolist() == [float(s) for s in steps[-1:]]


def test_ranks_computing_is_told_for_one_step_and_of_the_newest_number_of_ranks(
    tmp_path: Path,
) -> None:
    metrics = read(
        tmp_path,
        {"time_s": 1, "step": 10, "rank_compute_s": [1.0, 1.0, 1.0]},
        {"time_s": 2, "step": 15},
        {"time_s": 3, "step": 20, "rank_compute_s": [5.0, 10.0]},
        {"time_s": 4, "step": 25, "rank_compute_s": [5.0, 15.0]},
    )
    assert metrics.rank_step_s.tolist() == [[1.0, 2.0], [1.0, 3.0]]
    assert metrics.compared["step"].tolist() == [20, 25]


def samples(tmp_path: Path, *lines: dict[str, object]) -> dict[str, np.ndarray]:
    write_lines(tmp_path / "node-0.samples.jsonl", *lines)
    return read_samples(tmp_path / "node-0.samples.jsonl")


def test_network_rates_come_from_counters_and_none_from_one_that_began_anew(tmp_path: Path) -> None:
    sent = [1000, 3000, 3000, 100, 1100]
    columns = samples(
        tmp_path, *({"time_s": 10 * t, "network_sent_bytes": n} for t, n in enumerate(sent))
    )
    np.testing.assert_equal(
        columns["network_sent_bytes_per_s"], [np.nan, 200.0, 0.0, np.nan, 100.0]
    )
    assert np.isnan(columns["network_received_bytes_per_s"]).all()


def test_a_nodes_gpus_are_put_together_and_what_one_does_not_answer_is_left_out(
    tmp_path: Path,
) -> None:
    gpus = [{"utilization_percent": 90, "power_w": 300.5}, {"power_w": 299.5}, {}]
    columns = samples(tmp_path, {"time_s": 1, "gpus": gpus}, {"time_s": 2})
    np.testing.assert_equal(columns["gpu_percent"], [90.0, np.nan])
    np.testing.assert_equal(columns["gpu_power_w"], [600.0, np.nan])
    assert np.isnan(columns["gpu_memory_bytes"]).all()


values = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=400)


@given(values, st.integers(4, 60))
def test_a_thinned_line_keeps_its_extremes_its_ends_and_its_order(
    y: list[float], points: int
) -> None:
    x = np.arange(len(y), dtype=float)
    kept_x, kept_y = thin(x, np.array(y), points)
    assert len(kept_x) <= 1.5 * points + 4
    assert (np.diff(kept_x) > 0).all()
    assert (kept_x[0], kept_x[-1]) == (0, len(y) - 1)
    if not np.isnan(y).all():
        assert np.nanmin(kept_y) == np.nanmin(y)
        assert np.nanmax(kept_y) == np.nanmax(y)
    assert np.isnan(kept_y).any() == np.isnan(y).any(), "a gap stays a gap"


def test_one_spike_among_a_hundred_thousand_is_kept() -> None:
    y = np.ones(100_000)
    y[31_415] = 9.0
    kept_x, kept_y = thin(np.arange(len(y), dtype=float), y, 500)
    assert kept_x[kept_y == 9.0].tolist() == [31_415]


def test_samples_on_a_grid_are_means_and_nothing_where_there_are_none() -> None:
    time_s, edges = np.array([0.0, 1.0, 5.0, 10.0, 99.0]), np.array([0.0, 2.0, 4.0, 10.0])
    found = on_grid(time_s, np.array([1.0, 3.0, 5.0, np.nan, 7.0]), edges)
    assert found[0] == pytest.approx(2.0)
    assert np.isnan(found[1])
    assert found[2] == 5.0


def test_reading_keeps_what_was_written(tmp_path: Path) -> None:
    line = {"time_s": 1.5, "step": 3, "loss": 1 / 3, "lr": 1e-300, "tokens": 2**53}
    metrics = read(tmp_path, json.dumps(line) + "\n")
    assert {name: metrics.steps[name][0] for name in line} == line


def test_numbers_of_ones_own_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        *({"time_s": T0, "step": s, "loss": 1.0, "lr": 0.1, "recall": s / 10} for s in (1, 2, 3)),
        {"time_s": T0, "step": 3, "eval_loss": 2.0, "rouge": 7, "word": "x", "flag": True},
        *({"time_s": T0, "step": s, "recall": -s, "list": [1], "nothing": None} for s in (2, 3)),
        {"time_s": T0, "step": "x", "recall": 5},
        {"time_s": T0, "recall": 5},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "torn {")
    own = {name: (x.tolist(), y.tolist()) for name, (x, y) in read_own_numbers(path).items()}
    assert own == {"recall": ([1, 2, 3], [0.1, -2, -3]), "rouge": ([3], [7])}
    assert read_own_numbers(tmp_path / "none") == {}
