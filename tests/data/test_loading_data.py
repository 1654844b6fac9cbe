"""What `training.data` names becomes token ids, the same in memory and from prepared data."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from fsdpkit.config.training import DataSettings
from fsdpkit.data import python_docs
from fsdpkit.data.loading import load, load_held_out
from fsdpkit.data.prepared import open_tokens
from fsdpkit.data.preparing import prepare
from fsdpkit.data.tokenizers import load_tokenizer
from fsdpkit.data.tokens import Encoded, Tokens
from fsdpkit.errors import ConfigError, NotFoundError
from tests.data.conftest import WRITERS, pairs, write_jsonl


def texts_of(tokens: Tokens, tokenizer: object) -> list[tuple[str, ...]]:
    decode = tokenizer.decode  # type: ignore[attr-defined]
    return [
        tuple(decode(tokens.ids(row, field)) for field in range(tokens.fields))
        for row in range(len(tokens))
    ]


def test_pythons_own_docstrings_are_pairs() -> None:
    tokens, tokenizer, bad = load(DataSettings())
    assert (tokens.fields, bad.count) == (2, 0)
    assert len(tokens) > 1500
    assert texts_of(tokens, tokenizer) == list(python_docs.docstrings())


def test_pythons_own_reference_is_text_for_span_corruption() -> None:
    tokens, tokenizer, _ = load(DataSettings(task="span-corruption"))
    assert tokens.fields == 1
    assert texts_of(tokens, tokenizer) == list(python_docs.topics())
    assert tokens.lengths(0).sum() > 300_000


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_a_file_is_loaded_in_its_order(suffix: str, tmp_path: Path) -> None:
    path = WRITERS[suffix](tmp_path / f"a{suffix}", pairs(30))
    tokens, tokenizer, _ = load(DataSettings(source=str(path), task="pairs"))
    expected = [(row["source"], row["target"]) for row in pairs(30)]
    assert texts_of(tokens, tokenizer) == expected
    assert tokens.ids(3, 1).dtype == np.uint16
    assert tokens.lengths(1).dtype == np.int64
    assert tokens.lengths(1).tolist() == [len(target.encode()) for _, target in expected]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_table_s_own_columns_serve_as_source_and_target(suffix: str, tmp_path: Path) -> None:
    rows = [{"headline": "Boil it", "title": "Eggs", "text": "Boil, then peel."}]
    path = WRITERS[suffix](tmp_path / f"wikihow{suffix}", rows)
    tokens, tokenizer, _ = load(
        DataSettings(source=str(path), task="pairs", source_field="text", target_field="headline")
    )
    assert texts_of(tokens, tokenizer) == [("Boil, then peel.", "Boil it")]


def test_a_plain_text_and_the_source_field_serve_span_corruption(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    tokens, tokenizer, _ = load(
        DataSettings(source=str(tmp_path / "*.txt"), task="span-corruption")
    )
    assert texts_of(tokens, tokenizer) == [("one\ntwo",), ("three",)]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "four"}])
    settings = DataSettings(source=str(path), task="span-corruption", source_field="text")
    assert texts_of(load(settings)[0], tokenizer) == [("four",)]


def test_a_bad_row_ends_it_or_is_counted_and_shown(tmp_path: Path) -> None:
    table = pairs(10)
    table[4]["target"] = None
    path = write_jsonl(tmp_path / "a.jsonl", table)
    settings = DataSettings(source=str(path), task="pairs")
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 5: field 'target'.*null.*bad_rows"):
        load(settings)
    tokens, _, bad = load(DataSettings(source=str(path), task="pairs", bad_rows="skip"))
    assert (len(tokens), bad.count) == (9, 1)
    assert bad.examples == (f"{path}, line 5: field 'target' must be a string, but is null",)


def test_data_without_a_usable_row_is_an_error(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"source": ""}] * 3)
    with pytest.raises(ConfigError, match=r"no usable rows: all 3 are bad, the first is .*line 1"):
        load(DataSettings(source=str(path), task="pairs", bad_rows="skip"))
    (tmp_path / "blank.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match=r"blank\.jsonl: holds no rows"):
        load(DataSettings(source=str(tmp_path / "blank.jsonl"), task="pairs"))
    with pytest.raises(NotFoundError, match=r"none\.jsonl: no such file"):
        load(DataSettings(source=str(tmp_path / "none.jsonl"), task="pairs"))


def test_parquet_without_its_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r'pip install "fsdpkit\[parquet\]"'):
        load(DataSettings(source=str(tmp_path / "a.parquet"), task="pairs"))


def test_ids_of_a_large_vocabulary_are_int32() -> None:
    batch = Encoded(np.array([70_000, 3], np.int32), np.array([[1], [1]]))
    tokens = Tokens.from_batches([batch], 1, 100_000)
    assert (tokens.ids(0, 0).tolist(), tokens.ids(0, 0).dtype) == ([70_000], np.int32)


def test_a_row_or_field_outside_is_an_index_error() -> None:
    tokens, _, _ = load(DataSettings())
    for row, field in ((-1, 0), (len(tokens), 0), (0, 2)):
        with pytest.raises(IndexError):
            tokens.ids(row, field)


def test_fingerprints_differ_when_any_id_or_length_does() -> None:
    def tokens(ids: list[int], lengths: list[list[int]]) -> Tokens:
        return Tokens.from_batches(
            [Encoded(np.array(ids, np.uint16), np.array(lengths))], len(lengths[0]), 300
        )

    all_of_them = [
        tokens([1, 2, 3], [[1], [2]]),
        tokens([1, 2, 4], [[1], [2]]),
        tokens([1, 2, 3], [[2], [1]]),
        tokens([1, 2, 3], [[1, 2]]),
    ]
    assert len({t.fingerprint() for t in all_of_them}) == 4
    assert tokens([1, 2, 3], [[1], [2]]).fingerprint() == all_of_them[0].fingerprint()


def test_prepared_and_loaded_data_are_the_same_rows(tmp_path: Path, tokenizer_json: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", pairs(40))
    for spec in ("bytes", str(tokenizer_json)):
        settings = DataSettings(source=str(path), task="pairs", tokenizer=spec)
        out = tmp_path / f"out-{spec[-5:]}"
        prepare([str(path)], out, settings)
        loaded, _, _ = load(settings)
        tokens, tokenizer, _ = load(DataSettings(source=str(out), task="pairs"))
        assert texts_of(tokens, tokenizer) == texts_of(loaded, tokenizer)
        for field in (0, 1):
            assert (tokens.lengths(field) == loaded.lengths(field)).all()
        assert load(DataSettings(source=str(out), task="pairs", tokenizer=spec))[0].fingerprint()


def test_prepared_tokens_travel_by_name_and_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", pairs(400))
    prepare([str(path)], tmp_path / "out", DataSettings(task="pairs"))
    monkeypatch.chdir(tmp_path)
    tokens = open_tokens(Path("out"))
    pickled = pickle.dumps(tokens)
    assert len(pickled) < 500
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert again.fingerprint() == tokens.fingerprint()
    assert again.ids(7, 1).tolist() == tokens.ids(7, 1).tolist()
    with pytest.raises(ValueError, match="read-only"):
        again.ids(7, 1)[0] = 1


def test_tokens_in_memory_travel_whole() -> None:
    tokens, _, _ = load(DataSettings())
    again = pickle.loads(pickle.dumps(tokens))
    assert (len(again), again.fingerprint()) == (len(tokens), tokens.fingerprint())
    assert again.ids(9, 0).tolist() == tokens.ids(9, 0).tolist()


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_a_limit_takes_the_first_rows_of_a_file(suffix: str, tmp_path: Path) -> None:
    path = WRITERS[suffix](tmp_path / f"a{suffix}", pairs(30))
    tokens, tokenizer, _ = load(DataSettings(source=str(path), task="pairs", limit=7))
    assert texts_of(tokens, tokenizer) == [(r["source"], r["target"]) for r in pairs(7)]
    assert len(load(DataSettings(source=str(path), task="pairs", limit=99))[0]) == 30


def test_a_limit_takes_the_first_rows_of_prepared_data_and_python_s_own(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(30))
    settings = DataSettings(source=str(tmp_path / "out"), task="pairs", limit=7)
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", settings)
    tokens, tokenizer, _ = load(settings)
    expected = [(r["source"], r["target"]) for r in pairs(7)]
    assert texts_of(tokens, tokenizer) == expected
    assert tokens.fingerprint() != open_tokens(tmp_path / "out").fingerprint()
    assert texts_of(pickle.loads(pickle.dumps(tokens)), tokenizer) == expected
    assert len(load(DataSettings(limit=5))[0]) == 5


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6])
def test_the_first_rows_may_end_in_any_shard(rows: int) -> None:
    shards = [np.arange(3, dtype=np.uint16), np.arange(10, 13, dtype=np.uint16)]
    lengths = np.ones((1, 6), np.int64)
    starts = np.array([0, 1, 2, 0, 1, 2])
    first = Tokens(shards, [3, 3], lengths, starts, "x").first(rows)
    assert [int(first.ids(row, 0)[0]) for row in range(len(first))] == [0, 1, 2, 10, 11, 12][:rows]
    with pytest.raises(IndexError):
        first.ids(rows, 0)


def test_a_prefix_comes_before_each_source_text_and_no_target(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(3))
    data = DataSettings(source=str(tmp_path / "a.jsonl"), task="pairs", source_prefix="summarize: ")
    tokens, tokenizer, _ = load(data)
    expected = [("summarize: " + r["source"], r["target"]) for r in pairs(3)]
    assert texts_of(tokens, tokenizer) == expected


def test_prepared_data_has_its_prefix_and_no_other(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(3))
    settings = DataSettings(source=str(tmp_path / "out"), task="pairs", source_prefix="summarize: ")
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", settings)
    tokens, tokenizer, _ = load(settings)
    assert texts_of(tokens, tokenizer)[0][0] == "summarize: " + pairs(1)[0]["source"]
    other = DataSettings(source=str(tmp_path / "out"), task="pairs")
    with pytest.raises(ConfigError, match="prepared with the source prefix 'summarize: ', not ''"):
        load(other)


def test_a_prefix_longer_than_the_row_is_refused_and_the_longest_that_fits_is_not(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(3))

    def prefixed(count: int) -> DataSettings:
        return DataSettings(
            source=str(tmp_path / "a.jsonl"), task="pairs", source_prefix="x" * count,
            source_length=12,
        )  # fmt: skip

    load(prefixed(10))  # and one byte of the text, and its end
    with pytest.raises(ConfigError, match=r"takes 11 tokens.*raise training\.data\.source_length"):
        load(prefixed(11))


def test_held_out_rows_may_have_a_source_of_their_own(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(5))
    WRITERS[".csv"](tmp_path / "b.csv", pairs(9)[5:])
    data = DataSettings(
        source=str(tmp_path / "a.jsonl"), held_out_source=str(tmp_path / "b.csv"), task="pairs",
        source_prefix="p: ", limit=2,
    )  # fmt: skip
    tokens, tokenizer, _ = load(data)
    others, _ = load_held_out(data, tokenizer)
    assert len(tokens) == 2
    expected = [("p: " + r["source"], r["target"]) for r in pairs(9)[5:]]
    assert texts_of(others, tokenizer) == expected, "no limit there"


def test_held_out_rows_are_read_with_the_tokenizer_of_prepared_training_data(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(5))
    made_with = DataSettings(task="pairs", tokenizer=str(tokenizer_json))
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", made_with)
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "bytes", DataSettings(task="pairs"))
    data = DataSettings(
        source=str(tmp_path / "out"), held_out_source=str(tmp_path / "a.jsonl"), task="pairs"
    )
    tokens, tokenizer, _ = load(data)
    others, _ = load_held_out(data, tokenizer)
    assert others.ids(0, 0).tolist() == tokens.ids(0, 0).tolist()
    prepared = DataSettings(
        source=str(tmp_path / "out"), held_out_source=str(tmp_path / "bytes"), task="pairs"
    )
    with pytest.raises(ConfigError, match="bytes: was prepared with the tokenizer bytes"):
        load_held_out(prepared, tokenizer)


@pytest.mark.parametrize("content", ["", "source,target\n"])
def test_held_out_data_without_a_row_is_refused_by_its_name(content: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(5))
    (tmp_path / "none.csv").write_text(content)
    data = DataSettings(
        source=str(tmp_path / "a.jsonl"), held_out_source=str(tmp_path / "none.csv"), task="pairs"
    )
    _, tokenizer, _ = load(data)
    with pytest.raises(ConfigError, match=r"none\.csv: (is empty|holds no rows)"):
        load_held_out(data, tokenizer)


def test_paragraphs_are_never_taken_for_pairs(tmp_path: Path) -> None:
    """Two paragraphs would be a source and a target that nobody wrote."""
    write_jsonl(tmp_path / "a.jsonl", pairs(3))
    (tmp_path / "b.txt").write_text("hello\n\nworld")
    mixed = DataSettings(source=str(tmp_path / "*"), task="pairs")
    beside = DataSettings(
        source=str(tmp_path / "a.jsonl"), task="pairs", held_out_source=str(tmp_path / "b.txt")
    )
    with pytest.raises(ConfigError, match="plain text has no pairs"):
        load(mixed)
    with pytest.raises(ConfigError, match="plain text has no pairs"):
        load_held_out(beside, load_tokenizer("bytes"))
