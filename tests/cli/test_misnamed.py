"""A word that is something else than what a command takes is named as what it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.programs import Fsdpkit
from tests.reporting.made_run import made_run
from tests.rows import pairs

RUN, HOLD = "train-20260101-000000-ffff", "hold-20260102-000000-0000"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made_run(tmp_path / "runs" / RUN, job_id="77")
    made_run(tmp_path / "runs" / HOLD, job_id="78", state=None, holds=True)
    Path("train.py").write_text("print(1)\n")
    Path("old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    Path("mine.toml").write_text('schema = "fsdpkit.site/1"\n')
    return tmp_path


CASES = pairs(Path(__file__).with_name("misnamed.txt"))


@pytest.mark.parametrize(("typed", "said"), CASES, ids=[typed for typed, _ in CASES])
def test_a_refusal_names_what_the_word_is(
    here: Path, fsdpkit: Fsdpkit, typed: str, said: str
) -> None:
    words = typed.format(run=RUN, hold=HOLD)
    refused = fsdpkit(*shlex.split(words))
    assert refused.returncode != 0
    assert said.format(run=RUN, hold=HOLD) in refused.stderr


def test_a_run_is_found_by_the_number_of_its_job(here: Path, fsdpkit: Fsdpkit) -> None:
    assert RUN in fsdpkit("status", "77").stdout
    again = made_run(here / "runs" / "train-20260103-000000-ffff", job_id="77")
    refused = fsdpkit("status", "77", status=66)
    assert RUN in refused.stderr
    assert again.dir.name in refused.stderr


def test_what_cannot_be_looked_at_leaves_the_refusal_as_it_is(here: Path, fsdpkit: Fsdpkit) -> None:
    (here / "runs" / RUN / "run.json").write_text("{")
    (here / "\x1b[31m.toml").write_text("schema")
    assert "no run '77'" in fsdpkit("logs", "77").stderr
    refused = fsdpkit("logs", "\x1b[31m.toml", status=66)
    assert "\x1b" not in refused.stderr
