"""`fsdpkit watch`: the frame for any terminal, a real one (a pty), and a pipe."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from fsdpkit.reporting.status.frame import frame
from fsdpkit.reporting.status.progress import TrainingProgress
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.reporting.status.watching import RunEvent, View
from fsdpkit.reporting.usage import NodeUsage
from tests.json_answers import checked
from tests.programs import until
from tests.reporting.watched_run import RUN_ID, WatchedRun

FULL = View(
    run=RUN_ID,
    state="RUNNING",
    job_id="7",
    nodes="node[1-2]",
    attempt=1,
    progress=TrainingProgress(
        step=120,
        steps=500,
        loss=3.2143,
        tokens_per_s=41_200.0,
        step_time_s=0.52,
        mfu=0.412,
        eta_s=192.0,
        checkpoint_step=100,
        checkpoint_s=880.0,
        updated_s=999.0,
    ),
    curves={
        "loss": tuple(10 / (1 + step) for step in range(120)),
        "tokens_per_s": tuple(41_000 + step % 7 for step in range(120)),
    },
    memory_bytes=31.2e9,
    straggler="rank 5 on node2 computes 1.31 times as long as the median rank",
    used=tuple(
        NodeUsage(number=n, name=f"node{n}", time_s=990.0, cpu_percent=5.0 * n, gpu_percent=97.0)
        for n in range(1, 9)
    ),
    events=tuple(RunEvent(time_s=60.0 * n, words=f"happening {n}") for n in range(9)),
    lines=tuple(f"line {n} \t" + "x" * 200 for n in range(50)),
)


def drawn(view: View = FULL, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in frame(view, width, height, 1000.0)]


# ---- The frame


def test_80_by_24_has_a_place_for_everything() -> None:
    lines = drawn()
    text = "\n".join(lines)
    assert lines[0] == f"{RUN_ID}  RUNNING"
    assert lines[1] == "job 7, attempt 1, on node[1-2]"
    assert lines[2].startswith("step 120 of 500, 24%, 3 min 11 s to go ━")
    numbers = "1.92 steps/s, MFU 41.2%, peak memory 31.2 GB, checkpoint of step 100, 2 min ago"
    assert lines[3] == numbers
    assert lines[4].startswith("slow: rank 5 on node2")
    assert re.match(r"loss 0\.08333 \(0\.0833 to 10\.0\) +tokens/s 41,000 \(", lines[5])
    for shown in ("node1  CPU   5 %  GPU  97 %", "happening 8", "rank 0", "line 49"):
        assert shown in text
    assert "and " in text
    assert "CPU 5 to 40 %" in text


@settings(max_examples=60)
@given(st.integers(1, 200), st.integers(1, 70), st.booleans())
def test_no_terminal_is_too_small_and_no_line_too_long(
    width: int, height: int, empty: bool
) -> None:
    view = View(run="日本語の走行" * 9, state="PENDING", why="w" * 300) if empty else FULL
    lines = drawn(view, width, height)
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width


RUNNING = View(
    run=RUN_ID,
    state="RUNNING",
    since_s=700.0,
    limit_s=1600.0,
    job_id="7",
    nodes="node[1-2]",
    attempt=0,
    events=(
        RunEvent(time_s=700.0, words="attempt 0 began"),
        RunEvent(time_s=800.0, words="newest event"),
    ),
    lines=("earlier line", "newest line"),
)
LOGS = TrainingProgress(step=120, steps=500, step_time_s=0.5, eta_s=190.0, updated_s=1000.0)
PRINTS = Printed(step=120, total=500, loss=3.214, rate=2.0, rate_unit="it/s", line="newest line")
KINDS: dict[str, tuple[Any, ...]] = {
    "T5": (FULL, "RUNNING", "0.08333", "41,000", "120 of 500", "3 min 11 s", "happening", "line 4"),
    "logs loss": (
        replace(RUNNING, progress=LOGS, curves={"loss": (5.0, 3.214)}),
        *("RUNNING for 5 min", "loss 3.214", "2.00 steps/s", "120 of 500", "3 min 10 s"),
        *("limit in 10 min", "newest event", "newest line"),
    ),
    "logs its own, limit first": (
        replace(RUNNING, progress=replace(LOGS, eta_s=800.0), curves={"accuracy": (0.5, 0.71)}),
        *("accuracy 0.71", "2.00 steps/s", "limit comes first, in 10 min", "newest line"),
    ),
    "no end known": (
        replace(RUNNING, progress=TrainingProgress(step=120, step_time_s=3.0)),
        *("step 120", "3.00 s a step", "limit in 10 min", "newest event", "newest line"),
    ),
    "prints loss": (
        replace(RUNNING, printed=PRINTS, lines=(), curves={"loss": (5.0, 3.214)}),
        *("loss 3.214", "2.00 it/s", "120 of 500", "3 min 10 s", "newest event", "newest line"),
    ),
    "prints words": (
        replace(RUNNING, task="task 3 of 8", start="ranks started 40 s ago"),
        *("task 3 of 8", "no step yet", "ranks started 40 s ago", "limit in 10 min", "newest line"),
    ),
    "starts": (
        replace(RUNNING, start="1 of 2 nodes passed preflight", lines=()),
        *("RUNNING for 5 min", "1 of 2 nodes passed preflight", "newest event"),
    ),
    "pending": (
        View(
            run=RUN_ID,
            state="PENDING",
            since_s=940.0,
            why="others in the queue have a higher priority for these very nodes",
            starts="expected to start in 12 min",
        ),
        *("PENDING for 60 s", "higher priority", "in 12 min", "not started yet"),
    ),
}


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (100, 30), (200, 50)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_matters_of_a_run_is_there_at_once(kind: str, width: int, height: int) -> None:
    view, *facts = KINDS[kind]
    text = " ".join(drawn(view, width, height))
    assert [fact for fact in facts if fact not in text] == []


def test_noise_is_not_drawn_as_a_collapse() -> None:
    noise = {"tokens_per_s": (2_700.0, 2_950.0) * 20, "loss": (3.30, 3.32) * 20}
    curves = [line for line in drawn(replace(RUNNING, curves=noise)) if "█" in line]
    assert len(curves) > 3
    assert {line.count("█") for line in curves[1:]} == {39 + 39}


def test_an_epoch_is_a_number_and_no_curve() -> None:
    both = {"loss": (3.0, 2.0), "epoch": (0.1, 0.35)}
    lines = drawn(replace(RUNNING, curves=both))
    assert [line for line in lines if line.startswith("loss 2.000 (2.00 to 3.00)")]
    assert "epoch 0.3500" in lines


# ---- The command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedRun:
    made = WatchedRun(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    made.slurm_says("RUNNING")
    made.begins()
    made.trains(*range(1, 41))
    made.says("hello from rank 0")
    return made


IMPATIENT = """
import sys
from fsdpkit.cli.main import main
from fsdpkit.reporting.status.looking import Watcher
Watcher.__init__.__kwdefaults__["ask_s"] = 0.3
main()
"""


class Terminal:
    """`fsdpkit watch` in a pseudo-terminal of 24 lines and 80 columns, which asks Slurm often."""

    def __init__(self, run: WatchedRun, every: str = "0.3", **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(24, 80, tell=False)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.said, self._decode = "", codecs.getincrementaldecoder("utf-8")().decode
        words = ["watch", str(run.paths.dir), "--every", every]
        self.process = subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment},
            start_new_session=True,
        )

    def resize(self, lines: int, columns: int, *, tell: bool = True) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        if tell:  # no controlling terminal, so the kernel tells nobody
            os.kill(self.process.pid, signal.SIGWINCH)

    def read_until(self, text: str) -> str:
        """What came up to and with `text`, since the last call."""
        until(lambda: text in self.said or self._read(0.2), text)
        self.said, found = self.said.split(text, 1)[1], self.said.split(text, 1)[0] + text
        return found

    def read_to_the_end(self) -> str:
        until(lambda: self.process.poll() is not None or self._read(0.2), "the end")
        self._read(0.2)
        return self.said

    def _read(self, timeout_s: float) -> None:
        while select.select([self._master], [], [], timeout_s)[0]:
            self.said += self._decode(os.read(self._master, 65536))
            timeout_s = 0

    def is_as_before(self) -> bool:
        return bool(termios.tcgetattr(self._slave) == self.before)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal(run: WatchedRun) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(**options: str) -> Terminal:
        opened.append(Terminal(run, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


ENTERED, LEFT, CURSOR_BACK = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def test_a_run_is_drawn_to_its_end_and_the_diagnosis_stays_on_the_terminal(
    run: WatchedRun, terminal: Callable[..., Terminal]
) -> None:
    screen = terminal()
    screen.read_until(ENTERED)
    screen.read_until("hello from rank 0")
    run.trains(41)
    screen.read_until("step 41 of 100, 41%")

    run.ends()
    run.slurm_remembers("COMPLETED")
    assert CURSOR_BACK in screen.read_until(LEFT)
    last = screen.read_to_the_end()
    assert screen.process.returncode == 0
    assert f"{RUN_ID}: COMPLETED" in last
    assert "step 41 of 100" in last
    assert "complete" in last.splitlines()[-1]
    assert screen.is_as_before()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_terminal_as_it_was(
    number: int, status: int, terminal: Callable[..., Terminal]
) -> None:
    screen = terminal()
    screen.read_until("hello from rank 0")
    os.kill(screen.process.pid, number)
    left = screen.read_to_the_end()
    assert screen.process.returncode == status
    assert left.index(LEFT) >= 0
    assert CURSOR_BACK in left
    assert "Traceback" not in left
    assert screen.is_as_before()


def test_a_pipe_gets_each_change_once_and_the_end(run: WatchedRun) -> None:
    run.ends()
    run.slurm_remembers("COMPLETED")
    words = [sys.executable, "-m", "fsdpkit", "watch", str(run.paths.dir), "--every", "0.2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "asking" not in done.stdout
    assert done.stdout.count("attempt 0 began") == 1
    assert done.stdout.count("step 40 of 100") == 2  # when it was seen, and in the summary
    assert f"{RUN_ID}: COMPLETED" in done.stdout


def test_a_program_gets_an_object_a_change_and_the_end_last(run: WatchedRun) -> None:
    run.ends(status=3)
    run.slurm_remembers("FAILED", "3:0")
    words = [sys.executable, "-m", "fsdpkit", "watch", str(run.paths.dir), "--every", "0.2"]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=180)
    *told, last = (checked(line) for line in done.stdout.splitlines())
    assert done.returncode == last["exit_status"] == 3
    assert (last["schema"], last["job_id"]) == ("fsdpkit.watch-end/1", "7")
    assert last["state"].startswith("FAILED")
    assert last["why"]
    assert {one["schema"] for one in told} == {"fsdpkit.watch/1"}
    assert [one["step"] for one in told if "step 40 of 100" in one["words"]] == [40]
