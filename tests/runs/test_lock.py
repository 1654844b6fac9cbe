"""One at a time changes a run, whoever died of it or has no room to say that he is at it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdpkit.errors import StorageError
from fsdpkit.runs.layout import write_new
from fsdpkit.runs.lock import ABANDONED_S, BusyError, locked


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "t5-1" / "run.json.lock"


@pytest.fixture(autouse=True)
def directory(lock: Path) -> None:
    lock.parent.mkdir()


def left_behind(lock: Path, age_s: float = 0.0, **holder: object) -> None:
    lock.write_text(json.dumps(holder) if holder else "")
    os.utime(lock, (time.time() - age_s,) * 2)


def is_held(lock: Path) -> bool:
    try:
        with locked(lock, patience_s=0):
            return False
    except BusyError:
        return True


HERE = socket.gethostname()
PIDS = os.readlink("/proc/self/ns/pid")


def test_who_holds_it_since_when_is_said(lock: Path) -> None:
    with locked(lock, 0), pytest.raises(BusyError) as caught, locked(lock, 0):
        pass
    told = rf"process {os.getpid()} on {re.escape(HERE)} of \w+ since \d{{4}}-\d\d-\d\d \d\d:\d\d"
    assert re.search(told, str(caught.value))
    assert not lock.exists()


def test_the_lock_of_a_process_of_this_machine_that_is_gone_is_taken_at_once(lock: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    left_behind(lock, host=HERE, pids=PIDS, pid=process.pid, since_s=time.time())
    assert not is_held(lock)


def test_who_waits_writes_nothing(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look would cost the shared file system a file."""
    left_behind(lock, host=HERE, pids=PIDS, pid=os.getpid(), since_s=time.time())
    monkeypatch.setattr("fsdpkit.runs.lock.write_new", lambda *_: pytest.fail("wrote a file"))
    assert is_held(lock)


def test_of_two_that_take_over_one_alone_does(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is as far as to replace the lock when the first has done so."""
    from fsdpkit.runs import lock as module

    left_behind(lock, ABANDONED_S + 60, host="another-login-node", pid=1)
    judge, times = module._is_dead, iter(range(9))

    def slowly(path: Path, holder: dict[str, object]) -> bool:
        dead = judge(path, holder)
        if next(times) == 0:  # between the first one's look and what it does about it
            with locked(lock, 0):
                pass
            left_behind(lock, host="a-third", pid=1)
        return dead

    monkeypatch.setattr(module, "_is_dead", slowly)
    assert is_held(lock)
    assert json.loads(lock.read_text())["host"] == "a-third"


WRITERS = """
import os, pathlib, random, signal, sys
from fsdpkit.runs.lock import locked
place, seed, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
lock, counter, inside = place / "run.json.lock", place / "counter", place / "inside"
luck, done = random.Random(seed), 0
for _ in range(rounds):
    dies = luck.random() < 0.3
    child = os.fork()
    if not child:
        with locked(lock, 60):
            try:
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                os._exit(9)
            number = int(counter.read_text())
            if dies:
                inside.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            counter.write_text(str(number + 1))
            inside.unlink()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"a child ended with {status}")
    done += status == 0
print(done)
"""


def test_writers_that_die_at_it_let_the_others_in_one_at_a_time(lock: Path) -> None:
    (lock.parent / "counter").write_text("0")
    words = [sys.executable, "-c", WRITERS, str(lock.parent)]
    writers = [
        subprocess.Popen([*words, str(seed), "25"], stdout=subprocess.PIPE, text=True)
        for seed in range(4)
    ]
    done = [int(writer.communicate(timeout=300)[0]) for writer in writers]
    assert int((lock.parent / "counter").read_text()) == sum(done)
    assert 0 < sum(done) < 100


def test_on_a_full_disk_no_lock_stays_behind(full_disk: Path) -> None:
    lock = full_disk / "run.json.lock"
    with pytest.raises(StorageError, match="No space left") as caught, locked(lock, 0):
        pass
    assert caught.value.exit_code == 74
    assert [path.name for path in full_disk.iterdir()] == ["filler"]


def test_a_new_file_is_made_by_one_alone_also_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("with", "without"):
        path = tmp_path / name
        write_new(path, "mine")
        with pytest.raises(FileExistsError):
            write_new(path, "yours")
        assert path.read_text() == "mine"
        monkeypatch.setattr(os, "link", none)
    monkeypatch.setattr(os, "replace", none)
    with pytest.raises(PermissionError):
        write_new(tmp_path / "full", "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t5-1", "with", "without"]
