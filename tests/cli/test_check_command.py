"""`fsdpkit check` without a cluster: the local one, stand-ins for Slurm's commands, pure parts."""

from __future__ import annotations

import importlib.util
import sys
from itertools import combinations, islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fsdpkit.cli.check import _failed_before
from fsdpkit.launching.node_failure import record_failure
from fsdpkit.rendering.script import Plan
from fsdpkit.runs import file_system
from fsdpkit.runs.failures import CHECK
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.scheduling import checks, submission
from fsdpkit.scheduling.slurm_answers import SlurmAnswers
from tests.conftest import Command
from tests.json_answers import checked
from tests.launching.made_reports import record
from tests.packaging.installation import ROOT
from tests.programs import Fsdpkit
from tests.publishing.live_answers import Says, answers, node, partition, slurm_says

__all__ = ["slurm_says"]


@pytest.fixture
def plan() -> Plan:
    request = submission.SubmitRequest("check", cluster="generic", account="pas1", partition="gpu")
    return submission.plan(request)[0]


def test_nothing_that_could_not_be_read_is_called_ok(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    """A machine without Slurm, asked about a Slurm cluster that needs an account."""
    env = {"PATH": "/usr/local/no-such-directory", "FSDPKIT_CLUSTER": "osc-ascend"}
    done = fsdpkit("check", "--json", env=env, status=78)
    found = {each["check"]: each["outcome"] for each in checked(done.stdout)["checks"]}
    assert found["site and job"] == found["slurm"] == "failed"
    assert {found[name] for name in ("account", "partition", "script", "environment", "clock")} == {
        "unknown"
    }
    assert found["disk speed"] != "unknown"


def test_what_a_submission_would_say_of_the_request_is_said() -> None:
    request = submission.SubmitRequest("check", cluster="generic")
    first, second = islice(checks.login_checks(request), 2)
    assert (first.check, second.check, second.outcome) == ("site and job", "request", "warning")
    assert "cores" in second.told


def test_a_directory_that_cannot_be_written_fails_and_so_does_the_command() -> None:
    found = checks._check_speed(Path("/proc/self"))
    assert (found.outcome, checks.worst([found])) == ("failed", 78)
    assert "--runs" in str(found.remedy)
    assert checks.worst([checks.CheckResult("clock", "unknown", "")]) == 0


@pytest.mark.parametrize(
    ("state", "nodes", "outcome", "told"),
    [
        ("UP", {"IDLE": 3}, "ok", "gpu is up: 3 IDLE"),
        ("UP", {"MIXED": 1, "IDLE+CLOUD+POWERED_DOWN": 2}, "ok", "1 MIXED, 2 IDLE+CLOUD"),
        ("UP", {"UNKNOWN": 2}, "ok", "2 UNKNOWN"),
        ("UP", {}, "ok", "9 not listed"),
        ("DOWN", {"IDLE": 3}, "failed", "gpu is DOWN"),
        ("UP", {"DOWN*": 8, "IDLE": 1}, "warning", "8 DOWN*, 1 IDLE"),
        ("UP", {"IDLE*": 3, "IDLE+DRAIN": 6}, "warning", "2 nodes asked, 9 of 9"),
    ],
)
def test_a_partition_is_up_when_slurm_says_so_and_enough_nodes_work(
    slurm_says: Says, plan: Plan, state: str, nodes: dict[str, int], outcome: str, told: str
) -> None:
    states = [state for state, count in nodes.items() for _ in range(count)]
    shown = [node(f"n{i}", State=state) for i, state in enumerate(states)]
    listed = f"n[0-{(len(shown) or 9) - 1}]"
    rest = node("x1", Partitions="other")
    slurm_says(answers(partition("gpu", State=state, Nodes=listed), "".join([rest, *shown])))
    found = checks._check_partition(plan, SlurmAnswers())
    assert (found.outcome, told in found.told) == (outcome, True), found


def test_a_partition_that_is_not_there_or_cannot_be_read_is_not_ok(
    slurm_says: Says, plan: Plan
) -> None:
    slurm_says(answers(partition("other"), node("n1")))
    found = checks._check_partition(plan, SlurmAnswers())
    assert (found.outcome, "no partition gpu" in found.told) == ("failed", True)


TAKEN = checks.CheckResult("script", "ok", "to start at once")
REFUSED = checks.CheckResult("script", "failed", "sbatch refused: Invalid account", "List yours: …")
TOO_LONG = checks.CheckResult("script", "failed", "sbatch refused: Requested time limit is invalid")


@pytest.mark.parametrize(
    ("list_", "script", "outcome"),
    [
        ("echo 'pas1||||||||||||||||'", TAKEN, "ok"),
        ("echo 'pas1||||||||||||||||'", TOO_LONG, "ok"),
        ("echo 'pas2||||||||||||||||'", TAKEN, "warning"),  # this cluster does not enforce its list
        ("echo 'pas2||||||||||||||||'", TOO_LONG, "failed"),
        ("echo 'pas1||||||||||||||||'", REFUSED, "failed"),
        ("exit 1", TAKEN, "ok"),  # no accounting: Slurm's word on the script counts
        ("exit 1", TOO_LONG, "unknown"),
        ("true", TOO_LONG, "unknown"),
    ],
)
def test_an_account_is_valid_by_the_list_else_by_slurm_s_word_on_the_script(
    command: Command, plan: Plan, list_: str, script: checks.CheckResult, outcome: str
) -> None:
    command("sacctmgr", list_)
    assert checks._check_account(plan, script, SlurmAnswers()).outcome == outcome


def test_a_check_that_breaks_is_unknown_and_ends_no_other() -> None:
    def breaks() -> checks.Observed:
        raise ZeroDivisionError("nobody foresaw this")

    found = checks._guarded("clock", breaks)
    assert (found.outcome, found.check) == ("unknown", "clock")
    assert "nobody foresaw this" in found.told


@pytest.mark.parametrize(
    ("kind", "shared", "outcome"),
    [
        ("lustre", True, "ok"),
        ("ext4", True, "warning"),
        ("tmpfs", True, "warning"),
        ("somefs", True, "unknown"),
        (None, True, "unknown"),
        ("ext4", False, "ok"),
    ],
)
def test_a_directory_on_a_node_s_own_disk_is_warned_of_where_nodes_must_share_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str | None, shared: bool, outcome: str
) -> None:
    monkeypatch.setattr(file_system, "type_of", lambda path: kind)
    assert checks._check_file_system(tmp_path, shared=shared).outcome == outcome


def test_the_script_s_own_lines_activate_the_environment(plan: Plan) -> None:
    lines = checks.activation_of(submission.script_of(plan))
    assert lines is not None
    assert "set -euo pipefail" in lines
    assert "export PYTHONNOUSERSITE=1" in lines
    assert "command -v torchrun" in lines
    assert "mkdir" not in lines
    assert "scontrol" not in lines
    assert checks.activation_of("#!/bin/bash\nsrun train\n") is None


@pytest.fixture(scope="module")
def check_nodes() -> ModuleType:
    """The ranks' script as a module."""
    spec = importlib.util.spec_from_file_location("check_nodes", ROOT / "jobs" / "check_nodes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 13])
def test_everyone_meets_everyone_once_in_rounds_of_disjoint_pairs(
    check_nodes: Any, count: int
) -> None:
    nodes = [f"n{i}" for i in range(count)]
    rounds = check_nodes.tournament(nodes)
    met = [frozenset(pair) for games in rounds for pair in games]
    assert sorted(map(sorted, met)) == sorted(sorted(pair) for pair in combinations(nodes, 2))
    for games in rounds:
        playing = [name for pair in games for name in pair]
        assert len(playing) == len(set(playing)) == count - count % 2


def test_only_nodes_that_refused_to_start_are_broken_not_those_ended_with_them(
    tmp_path: Path,
) -> None:
    attempt = AttemptPaths(tmp_path)
    attempt.failures.mkdir()
    recorded = [
        record(71, "torch cannot be imported", rule=CHECK, name="n2", time_ns=1),
        record(143, "ended by SIGTERM", name="n1", time_ns=2),
        record(78, "what a trainer says with 78 is its own matter", rank=4, name="n3", time_ns=3),
    ]
    for number, told in enumerate(recorded):
        record_failure(told, attempt, number, told.name)
    run: Any = SimpleNamespace(newest_attempt=lambda: attempt)
    (verdict,) = _failed_before(run)
    assert (verdict.node, verdict.state) == ("n2", "broken")
    assert verdict.reasons == ("torch cannot be imported",)
