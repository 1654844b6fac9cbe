"""Lightning and Accelerate as runs: the examples on two ranks, asked to save, to stop within an
epoch or at its end, and started again past what does not count."""

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

from fsdpkit.errors import STOPPED_EARLY, UsageError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import answer_to, saves_there
from tests.conftest import ROOT
from tests.script.ranks_of_a_run import Attempt, attempt

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("other trainers")]
IN_EPOCH, EPOCHS = 15, 2
OPTIONS = (
    *("--epochs", str(EPOCHS), "--rows", str(IN_EPOCH * 32), "--batch", "16"),
    *("--save-steps", "5"),
)
WISH = "0123456789abcdef"
Start = Callable[..., Attempt]

ASKS = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as agents start ranks

def ask(step):
    import os, pathlib, signal, time, fsdpkit
    where = fsdpkit.task_dir()
    if step == 3:
        os.kill(os.getpid(), signal.SIGTERM)  # Slurm's warning, to which the agents alone listen
    if os.environ["RANK"] != "0" or (where / "asked").exists():
        return
    if step == 12:
        (where / "save-requested").write_text({WISH!r})
        time.sleep(1.2)
    if step == THEN:
        (where / "asked").touch()
        pathlib.Path(os.environ["FSDPKIT_HEARTBEAT_DIR"], "stop").touch()  # as the agent does
        (where / "stop-requested").touch()
"""
IN_LIGHTNING = """\
    import pytorch_lightning
    class Asks(pytorch_lightning.Callback):
        def on_train_batch_start(self, trainer, *_):
            ask(trainer.global_step + 1)
    trainer.callbacks.insert(0, Asks())
"""


def asking(kind: str, at: int) -> str:
    """The example, in which rank 0 asks for a checkpoint in step 12 and to stop in step `at`."""
    source = (ROOT / "examples" / kind / "train.py").read_text()
    head, main = source.split("def main()")
    if kind == "accelerate":
        mark = "            step += 1\n"
        assert mark in main
        main = main.replace(mark, f"{mark}            ask(step)\n")
    else:
        mark = "    trainer.fit("
        assert mark in main
        main = main.replace(mark, f"{IN_LIGHTNING}{mark}")
        # Without steps it saves where Lightning says that an epoch is over, as at a stop.
        main = main.replace("(every_n_train_steps=options.save_steps)", "()")
    return f"{head}{ASKS.replace('THEN', str(at))}\n\ndef main(){main}"


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts an example in a run of its own; `at`: asked to stop in that step."""

    def call(kind: str, at: int = 0) -> Attempt:
        script = tmp_path / f"{kind}-{at}.py"
        script.write_text(asking(kind, at) if at else plain(kind))
        return attempt(tmp_path / f"{kind}-{at}-run", script, *OPTIONS)

    return call


def plain(kind: str) -> str:
    return (ROOT / "examples" / kind / "train.py").read_text()


def final(run: Path, kind: str) -> dict[str, torch.Tensor]:
    if kind == "accelerate":
        return load_file(run / kind / "final" / "model.safetensors")
    return dict(torch.load(run / kind / "final.ckpt", weights_only=True)["state_dict"])


@functools.cache
def _kept() -> dict[str, Attempt]:
    return {}


def uninterrupted(kind: str, start: Start) -> Attempt:
    """A run that is not disturbed, made once."""
    if kind not in _kept():
        _kept()[kind] = start(kind)
    return _kept()[kind]


@pytest.mark.parametrize(
    ("kind", "at"), [("lightning", 20), ("lightning", IN_EPOCH), ("accelerate", 20)]
)
def test_asked_to_save_and_to_stop_it_comes_to_the_same_weights(
    kind: str, at: int, start: Start
) -> None:
    whole = uninterrupted(kind, start)
    assert whole.status == 0, whole.said
    logged = [line for line in whole.lines if "loss" in line]
    assert logged[-1]["step"] == logged[-1]["planned_steps"] == IN_EPOCH * EPOCHS
    assert {"step_time_s"} <= logged[-1].keys()
    if kind == "lightning":
        assert [line["step"] for line in whole.lines if "eval_loss" in line] == [15, 30]
        assert {"lr", "train_loss"} <= logged[-1].keys()

    stopped = start(kind, at)
    assert stopped.status == STOPPED_EARLY, stopped.said
    run = stopped.task
    answer = answer_to(TaskPaths(run), WISH)
    assert answer is not None
    assert (answer.step, answer.problem) == (12, None)
    assert saves_there(TaskPaths(run), 0)
    assert answer.path is not None
    assert (run / answer.path).parent == run / kind
    saved = {checkpoint_step(path): path for path in checkpoints(run / kind)}
    assert max(saved) == at, "the step in which it was asked"
    # What a job leaves that ends while it saves, and what somebody copied from elsewhere.
    torn, foreign = pretend(saved[at], 28), _of_another(whole, run, kind)
    mark_of(torn).unlink()

    resumed = start(kind, at)
    assert resumed.status == 0, resumed.said
    (going_on,) = {line for line in resumed.said.splitlines() if "going on from" in line}
    assert str(at) in going_on
    assert f"{torn.name} was not written to its end" in resumed.said
    assert f"{foreign.name} is another run's" in resumed.said
    weights, expected = final(run, kind), final(whole.task, kind)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert resumed.lines[-1]["step"] == IN_EPOCH * EPOCHS


def _of_another(other: Attempt, run: Path, kind: str) -> Path:
    return pretend(max(checkpoints(other.task / kind)), 25, run / kind)


def mark_of(checkpoint: Path) -> Path:
    if checkpoint.is_dir():
        return checkpoint / "fsdpkit.json"
    return checkpoint.with_name(f"{checkpoint.name}.fsdpkit.json")


def checkpoint_step(checkpoint: Path) -> int:
    return int(json.loads(mark_of(checkpoint).read_text())["step"])


def checkpoints(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if mark_of(path).exists()]


def pretend(checkpoint: Path, step: int, where: Path | None = None) -> Path:
    """A copy that says that it is of another step."""
    copy = (where or checkpoint.parent) / f"checkpoint-{step}{checkpoint.suffix}"
    shutil.copytree(checkpoint, copy) if checkpoint.is_dir() else shutil.copy(checkpoint, copy)
    told = json.loads(mark_of(checkpoint).read_text())
    mark_of(copy).write_text(json.dumps({**told, "step": step}))
    return copy


@pytest.fixture
def in_a_run_of_two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FSDPKIT_TASK_DIR", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.usefixtures("in_a_run_of_two")
@pytest.mark.parametrize("plugin", ["SLURMEnvironment", "AsyncCheckpointIO"])
def test_a_trainer_that_a_run_cannot_follow_is_refused(plugin: str) -> None:
    """Slurm's environment would requeue the job itself; a late writer's checkpoints may be torn."""
    from fsdpkit.script.lightning import attach

    named = {
        "cluster_environment": type(plugin, (), {})() if "SLURM" in plugin else None,
        "checkpoint_io": type(plugin, (), {})() if "IO" in plugin else None,
    }
    trainer: Any = SimpleNamespace(world_size=2, strategy=SimpleNamespace(**named))
    with pytest.raises(UsageError, match=plugin):
        attach(trainer)


def test_off_a_cluster_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdpkit.script.lightning import attach

    monkeypatch.delenv("FSDPKIT_TASK_DIR", raising=False)
    anything: Any = object()
    assert attach(anything) is anything
