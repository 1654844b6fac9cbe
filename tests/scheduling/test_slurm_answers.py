"""What a cluster is asked about itself: each question once, and what follows from the answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.errors import SchedulerError
from fsdpkit.scheduling.slurm_answers import SlurmAnswers, wants_expediting
from fsdpkit.scheduling.submission import SubmitRequest, asked_for
from tests.programs import Fsdpkit
from tests.publishing.live_answers import CONFIG, Says, answers, node, partition, slurm_says

__all__ = ["slurm_says"]
QUESTIONS = ("config", "partition", "node", "qos", "assoc")

ON = {"SlurmctldParameters": "enable_configless,enable_expedited_requeue"}


@pytest.mark.parametrize(
    ("version", "parameters", "expected"),
    [
        ("26.05.5", ON, True),
        ("25.11.0-0rc1", ON, True),
        ("24.11.5", ON, False),
        ("X", ON, False),
        ("26.05.5", {"SlurmctldParameters": "enable_configless"}, False),
        ("26.05.5", {}, False),
    ],
)
def test_a_job_is_expedited_only_where_the_cluster_does_that(
    monkeypatch: pytest.MonkeyPatch, version: str, parameters: dict[str, str], expected: bool
) -> None:
    told = {"SLURM_VERSION": version, **parameters}
    monkeypatch.setattr(SlurmAnswers, "settings", lambda self: told)
    site, _, job = asked_for(SubmitRequest("t5", cluster="generic"))
    assert wants_expediting(job, site.profile) is expected
    stops = SubmitRequest("t5", cluster="generic", sets=["retry.on_node_failure=stop"])
    assert not wants_expediting(asked_for(stops)[2], site.profile)


@pytest.fixture
def asked(slurm_says: Says, tmp_path: Path) -> Callable[..., list[str]]:
    """Puts a Slurm on PATH that takes jobs; what it was asked since."""
    log = tmp_path / "asked"

    def questions(**changes: str) -> list[str]:
        if changes or not log.exists():
            log.touch()
            nodes = "".join(node(f"n{number}") for number in range(3))
            parts = partition("gpu", Default="YES", Nodes="n[0-2]", **changes)
            config = f"{CONFIG}AccountingStorageEnforce = associations,limits\n"
            logs = {question: f"echo {question} >>{log}" for question in QUESTIONS}
            place = slurm_says(answers(parts, nodes, config=config), **logs)
            for name, line in {"sbatch": "echo 7", "squeue": "exit 1", "sacct": "exit 1"}.items():
                (place / name).write_text(f"#!/bin/sh\n{line}\n")
                (place / name).chmod(0o755)
        return log.read_text().split()

    return questions


WORDS = ("train.py", "--cluster", "generic", "--nodes", "2", "--gpus", "4", "--time", "60")


def test_a_submission_asks_each_question_once(
    asked: Callable[..., list[str]], fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    asked()
    done = fsdpkit("submit", *WORDS, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, sorted(asked())) == (0, sorted(QUESTIONS)), done.stderr


def test_what_can_never_start_is_refused_before_it_is_queued_and_what_may_wait_is_not(
    asked: Callable[..., list[str]], fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    asked(MaxTime="00:10:00")
    done = fsdpkit("submit", *WORDS, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, "partition gpu allows a job 00:10:00" in done.stderr) == (69, True)
    assert not [*(tmp_path / "runs").glob("*")]
    asked(State="DOWN")
    done = fsdpkit("submit", *WORDS, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, "gpu is down" in done.stderr) == (0, True)


def test_a_silent_controller_costs_one_patience(slurm_says: Says, tmp_path: Path) -> None:
    silent = dict.fromkeys(QUESTIONS, f"echo asked >>{tmp_path}/asked; exec sleep 60")
    slurm_says({}, **silent)
    answers = SlurmAnswers(None, 0.3)
    for question in (answers.config, answers.partitions, answers.own):
        with pytest.raises(SchedulerError, match="has not answered"):
            question()
    assert answers.settings() == {}
    told = tmp_path / "asked"  # whoever is given up before it has noted the call leaves no file
    assert not told.exists() or told.read_text().split() == ["asked"]
