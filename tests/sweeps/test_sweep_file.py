"""A sweep's file is refused in words that name the key, before anything is made."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.config.assets import packaged_dir
from fsdpkit.errors import ConfigError, NotFoundError, RenderError
from fsdpkit.rendering.script import render
from fsdpkit.sweeps.file import load_file
from fsdpkit.sweeps.starting import CheckedTrials, SweepRequest, prepare
from tests.conftest import Completed, answer_of
from tests.sweeps.made_up import made_up_sweep
from tests.sweeps.trials import as_toml

SEEDS: dict[str, Any] = {"parameters": {"training.seed": [1, 2, 3]}}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CheckedTrials]:
    """Reads a file with these keys and checks its trials for the local cluster."""
    monkeypatch.chdir(tmp_path)

    def prepared(*sets: str, leave_out: bool = False, **keys: Any) -> CheckedTrials:
        told = {"schema": "fsdpkit.sweep/1", "name": "a", "trials": 3, **keys}
        path = tmp_path / "a.toml"
        path.write_text(as_toml({key: value for key, value in told.items() if value is not None}))
        return prepare(*load_file(path), SweepRequest(sets, "local", leave_out=leave_out))

    return prepared


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"trails": 3}, "Did you mean 'trials'?"),
        ({"smapler": "grid"}, "Did you mean 'sampler'?"),
        ({"sampler": "randon"}, "Did you mean 'random'?"),
        ({"halving": {"rung": 3}}, "Did you mean 'rungs'?"),
        ({"parameter": {"training.seed": [1]}}, "Did you mean 'parameters'?"),
        (
            {"parameters": {"training.optimizer.lr": {"log_unifrom": [1e-4, 1e-3]}}},
            "'log_uniform'?",
        ),
        ({"parameters": {"trainig.seed": [1, 2]}}, "Did you mean 'training'?"),
        ({"parameters": {"resources.nodes": [1, 2]}}, "fsdpkit scale JOB --nodes 1,2,4"),
        ({"parameters": {"retry.hang_s": [30, -1]}}, "must be at least 0"),
        ({"parameters": {"environment.variables.PPID": ["1", "2"]}}, "PPID"),
        ({"trials": 10**6}, "at most 1000"),
        ({"trials": "3"}, "a whole number"),
        ({"trials": None}, "trials (PATH): is missing"),
        ({"trials": 4, "sampler": "grid"}, "4, but the grid has 3 points"),
        ({"sampler": "hyperband"}, "must be one of grid, random, tpe"),
        ({"metric": "eval loss"}, "must match"),
        ({"name": "../a"}, "must match"),
        ({"limit": 0}, "at least 1"),
        ({"halving": {"rungs": 3}}, "3 trials are too few for 3 rungs"),
        ({"halving": {"rungs": 2, "resource": "training.lr"}}, "write training.steps, or args"),
        ({"halving": {"rungs": 2, "resource": "args.n"}}, "halving.most (PATH): is missing"),
        ({"halving": {"rungs": 2, "most": 2}}, "leaves nothing for the first"),
        (
            {"halving": {"rungs": 2}, "parameters": {"training.steps": [1, 2]}},
            "halving.resource decides",
        ),
        (
            {"sampler": "grid", "parameters": {"training.optimizer.lr": {"uniform": [0.1, 0.2]}}},
            "a grid needs a list of values",
        ),
        (
            {
                "sampler": "grid",
                "parameters": {"args.a": [*range(40)], "args.b": [*range(40)]},
            },
            "a grid of 1,600 points",
        ),
        ({"parameters": {"training.optimizer.lrr": [1]}}, "Did you mean 'lr'?"),
        ({"parameters": {"training.optimizer.name": ["adm"]}}, "must be one of adamw"),
        ({"parameters": {"training.optimizer.lr": {"uniform": [-1, 1]}}}, "must be more than 0"),
    ],
)
def test_what_is_wrong_is_named(
    keys: dict[str, Any], reason: str, sweep: Callable[..., CheckedTrials], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        sweep(**{**SEEDS, **keys})
    assert reason.replace("PATH", str(tmp_path / "a.toml")) in str(refused.value)
    assert [path.name for path in tmp_path.iterdir() if path.name != "a.toml"] == []


MILLION: dict[str, dict[str, Any]] = {
    "drawn": {"trials": 10**6, "parameters": {"args.x": {"uniform": [0.0, 1.0]}}},
    "on a grid": {
        "trials": None,
        "sampler": "grid",
        "parameters": {"args.a": [*range(1000)], "args.b": [*range(1000)]},
    },
    "on a grid of eight": {
        "trials": None,
        "sampler": "grid",
        "parameters": {f"args.{key}": [*range(1000)] for key in "abcdefgh"},
    },
    "of a range on a grid": {
        "trials": None,
        "sampler": "grid",
        "parameters": {"args.x": {"int": [0, 10**6]}},
    },
    "in a list": {"parameters": {"args.x": [*range(10**6)]}},
    "halved": {"trials": 10**6, "halving": {"rungs": 2, "resource": "args.n", "most": 8}},
}


@pytest.mark.parametrize("which", MILLION)
def test_a_million_trials_are_refused_without_making_them(which: str, tmp_path: Path) -> None:
    told = {"schema": "fsdpkit.sweep/1", "name": "a", "trials": 3, **SEEDS, **MILLION[which]}
    path = tmp_path / "a.toml"
    path.write_text(as_toml({key: value for key, value in told.items() if value is not None}))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as refused:
            load_file(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert re.search(
        r"at most 1000|a grid needs a list|more than 1000000 bytes", str(refused.value)
    )
    # As many settings would take more than a hundred times as much.
    assert peak < 5e6


def test_a_million_more_trials_are_refused(
    fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    paths, _ = made_up_sweep(tmp_path)
    done = fsdpkit("sweep", "extend", str(paths.dir), "--trials", str(10**6))
    assert (done.returncode, "1<=x<=1000" in done.stderr) == (2, True)
    more = fsdpkit("sweep", "extend", str(paths.dir), "--trials", "1000")
    assert "more than 1000 would be tasks" in more.stderr


def test_a_key_that_the_command_line_sets_too_is_refused(
    sweep: Callable[..., CheckedTrials],
) -> None:
    with pytest.raises(ConfigError, match=r"--set training.seed sets it as well"):
        sweep("training.seed=4", **SEEDS)


def test_trials_that_submit_would_refuse_are_named_and_the_others_go_only_if_asked(
    sweep: Callable[..., CheckedTrials],
) -> None:
    keys = {"trials": None, "sampler": "grid", "parameters": {"training.micro_batch": [2, 3, 4]}}
    with pytest.raises(ConfigError) as refused:
        sweep(**keys)
    assert "1 of 3 trials would be refused, so none is submitted" in str(refused.value)
    assert "trial 1: job fsdp-t5: training.micro_batch (3) does not divide" in str(refused.value)
    left = sweep(**keys, leave_out=True)
    assert [trial["training.micro_batch"] for trial in left.trials] == [2, 4]
    assert left.plan.array == "0-1"
    with pytest.raises(ConfigError, match="2 of 2 trials would be refused"):
        sweep(**{**keys, "parameters": {"training.micro_batch": [3, 5]}}, leave_out=True)


def test_settings_that_the_script_does_not_read_are_refused_for_all_trials(
    sweep: Callable[..., CheckedTrials], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    with pytest.raises(ConfigError, match=r"train.py does not read them"):
        sweep(**SEEDS, job="train.py", leave_out=True)


def test_an_option_that_the_job_gives_already_is_refused(
    sweep: Callable[..., CheckedTrials], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    keys = {"job": "train.py", "parameters": {"args.lr": [1, 2]}}
    with pytest.raises(ConfigError, match=r"the job's args have '--lr=3', too"):
        sweep('args=["--lr=3"]', **keys)
    assert sweep('args=["--lrs=3"]', **keys).trials


def test_rungs_of_the_trainer_get_their_part_of_the_jobs_steps(
    sweep: Callable[..., CheckedTrials],
) -> None:
    keys = {"trials": 9, "halving": {"rungs": 3, "factor": 3}, **SEEDS}
    prepared = sweep("training.steps=900", **keys)
    assert prepared.most == 900
    assert prepared.plan.job.spec.training.steps == 100  # type: ignore[union-attr]
    # A trial must be one that its first, short rung takes.
    late = {**keys, "parameters": {"training.optimizer.warmup_steps": {"int": [101, 200]}}}
    with pytest.raises(ConfigError, match=r"is more than training.steps \(100\)"):
        sweep("training.steps=900", **late)
    with pytest.raises(ConfigError, match=r"--set training.steps says how much"):
        sweep("training.steps=900", **{**keys, "halving": {"rungs": 3, "most": 900}})


def test_a_template_that_hands_no_arguments_to_single_tasks_is_refused(
    sweep: Callable[..., CheckedTrials], tmp_path: Path
) -> None:
    """It would train the same thing in every trial."""
    plan = sweep(**SEEDS).plan
    spec = msgspec.structs.replace(plan.job.spec, array_args={"0": ["--x"]})
    plan = replace(plan, job=replace(plan.job, spec=spec))
    parts = {n: b.replace(b"array_args", b"args") for n, b in plan.template.parts.items()}
    deaf = replace(plan, template=replace(plan.template, parts=parts))
    assert "array_args+=(0 1 --x)" in render(plan, tmp_path / "run")
    with pytest.raises(RenderError, match=r"torchrun .*: does not pass on array_args"):
        render(deaf, tmp_path / "run")


def test_a_dry_run_shows_the_trials_and_makes_nothing(
    sweep: Callable[..., CheckedTrials], fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    sweep(**SEEDS)
    done = fsdpkit("sweep", "a.toml", "--cluster", "local", "--dry-run", status=0)
    assert done.stdout.splitlines()[0].split() == ["TRIAL", "seed"]
    told = answer_of(fsdpkit("sweep", "a.toml", "--cluster", "local", "--dry-run", "--json"))
    assert told["asks"]["tasks"] == len(told["trials"]) == len(done.stdout.splitlines()) - 1
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_of_more_trials_shows_them_and_leaves_the_sweep_as_it_is(
    fsdpkit: Callable[..., Completed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSDPKIT_CLUSTER", "local")
    paths, _ = made_up_sweep(tmp_path, **SEEDS)
    paths.job.write_bytes((packaged_dir() / "jobs" / "t5.toml").read_bytes())
    before = paths.record.read_bytes()
    words = ("sweep", "extend", str(paths.dir), "--trials", "5", "--dry-run", "--json")
    told = answer_of(fsdpkit(*words))
    assert told["asks"]["tasks"] == len(told["trials"]) == 5
    assert (paths.record.read_bytes(), *(tmp_path / "runs").iterdir()) == (before, paths.dir.parent)


def test_there_is_no_such_file_nor_sweep(fsdpkit: Callable[..., Completed], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no sweep file"):
        load_file(tmp_path / "none.toml")
    (tmp_path / "runs" / "sweeps" / "lr").mkdir(parents=True)
    (tmp_path / "runs" / "sweeps" / "lr" / "sweep.json").write_text("{}")
    for name in ("lrr", "..", "../sweeps/lrr"):
        fsdpkit("sweep", "status", name, status=66)
    torn = fsdpkit("sweep", "status", "lr")
    assert (torn.returncode, "sweep.json is corrupt" in torn.stderr) == (74, True)
