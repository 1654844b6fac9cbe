"""The benchmark of plans: what it measures, and what counts as reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan_parts.speed import HOST, by_kind, result, rows_of
from benchmarks.report import table


def published(held: int, of: int = 10) -> dict[str, Any]:
    """Of `of` runs that are predicted, `held` of them within the interval."""
    row = {"model": "mpt-7b", "gpus": 8, "length": 2048, "rows": 4, "status": "predicted"}
    rows = [
        row | {"measured_s": 1.0, "kind": "AMD", "plain": {
            "error": 0.1, "in_range": n < held, "predicted_s": [0.8, 1.1, 1.4], "bound": "compute"
        }}
        for n in range(of)
    ]  # fmt: skip
    unseen = {"name": "a cluster", "source": "https://x.invalid", "held_out": True, "rows": rows}
    seen = {"name": "another", "source": "a post", "rows": rows[:1]}
    return result([unseen, seen], ["two others"])


def held(*errors: float) -> dict[str, Any]:
    """Of cases whose plans are so far off."""
    about = {"model": "our T5", "engine": "fsdp2", "strategy": "full_shard"}
    rows = [
        about | {"held_bytes": 1000, "planned_bytes": round(1000 * (1 + error))} for error in errors
    ]
    versions = {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0"}
    measured = {"date": "2026-11-24", "cpus": 2, **versions}
    return {"plan_memory": "", "measured": measured, "rows": rows, "refused": 0}


def taken(cpu_s: float, peak_bytes: int) -> dict[str, Any]:
    row = {"job": "T5-11B", "cpu_s": cpu_s, "peak_bytes": peak_bytes, "wall_s": 90.0, "load": 4}
    measured = {"date": "2026-11-24", "cpus": 2, "python": "3.11.7", "torch": "2.13.0"}
    return {"plan_cost": "", "measured": measured, "rows": [row]}


def compiled(planned: int) -> dict[str, Any]:
    """Of a step that holds 1,000,000 bytes."""
    row = {"shape": "small", "engine": "fsdp2", "checkpointing": "none", "held_bytes": 10**6,
           "planned_bytes": planned, "uncompiled_bytes": 1_300_000}  # fmt: skip
    measured = {"date": "2026-11-24", "cpus": 2, "python": "3.11.7", "torch": "2.13.0"}
    return {"plan_compiled": "", "measured": measured, "steps": [row]}


def test_a_step_that_the_host_decides_is_counted_apart() -> None:
    (row,) = published(1, of=1)["systems"][0]["rows"]
    found = by_kind([row, row | {"kind": HOST}])
    assert (found["all"]["predicted"], found["AMD"]["predicted"], found[HOST]["predicted"]) == (
        1,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (published(8), True),
        (published(7), False),
        (published(10), False),
        (held(0.009, -0.009), True),
        (held(0.001, -0.011), False),
        (taken(60.0, 10**9), True),
        (taken(60.1, 10**8), False),
        (taken(6.0, 10**9 + 1), False),
        (compiled(1_059_000), True),
        (compiled(1_061_000), False),
        (compiled(999_000), False),
    ],
)
def test_a_missed_target_is_shown_as_missed(found: dict[str, Any], reached: bool) -> None:
    assert ("**missed**" in table(found)) is not reached


@pytest.mark.torch
def test_a_published_row_goes_the_way_of_a_plan(tmp_path: Path) -> None:
    """Of a model small enough for a test."""
    models = {"small": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 256,
    }}  # fmt: skip
    row = {"model": "small", "gpus": 8, "length": 64, "rows": 2, "recompute": "full"}
    defaults = {"strategy": "full_shard", "compiled": True}
    system = {"source": "a test", "gpu": "A100", "gpus_per_node": 4, "network_gb_s": None,
              "defaults": defaults, "rows": [row | {"tokens_per_s_per_gpu": 1000.0}]}  # fmt: skip
    (found,) = rows_of(system, models, tmp_path)
    assert found["measured_s"] == pytest.approx(0.128)
    low, middle, high = found["plain"]["predicted_s"]
    assert 0 < low < middle < high
    assert "calibrated" not in found
