"""Ranks that do nothing: noticed while they do so, and no longer."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsdpkit.launching import machine, stacks, stall_watch
from fsdpkit.launching.heartbeats import RankHeartbeats
from fsdpkit.launching.sampling import PrintedSoFar
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.launching.stall_watch import StallWatch
from fsdpkit.runs.heartbeat import HeartbeatDir, HeartbeatFile
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.stack_requests import Stall, read_stall
from tests.conftest import answer_of
from tests.programs import Fsdpkit, Write, until

INTERVAL_S = 0.1
needs_spy = pytest.mark.skipif(stacks._spy() is None, reason="py-spy is not installed")


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    (tmp_path / "attempt-0").mkdir()
    return AttemptPaths(tmp_path / "attempt-0")


@pytest.fixture
def idle(attempt: AttemptPaths) -> Iterator[RankProcess]:
    files = [attempt.rank_file(0, kind, 0).open("w") for kind in ("out", "err")]
    with files[0] as out, files[1] as err, subprocess.Popen(["sleep", "600"]) as process:
        yield RankProcess(0, 0, process.pid, (out, err))
        process.kill()


def watched(attempt: AttemptPaths, tmp_path: Path, rank: RankProcess) -> StallWatch:
    (tmp_path / "hearts").mkdir()
    rank_heartbeats = RankHeartbeats(HeartbeatDir(tmp_path / "hearts"), hang_s=0)
    rank_heartbeats.ranks = [rank]
    node = SimpleNamespace(number=0, name="node1", attempt=attempt, printed=PrintedSoFar())
    return StallWatch(rank_heartbeats, node, 0, INTERVAL_S)  # type: ignore[arg-type]


def test_it_is_on_record_while_nothing_moves_and_no_longer(
    attempt: AttemptPaths, tmp_path: Path, idle: RankProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_watch, "_LATE", 100)  # the machine may be busy
    monkeypatch.setattr(stacks, "_spy", lambda: None)
    err = idle.output[1]
    words = "[W TCPStore.cpp:340] TCP client failed to connect/validate to host n1:29 - x"
    print(words, file=err, flush=True)
    with watched(attempt, tmp_path, idle).watched():
        until(lambda: read_stall(attempt, 0))
        found = read_stall(attempt, 0)
        assert isinstance(found, Stall)
        assert (found.name, found.addresses, found.ranks[0].by) == ("node1", {0: "n1:29"}, None)
        assert time.time() - 60 < found.since_s < time.time()
        print("a line is a sign of life", file=err, flush=True)
        until(lambda: (now := read_stall(attempt, 0)) is None or now.since_s > found.since_s)
        until(lambda: read_stall(attempt, 0))
    assert read_stall(attempt, 0) is None, "the launch is over"


@pytest.mark.parametrize("sign", ["a line", "a step", "a step of an optimizer"])
def test_a_sign_of_life_now_and_then_is_enough(
    sign: str,
    attempt: AttemptPaths,
    tmp_path: Path,
    idle: RankProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stall_watch, "_PATIENCE", 20)
    looking = watched(attempt, tmp_path, idle)
    heart = HeartbeatFile(tmp_path / "hearts" / "rank-0")
    with looking.watched():
        for step in range(8):
            if sign == "a line":
                print(step, file=idle.output[0], flush=True)
            elif sign == "a step":
                heart.beat(step, "logging")
            else:
                (tmp_path / "hearts" / "steps-0").write_bytes((step + 1).to_bytes(8, "little"))
            time.sleep(5 * INTERVAL_S)
            assert read_stall(attempt, 0) is None


def test_a_rest_ends_when_something_computes_downloads_or_is_in_a_debugger(
    attempt: AttemptPaths, tmp_path: Path, idle: RankProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded = itertools.repeat(0)
    monkeypatch.setattr(machine, "network_bytes", lambda: next(downloaded))
    monkeypatch.setattr(stall_watch, "_LATE", 100)
    monkeypatch.setattr(stacks, "_spy", lambda: None)
    looking = watched(attempt, tmp_path, idle)
    looking.node.printed.follow(0, [idle])

    def rested_s() -> float:
        return float(looking.node.printed.sample().get("rested_s", 0))

    with looking.watched():
        until(lambda: rested_s() > 3 * INTERVAL_S)
        print("a line is no work", file=idle.output[0], flush=True)
        until(lambda: rested_s() > 8 * INTERVAL_S)
        with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as busy:
            until(lambda: rested_s() == 0)
            busy.kill()
        until(lambda: rested_s() > 3 * INTERVAL_S)
        downloaded = itertools.count(0, 10 << 20)
        until(lambda: rested_s() == 0)
        downloaded = itertools.repeat(0)
        until(lambda: rested_s() > 3 * INTERVAL_S)
        os.kill(idle.pid, signal.SIGSTOP)
        until(lambda: rested_s() == 0)


STANDS = """
    import os, time
    import torch.distributed as dist
    def license_server():
        time.sleep(600)
    if os.environ["RANK"] == "1":
        license_server()
    dist.init_process_group("gloo")
"""


@pytest.mark.torch
@needs_spy
def test_a_start_that_waits_for_ever_is_diagnosed_while_it_waits(
    fsdpkit: Fsdpkit, write_script: Write
) -> None:
    script = write_script("train.py", STANDS)
    shape = ("--cluster", "local", "--nodes", "1", "--gpus", "2")
    fsdpkit("submit", str(script), *shape, "--set", "parameters.sample_s=1", status=0)
    (run,) = (script.parent / "runs").iterdir()
    try:
        until(lambda: RunPaths(run).task(None).attempt(0).node_still(0).exists())
        found = answer_of(fsdpkit("diagnose", run.name, "--json"))
    finally:
        fsdpkit("cancel", run.name)
    assert found["cause"] == "hang"
    assert "rank 1 is at train.py:5 in license_server" in found["sentence"]
    assert "rank 0 is at torch/distributed/" in found["sentence"]


def test_a_record_of_a_release_without_addresses_is_read(attempt: AttemptPaths) -> None:
    of_ranks = {"id": "0" * 16, "node": 0, "name": "n0", "launch": 0, "time_s": 1.0, "ranks": []}
    attempt.node_still(0).write_text(json.dumps({**of_ranks, "since_s": 0.5}))
    found = read_stall(attempt, 0)
    assert found is not None
    assert found.addresses == {}
