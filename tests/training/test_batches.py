"""Batches as the loop gets them: equal on all ranks where they must be, and weighed by token.

World sizes are simulated: a rank's loader depends on its number and on nothing that others say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from data import Batch, Packed, Pairs, Samples, Spans, make_loader, stream
from hypothesis import given, settings
from hypothesis import strategies as st
from model import IGNORE, T5
from small_t5 import V1_1, build
from torch.nn.functional import cross_entropy

from fsdpkit.config.training import DataSettings, TrainingSettings
from fsdpkit.data.tokenizers import ByteTokenizer
from fsdpkit.data.tokens import Encoded, Tokens
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.progress import Progress

SIZES = {"source_length": 24, "target_length": 12}
LAYOUTS = {
    "padded": {},
    "multiples": {"multiple": 8},
    "buckets": {"buckets": 4, "multiple": 2},
    "packed": {"packing": True},
    "packed in one size": {"packing": True, "buckets": 1, "multiple": 16},
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


class Names:
    """A tokenizer of as many ids as the small T5 has; no two samples of `numbered` are alike."""

    name, vocab_size, eos_id, pad_id, sentinels = "names", 40, 1, 0, range(39, 29, -1)


def numbered(samples: int = 101, seed: int = 0) -> Tokens:
    """Pairs of 2 to 20 and 0 to 10 tokens whose first two source ids say which pair it is."""
    rng = np.random.default_rng(seed)
    lengths = np.stack([rng.integers(2, 21, samples), rng.integers(0, 11, samples)], axis=1)
    ids = rng.integers(2, 30, lengths.sum()).astype(np.uint16)
    starts = lengths.sum(1).cumsum() - lengths.sum(1)
    ids[starts], ids[starts + 1] = 2 + np.arange(samples) // 28, 2 + np.arange(samples) % 28
    return Tokens.from_batches([Encoded(ids, lengths)], 2, Names.vocab_size)


def set_up(
    layout: dict, batch_size: int = 4, samples: int = 101
) -> tuple[Samples, TrainingSettings]:
    given = DataSettings(**SIZES, **layout)
    pairs: Samples = Pairs(numbered(samples), Names(), given)
    pairs = Packed(pairs, given) if given.packing else pairs
    return pairs, TrainingSettings(batch_size=batch_size, seed=5, data=given)


def rank(number: int, world_size: int) -> Ranks:
    return Ranks(number, number, world_size, world_size, torch.device("cpu"))


def epoch_of(
    samples: Samples, given: TrainingSettings, world_size: int, epoch: int = 0
) -> list[tuple[Batch, ...]]:
    """Every step of an epoch, each the batches of all ranks."""
    loaders = [
        make_loader(samples, given, rank(r, world_size), shuffle=True) for r in range(world_size)
    ]
    for loader in loaders:
        loader.batch_sampler.sampler.set_epoch(epoch)
    return list(zip(*loaders, strict=True))


def names_in(batch: Batch) -> Iterator[int]:
    """Which pairs a batch holds."""
    for row in range(len(batch.source)):
        ids = batch.source[row][batch.source_mask[row]]
        if batch.segments is None:
            parts = [ids] if len(ids) else []
        else:
            segment = batch.segments[0][row]
            parts = [batch.source[row][segment == n] for n in range(1, int(segment.max()) + 1)]
        yield from (int(part[0] - 2) * 28 + int(part[1] - 2) for part in parts)


def equal(a: Batch, b: Batch) -> bool:
    parts = [(*x[:3], *(x.segments or ())) for x in (a, b)]
    return len(parts[0]) == len(parts[1]) and all(map(torch.equal, *parts))


@every_layout
@pytest.mark.parametrize("world_size", range(1, 8))
def test_each_sample_is_in_one_batch_of_one_rank(layout, world_size):
    samples, given = set_up(layout)
    steps = epoch_of(samples, given, world_size, epoch=2)
    seen = Counter(name for step in steps for batch in step for name in names_in(batch))
    assert seen == Counter(range(101))


@every_layout
@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_all_ranks_have_equal_shapes_and_parts_in_every_step(layout, world_size):
    samples, given = set_up(layout)
    for step in epoch_of(samples, given, world_size):
        assert len({(b.source.shape, b.source_mask.shape, b.labels.shape) for b in step}) == 1
        assert len({b.segments is None for b in step}) == 1
        assert step[0].source.shape[0] == 4
        for micro_batch in (1, 3, 4, 9):
            parts = [b.split(micro_batch) for b in step]
            assert {len(p) for p in parts} == {math.ceil(4 / micro_batch)}


# Over epochs and interruptions


@given(
    layout=st.sampled_from(list(LAYOUTS.values())),
    attempts=st.lists(
        st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(1, 9)), min_size=2, max_size=4
    ),
)
@settings(max_examples=25)
def test_an_epoch_that_changes_its_number_of_ranks_has_each_sample_once(layout, attempts):
    """The last attempt runs until the epoch is over."""
    progress, seen = Progress(), Counter()
    for number, (world_size, batch_size, steps) in enumerate(attempts, 1):
        samples, given = set_up(layout, batch_size, samples=60)
        kept = [replace(progress) for _ in range(world_size)]
        streams = [
            stream(make_loader(samples, given, rank(r, world_size), shuffle=True), kept[r])
            for r in range(world_size)
        ]
        for _ in range(1000 if number == len(attempts) else steps):
            if kept[0].position >= len(samples):
                break
            batches = [next(s) for s in streams]
            assert len({b.source.shape for b in batches}) == 1
            seen.update(name for batch in batches for name in names_in(batch))
        progress = kept[0]
    assert progress.epoch == 0
    assert seen == Counter(range(60))


def spans(data: DataSettings, seed: int = 0) -> Spans:
    lengths = np.array([[90], [5], [200], [41]])
    ids = np.random.default_rng(0).integers(3, 200, lengths.sum()).astype(np.uint16)
    tokens = Tokens.from_batches([Encoded(ids, lengths)], 1, 259)
    return Spans(tokens, ByteTokenizer(), data, seed)


def test_workers_give_the_batches_of_the_rank_itself_in_every_epoch():
    """Span corruption hides other spans in the second epoch, in workers that live on."""
    found = []
    for workers in (0, 2):
        data = DataSettings(task="span-corruption", buckets=3, workers=workers, **SIZES)
        given = TrainingSettings(batch_size=2, data=data)
        loader = make_loader(spans(data), given, rank(0, 2), shuffle=True)
        progress = Progress()
        batches = stream(loader, progress)
        found.append([next(batches) for _ in range(2 * len(loader))])
        assert progress.epoch == 1
    assert len(found[0]) == 8
    assert all(map(equal, *found))


# What a token weighs


@pytest.fixture(scope="module")
def model() -> T5:
    return build(**V1_1)


def loss_and_gradient(model: T5, batches: list[Batch]) -> tuple[float, torch.Tensor]:
    """Mean loss per target token of all batches, and its gradient, as the loop adds them up."""
    tokens = sum(int((b.labels != IGNORE).sum()) for b in batches)
    model.zero_grad()
    total = 0.0
    for batch in batches:
        scores = model(batch.source, batch.source_mask, batch.labels, batch.segments)
        loss = cross_entropy(
            scores.flatten(0, 1).double(),
            batch.labels.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        (loss / tokens).backward()
        total += float(loss.detach())
    return total / tokens, torch.cat([p.grad.flatten() for p in model.parameters()])


@every_layout
@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, 4), (3, 3)])
def test_an_epoch_s_loss_and_gradient_do_not_depend_on_how_its_samples_lie_in_batches(
    model, layout, world_size, micro_batch
):
    """Padding, buckets, packing, ranks with unequal numbers of tokens and parts of a batch: the
    mean is over the same target tokens, each once. The samples one by one are the measure."""
    alone, given = set_up({}, batch_size=1, samples=23)
    expected = loss_and_gradient(model, [b for (b,) in epoch_of(alone, given, 1)])
    samples, given = set_up(layout, samples=23)
    steps = epoch_of(samples, given, world_size)
    parts = [part for step in steps for batch in step for part in batch.split(micro_batch)]
    loss, gradient = loss_and_gradient(model, parts)
    assert loss == pytest.approx(expected[0], rel=1e-6)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-4, atol=1e-6)


@every_layout
def test_a_rank_without_samples_has_as_many_rows_and_neither_loss_nor_gradient(model, layout):
    samples, given = set_up(layout, samples=1)
    something, nothing = (
        next(iter(make_loader(samples, given, rank(r, 2), shuffle=False))) for r in (0, 1)
    )
    assert nothing.source.shape == something.source.shape
    assert (nothing.segments is None) == (something.segments is None)
    assert not nothing.source_mask.any()
    scores = model(nothing.source, nothing.source_mask, nothing.labels, nothing.segments)
    assert scores.isfinite().all()
    loss, gradient = loss_and_gradient(model, [something])
    loss_of_both, gradient_of_both = loss_and_gradient(model, [something, nothing])
    assert loss_of_both == loss
    assert torch.equal(gradient_of_both, gradient)
