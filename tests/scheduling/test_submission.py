"""What a submission leaves behind when something goes wrong on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.programs import Fsdpkit, until


def test_a_full_disk_is_named_and_no_half_run_stays(
    full_disk: Path, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    # Our trainer is refused before, for its checkpoints have a known size (test_room.py).
    (tmp_path / "train.py").write_text("")
    where = ("--cluster", "local", "--runs", str(full_disk / "runs"))
    done = fsdpkit("submit", "train.py", *where, status=74)
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((full_disk / "runs").iterdir()) == []


def test_a_refused_submission_leaves_no_run(
    fsdpkit: Fsdpkit, command: Command, tmp_path: Path
) -> None:
    command("sbatch", "echo 'sbatch: error: no' >&2\nexit 1")
    done = fsdpkit("submit", "--cluster", "generic", status=69)
    assert "sbatch refused: sbatch: error: no" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.fixture
def slurm_commands(command: Command, tmp_path: Path) -> dict[str, str]:
    """Variables for an sbatch that takes every job, and a sacct that counts its calls."""
    texts = {
        "sbatch": 'echo "sbatch $2" >> $ASKED.jobs; wc -l < $ASKED.jobs',
        "squeue": "case $* in *%T*) echo squeue >> $ASKED ;; esac",
        "sacct": "echo sacct >> $ASKED; nl -b a -s '|' $ASKED.jobs | while IFS='|' read -r k line; "
        'do echo "$((k))|COMPLETED|0:0|0:0|None|n1|1|2|3|c|$line|"; done',
        "scontrol": "exit 1",
    }
    for name, text in texts.items():
        command(name, text)
    return {"ASKED": str(tmp_path / "asked")}


@pytest.mark.parametrize("hangs", ["sbatch", "squeue"])
def test_who_is_interrupted_while_slurm_is_asked_keeps_the_run(
    hangs: str, fsdpkit: Fsdpkit, slurm_commands: dict[str, str], command: Command, tmp_path: Path
) -> None:
    """Slurm may take the job after all, and finds all that it needs. squeue is asked for it once
    sbatch has lost the answer."""
    hang = "touch $ASKED; exec sleep 300"
    lost = "echo 'error: Socket timed out on send/recv operation' >&2; exit 1"
    command("sbatch", f"cp $2 $ASKED.script; {hang if hangs == 'sbatch' else lost}")
    command("squeue", hang)
    submitting = subprocess.Popen(
        [sys.executable, "-m", "fsdpkit", "submit", "--cluster", "generic"],
        cwd=tmp_path,
        env={**os.environ, **slurm_commands},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Who runs tests in the background of a shell has SIGINT ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until(Path(slurm_commands["ASKED"]).exists, "the call of sbatch")
    os.killpg(submitting.pid, signal.SIGINT)
    _, told = submitting.communicate(timeout=300)
    assert submitting.returncode == 130
    (run,) = (tmp_path / "runs").iterdir()
    assert f"fsdpkit status {run}" in told
    assert (run / "job.json").exists()

    marked = "sed -n 's/^#SBATCH --comment=//p' $ASKED.script"
    command("squeue", f'case "$*" in *%F*) echo "8|$({marked})" ;; esac')
    assert (
        json.loads(fsdpkit("status", str(run), "--json", env=slurm_commands).stdout)["job_id"]
        == "8"
    )


def test_the_end_of_a_run_is_put_on_record_and_not_asked_for_again(
    fsdpkit: Fsdpkit, slurm_commands: dict[str, str], tmp_path: Path
) -> None:
    fsdpkit("submit", "--cluster", "generic", env=slurm_commands)
    fsdpkit("submit", "--cluster", "generic", env=slurm_commands)
    assert fsdpkit("status", env=slurm_commands).stdout.count("COMPLETED") == 2
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["squeue", "sacct"]  # one round for both runs
    assert fsdpkit("status", env=slurm_commands).stdout.count("COMPLETED") == 2
    assert (tmp_path / "asked").read_text().split() == asked


def test_two_submissions_in_one_second_are_two_runs(
    fsdpkit: Fsdpkit, command: Command, tmp_path: Path
) -> None:
    command("sbatch", "echo 7")
    done = [fsdpkit("submit", "--cluster", "generic") for _ in range(3)]
    assert [d.returncode for d in done] == [0, 0, 0]
    assert len({d.stdout.splitlines()[0] for d in done}) == 3
    assert len(list((tmp_path / "runs").iterdir())) == 3


@pytest.mark.parametrize(
    ("rows", "sets", "said"),
    [
        ('{"source": "a", "target": "b"}\n{"source": "c"}\n', [], "pairs.jsonl, line 2"),
        ("", [], "pairs.jsonl"),
        ('{"source": "a", "target": "b"}\n', [], "1 row for 8 ranks"),
        (None, [], "pairs.jsonl"),
        (
            '{"source": "a", "target": "b"}\n' * 9,
            ["--set", "training.model.pretrained=/nowhere"],
            "/nowhere/config.json",
        ),
    ],
)
def test_files_that_cannot_be_trained_on_are_named_before_anything_is_queued(
    rows: str | None, sets: list[str], said: str, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    if rows is not None:
        pairs.write_text(rows)
    data = ["--set", f"training.data.source={pairs}", "--set", "training.data.task=pairs"]
    words = ["--nodes", "2", "--gpus", "4", "--cluster", "generic", "--dry-run"]
    done = fsdpkit("submit", *words, *data, *sets)
    assert done.returncode in (65, 66), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
