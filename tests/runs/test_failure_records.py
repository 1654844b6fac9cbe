"""`failures/`: what is written, and what is read of it whatever stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.failures.causes import CAUSES
from fsdpkit.runs.failures import FailureRecord, Level, bounded, in_a_line, read_record
from fsdpkit.runs.history import failures_in
from fsdpkit.runs.layout import AttemptPaths

RECORD = FailureRecord(by="agent", rule="hung", name="n1", rank=3, status=124, cause="hang")


@given(st.text(max_size=300))
def test_any_words_come_back_and_stay_on_one_line(words: str) -> None:
    told = FailureRecord(by="rank", status=1, words=bounded(words), cause="exception")
    line = in_a_line(told)
    assert line.count("\n") == 1
    assert read_record(line) == told


def test_the_batch_script_finds_the_node_behind_the_rule() -> None:
    assert '"rule":"hung","name":"n1"' in in_a_line(RECORD)


def test_a_shells_line_is_a_record() -> None:
    told = read_record("environment-missing 78 n-2.cluster cannot load the module cuda/99\n")
    assert told is not None
    assert (told.by, told.cause, told.status) == ("shell", "environment-missing", 78)
    assert (told.name, told.words) == ("n-2.cluster", "cannot load the module cuda/99")
    assert told.cause in CAUSES


@pytest.mark.parametrize(
    "text",
    [
        in_a_line(RECORD)[:40],
        '{"by":"agent"}',
        '{"by":"agent","status":"one"}',
        "[" * 100_000,
        "{" * 100_000,
        "",
        "\x00\x1b[2J",
    ],
    ids=["cut off", "without a status", "wrong type", "deep", "deeper", "empty", "noise"],
)
def test_what_is_no_record_is_none(text: str) -> None:
    assert read_record(text) is None


def test_fields_and_levels_of_a_newer_release_are_no_obstacle() -> None:
    told = read_record('{"by":"oracle","status":1,"level":9,"cause":"of-tomorrow","new":[1]}')
    assert told is not None
    assert (told.level, told.cause) == (9, "of-tomorrow")


def test_an_older_releases_file_keeps_its_words(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path)
    attempt.failures.mkdir()
    (attempt.failures / f"{7:020}-node-0-rank-3").write_text("1 rank 3 on n1: reset\n")
    (attempt.failures / f"{8:020}-node-1").write_text(in_a_line(RECORD))
    older, newer = failures_in(attempt)
    assert (older.status, older.message) == (1, "rank 3 on n1: reset")
    assert older.record is not None
    assert (older.record.by, older.record.rank, older.record.cause) == ("rank", 3, "")
    assert (newer.record, newer.status) == (RECORD, 124)
    assert RECORD.level == Level.OWN
