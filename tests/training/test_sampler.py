"""Data order: a function of seed, epoch and global sample index, each sample once."""

from __future__ import annotations

import pytest

from fsdpkit.training.sampler import GlobalBatches, GlobalOrderSampler

SAMPLES = range(37)


def ranks(
    world_size: int, epoch: int = 0, position: int = 0, **options
) -> list[GlobalOrderSampler]:
    samplers = [
        GlobalOrderSampler(SAMPLES, num_replicas=world_size, rank=rank, **options)
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch, position)
    return samplers


def consumed(samplers: list[GlobalOrderSampler], batch_size: int) -> list[list[int]]:
    """Samples of each global step, in the order of the epoch's positions."""
    return [
        sorted(i for share in step for i in share)
        for step in zip(*(GlobalBatches(s, batch_size) for s in samplers), strict=True)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8, 40])
def test_each_sample_goes_to_exactly_one_rank(world_size):
    shares = [list(s) for s in ranks(world_size)]
    assert sorted(i for share in shares for i in share) == list(SAMPLES)
    assert [len(s) for s in ranks(world_size)] == [len(share) for share in shares]


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_the_global_batch_does_not_depend_on_the_number_of_ranks(world_size, batch_size):
    assert consumed(ranks(world_size), batch_size) == consumed(ranks(1), 8)


@pytest.mark.parametrize("world_size", [2, 4, 5, 40])
def test_all_ranks_have_equally_many_batches(world_size):
    batches = [list(GlobalBatches(s, 3)) for s in ranks(world_size)]
    assert len({len(b) for b in batches}) == 1
    assert all(
        len(b) == len(GlobalBatches(s, 3)) for b, s in zip(batches, ranks(world_size), strict=True)
    )
    assert sorted(i for b in batches for share in b for i in share) == list(SAMPLES)


def test_set_epoch_and_seed_change_the_order_and_nothing_else_does():
    orders = [tuple(ranks(2, epoch=e, seed=s)[0].order()) for s in (0, 1) for e in (0, 1, 2)]
    assert len(set(orders)) == 6
    assert orders[0] == tuple(ranks(4, epoch=0, seed=0)[3].order())


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_position_resumes_on_any_number_of_ranks_where_eight_samples_were_left(world_size):
    whole = consumed(ranks(4), 2)
    resumed = consumed(ranks(world_size, position=8), 8 // world_size)
    assert resumed == whole[1:]


def test_a_finished_epoch_has_no_batches_left():
    for batch_size in (1, 4):  # 37 samples: global batches of eight end the epoch at 40
        assert list(GlobalBatches(ranks(2, position=40)[1], batch_size)) == []
        assert len(GlobalBatches(ranks(2, position=40)[1], batch_size)) == 0


def test_without_shuffle_the_order_is_the_file_s():
    assert ranks(1, shuffle=False)[0].order() == list(SAMPLES)


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(ValueError, match="rank 2"):
        GlobalOrderSampler(SAMPLES, num_replicas=2, rank=2)
