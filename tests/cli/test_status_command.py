"""`fsdpkit status` as a person and a program see it: a terminal, a pipe, JSON, --watch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.runs import record
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord
from tests.cli.terminal import on_terminal
from tests.conftest import Command, Completed, answer_of

Fsdpkit = Callable[..., Completed]
DONE = {"state": "COMPLETED", "source": "sacct", "exit_code": 0, "exit_signal": 0}
REASON = "ReqNodeNotAvail, Reserved for maintenance"


@pytest.fixture
def runs(command: Command, tmp_path: Path) -> list[Path]:
    """Runs that ended, one that trains, one that waits; the newest first."""
    rows = {"000900": "900|RUNNING|None|n[1-2]|1|2|3", "000901": f"901|PENDING|{REASON}||1|N/A|N/A"}
    text = "".join(
        f"echo '{row}|0|1|/x|fsdpkit:t5-20260101-{number}-aaaa'\n" for number, row in rows.items()
    )
    command("squeue", text)
    command("scontrol", "exit 1")

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
    left = r"  left       about \d+ min; the time limit comes first, in 0 s\n"  # it was in 1970
    assert re.search(left + r"  saved      step 380, \d+ s old\n", told)
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
    heavy = {"torch", "rich", "submitit", "numpy", "jinja2", "subprocess", "psutil"}
    assert not loaded & heavy
    assert "fsdpkit.runs.history" not in loaded
