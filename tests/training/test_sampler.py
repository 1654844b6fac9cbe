"""Data order: a function of seed, epoch and global sample index, each sample once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fsdpkit.config.training import DataSettings
from fsdpkit.training import epoch_order
from fsdpkit.training.epoch_order import ComputedOrder
from fsdpkit.training.progress import Progress
from fsdpkit.training.sampler import (
    Buckets,
    GlobalBatches,
    GlobalOrderSampler,
    completed_epoch,
    endless,
    first_fit,
    steps_of_epochs,
)

SAMPLES = range(37)


def ranks(
    world_size: int, epoch: int = 0, position: int = 0, group: int = 0, samples=SAMPLES, **options
) -> list[GlobalOrderSampler]:
    samplers = [
        GlobalOrderSampler(samples, num_replicas=world_size, rank=rank, **options)
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch, position, group)
    return samplers


def consumed(samplers: list[GlobalOrderSampler], batch_size: int) -> list[list[int]]:
    """Samples of each global step, in the order of the epoch's positions."""
    return [
        sorted(i for share in step for i in share)
        for step in zip(*(GlobalBatches(s, batch_size) for s in samplers), strict=True)
    ]


def in_buckets(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, samples).astype(np.uint8)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8, 40])
def test_each_sample_goes_to_exactly_one_rank(world_size):
    shares = [list(s) for s in ranks(world_size)]
    assert sorted(i for share in shares for i in share) == list(SAMPLES)
    assert [len(s) for s in ranks(world_size)] == [len(share) for share in shares]


@pytest.mark.parametrize("buckets", [None, in_buckets(37)], ids=["plain", "buckets"])
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_the_global_batch_does_not_depend_on_the_number_of_ranks(world_size, batch_size, buckets):
    one = consumed(ranks(1, buckets=buckets), 8)
    assert consumed(ranks(world_size, buckets=buckets), batch_size) == one


@pytest.mark.parametrize("world_size", [2, 4, 5, 40])
def test_all_ranks_have_equally_many_batches(world_size):
    batches = [list(GlobalBatches(s, 3)) for s in ranks(world_size)]
    assert len({len(b) for b in batches}) == 1
    assert all(
        len(b) == len(GlobalBatches(s, 3)) for b, s in zip(batches, ranks(world_size), strict=True)
    )
    assert sorted(i for b in batches for share in b for i in share) == list(SAMPLES)


def test_set_epoch_and_seed_change_the_order_and_nothing_else_does():
    orders = [tuple(ranks(2, epoch=e, seed=s)[0].order()[0:]) for s in (0, 1) for e in (0, 1, 2)]
    assert len(set(orders)) == 6
    assert orders[0] == tuple(ranks(4, epoch=0, seed=0)[3].order()[0:])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_position_resumes_on_any_number_of_ranks_where_eight_samples_were_left(world_size):
    whole = consumed(ranks(4), 2)
    resumed = consumed(ranks(world_size, position=8), 8 // world_size)
    assert resumed == whole[1:]


# Length buckets


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_but_the_last_batches_are_of_one_bucket_on_all_ranks(world_size):
    samples, buckets = range(500), in_buckets(500)
    steps = consumed(ranks(world_size, samples=samples, buckets=buckets), 6 // world_size)
    mixed = [len({int(b) for b in buckets[step]}) > 1 for step in steps]
    assert not any(mixed[:-4])
    assert sorted(i for step in steps for i in step) == list(samples)


@given(
    source=st.integers(2, 600),
    target=st.integers(2, 600),
    count=st.integers(1, 64),
    multiple=st.integers(1, 64),
    data=st.data(),
)
def test_a_bucket_is_the_smallest_share_of_the_longest_that_fits(
    source, target, count, multiple, data
):
    buckets = Buckets(
        DataSettings(source_length=source, target_length=target, buckets=count, multiple=multiple)
    )
    lengths = (
        np.array([data.draw(st.integers(1, source))]),
        np.array([data.draw(st.integers(1, target))]),
    )

    def size(k: int, longest: int) -> int:
        share = -(-k * longest // count)
        return -(-share // multiple) * multiple

    shapes = [(size(k, source), size(k, target)) for k in range(1, count + 1)]
    smallest = next(s for s in shapes if lengths[0][0] <= s[0] and lengths[1][0] <= s[1])
    assert buckets.shape(*lengths) == smallest
    assert shapes[int(buckets.of(*lengths)[0])] == smallest


# Through a loader, over epochs and other numbers of ranks


def loader(world_size: int, rank: int, batch_size: int, samples: int, **options) -> DataLoader:
    sampler = GlobalOrderSampler(
        range(samples), num_replicas=world_size, rank=rank, seed=3, **options
    )
    return DataLoader(
        range(samples), batch_sampler=GlobalBatches(sampler, batch_size), collate_fn=list
    )


def run(
    world_size: int, batch_size: int, samples: int, progress: Progress, steps: int, **options
) -> Iterator[tuple[int, list[int]]]:
    """Epoch and samples of each of `steps` global steps; leaves `progress` as a rank would."""
    kept = [replace(progress) for _ in range(world_size)]
    streams = [
        endless(loader(world_size, rank, batch_size, samples, **options), kept[rank])
        for rank in range(world_size)
    ]
    for _ in range(steps):
        step = [sample for stream in streams for sample in next(stream)]
        assert kept.count(kept[0]) == world_size, "all ranks stand at the same place"
        yield kept[0].epoch, step
    progress.__dict__.update(kept[0].__dict__)


@given(
    samples=st.integers(7, 80),
    attempts=st.lists(
        st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(1, 12)), min_size=1, max_size=4
    ),
    bucketed=st.booleans(),
)
@settings(max_examples=60)
def test_an_epoch_has_each_sample_once_however_often_the_number_of_ranks_changes(
    samples, attempts, bucketed
):
    options = {"buckets": in_buckets(samples)} if bucketed else {}
    progress, seen = Progress(), {}
    for world_size, batch_size, steps in attempts:
        for epoch, step in run(world_size, batch_size, samples, progress, steps, **options):
            seen.setdefault(epoch, []).extend(step)
    for epoch, found in seen.items():
        assert len(found) == len(set(found))
        if epoch < progress.epoch or progress.position >= samples:
            assert sorted(found) == list(range(samples))


def test_endless_batches_come_in_another_order_in_each_epoch():
    order: dict[int, list[int]] = {}
    for epoch, step in run(2, 5, 40, Progress(), steps=8):
        order.setdefault(epoch, []).extend(step)
    assert sorted(order[0]) == sorted(order[1]) == list(range(40))
    assert order[0] != order[1]


@given(
    samples=st.integers(7, 60),
    attempts=st.lists(
        st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=4
    ),
    epochs=st.integers(1, 4),
)
@settings(max_examples=60)
def test_the_steps_of_so_many_epochs_end_with_the_last_sample_of_the_last_one(
    samples, attempts, epochs
):
    """However often the number of ranks, and with it the length of an epoch, changes."""
    progress, seen = Progress(), []
    for world_size, batch_size, most in [*attempts, (1, 3, 10_000)]:
        read = loader(world_size, 0, batch_size, samples)
        steps = steps_of_epochs(read, progress, epochs)
        for epoch, step in run(
            world_size, batch_size, samples, progress, min(most, steps - progress.step)
        ):
            seen += [(epoch, sample) for sample in step]
            progress.step += 1
    assert sorted(seen) == [(e, sample) for e in range(epochs) for sample in range(samples)]
    assert completed_epoch(read, progress) == epochs
    assert steps_of_epochs(read, progress, epochs) == progress.step, "nothing is left"


# Packing


def test_no_two_packed_rows_of_a_window_would_have_fitted_into_one():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, (2, 256))
    row = first_fit(lengths, (100, 100))
    used = np.stack([np.bincount(row, weights=field) for field in lengths], axis=1)
    together = used[:, None] + used[None, :]
    fitting = (together <= 100).all(-1) & ~np.eye(len(used), dtype=bool)
    assert not fitting.any()
    assert used.sum() / used.size > 80  # of 100 tokens


# More samples than a window has


@pytest.fixture
def long_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epoch is one of many samples, and has many windows."""
    monkeypatch.setattr(epoch_order, "_WINDOW", 7)
    monkeypatch.setattr(epoch_order, "_WINDOW_IN_BUCKETS", 1)
    monkeypatch.setattr(epoch_order, "_GROUPS", 3)


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("samples", [1, 2, 3, 40, 64, 65, 200])
def test_a_computed_order_has_each_sample_once_on_any_number_of_ranks(
    long_epochs, samples, bucketed
):
    options = {"buckets": in_buckets(samples)} if bucketed else {}
    progress, seen = Progress(), []
    for world_size, batch_size, steps in [(1, 4, 3), (3, 2, 4), (2, 2, 100)]:
        for epoch, step in run(world_size, batch_size, samples, progress, steps, **options):
            seen += step if epoch == 0 else []
    assert sorted(seen) == list(range(samples))


def test_every_order_is_shuffled_well():
    samples = 20_000
    first, second = (ComputedOrder(samples, 3, epoch)[0:samples] for epoch in (0, 1))
    cells, *_ = np.histogram2d(np.arange(samples), first, bins=16)
    expected = samples / 256
    assert 0.75 < ((cells - expected) ** 2 / expected).sum() / 225 < 1.3
    assert abs((np.abs(np.diff(first)) < samples / 10).mean() - 0.19) < 0.02
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_no_rank_holds_the_order_of_a_thousand_million_samples():
    sampler = ranks(2, samples=range(1_000_000_000))[1]
    tracemalloc.start()
    share = next(iter(GlobalBatches(sampler, 4)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len({*share}) == 4
    assert share.everyone.base is None, "no view of the order goes to a worker"
    assert peak < 50_000_000
