"""Samples: a function of their number, from texts of any size; and what unusable data says."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace as changed

import data as data_module
import numpy as np
import pytest
import torch
from data import Packed, Pairs, Part, Sample, Spans, make_loader, open_data
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_long_texts_are_cut_so_that_eos_still_fits():
    sample = pairs(("s" * 100, "t" * 100))[0]
    assert read(sample) == ("s" * 39, "t" * 19)
    assert (len(sample.source), len(sample.target)) == (40, 20)


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


# Opening what a job names


def opened(monkeypatch, tokens: Tokens, **data):
    monkeypatch.setattr(data_module, "load", lambda _: (tokens, ByteTokenizer(), BadRows(0, ())))
    return open_data(DataSettings(source="x.jsonl", **{"task": "pairs", **data}), seed=0)


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
    assert peak < 4_000_000


@pytest.mark.parametrize(("kind", "pinned"), [("cuda", True), ("cpu", False)])
def test_batches_for_gpus_lie_in_pinned_memory_and_others_do_not(kind, pinned):
    ranks = changed(ONE_RANK, device=torch.device(kind, 0))
    samples = pairs(("a", "b"))
    assert make_loader(samples, TrainingSettings(), ranks, shuffle=True).pin_memory == pinned
