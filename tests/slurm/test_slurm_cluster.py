"""`make slurm` starts, shows and ends a cluster; all other tests use what the harness starts.

Where no cluster can run these tests skip and say why; FSDPKIT_REQUIRE_SLURM=1 makes that a failure,
so that a continuous-integration job cannot go green by skipping.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require_slurm
from tests.programs import ran

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).parents[2]


def test_the_command_line_starts_shows_and_ends_a_cluster(tmp_path: Path) -> None:
    require_slurm()

    def command(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "tests.slurm_cluster", verb, "--root", str(tmp_path), *words]
        return ran(argv, cwd=REPOSITORY)

    try:
        up = command("up", "--nodes", "1", "--no-accounting", "--users", "alex")
        assert f"export SLURM_CONF={tmp_path}/etc/slurm.conf" in up.stdout, up.stderr
        assert "already holds a cluster" in command("up").stderr
        status = command("status").stdout
        assert "node1  IDLE" in status
        for told in (up.stdout, status):
            assert f"slurm_cluster shell --root {tmp_path} alex" in told
        assert command("shell", "alex", "srun", "id", "-un").stdout == "alex\n"
        assert "no user 'sam'" in command("shell", "sam").stderr
    finally:
        assert command("down").returncode == 0
    assert command("status").returncode == 1
