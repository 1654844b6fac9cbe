"""What diagnose and the report tell a person to type does what they say: it is typed as printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit import Run
from fsdpkit.reporting.report.page import page
from tests.conftest import COLD, Completed, answer_of
from tests.reporting.test_page import text

FAILS = """
    import os, time
    import fsdpkit
    task = os.environ.get("SLURM_ARRAY_TASK_ID", "1")
    fsdpkit.log(1, loss=2.0)
    if task == "1" and os.environ["RANK"] == "1":
        raise ValueError("row 17 has no label")
    time.sleep(1 if task == "1" else 0)
"""
CHANGES = ("resume", "cancel")


@pytest.mark.local
@pytest.mark.parametrize("array", [(), ("--array", "0-1")], ids=["one", "array"])
def test_every_command_that_a_failed_run_is_told_to_type_answers(
    fsdpkit: Callable[..., Completed], write_script: Callable[..., Path], array: tuple[str, ...]
) -> None:
    size = ("--cluster", "local", *COLD, "--nodes", "1", "--gpus", "2")
    once = ("--set", "retry.restarts=0")
    script = str(write_script("fails.py", FAILS))
    answer = answer_of(fsdpkit("submit", script, *size, *once, *array, "--json"))
    run = Run.open(answer["dir"])
    run.wait(poll_s=0.1)
    command = re.compile(rf"fsdpkit (\w+ \S*{run.id}(?: --[a-z-]+| \d+)*)")
    printed = set(command.findall(fsdpkit("diagnose", str(run.dir)).stdout))
    printed |= set(command.findall(text(page(run))))
    task = " --task 1" if array else ""
    assert {f"logs {run.id}{task} --errors", f"diagnose {run.id}{task} --page"} <= printed
    for words in sorted(printed):
        if words.split()[0] not in CHANGES:
            done = fsdpkit(*words.split())
            assert done.returncode == 0, (words, done.stderr)
            assert done.stdout, words
            assert "row 17 has no label" in done.stdout or "--errors" not in words
    unnamed = fsdpkit("logs", run.id, "--errors").stdout
    assert "row 17 has no label" in unnamed, "the task that diagnose takes"
