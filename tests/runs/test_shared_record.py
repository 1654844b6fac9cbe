"""What a run that is shared tells its centre and its project, from submission to its last end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpkit.publishing.audit import audit
from fsdpkit.runs.account import Account
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord, now_s
from fsdpkit.runs.shared_record import AttemptEnd, Folder, SharedRecord, Used, add_end, share
from fsdpkit.runs.tally import tally
from fsdpkit.scheduling.sharing import tell_ends
from tests.scheduling.records import recorded


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run-1")
    paths.dir.mkdir()
    used = [Used(kind="template", name="small", version="1.0.0")]
    record = SharedRecord(
        run="run-1",
        submitted_s=now_s(),
        nodes=1,
        ranks_per_node=1,
        project="pas1",
        fsdpkit="1",
        used=used,
    )
    folders = [tmp_path / "centre" / "audit", tmp_path / "project"]
    for folder in folders:
        folder.mkdir(parents=True)
    share(paths, record, [Folder(path=str(one), project=one.name == "project") for one in folders])
    return paths


def end(cause: str, attempt: int = 0, action: str = "end") -> AttemptEnd:
    kind = "requeue" if action == "requeue" else "end"
    return AttemptEnd(attempt=attempt, action=kind, cause=cause, at_s=now_s())


def account(attempt: int = 0, seconds: float = 3600.0) -> Account:
    began_s = now_s() - seconds
    used_s = {"training": seconds}
    return Account(  # type: ignore[misc]
        attempt=attempt, began_s=began_s, ended_s=began_s + seconds, nodes=1, gpus=2, used_s=used_s
    )


def records(run: RunPaths, folder: str = "centre/audit") -> list[SharedRecord]:
    files = sorted((run.dir.parent / folder).iterdir())
    return [msgspec.json.decode(file.read_bytes(), type=SharedRecord) for file in files]


def ends(run: RunPaths) -> list[tuple[int, str, str, bool]]:
    (record,) = records(run)
    return [(one.attempt, one.action, one.cause, one.account is not None) for one in record.ends]


def test_a_run_is_counted_once_with_what_each_attempt_used(run: RunPaths) -> None:
    add_end(run, None, end("node-failure", 0, "requeue"), [account(0)])
    add_end(run, None, end("done", 1), [account(0), account(1)])
    found = audit(run.dir.parent / "centre", weeks=2)
    assert (found.runs, found.without_end, len(found.users)) == (1, 0, 1)
    (row,) = tally(found.spent, [])
    assert (row.runs, row.attempts, round(row.hours, 6)) == (1, 2, 4.0)
    assert row.ends == {"node-failure": 1, "done": 1}


def test_what_is_charged_is_said_only_in_the_projects_own_folder(run: RunPaths) -> None:
    add_end(run, None, end("done"))
    assert [one.project for one in records(run)] == [None]
    assert [one.project for one in records(run, "project")] == ["pas1"]


def test_an_end_never_fails_for_what_cannot_be_told(run: RunPaths, tmp_path: Path) -> None:
    for broken in (b"", b"{}", b"[" * 9999):
        run.shared_record.write_bytes(broken)
        add_end(run, None, end("crash"))
    run.shared_record.unlink()
    add_end(run, None, end("crash"))
    assert ends(run) == []


def test_who_no_longer_shares_tells_nothing_more(run: RunPaths) -> None:
    (record,) = records(run)
    share(run, record, [])
    add_end(run, None, end("crash"))
    assert ends(run) == []


def test_a_record_stays_small_however_often_a_job_is_queued_again(run: RunPaths) -> None:
    nodes = [f"node{n}" for n in range(99)]
    for attempt in range(99):
        one = msgspec.structs.replace(end("node-failure", attempt, "requeue"), nodes=nodes)
        add_end(run, None, one, [account(attempt)])
    assert [one[0] for one in ends(run)] == [*range(59, 99)]
    assert audit(run.dir.parent / "centre", weeks=2).left_out == {}


# ---- Ends that nobody was left to write


def record_of(run: RunPaths, ended: dict[str, str] | None) -> RunRecord:
    states = {
        job_id: {"state": state, "source": "sacct", "exit_code": 0, "end_s": now_s()}
        for job_id, state in (ended or {}).items()
    }
    return recorded(
        created_s=now_s() - 60,
        name="run",
        site="local",
        nodes=1,
        ranks_per_node=1,
        array=[0, 1] if ended and "7_0" in ended else None,
        submitted_s=now_s() - 60,
        ended=states or None,
        version="1",
        template="small 1.0.0",
    )


def look(run: RunPaths, ended: dict[str, str]) -> None:
    now = record_of(run, ended)
    tell_ends(run, msgspec.structs.replace(now, ended=None), now)


def attempt_of(run: RunPaths, number: int, task: int | None = None) -> None:
    run.task(task).attempt(number).dir.mkdir(parents=True)


@pytest.mark.parametrize(
    ("said", "state", "known"),
    [
        (None, "TIMEOUT", [(0, "end", "time-limit")]),
        (end("crash"), "FAILED", [(0, "end", "crash")]),
        (end("unknown"), "CANCELLED", [(0, "end", "cancelled")]),
        (
            end("preemption", 0, "requeue"),
            "CANCELLED",
            [(0, "requeue", "preemption"), (1, "end", "cancelled")],
        ),
    ],
)
def test_the_owners_next_look_writes_what_the_job_could_not(
    run: RunPaths, said: AttemptEnd | None, state: str, known: list[tuple[int, str, str]]
) -> None:
    attempt_of(run, 0)
    if said is not None:
        add_end(run, None, said, [account()])
    for _ in range(2):
        look(run, {"7": state})
    assert [one[:3] for one in ends(run)] == known
    assert said is None or ends(run)[0][3], "what the job knew of its use stays"
    assert audit(run.dir.parent / "centre", weeks=2).without_end == 0


def test_a_job_that_was_not_needed_is_no_end_of_the_run(run: RunPaths) -> None:
    attempt_of(run, 0)
    add_end(run, None, end("done"), [account()])
    first = record_of(run, {"7": "COMPLETED"})
    chained = msgspec.structs.replace(first.job, job_id="8", first_attempt=1, ended=None)
    cancelled = {"8": {"state": "CANCELLED", "source": "sacct", "exit_code": 0}}
    before = first.with_job(chained)
    now = first.with_job(msgspec.structs.replace(chained, ended=cancelled))
    tell_ends(run, before, now)
    assert ends(run) == [(0, "end", "done", True)]


def test_attempts_that_slurm_queued_again_by_itself_are_filled_in(run: RunPaths) -> None:
    for number in range(3):
        attempt_of(run, number)
    look(run, {"7": "NODE_FAIL"})
    assert [(n, action, cause) for n, action, cause, _ in ends(run)] == [
        (0, "requeue", "killed"),
        (1, "requeue", "killed"),
        (2, "end", "node-failure"),
    ]


def test_each_task_of_an_array_gets_its_own(run: RunPaths) -> None:
    attempt_of(run, 0, task=0)
    attempt_of(run, 0, task=1)
    look(run, {"7_0": "CANCELLED", "7_1": "OUT_OF_MEMORY"})
    told = {one.task: [e.cause for e in one.ends] for one in records(run)}
    assert told == {None: [], 0: ["cancelled"], 1: ["out-of-memory"]}
