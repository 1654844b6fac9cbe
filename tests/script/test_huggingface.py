"""Hugging Face's Trainer as a run: the example under the local cluster, stopped, resumed, whole."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fsdpkit import Run
from fsdpkit.errors import UsageError
from fsdpkit.runs.events import read_json_lines
from tests.conftest import ROOT, Completed, answer_of

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("huggingface")]
STEPS = 12
Submit = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model with tied embeddings and its tokenizer, in Hugging Face's format."""
    from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

    where = tmp_path_factory.mktemp("models") / "tiny llama"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        attention_dropout=0.1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(where)
    ByT5Tokenizer().save_pretrained(where)
    return where


@pytest.fixture
def submit(fsdpkit: Callable[..., Completed], tiny: Path, tmp_path: Path) -> Submit:
    """Runs the example to its end, with lines of the test's own before and after `attach`."""

    def call(*words: str, after: str = "", nodes: int = 1, gpus: int = 2) -> Path:
        script = tmp_path / "train.py"
        source = (ROOT / "examples" / "huggingface" / "train.py").read_text()
        assert source.count("    trainer.train()\n") == 1
        script.write_text(source.replace("    trainer.train()\n", f"{after}    trainer.train()\n"))
        shutil.copy(ROOT / "examples" / "huggingface" / "data.py", tmp_path)
        shape = ("--cluster", "local", "--nodes", str(nodes), "--gpus", str(gpus))
        options = ("--model", str(tiny), "--steps", str(STEPS), "--save-steps", "5")
        done = fsdpkit("submit", str(script), *shape, "--json", "--", *options, *words)
        answer = answer_of(done)
        Run.open(answer["dir"]).wait(poll_s=0.2)
        return Path(answer["dir"])

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


def final(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "trainer" / "final" / "model.safetensors")


@functools.cache
def _kept() -> dict[str, Path]:
    return {}


def uninterrupted(submit: Submit) -> Path:
    """A run that is not disturbed, made once."""
    if "run" not in _kept():
        _kept()["run"] = submit()
    return _kept()["run"]


def lines(run: Path) -> list[dict[str, Any]]:
    return list(read_json_lines(run / "metrics.jsonl"))


def test_stopped_and_resumed_it_comes_to_the_same_weights(
    submit: Submit, fsdpkit: Callable[..., Completed]
) -> None:
    whole = uninterrupted(submit)
    logged = [line for line in lines(whole) if "loss" in line]
    assert [line["step"] for line in logged] == [10]
    assert logged[0]["planned_steps"] == STEPS
    assert {"lr", "grad_norm", "step_time_s"} <= logged[0].keys()
    assert sorted(p.name for p in (whole / "trainer").iterdir()) == [
        *("checkpoint-10", "checkpoint-12", "final")
    ]

    run = submit(after=STOPS_AFTER_7)
    state = Run.open(run).state()
    assert state is not None
    assert state.outcome == "stopped", state.describe()
    checkpoints = run / "trainer"
    saved = sorted(p.name for p in checkpoints.iterdir())
    assert saved[0] == "checkpoint-5"
    assert saved[1] in ("checkpoint-7", "checkpoint-8"), "the step in which it was asked"
    assert not (checkpoints / "final").exists(), "train() did not return"
    # What a job leaves that ends while it saves, and what somebody copied from elsewhere.
    torn = checkpoints / "checkpoint-11"
    shutil.copytree(checkpoints / saved[1], torn)
    (torn / "fsdpkit.json").unlink()
    shutil.copytree(whole / "trainer" / "checkpoint-10", checkpoints / "checkpoint-10")

    resumed = fsdpkit("resume", str(run), "--wait")
    assert resumed.returncode == 0, resumed.stderr
    said = (run / "attempt-1" / "rank-0.out").read_text()
    assert f"going on from {saved[1]}" in said
    assert "checkpoint-11 was not written to its end" in said
    assert "checkpoint-10 is another run's" in said
    weights, expected = final(run), final(whole)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert lines(run)[-1]["step"] == STEPS


def test_fsdp2_through_the_trainer_learns_the_same(submit: Submit) -> None:
    """Two nodes of one rank each; the weights are gathered at the end."""
    plain, sharded = uninterrupted(submit), submit("--fsdp", nodes=2, gpus=1)
    (loss,), (other,) = ([s["loss"] for s in lines(run) if "loss" in s] for run in (plain, sharded))
    assert other == pytest.approx(loss, rel=1e-4)
    state = json.loads((sharded / "attempt-0" / "verdict.json").read_text())
    assert state["trouble"] is None
    assert final(sharded).keys() == final(plain).keys()


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


def test_off_a_cluster_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdpkit.script.huggingface import attach

    monkeypatch.delenv("FSDPKIT_TASK_DIR", raising=False)
    anything: Any = object()
    assert attach(anything) is anything
