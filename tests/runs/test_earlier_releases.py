"""Runs of earlier releases, kept as they were left, and of a newer one: read, diagnosed, resumed.

`earlier_releases/DATE/RUN` is what the release of that day wrote on the local cluster, without
checkpoints and pickles. `@NAME@` stands for a directory of the machine it ran on.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import fsdpkit as package
from fsdpkit.config.retry import Retry
from fsdpkit.errors import StorageError
from fsdpkit.runs.job_file import table_of_job, unknown_keys
from fsdpkit.runs.record import load
from fsdpkit.training.command_line import read_settings
from tests.programs import Fsdpkit

KEPT = Path(__file__).with_name("earlier_releases")
Completed = subprocess.CompletedProcess[str]


def restored(date: str, tmp_path: Path) -> Path:
    """The run of that day, as if it had been made below `tmp_path`."""
    (kept,) = (KEPT / date).iterdir()
    run, work = tmp_path / "runs" / kept.name, tmp_path / "work"
    work.mkdir()
    (work / "breaks.py").write_text("import torch\n")
    places = {"RUN": run, "RUNS": run.parent, "WORK": work}
    for file in kept.rglob("*"):
        if file.is_file():
            text = file.read_text()
            for name, place in places.items():
                text = text.replace(f"@{name}@", str(place))
            copy = run / file.relative_to(kept)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
    return run


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A run that a release wrote which has keys that this one has not."""
    run = restored("2026-11-23", tmp_path)
    record = {**json.loads((run / "run.json").read_text()), "version": "99.1.0", "comet": 1}
    (run / "run.json").write_text(json.dumps(record))
    job = json.loads((run / "job.json").read_text())
    job["retry"] |= {"on_comet": "stop", "restarts": 7}
    job["training"] = {"steps": 5, "metrics": {"tails": 2}}
    (run / "job.json").write_text(json.dumps({**job, "orbit": {"height": 3}}))
    return run


def test_a_run_that_trained_is_listed_and_goes_on(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    run = restored("2026-11-21", tmp_path)
    assert run.name in fsdpkit("status", "--runs", str(run.parent)).stdout
    status = json.loads(fsdpkit("status", "--json", str(run)).stdout)
    assert (status["phase"], status["progress"]["step"]) == ("succeeded", 4)
    again = fsdpkit("resume", str(run), "--set", "training.steps=6", "--dry-run", status=0)
    assert "training.log_every" in again.stderr


def test_a_run_that_failed_is_diagnosed(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    run = restored("2026-11-23", tmp_path)
    found = json.loads(fsdpkit("diagnose", "--json", str(run)).stdout)
    assert (found["cause"], found["rank"]) == ("exception", 1)
    assert "the table has no column 'price'" in fsdpkit("logs", str(run), "--errors").stdout


def test_a_run_of_a_newer_release_goes_on_without_what_that_brought(
    fsdpkit: Fsdpkit, newer: Path
) -> None:
    assert fsdpkit("status", str(newer)).returncode == 0
    again = fsdpkit("resume", str(newer), "--dry-run", status=0)
    for text in ("orbit", "retry.on_comet", "training.metrics.tails", "99.1.0"):
        assert text in again.stderr


def test_so_do_its_nodes_and_its_trainer(
    newer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table_of_job(newer, "retry", Retry).restarts == 7
    note = unknown_keys(newer, {"retry": Retry}) or ""
    assert all(text in note for text in ("retry.on_comet", "99.1.0", package.__version__))
    monkeypatch.setenv("FSDPKIT_RUN_DIR", str(newer))
    assert read_settings("A trainer.", ["--job", str(newer / "job.json")]).steps == 5
    assert "training.metrics.tails" in capsys.readouterr().err


def test_an_array_tasks_own_keys_are_read_likewise(
    newer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = json.loads((newer / "job.json").read_text())
    own = {"3": {"retry": {"restarts": 1, "on_eclipse": "stop"}}}
    (newer / "job.json").write_text(json.dumps({**job, "array_settings": own}))
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert table_of_job(newer, "retry", Retry).restarts == 1
    assert "retry.on_eclipse" in (unknown_keys(newer, {"retry": Retry}) or "")


def test_a_record_that_cannot_be_understood_names_the_release_that_can(newer: Path) -> None:
    record = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps({**record, "kind": "lunar"}))
    with pytest.raises(StorageError, match=r"99\.1\.0") as refused:
        load(newer)
    assert "corrupt" not in str(refused.value)
    job = json.loads((newer / "job.json").read_text())
    job["retry"]["on_hang"] = "pray"
    (newer / "job.json").write_text(json.dumps(job))
    with pytest.raises(StorageError, match=r"99\.1\.0") as refused:
        table_of_job(newer, "retry", Retry)
    assert "corrupt" not in str(refused.value)
