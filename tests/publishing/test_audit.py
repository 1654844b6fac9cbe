"""What an administrator reads of many runs: counted, compared and exported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from fsdpkit.publishing.audit import Failed, RunAudit, attempts, audit
from fsdpkit.runs.account import Account, Measured
from fsdpkit.runs.record import now_s
from fsdpkit.runs.shared_record import AttemptEnd, SharedRecord, Used
from fsdpkit.runs.tally import weeks_since
from tests.programs import Fsdpkit

NOW = now_s()
DAY = 86400.0


def record_of(number: int, cause: str = "done", days: float = 1, **about: object) -> SharedRecord:
    """A run of one GPU-hour on one node, that long ago."""
    ended_s = NOW - days * DAY
    account = Account(
        attempt=0,
        began_s=ended_s - 3600,
        ended_s=ended_s,
        nodes=1,
        gpus=1,
        used_s={"training": 3000, "startup": 600},
        gpu="NVIDIA H100",
        measured=Measured(gpu_s=3600, busy_s=1800, energy_j=1e6, nodes=1),
        asked_s=7200,
        queued_s=60.0 * number,
    )
    end = AttemptEnd(
        attempt=0, action="end", cause=cause, at_s=ended_s, account=account, nodes=["node7"]
    )
    if cause == "done":
        end = msgspec.structs.replace(end, nodes=[])
    record = SharedRecord(
        run=f"run-{number}",
        submitted_s=ended_s - 7200,
        nodes=1,
        ranks_per_node=1,
        partition="gpu",
        fsdpkit="0.2",
        used=[Used(kind="template", name="torchrun", version="1.0.0")],
        ends=[end],
    )
    return msgspec.structs.replace(record, **about)


def put(folder: Path, record: SharedRecord) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.geteuid()}-{record.run}.json"
    path.write_bytes(msgspec.json.encode(record))
    return path


@pytest.fixture
def centre(tmp_path: Path) -> Path:
    for number in range(9):
        put(tmp_path / "centre" / "audit", record_of(number, "hang" if number < 3 else "done"))
    put(tmp_path / "centre" / "audit", record_of(20, ends=[], submitted_s=NOW - 60))
    return tmp_path / "centre"


def test_the_table_the_page_and_json_say_the_same(
    centre: Path, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    told = json.loads(fsdpkit("audit", str(centre), "--weeks", "2", "--json").stdout)
    (total,) = told["total"]
    assert (told["runs"], told["without_end"]) == (10, 1)
    assert (total["hours"], total["busy_share"], total["ends"]) == (9, 0.5, {"done": 6, "hang": 3})
    assert (total["queued_median_s"], total["queued_most_s"]) == (240, 480)
    (node,) = told["nodes"]
    assert (node["node"], node["failures"], node["users"]) == ("node7", 3, 1)
    shown = fsdpkit("audit", str(centre), "--weeks", "2").stdout
    page = tmp_path / "page.html"
    fsdpkit("audit", str(centre), "--weeks", "2", "--page", str(page))
    for word in ("hang 3", "node7", "NVIDIA H100", "9.00 GPU"):
        assert word in shown
        assert word in page.read_text()


def test_metrics_are_what_a_node_exporter_reads_whatever_a_record_says(
    centre: Path, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    for number, gpu in enumerate(('a"b\\c\n\x1b[2J', "", None)):
        one = record_of(30 + number)
        (end,) = one.ends
        assert end.account is not None
        account = msgspec.structs.replace(end.account, gpu=gpu, measured=None)
        odd = msgspec.structs.replace(end, account=account)
        put(centre / "audit", msgspec.structs.replace(one, ends=[odd]))
    assert fsdpkit("audit", str(centre), "--openmetrics", "x.txt").returncode != 0
    file = tmp_path / "fsdpkit.prom"
    fsdpkit("audit", str(centre), "--openmetrics", str(file))
    text = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644
    assert r'gpu="a\"b\\c??[2J"' in text
    assert text.endswith("# EOF\n")
    series = [line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"]
    assert len(series) == len({*series})
    # What was not measured is absent: nothing is no value.
    assert [line for line in text.splitlines() if "busy_ratio{" in line] == [
        'fsdpkit_audit_gpu_busy_ratio{partition="gpu",gpu="NVIDIA H100"} 0.5'
    ]


def test_each_attempt_is_a_line_of_plain_values(centre: Path) -> None:
    lines = [*attempts(audit(centre, weeks=2))]
    assert len(lines) == 9
    assert all(isinstance(value, str | int | float) for line in lines for value in line.values())
    one = next(line for line in lines if line["run"] == "run-4")
    assert (one["comment"], one["partition"], one["busy_s"]) == ("fsdpkit:run-4", "gpu", 1800)
    assert "project" not in one


@pytest.mark.parametrize(
    ("before", "now", "grows"), [(2, 20, True), (15, 20, False), (0, 4, False), (0, 5, True)]
)
def test_a_cause_grows_by_the_users_whom_it_meets(before: int, now: int, grows: bool) -> None:
    since_s = weeks_since(4, NOW)
    middle_s = (since_s + NOW) / 2
    found = RunAudit(since_s, NOW, active={(n, late) for n in range(50) for late in (True, False)})
    found.failures = [Failed(n, "hang", middle_s - DAY, ()) for n in range(before)]
    found.failures += [Failed(n, "hang", middle_s + DAY, ()) for n in range(now)]
    found.failures += [Failed(7, "crash", middle_s + DAY, ())] * 9999  # one user's, again and again
    assert [one.cause for one in found.growing] == ["hang"] * grows


def test_records_older_than_the_period_are_not_even_opened(centre: Path) -> None:
    old = put(centre / "audit", record_of(40))
    old.write_text("no record")
    os.utime(old, (NOW - 60 * DAY, NOW - 60 * DAY))
    assert audit(centre, weeks=2).left_out == {}


def test_an_array_counts_by_its_tasks_and_before_they_end_as_one(centre: Path) -> None:
    drop = centre / "audit"
    put(drop, record_of(50, ends=[], tasks="0-2"))
    assert audit(centre, weeks=2).runs == 11
    for task in range(2):
        one = record_of(50, task=task)
        path = drop / f"{os.geteuid()}-run-50.{task}.json"
        path.write_bytes(msgspec.json.encode(one))
    assert audit(centre, weeks=2).runs == 12


def test_hours_count_where_their_attempt_began_and_its_end_where_it_ended(centre: Path) -> None:
    since_s = weeks_since(2, NOW)
    for number, hours in enumerate((-0.5, 0.5, 1.5), 60):  # each has lasted an hour
        days = (NOW - since_s - 3600 * hours) / DAY
        put(centre / "audit", record_of(number, "crash", days))
    found = audit(centre, weeks=2)
    assert [one.run for one in found.spent if one.cause == "crash"] == ["run-62"]
    assert sum(one.cause == "crash" for one in found.failures) == 2


def test_what_slurm_says_of_a_node_stands_beside_its_failures(
    centre: Path, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    sinfo = tmp_path / "bin" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text("#!/bin/sh\necho 'node[5-7]|drained|bad | DIMM'\n")
    sinfo.chmod(0o755)
    env = {"PATH": f"{sinfo.parent}:{os.environ['PATH']}"}
    told = json.loads(fsdpkit("audit", str(centre), "--json", env=env).stdout)
    assert [one["away"] for one in told["nodes"]] == ["drained: bad | DIMM"]
