"""The benchmark of plans: what it measures, leaves out, writes down and counts as reached."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import plan
from benchmarks.plan_parts.speed import summary
from benchmarks.report import table

Parts = dict[str, dict[str, Any]]
ROW: dict[str, Any] = {"status": "predicted", "measured_s": 1.0, "predicted_s": 1.0, "factor": 1.1}


def published(error: float) -> dict[str, Any]:
    """Of one run that calibrates and one that is predicted with this error."""
    row = ROW | {"model": "mpt-7b", "gpus": 8, "length": 2048, "rows": 4, "bound": "compute"}
    rows = [row | {"status": "calibrates", "error": 0.0}, row | {"error": error}]
    found = summary(rows)
    system = {"name": "a cluster", "source": "https://x.invalid", "rows": rows, "summary": found}
    return {"plan_speed": "", "systems": [system], "summary": found, "left_out": ["two others"]}


def own(*errors: float) -> dict[str, Any]:
    rows = [ROW | {"size": "wide", "ranks": 2, "error": error} for error in errors]
    return {"plan_speed": "", "measured": {"cpus": 2, "load": [0.5]}, "rows": rows}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parts:
    """What the parts find, in the place of minutes of measuring; memory is not there. Files go to
    `tmp_path`."""
    found = {"speed": published(0.05), "gloo": own(0.1, -0.1)}
    readme = tmp_path / "README.md"
    readme.write_text("a page\n")
    monkeypatch.setattr(plan, "RESULTS", tmp_path)
    monkeypatch.setattr(plan, "README", readme)
    monkeypatch.setattr(plan, "there", lambda part: part in found)
    monkeypatch.setattr(plan, "with_all_tables", lambda text: text + "made anew\n")

    def module(name: str) -> Any:
        return SimpleNamespace(measure=lambda quick: found[name.rpartition(".")[2]])

    monkeypatch.setattr(plan, "import_module", module)
    return found


def written(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}


def test_all_parts_are_measured_and_one_that_is_not_there_is_named(
    parts: Parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main([]) == 0
    assert written(tmp_path) == {
        "plan-speed.json": parts["speed"],
        "plan-speed-cpu.json": parts["gloo"],
    }
    assert (tmp_path / "README.md").read_text() == "a page\nmade anew\n"
    said = capsys.readouterr()
    assert "left out, memory: there is no plan_parts/memory.py" in said.err
    assert table(parts["speed"]) in said.out


def test_quick_writes_nothing(parts: Parts, tmp_path: Path) -> None:
    assert plan.main(["--quick"]) == 0
    assert written(tmp_path) == {}
    assert (tmp_path / "README.md").read_text() == "a page\n"


def test_one_part_leaves_the_files_of_the_others(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "plan-speed.json").write_text('"as it was"')
    assert plan.main(["--only", "gloo"]) == 0
    assert written(tmp_path) == {
        "plan-speed.json": "as it was",
        "plan-speed-cpu.json": parts["gloo"],
    }


def test_asking_for_a_part_that_is_not_there_is_an_error(
    parts: Parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        plan.main(["--only", "memory"])
    assert "there is no plan_parts/memory.py" in capsys.readouterr().err
    assert written(tmp_path) == {}


@pytest.mark.parametrize(
    ("result", "reached"),
    [
        (published(0.10), True),
        (published(-0.11), False),
        (own(0.15, -0.15), True),
        (own(0.01, -0.16), False),
    ],
)
def test_a_missed_target_is_shown_as_missed_and_is_the_exit_status(
    parts: Parts, result: dict[str, Any], reached: bool
) -> None:
    parts["gloo"] = result
    assert ("**missed**" in table(result)) is not reached
    assert plan.main(["--only", "gloo", "--quick"]) == (0 if reached else 1)


def test_of_other_results_every_figure_must_be_met() -> None:
    assert plan.all_met({"figures": [{"met": True}, {"met": True}]})
    assert not plan.all_met({"figures": [{"met": True}, {"met": False}]})


def test_every_part_that_is_there_can_be_measured_and_has_a_file_of_its_own() -> None:
    for part in filter(plan.there, plan.PARTS):
        assert callable(import_module(f"benchmarks.plan_parts.{part}").measure)
    assert len({*plan.PARTS.values()}) == len(plan.PARTS)
