"""Samples: a function of their number, from texts of any size; and what unusable data says."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace as changed

import data as data_module
import numpy as np
import pytest
import torch
from data import Packed, Pairs, Part, Sample, Spans, bucket_of_each, collate, make_loader, open_data
from hypothesis import given, settings
from hypothesis import strategies as st
from model import EOS, IGNORE, PAD

from fsdpkit.config.training import DataSettings, TrainingSettings
from fsdpkit.data.loading import BadRows
from fsdpkit.data.tokenizers import ByteTokenizer
from fsdpkit.data.tokens import Encoded, Tokens
from fsdpkit.errors import ConfigError
from fsdpkit.training.distributed import Ranks

ONE_RANK = Ranks(0, 0, 1, 1, torch.device("cpu"))
LENGTHS = DataSettings(source_length=40, target_length=20)


def texts(*rows: tuple[str, ...]) -> Tokens:
    encoded = ByteTokenizer().encode_flat([text for row in rows for text in row])
    lengths = encoded.lengths.reshape(len(rows), -1)
    return Tokens.from_batches([Encoded(encoded.ids, lengths)], lengths.shape[1], 259)


def pairs(*rows: tuple[str, ...], data: DataSettings = LENGTHS) -> Pairs:
    return Pairs(texts(*rows), ByteTokenizer(), data)


def spans(*rows: str, data: DataSettings = LENGTHS, seed: int = 0) -> Spans:
    return Spans(texts(*((row,) for row in rows)), ByteTokenizer(), data, seed)


def read(sample: Sample) -> tuple[str, str]:
    return ByteTokenizer().decode(sample.source), ByteTokenizer().decode(sample.target)


def as_lists(sample: Sample) -> tuple[list[int], list[int]]:
    return [int(i) for i in sample.source], [int(i) for i in sample.target]


def same(a: Sample, b: Sample) -> bool:
    return as_lists(a) == as_lists(b)


# Pairs


def test_a_pair_is_its_two_texts_each_ending_in_eos():
    sample = pairs(("naïve", "✓"))[0]
    assert read(sample) == ("naïve", "✓")
    assert sample.source[-1] == sample.target[-1] == EOS


def test_long_texts_are_cut_so_that_eos_still_fits():
    sample = pairs(("s" * 100, "t" * 100))[0]
    assert read(sample) == ("s" * 39, "t" * 19)
    assert (len(sample.source), len(sample.target)) == (40, 20)


def test_lengths_are_those_of_the_samples_without_reading_them():
    samples = pairs(("s" * 100, "t"), ("", "t" * 19), ("s" * 39, ""))
    expected = [(len(s.source), len(s.target)) for s in map(samples.__getitem__, range(3))]
    assert list(zip(*samples.lengths(np.arange(3)), strict=True)) == expected


def test_ids_that_the_tokenizer_lacks_are_an_error_that_names_the_row():
    tokens = Tokens.from_batches(
        [Encoded(np.array([5, 300], np.uint16), np.array([[1, 0], [1, 0]]))], 2, 400
    )
    samples = Pairs(tokens, ByteTokenizer(), LENGTHS)
    assert len(samples[0].source) == 2
    with pytest.raises(ConfigError, match=r"Row 1 .* id 300.* bytes only 259"):
        samples[1]


# Span corruption


def test_what_is_hidden_depends_on_seed_epoch_and_sample_only():
    long = "".join(chr(97 + i % 26) for i in range(300))
    samples = spans(long, long, seed=1)
    number = range(len(samples))
    first = [samples.sample(i, 0) for i in number]
    for again in (samples, spans(long, long, seed=1), pickle.loads(pickle.dumps(samples))):
        assert all(same(again.sample(i, 0), first[i]) for i in reversed(number))
    other_epoch = [samples.sample(i, 1) for i in number]
    other_seed = [spans(long, long, seed=2).sample(i, 0) for i in number]
    for other in (other_epoch, other_seed):
        assert sum(same(a, b) for a, b in zip(first, other, strict=True)) < len(number) / 4
    half = len(samples) // 2  # both texts are the same, their windows' gaps are not
    assert not all(same(first[i], first[half + i]) for i in range(half))


@given(
    source=st.integers(12, 80),
    target=st.integers(12, 80),
    density=st.floats(0.05, 0.9),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
)
@settings(max_examples=60)
def test_corrupted_samples_fit_and_have_the_lengths_they_were_said_to_have(
    source, target, density, sizes
):
    data = DataSettings(source_length=source, target_length=target, noise_density=density)
    samples = spans(*("x" * size for size in sizes), data=data)
    number = np.arange(len(samples))
    made = [samples.sample(i, 0) for i in range(len(samples))]
    found = [(len(s.source), len(s.target)) for s in made]
    assert all(s <= source and t <= target for s, t in found)
    assert found == [(int(s), int(t)) for s, t in zip(*samples.lengths(number), strict=True)]


def test_bytes_are_hidden_in_longer_spans_unless_told_otherwise():
    long = DataSettings(source_length=300, target_length=100)
    assert spans("x" * 999, data=long).recipe.mean_span == 20
    told = DataSettings(source_length=300, target_length=100, mean_span=3.0)
    assert spans("x" * 999, data=told).recipe.mean_span == 3


def test_lengths_without_room_for_a_window_are_refused():
    with pytest.raises(ConfigError, match=r"source_length 5 and target_length 4 have no room"):
        spans("x" * 99, data=DataSettings(source_length=5, target_length=4))


def test_a_tokenizer_without_sentinels_is_refused(monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "sentinels", ())
    with pytest.raises(ConfigError, match="no sentinels"):
        spans("x" * 99)


# Held out


@given(samples=st.integers(1, 60), every=st.integers(2, 70))
def test_each_sample_is_trained_on_or_held_out(samples, every):
    whole = pairs(*((str(i), "") for i in range(samples)))
    train, held_out = (Part(whole, every, held_out=h) for h in (False, True))
    read_train, read_held_out = (
        [int(read(part[i])[0]) for i in range(len(part))] for part in (train, held_out)
    )
    assert read_held_out == [i for i in range(samples) if i % every == every - 1]
    assert read_train == [i for i in range(samples) if i % every != every - 1]
    expected = [len(str(i)) + 1 for i in read_train]
    assert train.lengths(np.arange(len(train)))[0].tolist() == expected


def test_a_number_beyond_the_samples_is_an_index_error():
    samples = pairs(("a", "b"), ("c", "d"))
    assert len(list(samples)) == 2
    for number in (2, -1):
        with pytest.raises(IndexError, match=f"sample {number} of 2"):
            samples[number]


# Packing


def rows_of(packed: Packed) -> list[list[tuple[str, str]]]:
    """The texts of every row's samples, by their segments."""
    rows = []
    for i in range(len(packed)):
        row = packed[i]
        assert row.segments is not None
        source, target = (np.asarray(part) for part in row[:2])
        numbers = range(1, int(row.segments[0].max()) + 1)
        parts = [(source[row.segments[0] == n], target[row.segments[1] == n]) for n in numbers]
        rows.append([read(Sample(*part)) for part in parts])
    return rows


@pytest.mark.parametrize("count", [1, 2, 300, 1000])
def test_packed_rows_hold_every_sample_once_and_fit(count, monkeypatch):
    monkeypatch.setattr(data_module, "AT_ONCE", 512)
    rng = np.random.default_rng(count)
    given = [(f"{i}:" + "s" * rng.integers(0, 30), "t" * rng.integers(0, 25)) for i in range(count)]
    packed = Packed(pairs(*given), LENGTHS)
    rows = rows_of(packed)
    assert sorted(text for row in rows for text in row) == sorted((s, t[:19]) for s, t in given)
    lengths = packed.lengths(np.arange(len(packed)))
    assert [(len(packed[i].source), len(packed[i].target)) for i in range(len(packed))] == [
        (int(s), int(t)) for s, t in zip(*lengths, strict=True)
    ]
    assert (lengths[0] <= 40).all()
    assert (lengths[1] <= 20).all()
    assert rows == rows_of(Packed(pairs(*given), LENGTHS)), "a function of the data"


def test_nothing_packs_into_no_rows():
    nothing = Part(pairs(("a", "b")), 2, held_out=True)
    assert len(Packed(nothing, LENGTHS)) == 0


# What a batch is made of


def test_padding_is_never_a_label_and_no_samples_weigh_nothing():
    batch = collate([Sample([5, 6, EOS], [7, EOS]), Sample([5, EOS], [7, 8, 9, EOS])])
    assert batch.labels.tolist() == [[7, EOS, IGNORE, IGNORE], [7, 8, 9, EOS]]
    assert batch.source.tolist() == [[5, 6, EOS], [5, EOS, PAD]]
    assert batch.source_mask.tolist() == [[True] * 3, [True, True, False]]
    nothing = collate([])
    assert (nothing.labels == IGNORE).all()
    assert not nothing.source_mask.any()
    assert nothing.source.dtype == nothing.labels.dtype == torch.int64


def test_an_id_that_happens_to_be_padding_s_is_a_real_token():
    batch = collate([Sample([PAD, 5, PAD, EOS], [PAD, EOS])])
    assert batch.source_mask.all()
    assert batch.labels.tolist() == [[PAD, EOS]]


def test_rows_and_lengths_can_be_asked_for():
    batch = collate([Sample([5, EOS], [7, EOS])], rows=3, shape=(4, 6))
    assert batch.source.shape == batch.source_mask.shape == (3, 4)
    assert batch.labels.shape == (3, 6)
    assert batch.source_mask.sum() == (batch.labels != IGNORE).sum() == 2


# Opening what a job names


def test_the_default_is_a_thousand_documented_functions_and_more():
    text = open_data(DataSettings(source_length=64, target_length=32), seed=1)
    assert len(text.train) > 1000
    assert len(text.held_out) == (len(text.train) + len(text.held_out)) // 50
    assert all(read(text.train[i])[0].startswith(("def ", "async def ")) for i in range(50))
    assert text.vocabulary == 259
    assert text.bad_rows.count == 0
    again = open_data(DataSettings(source_length=64, target_length=32), seed=2)
    assert again.fingerprint == text.fingerprint


def test_python_s_documentation_is_also_plain_text():
    text = open_data(DataSettings(task="span-corruption", packing=True), seed=1)
    assert len(text.train) > 1000
    assert text.train[0].segments is not None


def opened(monkeypatch, tokens: Tokens, **data):
    monkeypatch.setattr(data_module, "load", lambda _: (tokens, ByteTokenizer(), BadRows(0, ())))
    return open_data(DataSettings(source="x.jsonl", **{"task": "pairs", **data}), seed=0)


def test_one_row_is_enough_for_one_rank_and_leaves_nothing_held_out(monkeypatch):
    text = opened(monkeypatch, texts(("a", "b")))
    assert (len(text.train), len(text.held_out)) == (1, 0)
    (batch,) = make_loader(text.train, TrainingSettings(), ONE_RANK, shuffle=True)
    assert batch.source_mask.sum() == 2


def test_texts_too_short_to_hide_anything_in_are_an_error(monkeypatch):
    with pytest.raises(ConfigError, match=r"x\.jsonl has 2 rows and no sample for span-corruption"):
        opened(monkeypatch, texts(("short",), ("too",)), task="span-corruption")


@pytest.mark.parametrize("packing", [False, True])
def test_fewer_samples_than_ranks_is_an_error_when_training(monkeypatch, packing):
    text = opened(monkeypatch, texts(*[("a" * 60, "b")] * 3), packing=packing)
    four = changed(ONE_RANK, world_size=4)
    with pytest.raises(ConfigError, match="3 training samples for 4 ranks"):
        make_loader(text.train, TrainingSettings(), four, shuffle=True)
    (batch,) = make_loader(text.train, TrainingSettings(), changed(four, rank=3), shuffle=False)
    assert not batch.source_mask.any(), "evaluation goes on: this rank has nothing to weigh"


# Size


class Huge:
    """A hundred million pairs that take no memory."""

    fields = 2

    def __len__(self) -> int:
        return 100_000_000

    def ids(self, row: int, field: int) -> np.ndarray:
        return np.full(3 + field, 5 + row % 7, np.uint16)

    def lengths(self, field: int) -> np.ndarray:
        return np.broadcast_to(np.int64(3 + field), len(self))


def test_a_hundred_million_samples_take_no_more_memory_than_a_few():
    tracemalloc.start()
    train = Part(Pairs(Huge(), ByteTokenizer(), LENGTHS), 50, held_out=False)
    loader = make_loader(
        train, TrainingSettings(data=LENGTHS, batch_size=8), ONE_RANK, shuffle=False
    )
    batch = next(iter(loader))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(train) == 98_000_000
    assert batch.source[:, 0].tolist() == [5, 6, 7, 8, 9, 10, 11, 5]
    assert peak < 2_000_000


def test_a_bucket_is_a_byte_of_memory(monkeypatch):
    monkeypatch.setattr(Huge, "__len__", lambda _: 3_000_000)
    monkeypatch.setattr(data_module, "AT_ONCE", 1 << 14)
    train = Pairs(Huge(), ByteTokenizer(), LENGTHS)
    tracemalloc.start()
    found = bucket_of_each(train, changed_data(buckets=4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found.nbytes == 3_000_000
    assert peak < 5_000_000
    assert bucket_of_each(train, changed_data(buckets=1)) is None


@pytest.mark.parametrize(("kind", "pinned"), [("cuda", True), ("cpu", False)])
def test_batches_for_gpus_lie_in_pinned_memory_and_others_do_not(kind, pinned):
    ranks = changed(ONE_RANK, device=torch.device(kind, 0))
    samples = pairs(("a", "b"))
    assert make_loader(samples, TrainingSettings(), ranks, shuffle=True).pin_memory == pinned


def changed_data(**settings) -> DataSettings:
    return DataSettings(source_length=40, target_length=20, **settings)
