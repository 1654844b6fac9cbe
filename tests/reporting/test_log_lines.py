"""Bytes become the same lines however they arrive; which files those are; what a terminal sees."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsdpkit.errors import UsageError
from fsdpkit.reporting.logs import lines as log_lines
from fsdpkit.reporting.logs.lines import (
    LineFilter,
    LineReader,
    LogSource,
    in_order,
    last_written,
    lines_of,
    parse_ranks,
    sources_of,
    split_lines,
    written,
)
from fsdpkit.runs.record import JobRecord
from tests.reporting.log_runs import append, make_run

# Lines, carriage returns, halves of characters: what logs are made of.
LOGS = st.lists(
    st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"step 1", b"\xff", "é".encode(), b"\x1b[1m"]),
    max_size=40,
).map(b"".join)
quick = settings(max_examples=300, suppress_health_check=[*HealthCheck])


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit within reach of an example."""
    monkeypatch.setattr(log_lines, "_LONG", 4)
    monkeypatch.setattr(log_lines, "LINE_BYTES", 9)
    monkeypatch.setattr(log_lines, "_CHUNK", 3)


def all_lines(chunks: list[bytes]) -> list[bytes]:
    found, rest = [], b""
    for chunk in chunks:
        lines, rest = split_lines(rest + chunk)
        found += lines
    return [*found, rest]


@quick
@given(data=LOGS, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_lines_are_the_same_however_the_bytes_arrive(
    short_limits: None, data: bytes, cuts: list[int]
) -> None:
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(bounds)]
    assert all_lines(chunks) == all_lines([data])
    assert all_lines([data[at : at + 1] for at in range(len(data))]) == all_lines([data])


@quick
@given(LOGS)
def test_lines_short_enough_are_those_between_ends_of_line(data: bytes) -> None:
    *whole, rest = re.split(rb"\r?\n", data)
    lines, left = split_lines(data)
    assert lines == whole
    assert left == rest


def test_no_line_grows_without_bound_and_progress_bars_are_seen(short_limits: None) -> None:
    assert split_lines(b"123456789abc") == ([b"123456789"], b"abc")
    assert split_lines(b"10%\r20%\r30%\r40%") == ([b"10%\r20%"], b"30%\r40%")


@quick
@given(data=LOGS, count=st.integers(0, 6))
def test_the_tail_is_the_last_lines_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, count: int
) -> None:
    monkeypatch.setattr(log_lines, "_CHUNK", 3)
    path = tmp_path / "log"
    path.write_bytes(data)
    source = LogSource(0, 0, 0, "out", path)
    everything = [line for _, lines in lines_of(source) for line in lines]
    tail = [line for _, lines in lines_of(source, count) for line in lines]
    assert tail == (everything[-count:] if count else [])


@quick
@given(data=LOGS, most=st.integers(1, 20))
def test_what_is_read_of_a_large_file_are_whole_lines_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, most: int
) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    source = LogSource(0, 0, 0, "out", path)
    everything = [line for _, lines in lines_of(source, "all") for line in lines]
    monkeypatch.setattr(log_lines, "TAIL_BYTES", most)
    end = [line for _, lines in lines_of(source) for line in lines]
    start = log_lines.start_of(path, None)
    assert start == 0 if len(data) <= most else len(data) - start <= most
    if (b"\n" + data)[start : start + 1] == b"\n":
        assert end == (everything[-len(end) :] if end else [])
    else:
        assert b"\n" not in data[start - 1 :], "it begins within a line"


def test_a_reader_gives_a_line_when_it_is_whole_and_the_rest_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = LineReader(path)
    assert reader.read() == []  # there is no file yet
    append(path, "step 1\nste")
    assert reader.read() == ["step 1"]
    append(path, "p 2\nlast words")
    assert reader.read() == ["step 2"]
    assert reader.rest() == ["last words"]
    assert reader.rest() == []


def test_a_file_that_became_shorter_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "a long first line\ntorn")
    reader = LineReader(path)
    assert reader.read() == ["a long first line"]
    path.write_text("new\n")
    assert reader.read() == ["new"]


# Which files


def names(run_dir: Path, sources: list[LogSource]) -> list[str]:
    return [str(source.path.relative_to(run_dir)) for source in sources]


def test_ranks_attempts_launches_and_streams_are_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in ("attempt-0/rank-0.out", "attempt-0/rank-10.out", "attempt-0/rank-2.err"):
        append(run.dir / name, "")
    for name in ("rank-0.restart-1.err", "rank-0.restart-1.out", "rank-0.out", "rank-0.stacks"):
        append(run.dir / "attempt-2" / name, "")

    def chosen(**fields: object) -> list[str]:
        choice = LineFilter(**fields)  # type: ignore[arg-type]
        return names(run.dir, sources_of(run.paths, run.record, choice))

    second = ["rank-0.out", "rank-0.restart-1.out", "rank-0.restart-1.err"]
    assert chosen() == ["attempt-0/rank-0.out", *(f"attempt-2/{name}" for name in second)]
    assert chosen(first_attempt=1) == [f"attempt-2/{name}" for name in second]
    assert chosen(first_attempt=1, launch=1) == [f"attempt-2/{name}" for name in second[1:]]
    assert chosen(last_attempt=1, ranks=None) == [
        "attempt-0/rank-0.out",
        "attempt-0/rank-2.err",
        "attempt-0/rank-10.out",
    ]
    assert chosen(ranks=frozenset({2, 10}), streams=frozenset({"err"})) == ["attempt-0/rank-2.err"]


def test_a_batch_log_is_that_of_the_job_whose_attempts_are_wanted(tmp_path: Path) -> None:
    first = JobRecord(job_id="7", nodes=2, ranks_per_node=2)
    run = make_run(tmp_path / "run", first_attempt=3, earlier=[first])
    for name in ("slurm-7.log", "slurm-12.log", "slurm-99.log"):
        append(run.dir / name, "")

    def chosen(first: int, last: int | None) -> list[str]:
        choice = LineFilter(frozenset(), first, last, batch=True)
        return names(run.dir, sources_of(run.paths, run.record, choice))

    assert chosen(0, None) == ["slurm-7.log", "slurm-12.log"]
    assert chosen(2, 2) == ["slurm-7.log"]
    assert chosen(3, None) == ["slurm-12.log"]


def test_an_array_task_has_its_own_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", array=[3, 4])
    for name in ("slurm-12_3.log", "slurm-12_4.log", "task-4/attempt-0/rank-0.out"):
        append(run.dir / name, "")
    sources = sources_of(run.paths, run.record, LineFilter(batch=True, array_task=4))
    assert names(run.dir, sources) == ["slurm-12_4.log", "task-4/attempt-0/rank-0.out"]


def test_ranks_are_written_as_numbers_and_spans() -> None:
    assert parse_ranks("5") == {5}
    assert parse_ranks("0-3, 7") == {0, 1, 2, 3, 7}
    for wrong in ("", "3-1", "a", "1;2", "-1", "٣"):
        with pytest.raises(UsageError, match="write ranks as in"):
            parse_ranks(wrong)


def test_lines_come_file_by_file_with_whole_characters_however_little_a_read_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_CHUNK", 1)
    sources = [LogSource(0, 0, rank, "out", tmp_path / f"{rank}") for rank in (0, 1)]
    for source in sources:
        append(source.path, "3 é\n".encode() + b"\xff\nlast")
    found = [(source.rank, line) for source, lines in in_order(sources) for line in lines]
    assert found == [(rank, line) for rank in (0, 1) for line in ("3 é", "\ufffd", "last")]


# Carriage returns


@pytest.mark.parametrize(
    ("line", "all_written"),
    [("words", ["words"]), ("10%\r50%\r100%", ["10%", "50%", "100%"]), ("100%\r", ["100%"])],
)
def test_what_carriage_returns_wrote_over_is_left_out_or_read_line_by_line(
    line: str, all_written: list[str]
) -> None:
    assert written(line) == all_written
    assert last_written(line) == all_written[-1:]
