"""The stacks of a plain script that hangs, whatever it hangs in and however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.launching import stacks
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths
from tests.launching.forking import Forking
from tests.programs import until

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
        until(lambda: "here" in Path(started["files"][0]).read_text())
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


def test_a_process_that_does_not_catch_the_signal_is_not_sent_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not stacks.catches(process.pid)
        process.communicate(b"\n")
    assert not stacks.catches(process.pid), "it is gone"
