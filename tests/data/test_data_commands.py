"""`fsdpkit data`, as a person runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import answer_of
from tests.data.conftest import pairs, write_jsonl
from tests.programs import Fsdpkit

PLAIN = {"COLUMNS": "80"}


def test_prepare_and_show_on_eighty_columns(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    table = pairs(1234)
    table[7]["target"] = None
    write_jsonl(tmp_path / "a.jsonl", table)
    done = fsdpkit(
        *("data", "prepare", "a.jsonl", "--output", "my data", "--bad-rows", "skip"),
        env=PLAIN,
        status=0,
    )
    first, *rest = done.stdout.splitlines()
    assert re.fullmatch(r"my data: 1,233 rows, [\d,]+ tokens, [\d.]+ kB in 1 shard", first)
    assert rest == [
        "  fsdpkit data show 'my data'",
        "  fsdpkit submit --set 'training.data.source=my data' --set training.data.task=pairs",
    ]
    assert re.search(
        r"1 of 1 shards, [\d.]+ kB of [\d.]+ kB, [\d.,]+ .B/s, 1,233 rows", done.stderr
    )
    assert "bad rows left out: 1" in done.stderr
    assert "a.jsonl, line 8: field 'target' must be a string, but is null" in done.stderr

    shown = fsdpkit("data", "show", "my data", "--row", "3", env=PLAIN, status=0)
    assert [line for line in shown.stdout.splitlines() if len(line) > 80] == []
    for expected in (
        "rows        1,233",
        "bad rows    1 left out",
        "tokenizer   bytes, 259 ids",
        'source: What is "3" + 3,⏎in Größe ☃?',
        "target: 6, and ééé.",
    ):
        assert expected in shown.stdout
    again = fsdpkit(
        *("data", "prepare", "a.jsonl", "--output", "my data", "--bad-rows", "skip", "--json")
    )
    made, held = (
        answer_of(again),
        answer_of(fsdpkit("data", "show", "my data", "--row", "3", "--json")),
    )
    assert made["was_prepared"]
    for told in (made, held):
        assert (told["rows"], told["bad_rows"], told["task"]) == (1233, 1, "pairs")
    assert held["texts"]["target"] == "6, and ééé."
    assert held["lengths"]["source"]["min"] <= held["lengths"]["source"]["p50"]
    assert re.search(r"^FIELD +MIN +5% +50% +95% +99% +MAX$", shown.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["prepare", "none.jsonl", "--output", "out"], 66, "none.jsonl: no such file"),
        (["prepare", "bad.jsonl", "--output", "out"], 65, "bad.jsonl, line 2: not JSON"),
        (["prepare", "a.jsonl"], 2, "'--output'"),
        (["prepare", "a.jsonl", "--output", "."], 2, "holds other files"),
        (["prepare", "a.jsonl", "--output", "out", "--tokenizer", "x.json"], 66, "x.json: no such"),
        (["show", "out"], 66, "out: holds no index.json"),
    ],
)
def test_what_goes_wrong_is_told_with_an_exit_status(
    words: list[str], status: int, told: str, fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(3))
    (tmp_path / "bad.jsonl").write_text('{"source": "a", "target": "b"}\n{"sour\n')
    done = fsdpkit("data", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
