"""Scripts of two kinds on a real Slurm cluster, side by side: a rank is killed or the job is queued
again, then it is asked for a checkpoint, cancelled with a last one, resumed, and done.

In one the loop is Lightning's, in the other the script's own. Without a cluster tests/script stops
and resumes transformers' trainer as well, and tests/training/test_own_model.py a script that takes
single parts of fsdpkit; a script of plain torch is in test_logging_script.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fsdpkit import Run
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.status.overview import one_status
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.history import history_of
from tests.conftest import ROOT
from tests.programs import Fsdpkit, Submit, Write
from tests.slurm.conftest import everything_said, until

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
STEPS = 40
KILLED = ("lightning",)
"""Kinds of which a rank is killed, and forked again; the job of the other is queued again.
Either way a script goes on from a checkpoint that is some steps old.
"""

FAULTS = """
def fault(step, free=[]):
    import os, pathlib, signal, subprocess, time
    task, job = pathlib.Path(os.environ["FSDPKIT_TASK_DIR"]), os.environ["SLURM_JOB_ID"]
    rank, disturbed = os.environ["RANK"], task / "disturbed"
    if not disturbed.exists():
        if KILLED and step == 7 and rank == "1":
            disturbed.write_text(job)
            os.kill(os.getpid(), signal.SIGKILL)
        if not KILLED and step == 12 and rank == "0":
            disturbed.write_text(job)
            subprocess.run(["scontrol", "requeue", job], check=True)
            time.sleep(600)
    elif disturbed.read_text() == job and step >= 17 and rank == "0":
        (task / "slow").touch()
        asked = task / "save-requested"
        stop = pathlib.Path(os.environ["FSDPKIT_HEARTBEAT_DIR"], "stop")
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < 300 and not stop.exists():
            if asked.exists() and waited_s > 1.2 and len(free) < 6:
                free.append(step)  # scripts look for such a request once a second, at a step's end
                break
            time.sleep(0.05)

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
    found = {
        "lightning": with_faults("lightning", "    trainer.fit(", IN_LIGHTNING),
        "accelerate": with_faults(
            "accelerate", "            step += 1\n", "            fault(step)\n", after=True
        ),
    }
    return {
        kind: f"{source}\n".replace("KILLED", str(kind in KILLED)) for kind, source in found.items()
    }


def test_a_script_goes_all_the_way_whoever_has_the_loop(
    submit: Submit, write_script: Write, fsdpkit: Fsdpkit
) -> None:
    shape = ("--nodes", "1", "--gpus", "2", "--set", "retry.restarts=2")
    preload = {"accelerate": ("accelerate",)}
    rows = ("--epochs", "4", "--rows", str(STEPS // 4 * 2 * 16), "--batch", "16")
    runs = {}
    for kind, source in scripts().items():
        path = write_script(f"with_{kind}.py", source)
        shutil.copy(ROOT / "examples" / "huggingface" / "rows.py", path.parent)
        named = json.dumps([*preload.get(kind, ()), "torch._dynamo"])  # by each optimizer, else
        words = (*shape, "--set", f"launch.preload={named}")
        answer = submit(str(path), *words, "--", *rows, "--save-steps", "5", warm=True)
        runs[kind] = Run.open(answer["dir"])
    try:
        all_the_way(runs, fsdpkit)
    except BaseException:
        for kind, run in runs.items():
            print(f"==== {kind}\n{everything_said(run.dir)}")
        raise


def all_the_way(runs: dict[str, Run], fsdpkit: Fsdpkit) -> None:
    until(lambda: all((run.dir / "slow").exists() for run in runs.values()), "another start")
    for run in runs.values():
        saved = fsdpkit("checkpoint", "save", str(run.dir), "--wait", status=0)
        where = Path(saved.stdout.strip().splitlines()[-1].split(": ")[-1])
        assert (run.dir / where).exists(), saved.stdout
    for kind, run in runs.items():
        fsdpkit("cancel", str(run.dir), "--save", "--wait", status=0)
        assert Run.open(run.dir).wait(poll_s=0.2).outcome == "stopped", kind
    for run in runs.values():
        assert fsdpkit("resume", str(run.dir)).returncode == 0
    for kind, run in runs.items():
        state = Run.open(run.dir).wait(poll_s=0.2)
        assert state.outcome == "done", (kind, state.describe())
        check(kind, Run.open(run.dir))


def check(kind: str, run: Run) -> None:
    """What the run tells of itself, and what it left."""
    *before, stopped, resumed = history_of(run.paths, run.record).attempts
    if kind in KILLED:
        assert before == []
        assert "SIGKILL" in (stopped.launches[0].message or ""), (kind, stopped.launches[0])
    assert len(before) == (kind not in KILLED)
    assert len(stopped.launches) == 1 + (kind in KILLED), kind
    assert not stopped.stop_ignored, kind
    assert len(resumed.launches) == 1, kind
    status = one_status(run.dir)
    assert status.progress is not None
    assert (status.progress["step"], status.progress["steps"]) == (STEPS, STEPS), kind
    steps = [line["step"] for line in read_json_lines(run.paths.task().metrics)]
    assert steps[-1] == STEPS, kind
    assert "loss" in page(run), kind
    exported = {
        "lightning": "lightning/final.ckpt",
        "accelerate": "accelerate/final/model.safetensors",
    }
    assert (run.dir / exported[kind]).is_file(), kind
