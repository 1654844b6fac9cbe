"""`fsdpkit diagnose` while Slurm can be asked: before, during and after the job."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpkit import Run
from tests.conftest import answer_of
from tests.programs import Fsdpkit, Submit, Write
from tests.slurm.conftest import everything_said
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

RAISES_WHEN_TOLD = """
    import os, time
    from pathlib import Path
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main():
        while not Path(__file__).with_name("go").exists():
            time.sleep(0.1)
        if os.environ["RANK"] == "1":
            raise ValueError("the loss is a walrus")
        time.sleep(3600)
    main()
"""


def test_one_job_is_diagnosed_from_the_queue_to_its_end(
    on_slurm: SlurmCluster, submit: Submit, fsdpkit: Fsdpkit, write_script: Write
) -> None:
    """A23, A25: never an end while it waits and runs; then the rank that began, and its words."""
    script = write_script("raises.py", RAISES_WHEN_TOLD)
    on_slurm.run(["scontrol", "update", "PartitionName=main", "State=DOWN"], check=True)
    shape = ("--nodes", "2", "--gpus", "1", "--set", "retry.on_crash=stop")
    answer = submit(str(script), *shape, warm=True)

    def told() -> dict[str, Any]:
        return answer_of(fsdpkit("diagnose", answer["dir"], "--json"))

    try:
        waiting = told()
        assert waiting["cause"] in ("pending", "pending-forever"), waiting
        assert "Slurm's reason: PartitionDown" in str(waiting["evidence"])
    finally:
        on_slurm.run(["scontrol", "update", "PartitionName=main", "State=UP"], check=True)
    on_slurm.wait_job(answer["job_id"], states=["RUNNING"])
    assert told()["cause"] == "running"
    script.with_name("go").touch()
    Run.open(answer["dir"]).wait(poll_s=0.2)
    found = told()
    assert found["cause"] == "exception", everything_said(answer["dir"])
    assert (found["rank"], found["node"]) == (1, "node2")
    assert "the loss is a walrus" in found["sentence"]
    assert f"fsdpkit diagnose {answer['run']}" in fsdpkit("status", answer["dir"]).stdout
