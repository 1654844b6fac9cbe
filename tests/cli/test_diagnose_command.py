"""`fsdpkit diagnose`: what it prints, for people and programs, and its exit status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit, Write
from tests.reporting.made_run import T0, launches, made_run, starts
from tests.reporting.test_evidence import fails

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"


@pytest.fixture
def failed_run(tmp_path: Path) -> Path:
    """Two attempts of two nodes with two ranks each; the second ended on a full disk."""
    run = made_run(tmp_path / "runs" / "t5-1", state="FAILED", exit_code=74)
    task = run.paths.task()
    for number, message in (
        (0, "ValueError: bad"),
        (1, "OSError: [Errno 28] No space left on device"),
    ):
        starts(task, number, T0 + 100 * number)
        launches(task, number, T0 + 100 * number + 10)
        fails(task, number, T0 + 100 * number + 30, 1, message, rank=2)
        fails(task, number, T0 + 100 * number + 20, 0, RESET, rank=0)
    return run.dir


def test_the_sentence_comes_first_and_nothing_is_wider_than_80_columns(
    failed_run: Path, fsdpkit: Fsdpkit
) -> None:
    done = fsdpkit("diagnose", "t5-1", "--runs", str(failed_run.parent))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(done.stdout.split())
    assert text.startswith("Rank 2 on node2 had no space left to write")
    assert "what to do Make room" in text
    assert "where attempt 1, rank 2, node2" in text
    assert re.search(r"seen in attempt-1/failures/\d+-node-1-rank-2:1 OSError", text)
    assert "followed rank 0 on node1: RuntimeError: [gloo" in text
    assert "before attempt 0: Rank 2 on node2 failed: ValueError: bad." in text
    assert "more docs/failures/disk-full.md (--page prints it)" in text


@pytest.mark.parametrize(
    "words", [["nowhere"], ["t5-1", "--attempt", "9"], ["t5-1", "--task", "3"]]
)
def test_what_does_not_exist_ends_with_66(
    failed_run: Path, fsdpkit: Fsdpkit, words: list[str]
) -> None:
    done = fsdpkit("diagnose", *words, "--runs", str(failed_run.parent))
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr.startswith("fsdpkit: ")


def test_of_an_array_the_task_and_how_many_share_its_cause_are_told(
    tmp_path: Path, fsdpkit: Fsdpkit
) -> None:
    run = made_run(tmp_path / "t5-3", state="FAILED", exit_code=1, array=[0, 1])
    for number in (0, 1):
        starts(run.paths.task(number), 0, T0)
        fails(run.paths.task(number), 0, T0 + 20, 0, "ValueError: bad", rank=0)
    done = fsdpkit("diagnose", str(run.dir))
    assert "This is task 0 of the array; of the tasks read, 2 are in this state." in done.stdout


@pytest.mark.local
def test_a_run_of_the_local_cluster_is_diagnosed_with_what_it_really_left(
    fsdpkit: Fsdpkit, write_script: Write, tmp_path: Path
) -> None:
    """Bare ranks; the first launches and the record of the end are the real ones."""
    script = write_script(
        "train.py",
        """
        import os, sys
        print("hello", file=sys.stderr)
        if os.environ["RANK"] == "1":
            import a_module_that_is_not_there
        """,
    )
    words = ["--cluster", "local", "--nodes", "1", "--gpus", "2"]
    words += [*COLD, "--set", "retry.on_crash=stop"]
    fsdpkit("submit", str(script), *words, "--runs", str(tmp_path / "runs"), "--wait", status=1)
    run = next((tmp_path / "runs").glob("*/run.json")).parent
    answer = answer_of(fsdpkit("diagnose", str(run), "--json"))
    assert (answer["cause"], answer["rank"]) == ("import-error", 1)
    assert answer["evidence"][0]["file"].endswith("rank-1.err")
    assert "a_module_that_is_not_there" in answer["sentence"]
