"""Run programs on some ranks, forked from the pool or as a user does, and read what they found."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Completed, ended
from tests.training.pool import Pool

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "T5-fsdp"
RANKS = Path(__file__).parent / "ranks"


def environment(**extra: str) -> dict[str, str]:
    """The caller's environment with the checkout importable and no torchrun variables in it."""
    outer = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    kept = {k: v for k, v in os.environ.items() if k not in outer and k != "FSDPKIT_TASK_DIR"}
    path = os.pathsep.join([str(REPOSITORY), str(EXAMPLE)])
    return {
        **kept,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "default",
        **extra,
    }


def torchrun(ranks: int, script: Path, *arguments: str) -> list[str]:
    """The command line that runs `script` on `ranks` processes of this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", str(ranks)),
        *(str(script), *arguments),
    ]


def run_ranks(
    ranks: int, script: Path, *words: str, libraries: Sequence[str] = (),
    status: int | None = None, **extra: str,
) -> Completed:  # fmt: skip
    """On ranks of the pool; the status is that of the first rank that failed. status: that it must
    be; None: any."""
    variables = environment(**extra)
    done = the_pool().run(ranks, script, *words, environment=variables, libraries=libraries)
    return ended(done, status)


@functools.cache
def the_pool() -> Pool:
    return Pool()


def in_the_pool(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, **_: object
) -> subprocess.CompletedProcess[str]:
    """For `subprocess.run` of a torchrun on this machine: the same script, on ranks of the pool."""
    *start, ranks, script = command[:7]
    assert start == [*torchrun(0, Path())[:4], "--nproc-per-node"], command
    return the_pool().run(
        int(ranks), Path(script), *command[7:], environment=dict(env), directory=cwd
    )


def run_torchrun(
    ranks: int, script: Path, *arguments: str, **extra: str
) -> subprocess.CompletedProcess[str]:
    """On ranks that torchrun starts: seconds of CPU time for each."""
    return subprocess.run(
        torchrun(ranks, script, *arguments),
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


def findings(
    ranks: int, program: str, folder: Path, *words: str, libraries: Sequence[str] = ()
) -> Any:
    """What `main` of one of `ranks/*.py` found (ranks/found.py), in `folder`; of one that is named
    with its `.py`, what it wrote by itself, as JSON, to the file that is its first word."""
    result = folder / f"{program} on {ranks}.json"
    script = [RANKS / program] if program.endswith(".py") else [RANKS / "found.py", program]
    done = run_ranks(ranks, *script, str(result), *words, libraries=libraries)
    # Before torchrun's own traceback, which says nothing of the cause.
    assert done.returncode == 0, done.stdout.partition('File "<frozen runpy>"')[0][-6000:]
    return json.loads(result.read_text())


def ranks_found(ranks: int, program: str) -> Any:
    """A fixture of a module: what the program found, which runs once."""

    @pytest.fixture(scope="module")
    def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
        return findings(ranks, program, tmp_path_factory.mktemp(program))

    return found
