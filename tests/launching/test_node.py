"""Which failure of a run came first, and what the batch shell and people are told of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import STOPPED_EARLY, NodeError
from fsdpkit.launching.node import torchrun_arguments
from fsdpkit.launching.node_failure import first_failure, judged, keep_room, record_failure
from fsdpkit.launching.policy import cause_of
from fsdpkit.launching.rank_files import RunDirectoryLogs
from fsdpkit.runs.failures import FailureRecord
from fsdpkit.runs.history import failures_in
from fsdpkit.runs.layout import AttemptPaths, error_file, raised_beside
from fsdpkit.runs.printed_when import PrintedWhen
from fsdpkit.runs.samples import Sample
from tests.launching.made_reports import record

pytestmark = pytest.mark.torch
NOW_S = time.time()


def failed(local_rank: int, exitcode: int) -> object:
    """torchelastic's own record of a failed rank."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    return ProcessFailure(local_rank, 1234, exitcode, "<N/A>")


def raised(memory: Path, rank: int, age_s: float, message: str = "", **more: Any) -> None:
    """What a rank writes of its end so long ago."""
    chain = [{"type": "ValueError", "message": message or f"rank {rank} broke", **more}]
    line = {"status": 1, "time_ns": int((NOW_S - age_s) * 1e9), "chain": chain}
    raised_beside(error_file(memory, rank, 0)).write_text(json.dumps(line))


def first(
    *failures: tuple[int, object],
    attempt: Path = Path("/nowhere"),
    memory: Path = Path("/nowhere"),
    ranks: Sequence[int] = (),
    when: PrintedWhen | None = None,
) -> FailureRecord:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    error = ChildFailedError("train.py", dict(failures))
    return first_failure(error, AttemptPaths(attempt), 0, memory, ranks, when)


def test_the_older_record_is_the_cause_not_the_lower_rank(tmp_path: Path) -> None:
    raised(tmp_path, 4, age_s=1.0)
    raised(tmp_path, 5, age_s=1.4)
    failure = first((4, failed(0, 1)), (5, failed(1, 1)), memory=tmp_path)
    assert (failure.rank, failure.status) == (5, 1)
    assert failure.words == "ValueError: rank 5 broke"


def test_a_silent_exit_is_dated_one_look_back_so_followers_do_not_overtake_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: int(NOW_S * 1e9))
    raised(tmp_path, 1, age_s=0.05)
    failure = first((0, failed(0, 3)), (1, failed(1, 1)), memory=tmp_path)
    assert (failure.rank, failure.status, failure.words) == (0, 3, "exit status 3")


def test_a_signal_is_named_and_counted_as_a_shell_does() -> None:
    failure = first((2, failed(2, -9)))
    assert failure.status == 137
    assert failure.words == "ended by signal 9 (SIGKILL)"


def test_stopping_early_is_told_apart_from_failing() -> None:
    failure = first((0, failed(0, STOPPED_EARLY)))
    assert failure.status == STOPPED_EARLY
    assert "stopped early as asked" in failure.words


RAISED = """step 3 loss 2.1
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/home/ada/train.py", line 9, in <module>
[rank{0}]:     loss.backward()
[rank{0}]: {1}
"""


def test_a_script_that_records_nothing_is_judged_by_what_ended_it(tmp_path: Path) -> None:
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    (tmp_path / "rank-3.err").write_text(RAISED.format(3, memory))
    found = first((3, failed(3, 1)), attempt=tmp_path)
    assert (found.words, cause_of(found)) == (memory, "out-of-memory")
    hint = "if you see CUDA out of memory, take a smaller batch\n"
    (tmp_path / "rank-3.err").write_text(hint + RAISED.format(3, "KeyError: 'oxide Xid 79'"))
    found = first((3, failed(3, 1)), attempt=tmp_path)
    assert (found.words, cause_of(found)) == (
        "KeyError: 'oxide Xid 79'",
        "crash",
    )


def test_a_rank_s_own_record_in_memory_tells_what_ended_it_and_when(tmp_path: Path) -> None:
    """The run's directory is full: neither a traceback nor a copy of the record is there."""
    for local, message in enumerate(("[Errno 28] voll", "broken")):
        raised(tmp_path, 4 + local, 9 - local, message, type="OSError", errno=28 - 20 * local)
    found = first((4, failed(0, 1)), (5, failed(1, 1)), memory=tmp_path)
    assert (found.rank, found.time_ns) == (4, int((NOW_S - 9) * 1e9))
    assert "voll" in found.message


def test_what_ranks_tell_of_exceptions_is_kept_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, memory = AttemptPaths(tmp_path / "attempt-0"), tmp_path / "memory"
    memory.mkdir()
    attempt.dir.mkdir()
    logs = RunDirectoryLogs(attempt, 1, memory, lambda _: {})
    environ = {"RANK": "6"}
    logs.reify({0: environ})
    raised_beside(Path(environ["TORCHELASTIC_ERROR_FILE"])).write_text("{}\n")
    logs.keep_raised()
    assert [*attempt.dir.iterdir()] == [attempt.rank_file(6, "raised.json", 1)]

    def full(_: str, kept: Path) -> None:
        kept.write_text("{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    logs.keep_raised()
    assert [*attempt.dir.iterdir()] == []


def test_on_a_full_disk_the_record_goes_where_room_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, write = AttemptPaths(tmp_path), Path.write_text
    attempt.failures.mkdir()

    def write_text(path: Path, *args: Any, **more: Any) -> int:
        if attempt.node_room(3).exists():
            raise OSError(28, "No space left on device")
        return write(path, *args, **more)

    monkeypatch.setattr(Path, "write_text", write_text)
    with keep_room(attempt.node_room(3)):
        assert attempt.node_room(3).stat().st_size > 1 << 14
        record_failure(judged("", "disk-full", 1, "full"), attempt, 3, "n4")
    (file,) = attempt.failures.iterdir()
    assert "disk-full" in file.read_text()


@pytest.mark.parametrize(("steps", "cause"), [(400, "exception"), (0, "disk-full")])
def test_what_a_rank_survived_by_many_steps_did_not_end_it(
    tmp_path: Path, steps: int, cause: str
) -> None:
    (tmp_path / "rank-4.err").write_text("error: No space left on device, keeping the old cache\n")
    printed = {4: (0, 99)}
    samples = [
        Sample(time_s=at_s, launch=0, printed=printed, optimizer_steps=steps * int(at_s > 99))
        for at_s in (1.0, 1900.0)
    ]
    when = PrintedWhen(samples, 0)
    assert first((4, failed(0, 1)), attempt=tmp_path, when=when).cause == cause


def test_a_rank_that_takes_long_to_end_may_have_failed_first(tmp_path: Path) -> None:
    """Not one that raised because it was asked to end, once another was gone."""
    for rank, age_s in ((1, 3.0), (2, -1.0)):
        raised(tmp_path, rank, age_s)
    raised(tmp_path, 0, age_s=1.0)
    assert first((0, failed(0, 1)), memory=tmp_path, ranks=[0, 1, 2]).rank == 1


def test_who_only_lost_its_peer_comes_behind_whoever_raised(tmp_path: Path) -> None:
    nccl = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:94, unhandled system "
        "error\n[rank0]: ncclSystemError: System call failed.\n[rank0]: Last error:\n"
        "[rank0]: socketProgress: Connection closed by remote peer node1<41234>"
    )
    (tmp_path / "rank-0.err").write_text(RAISED.format(0, nccl))
    (tmp_path / "rank-1.err").write_text(RAISED.format(1, "ValueError: a bad sample"))
    found = first((0, failed(0, 1)), (1, failed(1, 1)), attempt=tmp_path)
    assert (found.rank, found.words) == (1, "ValueError: a bad sample")


def test_the_first_failure_s_file_sorts_first(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path)
    attempt.failures.mkdir()
    record_failure(record(1, "connection reset", time_ns=2_000, rank=0), attempt, 0, "n1")
    ended = record_failure(record(3, "exit status 3", time_ns=1_000, rank=5), attempt, 1, "n2")
    names = sorted(p.name for p in attempt.failures.iterdir())
    assert names[0].endswith("-node-1-rank-5")
    (first, _) = failures_in(attempt)
    assert first.record is not None
    assert (first.rank, first.status, first.record.name) == (5, 3, "n2")
    assert ended.exit_code == 3


def test_a_script_that_calls_the_agent_otherwise_is_refused() -> None:
    assert torchrun_arguments(["--", "torchrun", "--nnodes=2"]) == ["--nnodes=2"]
    with pytest.raises(NodeError, match="-- torchrun"):
        torchrun_arguments(["python", "train.py"])
