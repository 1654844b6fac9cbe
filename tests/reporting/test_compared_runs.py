"""`fsdpkit compare`: what differs, what came out, curves; of runs in any state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.errors import UsageError
from fsdpkit.reporting.comparison.compared import compare, curves
from fsdpkit.reporting.comparison.page import page
from fsdpkit.runs.provenance import Packages, Provenance, Repository, Script, save_provenance
from fsdpkit.scheduling.run import Run
from tests.conftest import Completed, answer_of
from tests.reporting.made_run import T0, made_run, starts, trains, write_lines

NAMES = ("t-20261121-101500-3f20", "t-20261121-101501-91c1")


def made_from(run: Run, commit: str | None, torch: str, sha256: str = "0" * 64) -> None:
    repository = Repository(top="/home/a", commit=commit, branch="main", clean=True)
    found = Provenance(
        made_s=T0,
        command=["fsdpkit"],
        work_dir="/",
        script=Script(path="/home/a/train.py", sha256=sha256, bytes=1),
        repository=repository if commit else None,
        packages=Packages(environment="/v", pip=["numpy==2.4.6", f"torch=={torch}"]),
    )
    save_provenance(run.paths, found)


@pytest.fixture
def two(tmp_path: Path) -> list[Run]:
    """The same script with two rates; the second was cut short, and did steps 5 and 6 twice."""
    runs = []
    for name, rate in zip(NAMES, ("0.1", "0.2"), strict=True):
        words = ["--lr", rate, "--api-key", f"hidden-{rate}"]
        job = {"name": "t", "args": words, "training": {"steps": 20}}
        run = made_run(tmp_path / "runs" / name, job=job)
        starts(run.paths.task(), 0, T0)
        made_from(run, "a" * 40 if rate == "0.1" else "b" * 40, "2.13.0")
        runs.append(run)
    trains(runs[0].paths.task(), 1, 20, T0 + 10, mfu=0.25)
    trains(runs[1].paths.task(), 1, 6, T0 + 10, step_s=2.0)
    trains(runs[1].paths.task(), 5, 8, T0 + 90, step_s=2.0)
    write_lines(
        runs[1].paths.task().metrics,
        {"time_s": T0 + 99, "step": 8, "eval_loss": 0.5},
        {"time_s": T0 + 99, "step": 8, "eval_loss": 0.7},
    )
    return runs


def test_settings_figures_and_curves(two: list[Run]) -> None:
    told, sides = compare(two)
    assert {one.key for one in told.settings} == {"args", "code"}
    assert told.packages == []
    first, second = told.runs
    assert (first.steps, second.steps, second.planned_steps) == (20, 8, 20)
    assert (first.mfu, second.mfu) == (0.25, None)
    assert (second.step_time_s, second.loss) == (2.0, 5.0 / 8)
    assert (second.eval_loss, second.best_eval_loss) == (0.7, 0.5)
    assert second.commit == "b" * 40
    (_, again) = curves(sides, "loss")
    assert again.step.tolist() == list(range(1, 9))  # each once
    assert [curve.label for curve in curves(sides, "eval_loss")] == ["b"]


def test_packages_that_differ_are_named(two: list[Run]) -> None:
    made_from(two[1], "a" * 40, "2.14.0")
    told, _ = compare(two)
    assert [one.key for one in told.packages] == ["torch"]
    assert told.packages[0].values == {"a": "2.13.0", "b": "2.14.0"}


def test_scripts_that_differ_are_told_once(two: list[Run]) -> None:
    for commit, keys in (("a" * 40, {"args", "script SHA-256"}), (None, {"args", "code"})):
        for run, digit in zip(two, "01", strict=True):
            made_from(run, commit, "2.13.0", digit * 64)
        told, _ = compare(two)
        assert {one.key for one in told.settings} == keys


def test_of_a_trainer_that_some_lack_the_others_settings_are_compared(
    two: list[Run], tmp_path: Path
) -> None:
    own = made_run(tmp_path / "runs" / "own-20261121-101502-1111", job={"name": "t"})
    write_lines(own.paths.task().metrics, {"time_s": T0, "step": 3, "loss": 1.0, "bleu": 21.5})
    job = {"name": "t", "training": {"steps": 20, "seed": 7}}
    two[1].paths.job.write_text(json.dumps(job))
    told, sides = compare([*two, own])
    settings = {one.key: one.values for one in told.settings if "training" in one.key}
    assert settings == {
        "[training]": {"a": "set", "b": "set", "c": "–"},
        "training.seed": {"a": "–", "b": "7", "c": "–"},
    }
    assert [one.own for one in told.runs] == [{}, {}, {"bleu": 21.5}]
    assert "bleu over steps" in page(told, sides)


def test_no_secret_is_shown(two: list[Run]) -> None:
    told, sides = compare(two)
    assert "hidden-" not in repr(told)
    assert "hidden-" not in page(told, sides)


def test_the_page_stands_alone_and_escapes_everything(two: list[Run]) -> None:
    job = {"name": "t", "args": ["<script>alert(1)</script>"], "training": {"steps": 20}}
    two[0].paths.job.write_text(json.dumps(job))
    text = page(*compare(two))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count('<svg class="chart"') == 3


def test_a_run_of_which_nothing_can_be_read_stands_beside_the_others(
    two: list[Run], tmp_path: Path
) -> None:
    bare = made_run(tmp_path / "runs" / "bare-20261121-101502-1111", state="FAILED")
    bare.paths.job.write_text("{")
    bare.paths.provenance.write_text("[]")
    write_lines(bare.paths.task().metrics, "torn", '{"time_s": 1, "step": 1, "loss": null}\n')
    told, sides = compare([two[0], bare])
    assert told.runs[1].loss is None
    assert [curve.label for curve in curves(sides, "loss")] == ["a"]
    assert "bare-" in page(told, sides)


def test_an_array_s_tasks_are_compared_with_their_own_arguments(tmp_path: Path) -> None:
    job = {"name": "t", "args": ["--seed", "{array_task}"]}
    run = made_run(tmp_path / "runs" / NAMES[0], array=[3, 5], job=job)
    for task in (3, 5):
        trains(run.paths.task(task), 1, task, T0 + 10)
    told, _ = compare([run])
    assert [(one.task, one.steps) for one in told.runs] == [(3, 3), (5, 5)]
    (args,) = told.settings
    assert args.values == {"a": "--seed 3", "b": "--seed 5"}


def test_one_is_no_comparison(two: list[Run]) -> None:
    with pytest.raises(UsageError, match="from 2 to"):
        compare(two[:1])


def test_the_command_prints_80_columns_json_and_a_file(
    two: list[Run], fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    done = fsdpkit("compare", "3f20", "91c1", status=0)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert f"b  {NAMES[1]}" in done.stdout.splitlines()
    told = answer_of(fsdpkit("compare", "3f20", "91c1", "--json"))
    assert told["schema"] == "fsdpkit.compare/1"
    assert [one["label"] for one in told["runs"]] == ["a", "b"]
    done = fsdpkit("compare", "3f20", str(two[1].dir), "--html", "both.html", status=0)
    assert (tmp_path / "both.html").read_text().startswith("<!DOCTYPE html>")
    fsdpkit("compare", "3f20", "3f20", status=2)
    fsdpkit("compare", "3f20", "none", status=66)
