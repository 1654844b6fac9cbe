"""Heartbeats: written by a rank, read by its agent, and what is made of silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fsdpkit.launching import heartbeats as module
from fsdpkit.launching import stacks as stacks_module
from fsdpkit.launching.blame import RankPlace, place_of, standing_out
from fsdpkit.launching.heartbeats import RankHeartbeats
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import (
    HeartbeatDir,
    HeartbeatFile,
)
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.stacks import StacksTaken
from tests.programs import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def idle_process() -> Iterator[int]:
    """The pid of one that neither reads nor writes."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def pass_time(rank_heartbeats: RankHeartbeats, clock: list[float], seconds: int) -> str | None:
    """The agent looks once a second; what it says at last."""
    found = None
    for _ in range(seconds):
        clock[0] += 1
        found = rank_heartbeats.look()
    return found


def test_a_rank_without_steps_hangs_after_its_time(tmp_path: Path, clock: list[float]) -> None:
    directory = HeartbeatDir(tmp_path)
    rank_heartbeats = RankHeartbeats(directory, hang_s=10)
    file = HeartbeatFile(directory.rank(0))
    rank_heartbeats.ranks = [RankProcess(0, 4, os.getpid())]
    file.beat(3, "training")
    assert rank_heartbeats.look() is None
    assert pass_time(rank_heartbeats, clock, 9) is None
    file.beat(4, "training")
    assert rank_heartbeats.look() is None
    found = pass_time(rank_heartbeats, clock, 11)
    assert found is not None
    assert found.startswith("rank 4 made no step for 11 s (after step 4)")
    assert rank_heartbeats.step == 4


def test_outside_of_steps_ten_times_as_long_is_waited(tmp_path: Path, clock: list[float]) -> None:
    directory = HeartbeatDir(tmp_path)
    rank_heartbeats = RankHeartbeats(directory, hang_s=10)
    rank_heartbeats.ranks = [RankProcess(0, 0, os.getpid())]
    HeartbeatFile(directory.rank(0)).beat(3, "saving")
    assert rank_heartbeats.look() is None
    assert pass_time(rank_heartbeats, clock, 99) is None
    found = pass_time(rank_heartbeats, clock, 2)
    assert found is not None
    assert "was saving" in found


def test_a_job_that_was_suspended_does_not_hang(tmp_path: Path, clock: list[float]) -> None:
    directory = HeartbeatDir(tmp_path)
    rank_heartbeats = RankHeartbeats(directory, hang_s=10)
    rank_heartbeats.ranks = [RankProcess(0, 0, os.getpid())]
    HeartbeatFile(directory.rank(0)).beat(3, "training")
    assert pass_time(rank_heartbeats, clock, 5) is None
    clock[0] += 5000
    assert pass_time(rank_heartbeats, clock, 4) is None
    assert pass_time(rank_heartbeats, clock, 4) is not None


def test_nobody_hangs_where_that_is_switched_off_or_no_rank_tells(
    tmp_path: Path, clock: list[float]
) -> None:
    for hang_s, beats in ((0, True), (10, False)):
        rank_heartbeats = RankHeartbeats(HeartbeatDir(tmp_path), hang_s)
        rank_heartbeats.ranks = [RankProcess(0, 0, os.getpid())]
        if beats:
            HeartbeatFile(tmp_path / "rank-0").beat(1, "training")
        assert rank_heartbeats.look() is None
        assert pass_time(rank_heartbeats, clock, 200) is None
        assert rank_heartbeats.step == (1 if beats else None)


RANK = """
import sys, time
from pathlib import Path
from fsdpkit.runs.heartbeat import HeartbeatFile
from fsdpkit.runs.stacks import leave_when_asked
leave_when_asked(Path(sys.argv[2]))
HeartbeatFile(Path(sys.argv[1])).beat(3, "training")
def stuck_here():
    print("here", flush=True)
    while True: time.sleep(0.01)
stuck_here()
"""


def test_stacks_are_left_and_the_rank_outside_a_collective_is_blamed(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path / "attempt-0")
    attempt.dir.mkdir()
    directory = HeartbeatDir(tmp_path)
    rank_heartbeats = RankHeartbeats(directory, hang_s=0.1)
    words = [str(directory.rank(0)), str(directory.stacks(0))]
    rank = subprocess.Popen([sys.executable, "-c", RANK, *words], stdout=subprocess.PIPE)
    assert rank.stdout is not None
    try:
        assert rank.stdout.readline() == b"here\n"
        rank_heartbeats.ranks = [RankProcess(0, 6, rank.pid)]
        until(rank_heartbeats.look)
        taken = rank_heartbeats.ask_for_stacks(attempt, 1, "hang")
        assert taken == StacksTaken(launch=1, why="hang", taken={6: "signal"})
        assert "stuck_here" in attempt.rank_file(6, "stacks", 1).read_text()
        assert rank_heartbeats.ask_for_stacks(attempt, 1, "hang") is None, "once is enough"
        assert directory.dump.exists()
        blamed = rank_heartbeats.blame(attempt, 1)
        assert blamed is not None
        assert blamed[0] == 6
        assert "stuck_here" in blamed[1]
        rank.send_signal(signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        assert rank_heartbeats.blame(attempt, 1) == (6, "the process is in state stopped")
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()


@pytest.mark.parametrize(
    ("state", "answers_s", "least_s", "most_s"),
    [
        (psutil.STATUS_SLEEPING, 0, 1, 2),
        (psutil.STATUS_SLEEPING, 5, 6, 7),
        (psutil.STATUS_SLEEPING, 9999, 10, 11),
        (psutil.STATUS_STOPPED, 9999, 0, 1),
    ],
)
def test_a_rank_that_can_answer_has_time_to(
    state: str,
    answers_s: int,
    least_s: int,
    most_s: int,
    tmp_path: Path,
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others are not waited for: their node's report says whom to blame."""
    attempt, directory = AttemptPaths(tmp_path / "attempt-0"), HeartbeatDir(tmp_path)
    attempt.dir.mkdir()
    directory.stacks(0).touch()
    began_s, me, sleep = clock[0], threading.get_ident(), time.sleep

    def pass_by(seconds: float) -> None:
        if threading.get_ident() != me:  # another test's thread, on no clock of this one's
            sleep(seconds)
            return
        clock[0] += seconds
        if clock[0] >= began_s + answers_s:
            directory.stacks(0).write_text(stacks_of("/home/me/data.py"))

    monkeypatch.setattr(stacks_module.time, "sleep", pass_by)
    monkeypatch.setattr(stacks_module, "catches", lambda _: True)
    monkeypatch.setattr(stacks_module, "_by_spy", lambda pids: ["no py-spy"] * len(pids))
    monkeypatch.setattr(stacks_module.os, "kill", lambda *_: None)
    process = SimpleNamespace(status=lambda: state)
    monkeypatch.setattr(stacks_module.psutil, "Process", lambda _: process)
    # The second has no file: its program did not open one.
    ranks = [RankProcess(0, 4, 1234), RankProcess(1, 5, 1235)]
    taken, missing = stacks_module.take(ranks, directory, attempt, 1)
    assert least_s <= clock[0] - began_s < most_s
    assert taken.keys() == ({4} if answers_s < 10 else set())
    assert missing.keys() == {4, 5} - taken.keys()


def stacks_of(*paths: str) -> str:
    """What faulthandler writes of a main thread with these frames, the innermost first."""
    frames = [f'  File "{path}", line 3 in call\n' for path in paths]
    other = (
        'Thread 0x2 (most recent call first):\n  File "/x/torch/distributed/c10d.py", line 1 in f\n'
    )
    return other + "\nCurrent thread 0x1 (most recent call first):\n" + "".join(frames)


def test_a_rank_in_a_collective_is_not_blamed() -> None:
    waiting = (
        "Current thread 0x1 (most recent call first):\n"
        '  File "/x/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
        '  File "/home/me/train.py", line 9 in step\n'
    )
    assert place_of(waiting).kind == "collective"
    assert place_of("").kind == "collective"
    own = waiting.replace("/x/torch/distributed/distributed_c10d.py", "/home/me/data.py")
    assert place_of(own).words == "it is at /home/me/data.py:3 in all_reduce"


def logging_rank(tmp_path: Path, pid: int) -> tuple[RankHeartbeats, HeartbeatFile]:
    """A rank whose script only logs its steps, after the second one."""
    directory = HeartbeatDir(tmp_path)
    rank_heartbeats = RankHeartbeats(directory, hang_s=10)
    rank_heartbeats.ranks = [RankProcess(0, 4, pid)]
    heart = HeartbeatFile(directory.rank(0))
    heart.log_beat(1)
    rank_heartbeats.look()
    return rank_heartbeats, heart


def test_a_script_that_only_logs_hangs_after_the_same_time(
    tmp_path: Path, clock: list[float], idle_process: int
) -> None:
    rank_heartbeats, heart = logging_rank(tmp_path, idle_process)
    heart.log_beat(2)
    assert rank_heartbeats.look() is None
    assert pass_time(rank_heartbeats, clock, 10) is None
    found = pass_time(rank_heartbeats, clock, 1)
    assert found is not None
    assert found.startswith("rank 4 logged no step for 11 s (after step 2)")


def test_what_a_process_and_its_children_read_is_their_work(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(3 << 20))
    program = (
        "import os, sys, time\n"
        f"pid = os.fork()\nopen({str(data)!r}, 'rb').read()\n"
        "end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
        "print(flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline(), process.stdout.readline()
        work = module.machine.work_of(process.pid)
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
    assert 6 << 20 <= work.moved_bytes < 60 << 20
    assert work.cpu_s > 0
    assert module.machine.work_of(process.pid).moved_bytes == 0, "it is gone"


WAITS = RankPlace("", "collective")
BACKWARD = RankPlace("it is at /x/torch/autograd/graph.py:900 in _engine_run_backward", "backward")
READS = RankPlace("it is at /home/me/data.py:3 in read", "own")
ITEM = RankPlace("it is at /home/me/train.py:50 in main", "own")


@pytest.mark.parametrize(
    ("places", "blamed"),
    [
        ([WAITS, WAITS, READS], 2),
        ([BACKWARD, READS], 1),
        ([BACKWARD, READS, WAITS, BACKWARD], 1),
        ([WAITS, BACKWARD, WAITS], 1),
        ([BACKWARD, BACKWARD], None),
        ([WAITS, WAITS], None),
        ([READS], 0),
        ([BACKWARD], 0),
        ([READS, READS], None),
        ([READS, ITEM], None),
        ([ITEM, ITEM, READS, ITEM], 2),
        ([ITEM, READS, READS, ITEM], None),
        ([WAITS, READS, ITEM], 1),
        ([], None),
    ],
)
def test_who_stands_out_is_whom_the_others_wait_for(
    places: list[RankPlace], blamed: int | None
) -> None:
    found = standing_out(dict(enumerate(places)))
    assert (found and found[0]) == blamed
    assert found is None or found[1] == places[found[0]].words
