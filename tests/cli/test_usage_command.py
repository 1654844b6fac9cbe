"""`fsdpkit usage` of runs whose hours were counted by hand."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.reporting.printable import printable
from fsdpkit.reporting.spent_shown import sentences
from fsdpkit.runs.account import Account, Use
from fsdpkit.runs.tally import Spent, tallies
from tests.cli.terminal import on_terminal
from tests.conftest import Command, Completed, answer_of
from tests.reporting.made_run import breaks, ends, launches, made_run, starts, trains, write_lines

Fsdpkit = Callable[..., Completed]
BEGAN_S = time.time() - 20_000
PRE, SWEEP = "pre-20260921-120000-aaaa", "sweep-20260921-120000-bbbb"
JOB = {"name": "pre", "resources": {"account": "pas1", "time": "1:00:00"}, "training": {"steps": 9}}
HOURS = 2 * 2 / 3600
"""GPU-hours of a second: two nodes with two GPUs each."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run that was queued again after a failure: 100 s, of which 20 s were lost and five steps
    repeated, then 200 s; and an array of two tasks, one of which failed at its start after 30 s."""
    top = tmp_path / "runs"
    pre = made_run(top / PRE, name="pre", job=JOB, submitted_s=BEGAN_S)
    task = pre.paths.task()
    starts(task, 0, BEGAN_S + 50)
    launches(task, 0, BEGAN_S + 70)
    at_s = trains(task, 1, 10, BEGAN_S + 120)
    breaks(task, 0, at_s, 10)
    ends(task, 0, BEGAN_S + 150, "node-failure")
    starts(task, 1, BEGAN_S + 1000)
    launches(task, 1, BEGAN_S + 1010)
    trains(task, 6, 20, BEGAN_S + 1020)
    ends(task, 1, BEGAN_S + 1200)
    for second in (0, 50):
        gpus = [{"observed_s": second, "busy_s": second / 2, "energy_j": 1e4 * second}] * 2
        sums = {"since_s": BEGAN_S + 1010, "observed_s": second, "gpus": gpus}
        line = {"time_s": BEGAN_S + 1010 + second, "sums": sums}
        write_lines(task.attempt(1).node_samples(0), line)
    sweep = made_run(top / SWEEP, array=[0, 1], name="sweep", job_id="8", submitted_s=BEGAN_S)
    for number, (lasts_s, cause) in enumerate([(30, "crash"), (60, "done")]):
        starts(sweep.paths.task(number), 0, BEGAN_S)
        launches(sweep.paths.task(number), 0, BEGAN_S + 20)
        if cause == "done":
            trains(sweep.paths.task(number), 1, 5, BEGAN_S + 30)
        ends(sweep.paths.task(number), 0, BEGAN_S + lasts_s, cause)
    return top


@pytest.fixture
def accounting(command: Command) -> None:
    """Slurm's accounting has the runs, and three starts of two jobs that are none of them."""
    tres = "billing=9,cpu=8,gres/gpu=4,gres/gpu:a100=4,node=1"
    began = int(BEGAN_S)
    rows = [
        f"7|{began}|100|pas1|{tres}|",
        f"8_1|{began}|60|pas1|{tres}|",
        f"20|{began}|3600|pas1|{tres}|",
        f"20|{began + 9}|1800|pas1|gres/gpu:a100=2|a|b",
        f"21|{began}|3600|pas1|{tres}|fsdpkit:gone-20260921-120000-cccc",
        f"22|{began}|3600|pas1|cpu=8,node=1|",
        f"23|{began - 10**9}|3600|pas1|{tres}|",
        "24|Unknown|0|pas1||",
        "sacct says",
    ]
    command("sacct", "".join(f"echo '{row}'\n" for row in rows))


def test_each_hour_counts_once_whoever_knows_of_it(
    fsdpkit: Fsdpkit, runs: Path, accounting: None
) -> None:
    found = answer_of(fsdpkit("usage", "--by", "project,name", "--json"))
    rows = {row["by"]["name"]: row for row in found["rows"]}
    (total,) = found["total"]
    assert rows["pre"]["hours"] == pytest.approx(300 * HOURS)
    assert rows["sweep"]["hours"] == pytest.approx(90 * HOURS)
    assert total["hours"] == pytest.approx(390 * HOURS)
    assert (rows["pre"]["by"]["project"], rows["sweep"]["by"]["project"]) == ("pas1", None)
    assert (total["runs"], total["attempts"], total["users"]) == (3, 4, 1)
    used = {use: hours / HOURS for use, hours in rows["pre"]["used"].items()}
    assert used == pytest.approx(
        {"training": 20, "repeated": 5, "lost": 20, "startup": 90, "pauses": 165}
    )
    wasted = {waste: hours / HOURS for waste, hours in total["wasted"].items()}
    assert wasted == pytest.approx({"after_failures": 25, "failed_at_start": 30})
    assert total["ends"] == {"done": 2, "node-failure": 1, "crash": 1}
    assert total["measured_share"] == pytest.approx(100 / (390 * 4))
    assert (total["busy_share"], total["gpu_kwh"]) == pytest.approx((0.5, 1e6 / 3.6e6))
    assert total["queued_most_s"] == pytest.approx(1000 - 150)
    others = {one["of_fsdpkit"]: (one["gpu_hours"], one["starts"]) for one in found["others"]}
    assert others == {False: (5, 2), True: (4, 1)}
    assert found["unread"] == []
    lines = list(csv.DictReader(fsdpkit("usage", "--csv").stdout.splitlines()))
    assert sum(float(line["hours"]) for line in lines) == pytest.approx(390 * HOURS)
    assert sum(float(line["used_training"]) for line in lines) == pytest.approx(25 * HOURS)


def test_what_began_before_these_weeks_does_not_count(fsdpkit: Fsdpkit, runs: Path) -> None:
    long_ago = BEGAN_S - 90 * 86400
    old = made_run(runs / "old-20260601-120000-cccc", submitted_s=long_ago, name="old")
    starts(old.paths.task(), 0, long_ago)
    ends(old.paths.task(), 0, long_ago + 9)
    for weeks, names in (("4", ["pre", "sweep"]), ("20", ["old", "pre", "sweep"])):
        found = answer_of(fsdpkit("usage", "--weeks", weeks, "--by", "name", "--json"))
        assert [row["by"]["name"] for row in found["rows"]] == names


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_fits_the_terminal_and_says_what_it_leaves_out(
    runs: Path, accounting: None, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSDPKIT_RUNS", str(runs))
    said = on_terminal("usage", "--by", "week,project,name,user,partition", columns=columns)
    _, _, after = said.partition("By week, project, name, user, partition\n")
    table = printable(after).split("\n\n")[0].splitlines()
    assert "HOURS" in table[0]
    assert max(map(len, table)) <= columns
    assert ("no room for QUEUED" in after) == (columns < 120)


def test_a_small_share_is_not_nothing() -> None:
    used: dict[Use, float] = {"training": 9_990.0, "repeated": 10.0}
    account = Account(attempt=0, began_s=0, ended_s=10_000, nodes=1, gpus=1, used_s=used)
    ((total,),) = tallies([Spent(account, "r", 1)], [[]])
    assert "repeated steps <1%" in sentences(total)[1]


def test_without_accounting_other_jobs_are_said_to_be_unknown(
    fsdpkit: Fsdpkit, runs: Path, command: Command
) -> None:
    command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    found = answer_of(fsdpkit("usage", "--json"))
    assert len(found["unread"]) == 1
    assert found["others"] == []
    assert found["total"][0]["runs"] == 3


def test_what_cannot_be_read_or_believed_is_counted_and_said(
    fsdpkit: Fsdpkit, runs: Path, accounting: None
) -> None:
    (runs / "bad-20260921-120000-dddd").mkdir()
    (runs / "bad-20260921-120000-dddd" / "run.json").write_text('{"id": ')
    (runs / "pipe-20260921-120000-dddd").mkdir()
    os.mkfifo(runs / "pipe-20260921-120000-dddd" / "run.json")
    (runs / "no-run").mkdir()
    (runs / "no-run.txt").touch()
    (runs / "moved-20260921-120000-dddd").symlink_to(runs / PRE)
    ahead = made_run(runs / "ahead-20260921-120000-eeee")
    starts(ahead.paths.task(), 0, BEGAN_S + 10 * 86400)
    lie = {"attempt": 0, "began_s": BEGAN_S, "ended_s": BEGAN_S + 9, "nodes": 2, "gpus": 2}
    path = runs / SWEEP / "task-0" / "attempt-0" / "account.json"
    path.write_text(
        json.dumps({**lie, "used_s": {"training": 1e9}})
    )  # made again from what lies beside it
    found = answer_of(fsdpkit("usage", "--json"))
    assert sorted(found["left_out"].values()) == [1, 2]
    assert found["total"][0]["hours"] == pytest.approx(390 * HOURS)
    said = fsdpkit("usage").stderr
    assert all(why in said for why in found["left_out"])


def test_each_figure_is_followed_to_lines_that_are_there(fsdpkit: Fsdpkit, runs: Path) -> None:
    found = answer_of(fsdpkit("usage", "aaaa", "--explain", "--json"))
    (row,) = found["total"]
    attempts = found["followed"]
    assert [one["attempt"] for one in attempts] == [0, 1]
    by_name: dict[str, float] = {}
    for figure in (figure for one in attempts for figure in one["figures"]):
        by_name[figure["name"]] = by_name.get(figure["name"], 0) + figure["value"]
    assert by_name["granted"] == pytest.approx(row["hours"])
    assert by_name["computing"] == pytest.approx(row["used"]["training"])
    assert by_name["energy of GPUs"] == pytest.approx(row["gpu_kwh"])
    lines: list[dict[str, Any]] = [line for one in attempts for line in one["lines"]]
    for line in lines:
        text = (runs / PRE / line["file"]).read_text().splitlines()[line["line"] - 1]
        assert json.loads(text)["time_s"] == pytest.approx(line["time_s"])
    steps = [line["values"]["step"] for line in lines if line["file"] == "metrics.jsonl"]
    assert steps == [1, 10, 6, 20]
    assert [line["values"].get("gpu_s") for line in lines][-2:] == [0, 100]
    printed = fsdpkit("usage", PRE, "--explain").stdout
    assert "metrics.jsonl:25" in printed


def shared(folder: Path, run: str, used_s: dict[str, float], **fields: Any) -> None:
    """A record of an attempt that had a node with four GPUs for 900 s."""
    account: dict[str, Any] = {
        "attempt": 0,
        "began_s": BEGAN_S,
        "ended_s": BEGAN_S + 900,
        "nodes": 1,
        "gpus": 4,
    }
    account["gpu"] = "=1+1"
    end = {"attempt": 0, "action": "end", "cause": "done", "at_s": BEGAN_S + 900}
    record = {
        "schema": "fsdpkit.shared-run/1",
        "run": run,
        "submitted_s": BEGAN_S,
        "nodes": 1,
        "ranks_per_node": 4,
        "fsdpkit": "1.0",
        "used": [],
        "project": "pas1",
        "partition": "gpu",
        "ends": [{**end, "account": {**account, "used_s": used_s}}],
    }
    (folder / f"{os.geteuid()}-{run}.json").write_text(json.dumps({**record, **fields}))


def test_a_group_sees_what_its_runs_share_and_is_told_what_does_not_count(
    fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    shared(folder, "a-20260921-120000-aaaa", {"training": 900.0})
    shared(folder, "hold-20260921-120000-bbbb", {"idle": 900.0}, holds=True)
    shared(folder, "c-20260921-120000-cccc", {"training": 900.0}, on="hold-20260921-120000-bbbb")
    shared(folder, "boasts-20260921-120000-dddd", {"training": 1e9})
    (folder / "0-somebody-20260921-120000-eeee.json").write_text("{}")
    (folder / f"{os.geteuid()}-a-20260921-120000-ffff.json").symlink_to(folder)
    shared(folder, "=cmd-20260921-120000-aaaa", {"training": 900.0})
    words = ["usage", "--group", str(folder), "--by", "project,name"]
    found = answer_of(fsdpkit(*words, "--json"))
    hours = {(row["by"]["project"], row["by"]["name"]): row["hours"] for row in found["rows"]}
    assert hours == {("pas1", "a"): 1, ("pas1", "hold"): 0, ("pas1", "c"): 1}
    assert sum(found["left_out"].values()) == 4
    (row, *_) = csv.DictReader(fsdpkit(*words[:3], "--by", "gpu", "--csv").stdout.splitlines())
    assert row["by_gpu"] == "'=1+1"
    assert fsdpkit("usage", "--group", str(tmp_path / "none")).returncode == 74
