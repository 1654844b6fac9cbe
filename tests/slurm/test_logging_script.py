"""A script that is not ours on a real Slurm cluster: it logs, hangs, is started again, asked to
stop, resumed, and done. Nothing of fsdpkit is in it but four names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.reporting.diagnosis.diagnose import diagnose
from fsdpkit.reporting.diagnosis.evidence import gather
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.status.overview import one_status
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.history import history_of
from tests.programs import Submit, Write
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

TRAIN = """
    import os, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import fsdpkit

    STEPS = 30
    def wait_for_a_file_server():
        time.sleep(600)

    dist.init_process_group("gloo")
    rank, saved = dist.get_rank(), fsdpkit.task_dir() / "checkpoint.pt"
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    step = 0
    if saved.exists():
        state = torch.load(saved)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    first = not (fsdpkit.task_dir() / "hung").exists()
    while step < STEPS:
        loss = model(torch.ones(4)).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
                weight.grad = None
        step += 1
        fsdpkit.log(step, loss=loss, planned_steps=STEPS, mine=step / 2)
        stop = fsdpkit.stop_requested()
        if step % 5 == 0 or stop:
            if rank == 0:
                torch.save({"model": model.module.state_dict(), "step": step}, str(saved) + ".new")
                os.replace(str(saved) + ".new", saved)
            dist.barrier()
        if stop:
            print("stopping after", step, flush=True)
            sys.exit(fsdpkit.STOPPED)
        if step == 7 and first:
            if rank == 3:
                (fsdpkit.task_dir() / "hung").touch()
                wait_for_a_file_server()
        if step == 12 and rank == 1 and not (fsdpkit.task_dir() / "asked").exists():
            (fsdpkit.task_dir() / "asked").touch()
            (fsdpkit.task_dir() / "stop-requested").touch()  # as fsdpkit cancel --save does
        time.sleep(0.2 if 12 <= step < 24 and stop is False else 0)
    dist.destroy_process_group()
"""


def test_a_plain_script_is_found_hanging_stops_with_all_its_ranks_and_goes_on(
    on_slurm: SlurmCluster, submit: Submit, write_script: Write, fsdpkit: Callable[..., Any]
) -> None:
    script = write_script("train.py", TRAIN)
    sets = ("--set", "retry.hang_s=8", "--set", "retry.restarts=2")
    answer = submit(str(script), "--nodes", "2", "--gpus", "2", *sets, warm=True)
    run = Run.open(answer["dir"])
    state = run.wait(poll_s=0.2)
    assert state.outcome == "stopped", state.describe()
    (attempt,) = history_of(run.paths, run.record).attempts
    hung = attempt.launches[0]
    assert hung.cause == "hang", hung
    assert hung.message.startswith("rank 3 on "), "who, of four"
    assert "wait_for_a_file_server" in hung.message
    assert hung.step == 7
    assert not attempt.stop_ignored
    printed = [attempt.paths.rank_file(rank, "out", 1).read_text() for rank in range(4)]
    assert len(set(printed)) == 1, "all ranks after the same step"
    assert printed[0].startswith("stopping after 1")

    fsdpkit("resume", str(run.dir), "--wait", status=0)
    run = Run.open(run.dir)
    steps = [line["step"] for line in read_json_lines(run.paths.task().metrics)]
    assert steps[:7] == [1, 2, 3, 4, 5, 6, 7]
    assert steps[7] == 6, "from the checkpoint of step 5"
    assert steps[-1] == 30
    assert sorted(set(steps)) == list(range(1, 31))
    status = one_status(run.dir)
    assert status.progress is not None
    assert (status.progress["step"], status.progress["steps"]) == (30, 30)
    assert "mine" in page(run)
    assert diagnose(gather(run)).sentence
