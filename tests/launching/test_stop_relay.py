"""A request to stop reaches scripts that know nothing of it; who does not answer ends in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsdpkit.launching.stacks import RankProcess
from fsdpkit.launching.stop_relay import StopRelay
from fsdpkit.runs.events import JsonLines, read_json_lines
from fsdpkit.runs.heartbeat import HeartbeatDir, looked_whether_to_stop
from tests.programs import until

HANDLER = """
import signal, sys
def save(number, frame):
    print("saves at", signal.Signals(number).name, flush=True)
    sys.exit(0)
for name in {names}:
    signal.signal(getattr(signal, name), save)
"""


@contextmanager
def rank(node: HeartbeatDir, script: str) -> Iterator[subprocess.Popen[str]]:
    """A rank as the agent starts it anew, once its script has begun to wait."""
    from fsdpkit.launching.ranks import _SHIELDED

    environ = {**os.environ, "FSDPKIT_HEARTBEAT_DIR": str(node.dir)}
    environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    wait = "print('waits', flush=True)\nimport time\nfor _ in range(600): time.sleep(0.1)\n"
    process = subprocess.Popen(
        [*_SHIELDED, sys.executable, "-c", script + wait],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waits\n"
        yield process
    finally:
        process.kill()
        process.wait()


def warned(node: HeartbeatDir, process: subprocess.Popen[str], *signals: int) -> StopRelay:
    relay = StopRelay(node, JsonLines(node.dir / "told").write, signals)
    relay.started([RankProcess(0, 0, process.pid)])
    relay.pass_on()
    return relay


@pytest.mark.torch
@pytest.mark.parametrize(
    ("names", "told"),
    [(["SIGTERM"], "SIGTERM"), (["SIGUSR1"], "SIGUSR1"), (["SIGTERM", "SIGUSR1"], "SIGUSR1")],
)
def test_a_script_s_own_handler_gets_the_warning(
    tmp_path: Path, names: list[str], told: str
) -> None:
    node = HeartbeatDir(tmp_path)
    with rank(node, HANDLER.format(names=names)) as process:
        relay = warned(node, process)
        assert process.communicate(timeout=300)[0] == f"saves at {told}\n"
        assert (process.returncode, relay.left_by_handler) == (0, True)


@pytest.mark.torch
def test_slurm_s_own_sigterm_is_not_sent_twice(tmp_path: Path) -> None:
    node = HeartbeatDir(tmp_path)
    counts = "import signal\nsignal.signal(15, lambda *_: print('again', flush=True))\n"
    with rank(node, counts) as process:
        warned(node, process, signal.SIGTERM)
        time.sleep(1)
        process.kill()
        assert process.communicate()[0] == ""


@pytest.mark.torch
def test_a_script_without_a_handler_goes_on_and_says_so(tmp_path: Path) -> None:
    """So its end with status 0 is the training's end, whatever it was warned of before."""
    node = HeartbeatDir(tmp_path)
    with rank(node, "") as process:
        relay = warned(node, process)
        until(lambda: not relay.left_by_handler)
        relay.look()
        *_, told = read_json_lines(tmp_path / "told")
        assert (told["looked"], told["handler"]) == (False, False)
        assert process.poll() is None


@pytest.mark.parametrize(
    ("left_s", "looks", "after_s", "over"),
    [
        (120.0, False, 90.0, False),
        (120.0, False, 101.0, True),
        (120.0, True, 119.0, False),  # it has saved, or is saving
        (0.1, False, 0.1, True),
        (0.0, False, 500.0, False),  # nobody knows when Slurm ends the job
    ],
)
def test_ranks_that_do_not_answer_end_in_time_for_the_shell(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_s: float,
    looks: bool,
    after_s: float,
    over: bool,
) -> None:
    node, now = HeartbeatDir(tmp_path), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    relay = StopRelay(node, lambda **_: None)
    if looks:
        looked_whether_to_stop(node)
    relay.pass_on()
    relay.pass_on(left_s)
    monkeypatch.setattr(time, "monotonic", lambda: now + after_s)
    assert bool(relay.overdue()) is over
