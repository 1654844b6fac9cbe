"""What `training.data` names becomes token ids, the same in memory and from prepared data."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from fsdpkit.config.training import DataSettings
from fsdpkit.data import python_docs
from fsdpkit.data.loading import load, load_held_out
from fsdpkit.data.prepared import open_tokens
from fsdpkit.data.preparing import prepare
from fsdpkit.data.tokens import Encoded, Tokens
from fsdpkit.errors import ConfigError
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


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_a_limit_takes_the_first_rows_of_a_file(suffix: str, tmp_path: Path) -> None:
    path = WRITERS[suffix](tmp_path / f"a{suffix}", pairs(30))
    tokens, tokenizer, _ = load(DataSettings(source=str(path), task="pairs", limit=7))
    assert texts_of(tokens, tokenizer) == [(r["source"], r["target"]) for r in pairs(7)]
    assert len(load(DataSettings(source=str(path), task="pairs", limit=99))[0]) == 30


def test_a_prefix_comes_before_each_source_text_and_no_target(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", pairs(3))
    data = DataSettings(source=str(tmp_path / "a.jsonl"), task="pairs", source_prefix="summarize: ")
    tokens, tokenizer, _ = load(data)
    expected = [("summarize: " + r["source"], r["target"]) for r in pairs(3)]
    assert texts_of(tokens, tokenizer) == expected


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
