"""`fsdpkit logs` as a person runs it: what stands on standard output and what on a terminal."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import IO

import pytest

from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState
from tests.cli.terminal import on_terminal
from tests.conftest import answer_of
from tests.programs import Fsdpkit
from tests.reporting.log_runs import T0_S, append, attempt_of, failure, launch, make_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four ranks, which ended; nobody has to be asked how."""
    ended = {"12": asdict(JobState("FAILED", "sacct", exit_code=1, exit_signal=0))}
    run = make_run(tmp_path / "run", ended=ended)
    for rank in range(4):
        append(run.dir / f"attempt-0/rank-{rank}.out", f"I am {rank}\n")
    append(run.dir / "attempt-0/rank-0.err", "a warning\n")
    append(run.dir / "attempt-0/rank-0.restart-1.out", "once more\n")
    append(run.dir / "slurm-12.log", "the batch shell\n")
    return run


def test_one_rank_s_lines_are_as_it_wrote_them(run: Run, fsdpkit: Fsdpkit) -> None:
    done = fsdpkit("logs", str(run.dir))
    assert done.stdout == "I am 0\na warning\nonce more\n"
    assert done.stderr == "fsdpkit: attempt 0, launch 1\n"
    assert fsdpkit("logs", str(run.dir), "--stream", "err").stdout == "a warning\n"
    assert fsdpkit("logs", str(run.dir), "--launch", "1").stdout == "once more\n"
    assert fsdpkit("logs", str(run.dir), "--batch").stdout == "the batch shell\n"


def test_lines_of_several_ranks_have_the_rank_in_front(run: Run, fsdpkit: Fsdpkit) -> None:
    words = ["--rank", "1-2", "--batch", "--tail", "1"]
    told = "batch  │ the batch shell\nrank 1 │ I am 1\nrank 2 │ I am 2\n"
    assert fsdpkit("logs", str(run.dir), *words).stdout == told
    every = fsdpkit("logs", str(run.dir), "--all", "--follow", status=0)
    assert sorted(every.stdout.splitlines()) == [
        "rank 0 │ I am 0",
        "rank 0 │ a warning",
        "rank 0 │ once more",
        "rank 1 │ I am 1",
        "rank 2 │ I am 2",
        "rank 3 │ I am 3",
    ]


def test_the_last_lines_of_a_progress_bar_are_its_last_states(run: Run, fsdpkit: Fsdpkit) -> None:
    bar = "".join(f"\r{n:3}% of a bar with many words{'.' * 40}" for n in range(101))
    append(run.dir / "attempt-0/rank-1.err", f"{bar}\n")
    words = ["logs", str(run.dir), "--rank", "1", "--stream", "err", "-n", "2"]
    assert [line.split()[0] for line in fsdpkit(*words).stdout.splitlines()] == ["99%", "100%"]
    (line,) = on_terminal(*words[:-1], "1", columns=200).splitlines()
    assert line.startswith("100%")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--rank", "2-4"], 66, "has ranks 0 to 3, no rank 4"),
        (["--rank", "x"], 2, "write ranks as in 5, 0-3 or 0-3,7"),
        (["--rank", "1", "--all"], 2, "leave out one"),
        (["--attempt", "1"], 66, "has no attempt 1; it has 0"),
        (["--attempt", "last"], 2, "give a number, `all` or `newest`"),
        (["--tail", "-1"], 2, "give a number of lines, or `all`"),
        (["--task", "1"], 2, "not an array"),
        (["--errors", "--rank", "1"], 2, "leave out --rank"),
        (["--rank", "1", "--stream", "err"], 66, "rank 1 of run wrote no such log"),
    ],
)
def test_what_is_not_there_is_said(
    run: Run, fsdpkit: Fsdpkit, words: list[str], status: int, told: str
) -> None:
    done = fsdpkit("logs", str(run.dir), *words)
    assert (done.returncode, told in done.stderr) == (status, True), done.stderr


def test_errors_are_those_of_the_newest_attempt_that_has_any(run: Run, fsdpkit: Fsdpkit) -> None:
    for number, rank in ((0, 3), (1, 2)):
        attempt = attempt_of(run, number)
        launch(attempt, 0, T0_S)
        line = f"3 rank {rank} on node2: exit status 3"
        failure(attempt, T0_S + 1, 1, rank, line)
    append(attempt_of(run, 1).dir / "rank-2.err", "last words\n")
    failure(attempt_of(run, 1), T0_S + 2, 0, 0, "1 rank 0 on node1: Connection reset by peer")
    attempt_of(run, 2)
    append(run.dir / "attempt-2/node-0.events.jsonl", '{"time_s":1,"event":"node-ready"}\n')
    done = fsdpkit("logs", str(run.dir), "--errors")
    assert done.stdout == (
        "attempt 1, launch 0\n"
        "  rank 2 on node2: exit status 3\n"
        "      last words\n"
        "      (attempt-1/rank-2.err)\n"
        "  follow-on: rank 0 on node1: Connection reset by peer\n"
    )
    assert done.stderr == "fsdpkit: attempt 0 failed, too: --attempt all shows it\n"
    (failed,) = answer_of(fsdpkit("logs", str(run.dir), "--errors", "--json"))["attempts"]
    first, after = failed["broken"]
    assert (failed["attempt"], first["rank"], first["follow_on"]) == (1, 2, False)
    assert (first["details"], Path(first["file"]).name) == (["last words"], "rank-2.err")
    assert (after["rank"], after["follow_on"]) == (0, True)
    told = fsdpkit("logs", str(run.dir), "--errors", "--attempt", "all").stdout
    assert told.startswith("attempt 0, launch 0\n  rank 3 on node2")
    done = fsdpkit("logs", str(run.dir), "--errors", "--attempt", "2")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "fsdpkit: no failure is on record in attempt 2\n"


def test_no_line_is_lost_when_printing_is_interrupted(run: Run) -> None:
    """Ctrl-Z and fg, with PYTHONUNBUFFERED as many job scripts and containers set it."""
    text = "".join(f"step {n}\n" for n in range(50_000))
    append(run.dir / "attempt-0/rank-1.out", text)
    words = ["logs", str(run.dir), "--rank", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdpkit", *words],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with process:
        assert process.stdout is not None
        full = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
        while _waiting_in(process.stdout) < full - 8192:
            time.sleep(0.02)
        time.sleep(0.2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read().decode() == f"I am 1\n{text}"


def _waiting_in(pipe: IO[bytes]) -> int:
    """Bytes in a pipe that nobody has read."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]
