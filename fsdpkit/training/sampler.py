"""Which rank reads which sample: a function of (seed, epoch, global sample index) and nothing else.

The order of an epoch does not depend on the number of ranks. A position in it is one number, the
samples that all ranks together have consumed, so a run resumes on another world size and still sees
each sample exactly once. With length buckets the order also depends on the size of a global batch
when the epoch began, which `Progress` therefore remembers. Which samples share a batch or a packed
row (`first_fit`) is decided from their lengths alone. No rank holds an order: epoch_order.py
computes it where it is read.

    sampler = GlobalOrderSampler(dataset, num_replicas=ranks.world_size, rank=ranks.rank, seed=1)
    loader = DataLoader(dataset, batch_sampler=GlobalBatches(sampler, batch_size))
    for batch in endless(loader, progress): ...
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sized
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from fsdpkit.config.training import DataSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.epoch_order import ComputedOrder, Indices
from fsdpkit.training.progress import DataOrder, Progress

_AT_ONCE = 1 << 10
PACKED_TOGETHER = 256
"""Neighbours among which a packed row finds its samples. On the docstrings, 1024 × 256 tokens: rows
are 95 % full, against 77 % when each row takes what comes next, and 96 % with windows of 1024."""
T = TypeVar("T")


class GlobalOrderSampler(DistributedSampler[int]):
    """DistributedSampler's contract (`set_epoch`, `rank`, `num_replicas`), without its padding.

    torch's class repeats samples until every rank has equally many, or drops the rest. This one
    gives each sample to exactly one rank, so shares may differ by one; `GlobalBatches` keeps the
    number of batches equal, which is what collectives need.

    Args:
        dataset: Anything with a length.
        num_replicas: Ranks in all (`world_size`).
        rank: Index of this rank, from 0.
        shuffle: Whether each epoch has an order of its own; else the dataset's.
        seed: Of the order; the same number on all ranks.
        buckets: uint8 [samples]: which samples have about the same length. The order then has runs
            of one bucket, each a global batch long.

    Raises:
        ValueError: `rank` is not one of `num_replicas`.
        TypeError: The dataset has no length.

    Examples:
        Two ranks share an epoch of five samples:

        >>> from fsdpkit import training
        >>> of = [training.GlobalOrderSampler(range(5), num_replicas=2, rank=r) for r in (0, 1)]
        >>> [len(sampler) for sampler in of]
        [3, 2]
        >>> sorted([*of[0], *of[1]])
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        buckets: NDArray[np.uint8] | None = None,
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not one of {num_replicas}")
        if not isinstance(dataset, Dataset | Sized):
            raise TypeError("dataset must have a length")
        self.total_size = len(dataset)
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.buckets = shuffle, seed, buckets
        self.epoch = self.position = self.group = 0

    def set_epoch(self, epoch: int, position: int = 0, group: int = 0) -> None:
        """Go to a place in an epoch; call it before each epoch, or all have the same order.

        Args:
            epoch: Index of the epoch, from 0.
            position: Samples of it that all ranks together have consumed.
            group: Samples in a global batch when the epoch began; 0: as now.
        """
        self.epoch, self.position, self.group = epoch, position, group

    def order(self, group: int = 0) -> ComputedOrder:
        """The whole epoch's sample indices, the same on every rank.

        Args:
            group: Samples in a global batch, for the order in buckets; 0: as `set_epoch` said.

        Returns:
            [samples], computed where it is read, in slices.
        """
        seed = self.seed if self.shuffle else None
        return ComputedOrder(self.total_size, seed, self.epoch, self.buckets, group or self.group)

    def __iter__(self) -> Iterator[int]:
        order, at_once = self.order(), _AT_ONCE * self.num_replicas
        for begin in range(self.position, self.total_size, at_once):
            yield from order[begin : begin + at_once][self.rank :: self.num_replicas].tolist()

    def __len__(self) -> int:
        return len(range(self.position + self.rank, self.total_size, self.num_replicas))


class RankShare(list[int]):
    """One rank's sample indices of one step, and the step they belong to."""

    def __init__(self, mine: list[int], epoch: int, everyone: Indices) -> None:
        super().__init__(mine)
        self.epoch = epoch
        self.everyone = everyone  # the samples of all ranks in this step, for equal shapes


class GlobalBatches:
    """One rank's share of each step, for a `batch_sampler`: equally many for all ranks.

    Step k consumes the next `batch_size × num_replicas` samples of the epoch. The last step may
    find fewer; a rank left without any gets an empty share, and its loader's `collate_fn` must make
    a batch of no weight from it.

    Args:
        sampler: Decides the order, and which rank this is.
        batch_size: Samples of one rank in a step.
        drop_last: Leave out a last step that is not full.

    Examples:
        >>> from fsdpkit import training
        >>> sampler = training.GlobalOrderSampler(range(5), num_replicas=2, rank=1, shuffle=False)
        >>> list(training.GlobalBatches(sampler, 2))
        [[1, 3], []]
        >>> list(training.GlobalBatches(sampler, 2, drop_last=True))
        [[1, 3]]
    """

    def __init__(
        self, sampler: GlobalOrderSampler, batch_size: int, *, drop_last: bool = False
    ) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks together consume in one step."""
        return self.batch_size * self.sampler.num_replicas

    def __iter__(self) -> Iterator[RankShare]:
        sampler, size = self.sampler, self.global_batch_size
        order, epoch = sampler.order(sampler.group or size), sampler.epoch
        start = sampler.position
        for at in range(start, start + len(self) * size, size):
            everyone = order[at : at + size]
            mine = everyone[sampler.rank :: sampler.num_replicas]
            # A copy: a view would keep, and send to a worker, the whole order.
            yield RankShare(mine.tolist(), epoch, everyone.copy())

    def __len__(self) -> int:
        return self.left_after(self.sampler.position)

    def left_after(self, position: int) -> int:
        """Steps until the epoch ends.

        Args:
            position: Samples of it that all ranks together have consumed.

        Returns:
            Steps, the last one included even if it is not full, unless `drop_last`.
        """
        left = max(0, self.sampler.total_size - position)
        if self.drop_last:
            return left // self.global_batch_size
        return -(-left // self.global_batch_size)


def endless(loader: DataLoader[T], progress: Progress) -> Iterator[T]:
    """Batches without end, epoch after epoch, from where `progress` stands.

    A batch counts as consumed when it is handed out.

    Args:
        loader: A DataLoader whose `batch_sampler` is a `GlobalBatches`.
        progress: Where to begin; its `epoch`, `position` and `group` are kept up to date.

    Yields:
        The loader's batches.

    Raises:
        ConfigError: An epoch has no batch at all.
        TypeError: The loader's `batch_sampler` is another.
    """
    batches = _global_batches(loader)
    while True:
        if not progress.position:
            progress.group = batches.global_batch_size
        batches.sampler.set_epoch(progress.epoch, progress.position, progress.group)
        if not progress.position and not len(batches):
            raise ConfigError(
                f"An epoch of {batches.sampler.total_size} samples has no batch of "
                f"{batches.global_batch_size}: give it more data, or a smaller batch."
            )
        for batch in loader:
            progress.position += batches.global_batch_size
            yield batch
        progress.epoch, progress.position = progress.epoch + 1, 0


def completed_epoch(loader: DataLoader[Any], progress: Progress) -> int:
    """How many epochs are complete, if the last batch was the last of its epoch; else 0."""
    batches = _global_batches(loader)
    return progress.epoch + 1 if batches.left_after(progress.position) == 0 else 0


def steps_of_epochs(loader: DataLoader[Any], progress: Progress, epochs: int) -> int:
    """Steps that a run has in all when it ends with its `epochs`-th epoch.

    They are counted from where `progress` stands: a run that went on with another global batch has
    another number of steps in its remaining epochs, and still sees each sample once in each.
    """
    batches = _global_batches(loader)
    if progress.epoch >= epochs:
        return progress.step
    whole_epochs = epochs - progress.epoch - 1
    left = batches.left_after(progress.position) + whole_epochs * batches.left_after(0)
    return progress.step + left


def data_order(loader: DataLoader[Any], fingerprint: str = "") -> DataOrder:
    """What a `Checkpointer` compares when it resumes: which samples come when.

    Args:
        loader: A DataLoader whose `batch_sampler` is a `GlobalBatches`.
        fingerprint: A text that is another for other data, such as a digest.

    Returns:
        To be passed to `Checkpointer` as `data`.

    Raises:
        TypeError: The loader's `batch_sampler` is another.
    """
    batches = _global_batches(loader)
    sampler = batches.sampler
    if sampler.buckets is not None:
        fingerprint += f" in buckets {zlib.crc32(sampler.buckets.tobytes()):08x}"
    return DataOrder(fingerprint, sampler.total_size, sampler.seed, batches.global_batch_size)


def _global_batches(loader: DataLoader[Any]) -> GlobalBatches:
    batches = loader.batch_sampler
    if not isinstance(batches, GlobalBatches):
        raise TypeError("the loader's batch_sampler must be a GlobalBatches")
    return batches


class Buckets:
    """Padded lengths: n sizes that are shares of the longest, or any multiple of `multiple`."""

    def __init__(self, data: DataSettings) -> None:
        # Whoever has not asked what `auto` is on the device gets what it is on a CPU.
        self.count = 0 if data.buckets == "auto" else data.buckets
        self.multiple = 1 if data.multiple == "auto" else data.multiple
        part, parts = np.arange(1, self.count + 1), max(1, self.count)
        self.source = self._round_up(-(-part * data.source_length // parts))
        self.target = self._round_up(-(-part * data.target_length // parts))

    def of(self, source: Indices, target: Indices) -> NDArray[np.uint8]:
        """The smallest bucket, from 0, that samples of these lengths fit."""
        smallest = np.searchsorted(self.source, source), np.searchsorted(self.target, target)
        return np.maximum(*smallest).astype(np.uint8)

    def shape(self, source: Indices, target: Indices) -> tuple[int, int]:
        """Padded source and target length of a batch of samples of these lengths."""
        if not self.count:
            return int(self._round_up(source.max())), int(self._round_up(target.max()))
        largest = self.of(source, target).max()
        return int(self.source[largest]), int(self.target[largest])

    def _round_up(self, length: Indices) -> Indices:
        return -(-length // self.multiple) * self.multiple


def first_fit(lengths: Indices, longest: tuple[int, int]) -> Indices:
    """A row for each sample of `lengths`, int [2, samples]; rows are numbered from 0 without gaps.

    A row holds samples whose lengths add up to `longest` at most, in both fields. Samples are taken
    largest first, each into the first row with room for it, among PACKED_TOGETHER neighbours. Such
    windows do not depend on each other, so each pass of the loop places one sample of every window.

    Raises ValueError for a sample that is longer than `longest`.
    """
    samples = lengths.shape[1]
    if (lengths.max(axis=1, initial=0) > longest).any():
        raise ValueError(f"a sample is longer than {longest}")
    windows = -(-samples // PACKED_TOGETHER)
    need = np.zeros((2, windows * PACKED_TOGETHER), np.int32)
    need[:, :samples] = lengths  # the last window is filled up with samples of no length
    need = need.reshape(2, windows, PACKED_TOGETHER)
    room = np.array(longest, np.int32)[:, None, None]
    largest_first = np.argsort(-(need / room).max(0), axis=1, kind="stable")
    used = np.zeros_like(need)  # of each window's rows
    row, window, begun = np.zeros(need[0].shape, np.int64), np.arange(windows), 0
    for which in largest_first.T:
        more = need[:, window, which]
        tried = used[:, :, : begun + 1]  # row `begun` is empty everywhere, so there is a fit
        first = (tried + more[:, :, None] <= room).all(0).argmax(1)
        used[:, window, first] += more
        row[window, which] = first
        begun = max(begun, int(first.max(initial=0)) + 1)
    row += window[:, None] * PACKED_TOGETHER
    return np.unique(row.reshape(-1)[:samples], return_inverse=True)[1]
