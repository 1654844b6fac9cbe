"""Which partition ends a job first, by Slurm's own estimate, and what a centre says of an
account."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.cli.plan_question import PlanQuestion
from fsdpkit.config.trust import Consent
from fsdpkit.errors import ConfigError, SchedulerError, UsageError
from fsdpkit.runs.predicted import Span
from fsdpkit.scheduling import charging
from fsdpkit.scheduling.charging import balance_of, rates_of
from fsdpkit.scheduling.soonest import lines, soonest, starts
from fsdpkit.scheduling.submission import SubmitRequest, plan
from fsdpkit.scheduling.wanted import Wanted
from tests.conftest import Command
from tests.programs import Fsdpkit
from tests.publishing.live_answers import CONFIG, Says, answers, node, partition, slurm_says

__all__ = ["slurm_says"]
PROFILE = """
schema = "fsdpkit.site/1"
title = "Ours"
[node_types.node]
gpus = 4
[partitions.small]
node_type = "node"
[partitions.large]
node_type = "node"
[partitions.paid]
node_type = "node"
automatic = false
[partitions.shut]
node_type = "node"
[partitions.down]
node_type = "node"
[partitions.hours]
node_type = "node"
max_time = "00:30:00"
[billing]
balance = ["credits", "--of", "{account}"]
"""
SBATCH = """#!/bin/bash
case $(grep -o 'partition=.*' "${@: -1}") in
  *small*) at=2030-01-01T08:00:00 ;;
  *large* | *down*) at=2030-01-01T07:00:00 ;;
  *paid*) at=2030-01-01T01:00:00 ;;
  *) echo "sbatch: error: no such luck" >&2; exit 1 ;;
esac
echo "sbatch: Job 7 to start at $at using 8 processors on nodes n[1-2] in partition gpu" >&2
"""


@pytest.fixture
def request_here(
    tmp_path: Path, slurm_says: Says, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., SubmitRequest]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "ours.toml").write_text(PROFILE)
    names = ("small", "large", "paid", "shut", "hours", "down")
    rates = {"TRESBillingWeights": "CPU=1,GRES/gpu=5"}
    parts = "".join(
        partition(name, Nodes="n[0-2]", State="DOWN" if name == "down" else "UP", **rates)
        for name in names
    )
    nodes = "".join(node(f"n{k}", Partitions=",".join(names)) for k in range(3))
    config = f"{CONFIG}PriorityFlags = MAX_TRES\n"
    place = slurm_says(answers(parts, nodes, config=config))
    (place / "sbatch").write_text(SBATCH)
    (place / "sbatch").chmod(0o755)
    cluster = str(tmp_path / "ours.toml")
    asked = {"job": "train.py", "cluster": cluster, "nodes": 2, "gpus": 4, "time": "02:00:00"}
    return lambda **changed: SubmitRequest(**{**asked, **changed})


def test_the_partition_that_ends_first_is_taken_and_every_answer_is_shown(
    request_here: Callable[..., SubmitRequest],
) -> None:
    found = starts(request_here(), lambda plan: None)
    assert [one.partition for one in found[:3]] == ["paid", "large", "small"]
    assert {one.partition: one.refused for one in found[3:]}.keys() == {"shut", "hours", "down"}
    assert soonest(found).partition == "large"  # the profile chooses `paid` only if it is named
    at = time.mktime(time.strptime("2030-01-01 09:00", "%Y-%m-%d %H:%M"))
    assert soonest(found).end_s == at
    shown = "\n".join(lines(found))
    assert "no such luck" in shown
    assert "02:00:00 asked, the limit is 00:30:00" in " ".join(shown.split())
    assert "is DOWN" in shown


def test_where_a_gpu_is_faster_a_later_start_may_end_sooner(
    request_here: Callable[..., SubmitRequest],
) -> None:
    def lasts(plan: object) -> Span | None:
        name = plan.placement.partition  # type: ignore[attr-defined]
        return Span(60, 600, 900) if name == "small" else Span(3600, 90_000, 10**6)

    found = starts(request_here(partition="small,large"), lasts)
    assert [one.partition for one in found] == ["small", "large"]
    assert [one.runs_s for one in found] == [600, 7200]
    assert soonest(starts(request_here(partition="paid,small"), lasts)).partition == "paid"


def test_where_none_starts_it_or_slurm_is_not_there_it_is_said(
    request_here: Callable[..., SubmitRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no such luck"):
        soonest(starts(request_here(partition="shut"), lambda plan: None))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(SchedulerError, match="scontrol"):
        starts(request_here(), lambda plan: None)


def test_submit_takes_it(request_here: Callable[..., SubmitRequest], fsdpkit: Fsdpkit) -> None:
    request = request_here()
    words = ("--cluster", str(request.cluster), "--nodes", "2", "--gpus", "4", "--time", "120")
    done = fsdpkit(
        "submit",
        "train.py",
        *words,
        "--soonest",
        "--dry-run",
        env={"PATH": os.environ["PATH"]},
        status=0,
    )
    assert "#SBATCH --partition=large" in done.stdout
    assert "paid" in done.stderr


# ---- Charges


def test_slurms_own_weights_count_where_the_profile_has_none(
    request_here: Callable[..., SubmitRequest],
) -> None:
    decided, _ = plan(request_here())
    rates = rates_of(decided.site.profile, decided.placement)
    assert rates is not None
    assert (dict(rates.weights), rates.counting) == ({"cpu": 1.0, "gres/gpu": 5.0}, "max")


def test_a_balance_is_what_the_command_prints_for_the_account(command: Command) -> None:
    command("credits", 'echo "$2 has $((6 * 7))"')
    assert balance_of(["credits", "--of", "{account}"], "lab; rm -rf /") == "lab; rm -rf / has 42"
    assert "cannot be run" in balance_of(["no-such-command"], "lab")


def test_a_stranger_s_profile_runs_no_command(
    request_here: Callable[..., SubmitRequest], command: Command, tmp_path: Path
) -> None:
    command("credits", f'touch {tmp_path / "ran"}; echo "$2 has 42"')
    request = request_here()
    wanted = Wanted(nodes=2, gpus=4, time="30", account="lab")
    question = PlanQuestion("train.py", request.cluster, None, "80", wanted, (), False, Consent())
    assert question.balance(question.place()) == "lab has 42"
    (tmp_path / "ran").unlink()
    Path(str(request.cluster)).chmod(0o666)
    with pytest.raises(ConfigError, match="not trusted"):
        question.balance(question.place())
    assert not (tmp_path / "ran").exists()


def test_a_command_that_hangs_or_prints_without_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(charging, "BALANCE_S", 0.5)
    left = tmp_path / "left"
    hangs = ["sh", "-c", f"(sleep 3; touch {left}) & sleep 60"]
    assert "has not answered" in balance_of(hangs, "lab")
    endless = [sys.executable, "-c", "while True: print('x' * 99)"]
    assert len(balance_of(endless, "lab")) <= charging.BALANCE_BYTES
    assert not left.exists()
