"""A rank that stays: it makes one call after another, and keeps what functions put in a dict.

This is the function of a run of its own (`fsdpkit.hold`, `keep`), so its secret comes as every
function's arguments do (runs/calls.py). One rank on each node looks into the shared directory; it
tells the others in the node's memory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.launching.calling import answer
from fsdpkit.runs.calls import Call, KeptCalls
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths, RunPaths, make_directory

_FIRST_S, _LONGEST_S, _LONGER = 0.05, 2.0, 1.1
"""Pauses between looks for the next call: it often comes soon."""
_WAITING_S = 5.0


def serve(secret: bytes, most_mb: int, idle_s: float) -> None:
    """Until a call is empty, or none has come for `idle_s`, or before a stop that is requested.
    Raises RuntimeError in any but the first ranks of the run: they keep nothing."""
    if AttemptPaths(Path(os.environ["FSDPKIT_ATTEMPT_DIR"])).number:
        raise RuntimeError("what the ranks kept ended with them: keep() starts new ones")
    rank = int(os.environ["RANK"])
    calls = KeptCalls(RunPaths(Path(os.environ["FSDPKIT_RUN_DIR"])).calls, secret)
    make_directory(calls.dir)
    kept: dict[str, Any] = {}
    for number in itertools.count():
        _wait(calls, number, idle_s, leads=rank == 0)
        if not (content := calls.read(number)):
            return
        read = functools.partial(msgspec.msgpack.decode, content, type=Call)
        try:
            answer(calls.answers(number), rank, read, most_mb, kept)
        except (Exception, SystemExit):  # the caller, who sees all ranks, decides what follows
            traceback.print_exc()


def _wait(calls: KeptCalls, number: int, idle_s: float, leads: bool) -> None:
    """For the call of that number, which is its end if none comes."""
    node = HeartbeatDir.of_this_node()
    assert node is not None
    here = node.call(number)
    if os.environ["LOCAL_RANK"] != "0":
        while not here.exists():
            time.sleep(_FIRST_S)
        return
    stop = RunPaths(calls.dir.parent).task().stop_requested
    pause_s, since_s, is_waiting = _FIRST_S, time.monotonic(), False
    while not calls.is_there(number):
        waited_s = time.monotonic() - since_s
        if leads and waited_s > _WAITING_S and not is_waiting:
            is_waiting = True
            calls.waiting.touch(0o600)  # so that the hold counts as idle
        if leads and (waited_s > idle_s or stop.exists()):
            print("no call has come for too long, or before a stop: the ranks end", flush=True)
            with contextlib.suppress(FileExistsError):  # one has just come
                calls.write(number, b"")
        time.sleep(pause_s)
        pause_s = min(pause_s * _LONGER, _LONGEST_S)
    if is_waiting:
        calls.waiting.unlink(missing_ok=True)
    here.touch(0o600)
