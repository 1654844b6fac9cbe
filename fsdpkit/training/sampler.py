"""Which rank reads which sample: a function of (seed, epoch, global sample index) and nothing else.

The order of an epoch does not depend on the number of ranks. A position in it is one number, the
samples that all ranks together have consumed, so a run resumes on another world size and still sees
each sample exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Dataset, DistributedSampler


class GlobalOrderSampler(DistributedSampler[int]):
    """DistributedSampler's contract (`set_epoch`, `rank`, `num_replicas`), without its padding.

    torch's class repeats samples until every rank has equally many, or drops the rest. This one
    gives each sample to exactly one rank, so shares may differ by one; `GlobalBatches` keeps the
    number of *batches* equal, which is what collectives need. `position` is the number of samples
    of the epoch that were already consumed by all ranks together.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not one of {num_replicas}")
        if not isinstance(dataset, Dataset | Sized):
            raise TypeError("dataset must have a length")
        self.total_size = len(dataset)
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed = shuffle, seed
        self.epoch = self.position = 0

    def set_epoch(self, epoch: int, position: int = 0) -> None:
        """Go to sample `position` of `epoch`; call it before each epoch, or all are alike."""
        self.epoch, self.position = epoch, position

    def order(self) -> list[int]:
        """The whole epoch's sample indices, the same on every rank."""
        if not self.shuffle:
            return list(range(self.total_size))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return torch.randperm(self.total_size, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.position + self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return len(range(self.position + self.rank, self.total_size, self.num_replicas))


class GlobalBatches:
    """Index lists for a DataLoader's `batch_sampler`: as many for every rank, each sample once.

    Step k consumes the next `batch_size × num_replicas` samples of the epoch. The last step may
    find fewer; a rank left without any gets an empty list, and its loader's `collate_fn` must make
    a batch of no weight from it.
    """

    def __init__(self, sampler: GlobalOrderSampler, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.sampler.num_replicas

    def __iter__(self) -> Iterator[list[int]]:
        mine = list(self.sampler)
        for step in range(len(self)):
            yield mine[step * self.batch_size : (step + 1) * self.batch_size]

    def __len__(self) -> int:
        left = max(0, self.sampler.total_size - self.sampler.position)
        return -(-left // self.global_batch_size)
