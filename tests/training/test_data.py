"""Samples: real text without a download, a user's files, and what a bad row says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import data as data_module
import pytest
import torch
from data import (
    FIRST_SENTINEL,
    Sample,
    collate,
    corrupt,
    decode,
    encode,
    fingerprint,
    load_samples,
    split,
)
from model import EOS, IGNORE, PAD

from fsdpkit.config.training import DataSettings
from fsdpkit.errors import ConfigError, NotFoundError


@pytest.fixture(scope="module")
def docstrings() -> list[Sample]:
    return load_samples(DataSettings(source_length=64, target_length=32), seed=1)


def pairs(path: Path) -> DataSettings:
    return DataSettings(source=str(path), task="pairs")


def test_the_default_is_a_thousand_documented_functions_and_more(docstrings):
    assert len(docstrings) > 1000
    assert all(len(s.source) <= 64 and len(s.target) <= 32 for s in docstrings)
    assert all(s.source[-1] == s.target[-1] == EOS for s in docstrings)
    sources = [decode(s.source) for s in docstrings]
    assert all(text.startswith(("def ", "async def ")) for text in sources)
    assert not any('"""' in text for text in sources[:50]), "the answer is in the question"


def test_samples_are_the_same_each_time(docstrings):
    again = load_samples(DataSettings(source_length=64, target_length=32), seed=2)
    assert fingerprint(again) == fingerprint(docstrings)
    assert fingerprint(docstrings[:-1]) != fingerprint(docstrings)


def test_ids_are_byt5_s():
    assert encode("aé", 10) == [97 + 3, 0xC3 + 3, 0xA9 + 3, EOS]
    assert encode("abcdef", 3) == [100, 101, EOS]
    assert decode([*encode("naïve ✓", 99), PAD, PAD]) == "naïve ✓"


def test_span_corruption_removes_spans_that_the_target_names():
    ids = list(range(10, 210))
    sample = corrupt(ids, random.Random(3))
    kept = [i for i in sample.source if i < FIRST_SENTINEL - 1 and i != EOS]
    sentinels = [i for i in sample.source if i >= FIRST_SENTINEL - 1]
    removed = [i for i in sample.target if i < FIRST_SENTINEL - 1 and i != EOS]
    assert sentinels == [258, 257]  # 15% of 200 bytes in spans of 20
    assert len(removed) == 30
    assert sorted(kept + removed) == ids
    assert [i for i in sample.target if i >= 257] == sentinels


def test_span_corruption_fills_but_never_exceeds_the_lengths():
    settings = DataSettings(task="span-corruption", source_length=80, target_length=40)
    samples = load_samples(settings, seed=5)
    assert max(len(s.source) for s in samples) == 80
    assert max(len(s.target) for s in samples) <= 40
    assert samples == load_samples(settings, seed=5)
    assert samples != load_samples(settings, seed=6)
    assert len({s.source.index(FIRST_SENTINEL) for s in samples}) > 20, "gaps are everywhere"


def test_padding_is_never_a_label_and_no_samples_weigh_nothing():
    batch = collate([Sample([5, 6, EOS], [7, EOS]), Sample([5, EOS], [7, 8, 9, EOS])])
    assert batch.labels.tolist() == [[7, EOS, IGNORE, IGNORE], [7, 8, 9, EOS]]
    assert batch.source.tolist() == [[5, 6, EOS], [5, EOS, PAD]]
    assert batch.source_mask.tolist() == [[True] * 3, [True, True, False]]
    nothing = collate([])
    assert (nothing.labels == IGNORE).all()
    assert nothing.source.dtype == nothing.labels.dtype == torch.int64


def test_split_keeps_every_sample_once():
    samples = [Sample([i], [i]) for i in range(100)]
    train, held_out = split(samples, 0.1)
    assert len(held_out) == 10
    assert sorted(train + held_out) == samples
    assert split(samples, 0.0) == (samples, [])


def test_jsonl_and_csv_give_the_same_samples(tmp_path):
    rows = [("a, b", "c"), ("zwei\nZeilen", "ü")]
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in rows) + "\n"
    )
    (tmp_path / "x.csv").write_text('source,target\n"a, b",c\n"zwei\nZeilen",ü\n')
    expected = [Sample(encode(s, 96), encode(t, 32)) for s, t in rows]
    assert load_samples(pairs(tmp_path / "x.jsonl"), 0) == expected
    assert load_samples(pairs(tmp_path / "x.csv"), 0) == expected


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a"\n', "line 2: not JSON"),
        ("a.jsonl", b'{"source": "a", "target": "b"}\n["a"]\n', "line 2: must be an object"),
        ("a.jsonl", b'{"source": "a", "text": "b"}\n', "line 1: field 'target'.*source, text"),
        ("a.jsonl", b'{"source": "a", "target": 3}\n', "line 1: field 'target'.*is 3"),
        ("a.jsonl", b'{"source": "", "target": "x"}\n', "line 1: field 'source'"),
        ("a.csv", b"source,target\na,b\nc\n", "line 3: field 'target'"),
        ("a.csv", b'source,target\n"a,b\n', "not CSV"),
        ("a.csv", "source,target\nä,b\n".encode("latin-1"), "not UTF-8 near byte 14"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        load_samples(pairs(tmp_path / name), 0)
    assert str(tmp_path / name) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"none\.csv"):
        load_samples(pairs(tmp_path / "none.csv"), 0)


def test_a_module_that_this_python_lacks_is_left_out(monkeypatch):
    monkeypatch.setattr(data_module, "MODULES", ["no_such_module", "heapq"])
    assert 5 < len(load_samples(DataSettings(), 0)) < 50
