"""Hugging Face's Trainer as a run: the example on two ranks, stopped, started again, whole."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fsdpkit.errors import STOPPED_EARLY, UsageError
from tests.conftest import ROOT
from tests.script.ranks_of_a_run import Attempt, attempt
from tests.script.tiny_models import save_tiny_llama

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("other trainers")]
STEPS = 12
Start = Callable[..., Attempt]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny llama")


@pytest.fixture
def start(tiny: Path, tmp_path: Path) -> Start:
    """Starts the example, with lines of the test's own after `attach`: again in the same run, if
    they and the words are the same."""

    def call(*words: str, after: str = "") -> Attempt:
        script = tmp_path / "train.py"
        source = (ROOT / "examples" / "huggingface" / "train.py").read_text()
        assert source.count("    trainer.train()\n") == 1
        script.write_text(source.replace("    trainer.train()\n", f"{after}    trainer.train()\n"))
        shutil.copy(ROOT / "examples" / "huggingface" / "rows.py", tmp_path)
        options = ("--model", str(tiny), "--steps", str(STEPS), "--save-steps", "5")
        run = tmp_path / f"run{len(after)}{''.join(words)}"
        return attempt(run, script, *options, *words)

    return call


STOPS_AFTER_7 = """\
    from transformers import TrainerCallback
    import fsdpkit
    class Asks(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 7 and state.is_world_process_zero:
                import os, time
                from pathlib import Path
                Path(os.environ["FSDPKIT_HEARTBEAT_DIR"], "stop").touch()  # as the agent does
                (fsdpkit.task_dir() / "stop-requested").touch()
                time.sleep(2)
    if not (fsdpkit.task_dir() / "trainer").exists():
        trainer.add_callback(Asks())
"""


def final(run: Attempt) -> dict[str, torch.Tensor]:
    return load_file(run.task / "trainer" / "final" / "model.safetensors")


@functools.cache
def _kept() -> dict[str, Attempt]:
    return {}


def uninterrupted(start: Start) -> Attempt:
    """A run that is not disturbed, made once."""
    if "run" not in _kept():
        _kept()["run"] = start()
    return _kept()["run"]


def test_stopped_and_resumed_it_comes_to_the_same_weights(
    start: Start,
) -> None:
    whole = uninterrupted(start)
    assert whole.status == 0, whole.said
    logged = [line for line in whole.lines if "loss" in line]
    assert [line["step"] for line in logged] == [10]
    assert logged[0]["planned_steps"] == STEPS
    assert {"lr", "grad_norm", "step_time_s"} <= logged[0].keys()
    assert sorted(p.name for p in (whole.task / "trainer").iterdir()) == [
        *("checkpoint-10", "checkpoint-12", "final")
    ]

    stopped = start(after=STOPS_AFTER_7)
    assert stopped.status == STOPPED_EARLY, stopped.said
    checkpoints = stopped.task / "trainer"
    saved = sorted(p.name for p in checkpoints.iterdir())
    assert saved[0] == "checkpoint-5"
    assert saved[1] in ("checkpoint-7", "checkpoint-8"), "the step in which it was asked"
    assert not (checkpoints / "final").exists(), "train() did not return"
    # What a job leaves that ends while it saves, and what somebody copied from elsewhere.
    torn = checkpoints / "checkpoint-11"
    shutil.copytree(checkpoints / saved[1], torn)
    (torn / "fsdpkit.json").unlink()
    shutil.copytree(whole.task / "trainer" / "checkpoint-10", checkpoints / "checkpoint-10")

    resumed = start(after=STOPS_AFTER_7)
    assert resumed.status == 0, resumed.said
    assert f"going on from {saved[1]}" in resumed.said
    assert "checkpoint-11 was not written to its end" in resumed.said
    assert "checkpoint-10 is another run's" in resumed.said
    weights, expected = final(resumed), final(whole)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert resumed.lines[-1]["step"] == STEPS


def test_ranks_that_do_not_know_of_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On CPUs a Trainer without use_cpu would train on each rank alone."""
    from fsdpkit.script.huggingface import attach

    monkeypatch.setenv("FSDPKIT_TASK_DIR", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    alone: Any = SimpleNamespace(args=SimpleNamespace(world_size=1))
    with pytest.raises(UsageError, match="use_cpu"):
        attach(alone)
