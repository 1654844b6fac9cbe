"""A plain script that hangs on two nodes of a real Slurm cluster: nothing of what tells why is
lost, though Slurm ends the whole step when the first of its tasks fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit import Run
from fsdpkit.runs.samples import read_samples
from tests.launching.test_plain_hang import HANGS, check_what_is_left
from tests.programs import Submit, Write
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.torch]


def test_the_rank_that_the_other_node_waited_for_is_known(
    on_slurm: SlurmCluster, submit: Submit, write_script: Write
) -> None:
    script = write_script("train.py", HANGS)
    policy = ("--set", "retry.restarts=0", "--set", "parameters.omp_threads=1")
    answer = submit(str(script), "--nodes", "2", "--gpus", "1", *policy, warm=True)
    Run.open(answer["dir"]).wait(poll_s=0.2)
    said = check_what_is_left(Path(answer["dir"]), 2, "signal")
    assert said.startswith("rank 1 has not called all_reduce number 2")
    samples = read_samples(Path(answer["dir"]) / "attempt-0" / "node-0.samples.jsonl")
    assert samples, "with or without cgroups"
    assert all(sample.temporary["/tmp"].total_bytes > 0 for sample in samples)
