"""What the checkpoint benchmark says of its samples, with known answers; and that it runs."""

from __future__ import annotations

import math

import pytest

from benchmarks.checkpoints import COMMON, TINY, measure, slowdown
from benchmarks.report import table
from tests.training.launch import in_the_pool


def sample(blocked_s: float, *steps_s: float, peak: int = 2**20) -> dict:
    return {
        "bytes": 1200,
        "blocked_s": blocked_s,
        "written_s": blocked_s + 1,
        "steps_s": list(steps_s),
        "host_peak_bytes": peak,
        "before": {"steps_s": [1.0, 9.0, 1.0], "host_peak_bytes": 2**19},
    }


def test_the_slowdown_is_the_mean_step_meanwhile_over_the_median_step_before() -> None:
    assert slowdown(sample(0.1, 2.0, 4.0)) == 3.0
    assert slowdown(sample(0.1)) is None  # a save that training waits for has no steps meanwhile


@pytest.mark.torch
def test_every_way_to_save_is_measured_and_what_it_wrote_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("subprocess.run", in_the_pool)
    result = measure((*TINY, *COMMON), rounds=2, steps=2)
    ranks, resumed = result["samples"]["saved"], result["samples"]["resumed"]
    assert len(ranks) == 2
    for way in ("background", "plain_background", "waiting", "plain_waiting"):
        assert len(ranks[0][way]) == 2
        for found in ranks[0][way]:
            assert found["blocked_s"] > 0
            assert found["written_s"] > 0
            size = found["bytes"] / ranks[0]["parameters"]
            assert 12 < size < 40  # weight and moments, and an index
            assert found["host_peak_bytes"] > 0
            assert all(seconds > 0 for seconds in found["steps_s"])
            assert len(found["before"]["steps_s"]) == 2
    # One tiny write may be over before the ranks get to their next step.
    assert any(found["steps_s"] for found in ranks[0]["background"])
    assert [len(resumed[n]) for n in (2, 1)] == [2, 1]
    assert all(math.isfinite(s) and s > 0 for each in resumed[2] for s in each["resume_s"])
    assert "bytes per parameter" in table(result)
