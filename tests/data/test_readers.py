"""Rows come out of every format as they went in, whatever the pieces; bad ones are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.data import readers
from fsdpkit.data.readers import input_files, pieces, read, whole
from fsdpkit.data.rows import BadRow, FilePiece, Row
from fsdpkit.errors import ConfigError, NotFoundError
from tests.data.conftest import WRITERS, pairs, write_jsonl, write_parquet

FIELDS = ("source", "target")

# Whatever UTF-8 can hold; NUL is no text, and Python 3.10's csv refuses it.
text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30
).filter(lambda t: not t.isspace())
tables = st.lists(st.fixed_dictionaries({"x": text, "source": text, "target": text}), min_size=1)


def everything(parts: list[FilePiece], fields: tuple[str, ...]) -> tuple[list[Row], list[BadRow]]:
    batches = [batch for part in parts for batch in read(part, fields)]
    return [r for b in batches for r in b.rows], [r for b in batches for r in b.bad]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_rows_come_out_as_they_went_in(suffix: str, scratch: Path) -> None:
    @given(table=tables, target_bytes=st.integers(1, 200))
    @settings(max_examples=60)
    def check(table: list[dict[str, Any]], target_bytes: int) -> None:
        path = WRITERS[suffix](scratch / f"rows{suffix}", table)
        expected = [(row["source"], row["target"]) for row in table]
        assert everything([whole(path)], FIELDS) == (expected, [])
        parts = list(pieces(path, target_bytes))
        assert everything(parts, FIELDS) == (expected, [])
        assert sum(part.bytes for part in parts) == path.stat().st_size

    check()


@given(
    paragraphs=st.lists(
        st.text("ab é\r\n", min_size=1, max_size=20).filter(lambda t: bool(t.strip()))
    ),
    ending=st.sampled_from(["\n\n", "\n \t\n", "\r\n\r\n", "\n\n\n\n"]),
    target_bytes=st.integers(1, 100),
)
@settings(max_examples=100)
def test_a_text_is_cut_at_blank_lines_and_nowhere_else(
    paragraphs: list[str], ending: str, target_bytes: int, scratch: Path
) -> None:
    raw = ending.join(paragraphs).encode()
    path = scratch / "rows.txt"
    path.write_bytes(raw)
    lines = [line.rstrip(b"\r") for line in raw.split(b"\n")]
    expected: list[list[bytes]] = [[]]
    for line in lines:
        if line.strip():
            expected[-1].append(line)
        else:
            expected.append([])
    texts = [(b"\n".join(group).decode(),) for group in expected if group]
    assert everything([whole(path)], ("text",)) == (texts, [])
    parts = list(pieces(path, target_bytes)) if raw else []
    assert everything(parts, ("text",)) == (texts, [])


def test_parquet_is_read_by_row_group_and_counts_its_rows_from_the_file(tmp_path: Path) -> None:
    table = pairs(50)
    table[33]["target"] = None
    path = write_parquet(tmp_path / "a.parquet", table, row_group_size=10)
    parts = list(pieces(path, 1))
    assert len(parts) == 5
    found, bad = everything(parts, FIELDS)
    assert len(found) == 49
    assert [str(b) for b in bad] == [
        f"{path}, row 34: field 'target' must be a string, but is null"
    ]
    assert sum(b.bytes for part in parts for b in read(part, FIELDS)) == path.stat().st_size


def test_parquet_text_that_is_not_utf_8_is_a_bad_row(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    raw = pyarrow.array([b"fine", b"caf\xe9"])
    texts = pyarrow.StringArray.from_buffers(2, *raw.buffers()[1:])
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"source": texts}), path)
    found, bad = everything([whole(path)], ("source",))
    assert found == [("fine",)]
    assert str(bad[0]).endswith("row 2: field 'source' is not UTF-8: byte 0xe9")


GOOD = b'{"source": "a", "target": "b"}'
BAD_LINES = [
    (b'{"source": "caf\xe9", "target": "b"}', "not UTF-8: byte 0xe9"),
    (b'{"source": "a"', "not JSON"),
    (b'{"source": "a"}', "no field 'target'; the row has source"),
    (b'{"source": "a", "target": 3}', "field 'target' must be a string, but is int 3"),
    (b'{"source": "a", "target": NaN}', "field 'target' must be a string, but is float nan"),
    (b'{"source": "a", "target": null}', "field 'target' must be a string, but is null"),
    (b'{"source": "", "target": "b"}', "field 'source' is empty"),
    (b'{"source": " \\n ", "target": "b"}', "field 'source' is empty"),
    (b'{"source": "\\ud800", "target": "b"}', "half of a surrogate pair"),
    (b'["a", "b"]', "must be an object"),
    (b'{"source": "a", "deep": ' + b"[" * 100_000, "not JSON"),
    (GOOD + GOOD, "not JSON"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=[reason for _, reason in BAD_LINES])
def test_a_bad_jsonl_row_is_named_by_file_and_line(
    line: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([GOOD, b"", GOOD, line, GOOD]))
    for parts in ([whole(path)], list(pieces(path, 1))):
        found, bad = everything(parts, FIELDS)
        assert found == [("a", "b")] * 3
        assert [b.where for b in bad] == [f"{path}, line 4"]
        assert reason in bad[0].reason


BAD_RECORDS = [
    (b"a", "has 1 fields, the header 2"),
    (b"a,b,c", "has 3 fields, the header 2"),
    (b"a,", "field 'target' is empty"),
    (b"caf\xe9,b", "field 'source' is not UTF-8: byte 0xe9"),
    (b'"a"x,b', "not CSV"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_RECORDS, ids=[r for _, r in BAD_RECORDS])
def test_a_bad_csv_row_is_named_by_the_line_it_begins_on(
    line: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'source,target\n"two\nlines",b\n' + line + b"\na,b\n")
    found, bad = everything([whole(path)], FIELDS)
    assert found == [("two\nlines", "b"), ("a", "b")]
    assert [b.where for b in bad] == [f"{path}, line 4"]
    assert reason in bad[0].reason


def test_a_file_without_the_field_is_refused_as_a_whole(tmp_path: Path) -> None:
    table = [{"text": "a", "target": "b"}]
    for suffix in (".csv", ".parquet"):
        path = WRITERS[suffix](tmp_path / f"a{suffix}", table)
        with pytest.raises(ConfigError, match=rf"a\{suffix}: no column 'source'.*text, target"):
            everything([whole(path)], FIELDS)


def test_a_row_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_ROW_BYTES", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * (5 << 20))
    with pytest.raises(ConfigError, match=r"a\.jsonl: no line break in 1 MiB"):
        everything([whole(path)], FIELDS)


def test_inputs_are_a_path_or_a_sorted_pattern(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        write_jsonl(tmp_path / name, pairs(1))
    assert input_files(str(tmp_path / "*.jsonl")) == [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with pytest.raises(NotFoundError, match=r"c\.jsonl: no such file"):
        input_files(str(tmp_path / "c.jsonl"))
    with pytest.raises(ConfigError, match=r"\.json: the name must end in"):
        input_files(str(write_jsonl(tmp_path / "d.json", pairs(1))))
    (tmp_path / "e.csv").touch()
    with pytest.raises(ConfigError, match=r"e\.csv: is empty"):
        input_files(str(tmp_path / "e.csv"))
