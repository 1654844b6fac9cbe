"""`fsdpkit status` as a person and a program see it: a terminal, a pipe, JSON, --watch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.cli.status import _listed, command, duration
from fsdpkit.reporting.status.status_record import Status
from fsdpkit.runs import record
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord
from tests.cli.terminal import on_terminal
from tests.conftest import Completed, answer_of

Fsdpkit = Callable[..., Completed]
DONE = {"state": "COMPLETED", "source": "sacct", "exit_code": 0, "exit_signal": 0}
REASON = "ReqNodeNotAvail, Reserved for maintenance"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs that ended, one that trains, one that waits; the newest first."""
    commands = tmp_path / "commands"
    commands.mkdir()
    text = f"echo '900|RUNNING|None|n[1-2]|1|2|3'\necho '901|PENDING|{REASON}||1|N/A|N/A'\n"
    (commands / "squeue").write_text(f"#!/bin/bash\n{text}")
    (commands / "scontrol").write_text("#!/bin/bash\nexit 1\n")
    for path in commands.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")

    def make(number: int, job_id: str, ended: bool) -> Path:
        run_id = f"t5-20260101-{number:06}-aaaa"
        directory = tmp_path / "runs" / run_id
        directory.mkdir(parents=True)
        made = RunRecord(
            id=run_id,
            state="submitted",
            created_s=time.time(),
            name="t5",
            site="generic",
            kind="slurm",
            job_id=job_id,
            nodes=2,
            ranks_per_node=4,
            ended={job_id: DONE} if ended else None,
            work_dir="/",
            version="0",
            template="",
            digests={},
        )
        record.save(RunPaths(directory), made)
        return directory

    made = [make(number, str(number), True) for number in range(1, 26)]
    trains, waits = make(900, "900", False), make(901, "901", False)
    (trains / "job.json").write_text(json.dumps({"training": {"steps": 1000}}))
    line = {"loss": 2.1678, "step_time_s": 1.0, "tokens_per_s": 2770.4}
    lines = [{"time_s": time.time() - 20 + k, "step": 400 + k, **line} for k in range(20)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (trains / "metrics.jsonl").write_text(text)
    (trains / "checkpoints" / "step-380").mkdir(parents=True)
    return [waits, trains, *reversed(made)]


def test_a_narrow_terminal_shows_names_and_states_whole(runs: list[Path]) -> None:
    told = on_terminal("status", "--runs", str(runs[0].parent))
    lines = told.splitlines()
    assert max(map(len, lines)) <= 80
    assert re.fullmatch(r"RUN +JOB +STATE +STEP +LOSS +TOKENS/S +LEFT", lines[0])
    assert lines[1] == "t5-20260101-000901-aaaa  901  PENDING"
    assert lines[2].startswith("    the nodes are reserved for maintenance")
    assert re.search(r"\nt5-\S+ +900  RUNNING +419/1000  2\.1678  2,770 +\d+ min\n", told)
    assert lines[-1] == "5 older ended runs are not shown: fsdpkit status --all"
    assert "\x1b" not in told
    one = on_terminal("status", runs[0].name, "--runs", str(runs[0].parent)).splitlines()
    assert max(len(line) for line in one if "  directory  " not in line) <= 80
    assert any(line.startswith("  why        ") for line in one)


PRINTS = "\rEpoch 1:  37%|███▋ | 37/100 [00:07<00:12,  5.01it/s, loss=0.0270]\x1b[0m\n"


@pytest.fixture
def prints(runs: list[Path]) -> Path:
    """The run that trains, if its script logged nothing; it prints a bar."""
    (runs[1] / "metrics.jsonl").unlink()
    attempt = RunPaths(runs[1]).task().attempt(0)
    attempt.dir.mkdir()
    attempt.rank_file(0, "err", 0).write_text(PRINTS)
    return runs[1]


def test_a_script_that_logs_nothing_is_shown_in_its_own_words(
    fsdpkit: Fsdpkit, prints: Path
) -> None:
    told = on_terminal("status", "--runs", str(prints.parent))
    assert max(map(len, told.splitlines())) <= 80
    assert re.search(r"RUNNING +37/100\* +0\.0270\* ", told)
    assert "    rank 0 prints: Epoch 1: 37%|███▋ | 37/100 [00:07<00:12" in told
    assert "\n* read from its output\n" in told
    one = fsdpkit("status", prints.name).stdout
    assert "step       epoch 1, step 37 of 100, loss 0.02700, 5.01 it/s (read from its outp" in one
    assert "prints     Epoch 1: 37%" in one
    found = answer_of(fsdpkit("status", prints.name, "--json"))
    assert found["progress"]["step"] is None, "only what was logged"
    assert (found["printed"]["step"], found["printed"]["total"]) == (37, 100)


def test_what_was_logged_comes_before_what_is_read(fsdpkit: Fsdpkit, prints: Path) -> None:
    line = {"time_s": time.time(), "step": 9, "loss": 2.5, "step_time_s": 1.0}
    (prints / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    one = fsdpkit("status", prints.name).stdout
    assert "step       9 of 1000, loss 2.5000" in one
    assert "prints     Epoch 1: 37%" in one
    assert "read from its output" not in one + fsdpkit("status").stdout


def test_a_pipe_gets_every_column_and_all_every_run(fsdpkit: Fsdpkit, runs: list[Path]) -> None:
    told = fsdpkit("status").stdout
    assert re.search(r" LEFT +SAVED +STARTED +ELAPSED\n", told)
    assert re.search(r"2,770 +\d+ min +\d+ s ago +1970-01-01 00:00:02 +\d+ d \d+ h\n", told)
    assert told.count("COMPLETED") == 20
    everything = fsdpkit("status", "--all").stdout
    assert everything.count("COMPLETED") == 25
    assert "not shown" not in everything


def test_json_is_all_runs_with_the_documented_keys(fsdpkit: Fsdpkit, runs: list[Path]) -> None:
    told = answer_of(fsdpkit("status", "--json"))["runs"]
    assert [Path(one["dir"]) for one in told] == runs
    assert {tuple(one) for one in told} == {Status.__struct_fields__}
    waits, trains = told[:2]
    assert waits["waiting"]["reason"] == REASON
    assert (trains["progress"]["step"], trains["progress"]["checkpoint_step"]) == (419, 380)
    alone = answer_of(fsdpkit("status", runs[1].name, "--json"))
    assert tuple(alone) == Status.__struct_fields__
    assert alone["progress"] == trains["progress"]


def test_one_run_is_told_in_full(fsdpkit: Fsdpkit, runs: list[Path]) -> None:
    told = fsdpkit("status", runs[1].name).stdout
    for line in (
        "  state      RUNNING\n",
        "  job        900 on generic\n",
        "  nodes      n[1-2]\n",
        "  step       419 of 1000, loss 2.1678, 2,770 tokens/s, 1 s a step\n",
        "  not read   scontrol: exit status 1\n",
    ):
        assert line in told
    assert re.search(r"  left       about \d+ min\n  saved      step 380, \d+ s old\n", told)
    waits = fsdpkit("status", runs[0].name).stdout
    assert f"begins before the job would end ({REASON})\n" in waits
    assert "  to do      Wait until it is over, or ask for less time" in waits


def test_watch_draws_over_itself_until_ctrl_c_which_is_no_error(runs: list[Path]) -> None:
    words = ["status", "--runs", str(runs[0].parent), "--watch", "1"]
    told = on_terminal(*words, rows=12, interrupt=True)
    screens = told.split("\x1b[H")[1:]
    assert len(screens) >= 2
    assert all(screen.count("\n") <= 12 for screen in screens)
    assert "lines more" in screens[0]
    assert "interrupted" not in told
    assert "Traceback" not in told


def test_watch_in_a_pipe_is_one_answer_after_the_other(runs: list[Path]) -> None:
    argv = ["status", runs[1].name, "--runs", str(runs[0].parent), "--json", "--watch", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdpkit", *argv], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    process.stdout.close()
    assert [answer["job_id"] for answer in answers] == ["900", "900"]


@pytest.mark.parametrize(
    ("words", "run", "seconds"),
    [
        (["--watch"], None, 10.0),
        (["--watch", "2"], None, 2.0),
        (["--watch=2.5", "3f2a"], "3f2a", 2.5),
        (["--watch", "3f2a"], "3f2a", 10.0),
        (["3f2a", "--watch", "--json"], "3f2a", 10.0),
        (["3f2a"], "3f2a", None),
    ],
)
def test_the_seconds_of_watch_may_be_left_out(
    words: list[str], run: str | None, seconds: float | None
) -> None:
    context = command.make_context("status", list(words))
    assert (context.params["run"], context.params["watch"]) == (run, seconds)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (5940, "99 min"),
        (6000, "1 h 40 min"),
        (3 * 86400, "3 d 0 h"),
    ],
)
def test_durations_are_short(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("state", "column", "below"),
    [
        ("CANCELLED by a.very.long.name@campus", "CANCELLED", "by a.very.long.name@campus"),
        ("STOPPED: asked to stop; saved at step 15", "STOPPED", "asked to stop; saved at step 15"),
        ("COMPLETED, finished, but a step failed", "COMPLETED", "finished, but a step failed"),
        *((whole, "unknown", whole) for whole in [
            "unknown to squeue, sacct and scontrol",
            "submission not confirmed, and Slurm knows no such job",
        ]),
    ],
)  # fmt: skip
def test_a_long_state_is_a_word_in_its_column_and_a_sentence_below(
    state: str, column: str, below: str
) -> None:
    row, note = _listed([Status(run="run", dir="/run", state=state, states={"1": None})], 0)[1:]
    assert column in row.split()
    assert note.strip() == below


def test_status_without_a_question_imports_nothing_heavy(runs: list[Path]) -> None:
    """Half a second for ten thousand runs leaves no time for it."""
    for running in runs[:2]:
        (running / "run.json").unlink()
    program = (
        "import sys\n"
        "from fsdpkit.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*sys.modules, file=sys.stderr)\n"
    )
    argv = [sys.executable, "-c", program, "status", "--runs", str(runs[0].parent)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert done.stdout.count("COMPLETED") == 20
    heavy = {"torch", "rich", "submitit", "numpy", "jinja2", "subprocess", "psutil", "tomli"}
    assert not loaded & heavy
    assert "fsdpkit.runs.history" not in loaded
