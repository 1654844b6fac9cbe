"""What people type who come from other programs, or paste it: answered, and never queued."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Completed
from tests.reporting.made_run import made_run
from tests.rows import pairs

RUN = "train-20260101-000000-ffff"
CASES = pairs(Path(__file__).with_name("typed.txt"))
FILES = {
    "train.py": "print(1)\n",
    "my train.py": "print(1)\n",
    "lab/train.py": "print(1)\n",
    "home/home.py": "print(1)\n",
    "note.ipynb": '{"cells": []}',
    "conf.yaml": "lr: 1\n",
    "old.sh": "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n",
    "windows.sh": "#!/bin/bash\r\n#SBATCH --nodes=2\r\nsrun python train.py\r\n",
}


@pytest.mark.parametrize(("typed", "expected"), CASES, ids=[typed for typed, _ in CASES])
def test_what_is_typed_is_answered_and_not_queued(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fsdpkit: Callable[..., Completed],
    typed: str,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, newline="")
    made_run(tmp_path / "runs" / RUN, job_id="77")
    status, _, fact = expected.format(run=RUN).partition(" ")
    home = {"HOME": str(tmp_path / "home"), "FSDPKIT_CLUSTER": "local"}
    answer = fsdpkit(*shlex.split(typed.replace("{run}", RUN)), env=home)
    assert answer.returncode == int(status), answer.stderr
    assert fact in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
    assert [one.name for one in (tmp_path / "runs").iterdir()] == [RUN]


def test_a_file_at_standard_input_is_not_taken_for_the_default_job(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\npython train.py\n")
    words = [sys.executable, "-m", "fsdpkit", "submit", "--cluster", "local", "--dry-run"]
    for read, status in ((0, 2), (5, 0)):  # in a loop over a file's lines, the shell has read some
        with (tmp_path / "job.sh").open("rb", buffering=0) as file:
            file.read(read)
            done = subprocess.run(words, stdin=file, capture_output=True, cwd=tmp_path, text=True)
        assert done.returncode == status, done.stderr
        assert ("fsdpkit submit FILE" in done.stderr) is (status == 2)
