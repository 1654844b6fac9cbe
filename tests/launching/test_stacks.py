"""The stacks of a plain script that hangs, whatever it hangs in and however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.launching import stacks
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.stacks import SIGNAL, StacksTaken, event_of, in_words
from tests.launching.forking import Forking

HANGS = {
    "sleep": "time.sleep(600)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    # PyDLL keeps the interpreter's lock: no Python code of this process runs any more.
    "C code that holds the GIL": "ctypes.PyDLL(None).sleep(600)",
    "threads": "threading.Event().wait()",
    "handlers of its own": (
        "[signal.signal(n, lambda *_: None) for n in (10, 12, 15)]; time.sleep(600)"
    ),
}
SCRIPT = """
import ctypes, os, signal, sys, threading, time
beside = threading.Event()
def train():
    beside.set()
    time.sleep(600)
def stuck_here():
    if "threads" in sys.argv:
        threading.Thread(target=train).start()
        beside.wait()
    print("here", flush=True)
    HANG
stuck_here()
"""
needs_spy = pytest.mark.skipif(stacks._spy() is None, reason="py-spy is not installed")


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    with Forking(tmp_path_factory.mktemp("forked")) as forking:
        yield forking


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    (tmp_path / "attempt-0").mkdir()
    return AttemptPaths(tmp_path / "attempt-0")


def script_of(hang: str, directory: Path) -> Path:
    path = directory / "train.py"
    path.write_text(SCRIPT.replace("HANG", HANGS[hang]))
    return path


def wait_for(found: object) -> None:
    deadline = time.monotonic() + 120
    while not found():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check(text: str, hang: str) -> None:
    main = text[text.index("Current thread ") :]
    assert "train.py" in main
    assert "in stuck_here" in main, "the main thread is the current one, and the last"
    if hang == "threads":
        assert "in train" in text[: text.index("Current thread ")]


@pytest.mark.torch
@pytest.mark.parametrize("hang", HANGS)
def test_a_forked_rank_answers_the_signal(
    forking: Forking, attempt: AttemptPaths, tmp_path: Path, hang: str
) -> None:
    node = HeartbeatDir(tmp_path / "memory")
    node.dir.mkdir()
    environ = {"FSDPKIT_HEARTBEAT_DIR": str(node.dir), "RANK": "5", "LOCAL_RANK": "1"}
    command = (sys.executable, "-u", str(script_of(hang, tmp_path)), hang)
    started = forking.start(command, environ)
    try:
        wait_for(lambda: "here" in Path(started["files"][0]).read_text())
        ranks = [RankProcess(1, 5, started["pid"])]
        assert stacks.take(ranks, node, attempt, 0) == ({5: "signal"}, {})
        check(attempt.rank_file(5, "stacks", 0).read_text(), hang)
    finally:
        os.kill(started["pid"], signal.SIGKILL)
        forking.wait(started)


@needs_spy
@pytest.mark.parametrize("hang", HANGS)
def test_of_a_rank_that_was_started_anew_py_spy_reads_them(
    attempt: AttemptPaths, tmp_path: Path, hang: str
) -> None:
    command = [sys.executable, "-u", str(script_of(hang, tmp_path)), hang]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            ranks = [RankProcess(1, 5, process.pid)]
            found = stacks.take(ranks, HeartbeatDir(tmp_path), attempt, 2)
            assert found == ({5: "py-spy"}, {})
            assert process.poll() is None, "it goes on"
            check(attempt.rank_file(5, "stacks", 2).read_text(), hang)
        finally:
            process.kill()


@needs_spy
def test_a_rank_that_is_stopped_is_read_without_its_help(
    attempt: AttemptPaths, tmp_path: Path
) -> None:
    command = [sys.executable, "-u", str(script_of("sleep", tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            ranks = [RankProcess(0, 0, process.pid)]
            assert stacks.take(ranks, HeartbeatDir(tmp_path), attempt, 0) == ({0: "py-spy"}, {})
        finally:
            process.kill()


USURPED = """
import os, signal, sys, time
from pathlib import Path
from fsdpkit.runs.stacks import SIGNAL, leave_when_asked
leave_when_asked(Path(sys.argv[1]))
signal.signal(SIGNAL, lambda *_: None)
print("here", flush=True)
while True: time.sleep(0.1)
"""


def test_without_py_spy_it_is_said_why_there_are_none(
    attempt: AttemptPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may put its own handler where ours was; then nothing is left that would answer."""
    monkeypatch.setattr(stacks, "_spy", lambda: None)
    monkeypatch.setattr(stacks, "ANSWER_S", 0.5)
    node = HeartbeatDir(tmp_path)
    command = [sys.executable, "-c", USURPED, str(node.stacks(0))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            taken, missing = stacks.take([RankProcess(0, 7, process.pid)], node, attempt, 0)
            assert (taken, missing.keys()) == ({}, {7})
            assert "fsdpkit[stacks]" in missing[7]
            assert not attempt.rank_file(7, "stacks", 0).exists()
        finally:
            process.kill()


def test_a_process_that_does_not_catch_the_signal_is_not_sent_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not stacks.catches(process.pid)
        process.communicate(b"\n")
    assert not stacks.catches(process.pid), "it is gone"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Error: Permission Denied: Try running again with elevated permissions", "no permission"),
        ("Error: Failed to find a python interpreter in the process", "py-spy: Error: Failed to"),
        ("", "without a word"),
    ],
)
def test_what_py_spy_says_becomes_a_reason(
    tmp_path: Path, attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "_spy", lambda: str(spy))
    ranks = [RankProcess(0, 0, os.getpid())]
    taken, missing = stacks.take(ranks, HeartbeatDir(tmp_path), attempt, 0)
    assert taken == {}
    assert reason in missing[0]


def test_who_was_asked_is_on_record_and_in_words() -> None:
    asked = StacksTaken(launch=1, why="time-out", taken={3: "signal"}, missing={4: "it is gone"})
    assert event_of(asked) == {
        "event": "stacks-taken",
        "launch": 1,
        "why": "time-out",
        "taken": {"3": "signal"},
        "missing": {"4": "it is gone"},
    }
    assert in_words(asked) == (
        "stacks of 1 ranks were taken because a rank had waited for the others until its "
        "timeout; none of rank 4: it is gone"
    )


def test_the_signal_is_none_that_slurm_or_python_use() -> None:
    assert SIGNAL in range(signal.SIGRTMIN, signal.SIGRTMAX)


MOVES = """
import sys
from pathlib import Path
from fsdpkit.runs.stacks import leave_when_asked
leave_when_asked(Path(sys.argv[1]))
def wait_here():
    print("here", flush=True)
    sys.stdin.readline()
def wait_there():
    print("there", flush=True)
    sys.stdin.readline()
wait_here()
wait_there()
"""


def test_a_rank_may_be_asked_again_and_says_where_it_is_now(tmp_path: Path) -> None:
    node = HeartbeatDir(tmp_path)
    words = [sys.executable, "-c", MOVES, str(node.stacks(0))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ranks = [RankProcess(0, 4, process.pid)]
        for place in ("wait_here", "wait_there"):
            process.stdout.readline()
            texts, missing = stacks.read(ranks, node)
            assert missing == {}
            by, text = texts[4]
            assert by == "signal"
            assert [name for name in ("wait_here", "wait_there") if name in text] == [place]
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert process.wait(60) == 0, "it has gone on"
