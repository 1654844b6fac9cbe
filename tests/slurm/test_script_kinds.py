"""A script of each kind on a real Slurm cluster, all side by side: a rank is killed, the job is
queued again, asked for a checkpoint, cancelled with a last one, resumed, and done.

A script of plain torch goes the same way in test_logging_script.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.status.overview import one_status
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.history import history_of
from tests.conftest import ROOT, Completed
from tests.script.tiny_models import PRELOADED, save_tiny_llama
from tests.slurm.conftest import everything_said, until

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
STEPS = 60

FAULTS = """
def fault(step):
    import os, pathlib, signal, subprocess, time
    task = pathlib.Path(os.environ["FSDPKIT_TASK_DIR"])
    attempt = pathlib.Path(os.environ["FSDPKIT_ATTEMPT_DIR"]).name
    rank = os.environ["RANK"]
    if attempt == "attempt-0" and step == 7 and rank == "1" and not (task / "killed").exists():
        (task / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == "attempt-0" and step == 12 and rank == "0":
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        time.sleep(600)
    if attempt == "attempt-1" and step >= 17 and rank == "0":
        (task / "slow").touch()
        asked = task / "save-requested"
        stop = pathlib.Path(os.environ["FSDPKIT_HEARTBEAT_DIR"], "stop")
        began = time.monotonic()
        while time.monotonic() - began < (1.2 if asked.exists() else 300) and not stop.exists():
            time.sleep(0.05)

"""
IN_TRAINER = """\
    from transformers import TrainerCallback
    class Faults(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            fault(state.global_step + 1)
    trainer.add_callback(Faults())
"""
IN_LIGHTNING = """\
    from pytorch_lightning import Callback
    class Faults(Callback):
        def on_train_batch_start(self, trainer, *_):
            fault(trainer.global_step + 1)
    trainer.callbacks.insert(0, Faults())
"""


def with_faults(example: str, before: str, added: str, *, after: bool = False) -> str:
    """The example's source, with lines of the test's own before, or after, one of its lines."""
    source = (ROOT / "examples" / example / "train.py").read_text()
    assert source.count(before) == 1
    source = source.replace(before, f"{before}{added}" if after else f"{added}{before}")
    first_code = source.index("import ")
    return f"{source[:first_code]}{FAULTS}{source[first_code:]}"


def scripts() -> dict[str, str]:
    own = with_faults("own-model", "        metrics.step(", "        fault(progress.step)\n")
    return {
        "trainer": with_faults("huggingface", "    trainer.train()\n", IN_TRAINER),
        "lightning": with_faults("lightning", "    trainer.fit(", IN_LIGHTNING),
        "accelerate": with_faults(
            "accelerate", "            step += 1\n", "            fault(step)\n", after=True
        ),
        "own": own.replace("every_steps=100", "every_steps=5"),
    }


def arguments(kind: str, model: Path) -> tuple[str, ...]:
    if kind == "own":
        return (str(STEPS),)
    if kind == "trainer":
        return ("--model", str(model), "--steps", str(STEPS), "--save-steps", "5")
    loop = ("--epochs", "4", "--rows", str(STEPS // 4 * 2 * 16), "--batch", "16")
    return (*loop, "--save-steps", "5")


def test_a_script_of_each_kind_goes_all_the_way(
    submit: Callable[..., dict[str, Any]],
    write_script: Callable[[str, str], Path],
    fsdpkit: Callable[..., Completed],
    tmp_path: Path,
) -> None:
    model = save_tiny_llama(tmp_path / "model")
    shape = ("--nodes", "1", "--gpus", "2", "--set", "retry.restarts=2")
    preload = {
        "trainer": PRELOADED,
        "lightning": ("--set", 'launch.preload=["pytorch_lightning"]'),
        "accelerate": ("--set", 'launch.preload=["accelerate"]'),
    }
    runs = {}
    for kind, source in scripts().items():
        path = write_script(f"with_{kind}.py", source)
        shutil.copy(ROOT / "examples" / "huggingface" / "data.py", path.parent)
        answer = submit(
            str(path), *shape, *preload.get(kind, ()), "--", *arguments(kind, model), warm=True
        )
        runs[kind] = Run.open(answer["dir"])
    try:
        all_the_way(runs, fsdpkit)
    except BaseException:
        for kind, run in runs.items():
            print(f"==== {kind}\n{everything_said(run.dir)}")
        raise


def all_the_way(runs: dict[str, Run], fsdpkit: Callable[..., Completed]) -> None:
    until(lambda: all((run.dir / "slow").exists() for run in runs.values()), "a second attempt")
    for kind, run in runs.items():
        saved = fsdpkit("checkpoint", "save", str(run.dir), "--wait")
        assert saved.returncode == 0, (kind, saved.stderr)
        where = Path(saved.stdout.strip().splitlines()[-1].split(": ")[-1])
        assert (run.dir / where).exists(), saved.stdout
    for kind, run in runs.items():
        told = fsdpkit("cancel", str(run.dir), "--save", "--wait")
        assert told.returncode == 0, (kind, told.stderr)
        assert Run.open(run.dir).wait(poll_s=0.2).outcome == "stopped", kind
    for run in runs.values():
        assert fsdpkit("resume", str(run.dir)).returncode == 0
    for kind, run in runs.items():
        state = Run.open(run.dir).wait(poll_s=0.2)
        assert state.outcome == "done", (kind, state.describe())
        check(kind, Run.open(run.dir))


def check(kind: str, run: Run) -> None:
    """What the run tells of itself, and what it left."""
    first, second, third = history_of(run.paths, run.record).attempts
    assert "SIGKILL" in (first.launches[0].message or ""), (kind, first.launches[0])
    assert len(first.launches) == 2, kind
    assert not second.stop_unheeded, kind
    assert len(third.launches) == 1, kind
    status = one_status(run.dir)
    assert status.progress is not None
    assert (status.progress["step"], status.progress["steps"]) == (STEPS, STEPS), kind
    steps = [line["step"] for line in read_json_lines(run.paths.task().metrics)]
    assert steps[-1] == STEPS, kind
    assert "loss" in page(run), kind
    exported = {
        "trainer": "trainer/final/model.safetensors",
        "lightning": "lightning/final.ckpt",
        "accelerate": "accelerate/final/model.safetensors",
        "own": f"checkpoints/step-{STEPS}/checkpoint.json",
    }
    assert (run.dir / exported[kind]).is_file(), kind
