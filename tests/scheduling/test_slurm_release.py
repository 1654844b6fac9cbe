"""What is asked of a cluster because of its release, from recorded answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Completed

# Lines of `scontrol show config`: 26.05.5 with the parameter, 24.11.5 and 22.05.8 without.
NEW = """\
Configuration data as of 2026-11-22T16:27:20
JobRequeue              = 1
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 26.05.5
SlurmctldParameters     = enable_configless,enable_expedited_requeue

Cgroup Support Configuration:
"""
OLD = NEW.replace("26.05.5", "24.11.5")
NOT_SWITCHED_ON = NEW.replace(",enable_expedited_requeue", "")


@pytest.mark.parametrize(
    ("answer", "words", "directive"),
    [
        (NEW, (), "--requeue=expedite"),
        (NEW.replace("26.05.5", "25.11.0-0rc1"), (), "--requeue=expedite"),
        (NEW.replace("SLURM_VERSION", "X"), (), "--requeue"),
        ("nothing", (), "--requeue"),
        (NEW, ("--set", "retry.on_node_failure=stop"), "--requeue"),
        (NEW.replace("JobRequeue              = 1", "JobRequeue = 0"), (), "--requeue=expedite"),
        (OLD, (), "--requeue"),
        (NOT_SWITCHED_ON, (), "--requeue"),
    ],
)
def test_a_job_is_expedited_only_where_it_may_come_back_and_the_cluster_does_that(
    fsdpkit: Callable[..., Completed],
    tmp_path: Path,
    answer: str,
    words: tuple[str, ...],
    directive: str | None,
) -> None:
    (tmp_path / "answer").write_text(answer)
    command = tmp_path / "bin" / "scontrol"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    command.chmod(0o755)
    path = {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    script = fsdpkit("submit", "--cluster", "generic", "--dry-run", *words, env=path).stdout
    requeue = [line.split()[1] for line in script.splitlines() if "#SBATCH --requeue" in line]
    assert requeue == ([directive] if directive else [])
