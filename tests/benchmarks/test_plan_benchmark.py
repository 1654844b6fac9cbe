"""The benchmark of plans: what it measures, leaves out, writes down and counts as reached."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import plan
from benchmarks.plan_parts.speed import PUBLISHED, rows_of, settings_of, summary
from benchmarks.report import table
from fsdpkit.config.training.presets import PRESETS

Parts = dict[str, dict[str, Any]]


def published(held: int, of: int = 10) -> dict[str, Any]:
    """Of `of` runs that are predicted, `held` of them within the interval."""
    row = {"model": "mpt-7b", "gpus": 8, "length": 2048, "rows": 4, "status": "predicted"}
    rows = [
        row | {"measured_s": 1.0, "plain": {
            "error": 0.1, "in_range": n < held, "predicted_s": [0.8, 1.1, 1.4], "bound": "compute"
        }}
        for n in range(of)
    ]  # fmt: skip
    found = {how: summary(rows, how) for how in ("plain", "calibrated")}
    system = {"name": "a cluster", "source": "https://x.invalid", "rows": rows, "summary": found}
    return {"plan_speed": "", "systems": [system], "summary": found, "left_out": ["two others"]}


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


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parts:
    """What the parts find, in the place of minutes of measuring. Files go to `tmp_path`."""
    found = {
        "memory": held(0.009, -0.009),
        "cost": taken(60.0, 10**9),
        "compiled": compiled(10**6),
        "speed": published(8),
    }
    readme = tmp_path / "README.md"
    readme.write_text("a page\n")
    monkeypatch.setattr(plan, "RESULTS", tmp_path)
    monkeypatch.setattr(plan, "README", readme)
    monkeypatch.setattr(plan, "with_all_tables", lambda text: text + "made anew\n")

    def module(name: str) -> Any:
        return SimpleNamespace(measure=lambda quick: found[name.rpartition(".")[2]])

    monkeypatch.setattr(plan, "import_module", module)
    return found


def written(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}


def test_all_parts_are_measured_and_written_down(
    parts: Parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main([]) == 0
    assert written(tmp_path) == {plan.PARTS[name]: found for name, found in parts.items()}
    assert (tmp_path / "README.md").read_text() == "a page\nmade anew\n"
    said = capsys.readouterr().out
    assert all(table(found) in said for found in parts.values())


def test_quick_writes_nothing(parts: Parts, tmp_path: Path) -> None:
    assert plan.main(["--quick"]) == 0
    assert written(tmp_path) == {}
    assert (tmp_path / "README.md").read_text() == "a page\n"


def test_one_part_leaves_the_files_of_the_others(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "plan-speed.json").write_text('"as it was"')
    assert plan.main(["--only", "cost"]) == 0
    assert written(tmp_path) == {"plan-speed.json": "as it was", "plan-cost.json": parts["cost"]}


@pytest.mark.parametrize(
    ("result", "reached"),
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
def test_a_missed_target_is_shown_as_missed_and_is_the_exit_status(
    parts: Parts, result: dict[str, Any], reached: bool
) -> None:
    parts["cost"] = result
    assert ("**missed**" in table(result)) is not reached
    assert plan.main(["--only", "cost", "--quick"]) == (0 if reached else 1)


def test_every_published_row_says_what_it_is() -> None:
    facts = json.loads(PUBLISHED.read_text("utf-8"))
    for system in facts["systems"]:
        assert sum(row.get("calibrates", False) for row in system["rows"]) <= 1
        for row in system["rows"]:
            rates = {"tokens_per_s_per_gpu", "samples_per_s_per_gpu"} & row.keys()
            assert len(rates) == 1
            assert "not_modelled" in row or row["model"] in {**facts["models"], **PRESETS}
            if "not_modelled" not in row:
                assert settings_of({**system["defaults"], **row}).batch_size


@pytest.mark.torch
def test_a_published_row_goes_the_way_of_a_plan(tmp_path: Path) -> None:
    """Of a model small enough for a test."""
    models = {"small": {"width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "feed_forward": 128,
                        "gated": True, "vocabulary": 256}}  # fmt: skip
    row = {"model": "small", "gpus": 8, "length": 64, "rows": 2, "recompute": "full"}
    defaults = {"strategy": "full_shard", "compiled": True}
    system = {"source": "a test", "gpu": "A100", "gpus_per_node": 4, "network_gb_s": None,
              "defaults": defaults, "rows": [row | {"tokens_per_s_per_gpu": 1000.0}]}  # fmt: skip
    (found,) = rows_of(system, models, tmp_path)
    assert found["measured_s"] == pytest.approx(0.128)
    low, middle, high = found["plain"]["predicted_s"]
    assert 0 < low < middle < high
    assert "calibrated" not in found


def test_every_part_can_be_measured_and_has_a_file_of_its_own() -> None:
    for part in plan.PARTS:
        assert callable(import_module(f"benchmarks.plan_parts.{part}").measure)
    assert len({*plan.PARTS.values()}) == len(plan.PARTS)
