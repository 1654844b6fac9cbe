"""Token ids in, padded batches out: which samples exist, and how they are placed in a batch.

`fsdpkit.data` reads and tokenises; this page makes samples of its texts, each a function of its
number, so that nothing here grows with the corpus but a few flat arrays. Which rank reads which
sample, and when, is the business of `fsdpkit.training.sampler`.

    text = open_data(settings.data, settings.seed)
    loader = make_loader(text.train, settings, ranks, shuffle=True)
    for batch in stream(loader, progress): ...
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from loss import IGNORE
from model import PAD
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fsdpkit.config.training import DataSettings, TrainingSettings
from fsdpkit.data.loading import BadRows, load, load_held_out
from fsdpkit.data.spans import SHORTEST, Recipe, Windows, corrupt
from fsdpkit.data.tokenizers import Tokenizer
from fsdpkit.data.tokens import Tokens
from fsdpkit.errors import ConfigError
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.heartbeat import outlive_warnings
from fsdpkit.training.sampler import (
    Buckets,
    GlobalBatches,
    GlobalOrderSampler,
    RankShare,
    first_fit,
)
from fsdpkit.training.sampler import endless as stream

__all__ = ["Batch", "Sample", "Text", "collate", "make_loader", "open_data", "stream"]

Integers = NDArray[np.integer[Any]]

AT_ONCE = 1 << 18  # samples whose lengths are looked at together


class Sample(NamedTuple):
    """What the encoder reads and the decoder should write: ids, each text ending in EOS."""

    source: Sequence[int] | Integers
    target: Sequence[int] | Integers
    segments: tuple[Integers, Integers] | None = None  # of a packed row: 1, 2, … for its samples


class Batch(NamedTuple):
    """B rows of S source and T target tokens."""

    source: Tensor  # int64 [B, S], PAD after the end
    source_mask: Tensor  # bool [B, S], true on real tokens
    labels: Tensor  # int64 [B, T], IGNORE after the end: padding is never trained on
    segments: tuple[Tensor, Tensor] | None = None  # packed: int64 [B, S], [B, T], 0 on padding

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`; from pinned memory the host does not wait for the copy."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def split(self, micro_batch: int) -> list[Batch]:
        """Parts of `micro_batch` rows, the last perhaps of fewer: as many on every rank."""
        starts = range(0, len(self.source), micro_batch)
        return [self._each(itemgetter(slice(at, at + micro_batch))) for at in starts]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        segments = self.segments and (change(self.segments[0]), change(self.segments[1]))
        return Batch(change(self.source), change(self.source_mask), change(self.labels), segments)


class Samples(Dataset[Sample]):
    """Samples by number. `sample` is a function of its arguments, whoever asks and whenever."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, index: int, epoch: int) -> Sample:
        """Sample `index`; `epoch` decides what span corruption hides this time."""

    @abstractmethod
    def lengths(self, index: Integers) -> tuple[Integers, Integers]:
        """Tokens of source and target of the samples `index`, EOS included; no text is read."""

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self.sample(index, epoch=0)


class Pairs(Samples):
    """A row's two texts, each cut to its longest length."""

    def __init__(self, tokens: Tokens, tokenizer: Tokenizer, data: DataSettings) -> None:
        self.tokens, self.tokenizer = tokens, tokenizer
        self.most = data.source_length - 1, data.target_length - 1  # before EOS

    def __len__(self) -> int:
        return len(self.tokens)

    def sample(self, index: int, epoch: int) -> Sample:
        eos = np.int32(self.tokenizer.eos_id)
        cut = (self.tokens.ids(index, field)[:most] for field, most in enumerate(self.most))
        source, target = (checked(ids, index, self.tokenizer) for ids in cut)
        return Sample(np.append(source, eos), np.append(target, eos))

    def lengths(self, index: Integers) -> tuple[Integers, Integers]:
        source, target = (self.tokens.lengths(field)[index] for field in (0, 1))
        return np.minimum(source, self.most[0]) + 1, np.minimum(target, self.most[1]) + 1


class Spans(Samples):
    """Windows of a row's one text with some spans hidden, others in each epoch."""

    def __init__(self, tokens: Tokens, tokenizer: Tokenizer, data: DataSettings, seed: int) -> None:
        self.tokens, self.tokenizer, self.data, self.seed = tokens, tokenizer, data, seed
        mean_span = data.mean_span or (20.0 if tokenizer.name == "bytes" else 3.0)
        self.sentinels = np.array(tokenizer.sentinels, np.int32)
        if not len(self.sentinels):
            raise ConfigError(
                f"Tokenizer {tokenizer.name} has no sentinels (<extra_id_0>, …), which "
                "span-corruption needs: add them, or use T5's own tokenizer."
            )
        self.recipe = Recipe(data.noise_density, mean_span, len(self.sentinels))
        size = self.recipe.window(data.source_length, data.target_length)
        if size < SHORTEST:
            raise ConfigError(
                f"training.data.source_length {data.source_length} and target_length "
                f"{data.target_length} have no room for {SHORTEST} tokens with a share of "
                f"{data.noise_density} hidden: raise them."
            )
        self.windows = Windows(tokens.lengths(0), size)

    def __reduce__(self) -> tuple[Any, ...]:
        # A loader's worker counts the windows again rather than being sent the count.
        return Spans, (self.tokens, self.tokenizer, self.data, self.seed)

    def __len__(self) -> int:
        return len(self.windows)

    def sample(self, index: int, epoch: int) -> Sample:
        row, start, end = (int(n) for n in self.windows.locate(np.array(index)))
        ids = checked(self.tokens.ids(row, 0)[start:end], row, self.tokenizer)
        rng = np.random.default_rng((self.seed, epoch, index))
        return Sample(*corrupt(ids, self.recipe, self.sentinels, self.tokenizer.eos_id, rng))

    def lengths(self, index: Integers) -> tuple[Integers, Integers]:
        _, start, end = self.windows.locate(index)
        return self.recipe.lengths(end - start)


class Part(Samples):
    """The held-out samples, every n-th wherever it stands in the text, or all the others."""

    def __init__(self, whole: Samples, every: int, *, held_out: bool) -> None:
        self.whole, self.every, self.held_out = whole, every, held_out

    def __len__(self) -> int:
        held_out = len(self.whole) // self.every
        return held_out if self.held_out else len(self.whole) - held_out

    def sample(self, index: int, epoch: int) -> Sample:
        return self.whole.sample(int(self._origin(np.array(index))), epoch)

    def lengths(self, index: Integers) -> tuple[Integers, Integers]:
        return self.whole.lengths(self._origin(index))

    def _origin(self, index: Integers) -> Integers:
        if self.held_out:
            return (index + 1) * self.every - 1
        return index + index // (self.every - 1)


class Packed(Samples):
    """Rows of several samples each, as many as fit both longest lengths.

    Which samples share a row is a function of the data alone. To the sampler a row is a sample.
    """

    def __init__(self, samples: Samples, data: DataSettings) -> None:
        self.samples = samples
        longest = data.source_length, data.target_length
        members, sizes, lengths = [], [], []
        for start in range(0, len(samples), AT_ONCE):
            index = np.arange(start, min(start + AT_ONCE, len(samples)))
            each = np.stack(samples.lengths(index))
            row = first_fit(each, longest)
            size = np.bincount(row)
            members.append(index[np.argsort(row, kind="stable")])
            sizes.append(size)
            lengths.append(np.stack([np.bincount(row, weights=part) for part in each]))
        self.members = np.concatenate([np.empty(0, np.int64), *members])  # row after row
        self.ends = np.cumsum(np.concatenate([np.empty(0, np.int64), *sizes]))  # of each row
        self.row_lengths = np.concatenate([np.empty((2, 0)), *lengths], axis=1).astype(np.int32)

    def __len__(self) -> int:
        return len(self.ends)

    def sample(self, index: int, epoch: int) -> Sample:
        start = self.ends[index - 1] if index else 0
        members = self.members[start : self.ends[index]]
        row = [self.samples.sample(int(member), epoch) for member in members]
        source, target = [s.source for s in row], [s.target for s in row]
        return Sample(
            np.concatenate(source), np.concatenate(target), (numbered(source), numbered(target))
        )

    def lengths(self, index: Integers) -> tuple[Integers, Integers]:
        return self.row_lengths[0, index], self.row_lengths[1, index]


def numbered(texts: Sequence[Sequence[int] | Integers]) -> Integers:
    """1 for each token of the first text, 2 for the second, …; int64 [tokens]."""
    return np.repeat(np.arange(1, len(texts) + 1), [len(text) for text in texts])


@dataclass(frozen=True)
class Text:
    """The data of a run, the same on every rank."""

    train: Samples
    held_out: Samples
    tokenizer: Tokenizer
    bad_rows: BadRows  # what was left out
    fingerprint: str  # of what is trained on, or held out of it
    held_out_fingerprint: str  # of a held-out source of its own, else empty

    @property
    def vocabulary(self) -> int:
        """Rows that the model's embedding table needs: the largest id, sentinels too, and one."""
        return self.tokenizer.vocab_size


def open_data(data: DataSettings, seed: int) -> Text:
    """Training and held-out samples; `seed` decides, with the epoch, which spans are hidden.

    Raises what `fsdpkit.data.loading.load` raises, and ConfigError when no sample is left.
    """
    tokens, tokenizer, bad_rows = load(data)
    samples = samples_of(data.source, tokens, tokenizer, data, seed)
    parts: list[Samples]
    if data.held_out_source is None:
        every = round(1 / data.held_out) if data.held_out else len(samples) + 1
        parts = [Part(samples, every, held_out=held_out) for held_out in (False, True)]
        print_of_held_out = ""
    else:
        others, bad_in_others = load_held_out(data, tokenizer)
        parts = [samples, samples_of(data.held_out_source, others, tokenizer, data, seed)]
        bad_rows, print_of_held_out = bad_rows.and_also(bad_in_others), others.fingerprint()
    train, held_out = (Packed(part, data) if data.packing else part for part in parts)
    return Text(train, held_out, tokenizer, bad_rows, tokens.fingerprint(), print_of_held_out)


def samples_of(
    source: str, tokens: Tokens, tokenizer: Tokenizer, data: DataSettings, seed: int
) -> Samples:
    """Samples for the task of `data`, of the rows that `source` has. Raises ConfigError without."""
    samples: Samples
    if data.task == "span-corruption":
        samples = Spans(tokens, tokenizer, data, seed)
    else:
        samples = Pairs(tokens, tokenizer, data)
    if not len(samples):
        raise ConfigError(
            f"{source} has {len(tokens)} rows and no sample for {data.task}"
            + (f": no text has {SHORTEST} tokens." if len(tokens) else ".")
        )
    return samples


class Steps(Dataset[Batch]):
    """What a DataLoader reads: given a rank's share of a step, its worker makes the whole batch.

    All ranks pad to one shape, that of the step's longest sample, so that none computes longer.
    """

    def __init__(self, samples: Samples, data: DataSettings, batch_size: int) -> None:
        self.samples, self.batch_size = samples, batch_size
        self.buckets, self.packed = Buckets(data), data.packing

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, share: RankShare) -> Batch:
        shape = self.buckets.shape(*self.samples.lengths(share.everyone))
        samples = [self.samples.sample(index, share.epoch) for index in share]
        return collate(samples, self.batch_size, shape, packed=self.packed)


def as_is(batch: Any) -> Any:
    """The loader's collate_fn: `Steps` has collated already."""
    return batch


def make_loader(
    samples: Samples, settings: TrainingSettings, ranks: Ranks, *, shuffle: bool
) -> DataLoader[Batch]:
    """Batches of this rank: as many on every rank, each of `batch_size` rows.

    Raises ConfigError when a rank would never get a sample to train on. When evaluating
    (`shuffle` False) such a rank takes part with rows of nothing.
    """
    if shuffle and len(samples) < ranks.world_size:
        raise ConfigError(
            f"{settings.data.source} has {len(samples)} training samples for "
            f"{ranks.world_size} ranks: give it more, or run on fewer ranks."
        )
    sampler = GlobalOrderSampler(
        samples,
        num_replicas=ranks.world_size,
        rank=ranks.rank,
        shuffle=shuffle,
        seed=settings.seed,
        buckets=bucket_of_each(samples, settings.data),
    )
    workers = 0 if settings.data.workers == "auto" else settings.data.workers
    return DataLoader(
        Steps(samples, settings.data, settings.batch_size),
        batch_sampler=GlobalBatches(sampler, settings.batch_size),
        collate_fn=as_is,
        num_workers=workers,
        # Training's workers live through all epochs: what changes comes with each share.
        persistent_workers=shuffle and workers > 0,
        worker_init_fn=outlive_warnings if workers else None,
        pin_memory=ranks.device.type == "cuda",
        generator=torch.Generator(),  # a loader draws a number; not one of the run's
    )


def bucket_of_each(samples: Samples, data: DataSettings) -> NDArray[np.uint8] | None:
    """Each sample's length bucket, a byte; None when there are not two to choose from."""
    buckets = Buckets(data)
    if buckets.count < 2:
        return None
    found = np.empty(len(samples), np.uint8)
    for start in range(0, len(samples), AT_ONCE):
        index = np.arange(start, min(start + AT_ONCE, len(samples)))
        found[index] = buckets.of(*samples.lengths(index))
    return found


def collate(
    samples: Sequence[Sample],
    rows: int | None = None,
    shape: tuple[int, int] | None = None,
    *,
    packed: bool = False,
) -> Batch:
    """`rows` rows padded to `shape`; unset, as many as there are and as long as the longest.

    Rows beyond the samples hold nothing and weigh nothing. There is at least one: a rank that has
    run out of data still has to take part in every collective of the step.
    """
    sources, targets = [s.source for s in samples], [s.target for s in samples]
    rows = rows or max(1, len(samples))
    if shape is None:
        shape = max([1, *map(len, sources)]), max([1, *map(len, targets)])
    ends = torch.zeros(rows, 1, dtype=torch.int64)
    ends[: len(samples), 0] = torch.tensor([*map(len, sources)], dtype=torch.int64)
    segments = None
    if packed:
        numbers = [s.segments for s in samples if s.segments is not None]
        segments = (
            pad([source for source, _ in numbers], rows, shape[0], 0),
            pad([target for _, target in numbers], rows, shape[1], 0),
        )
    return Batch(
        pad(sources, rows, shape[0], PAD),
        torch.arange(shape[0]) < ends,
        pad(targets, rows, shape[1], IGNORE),
        segments,
    )


def pad(texts: Sequence[Sequence[int] | Integers], rows: int, length: int, value: int) -> Tensor:
    """int64 [rows, length]: each text from the left, `value` where there is nothing."""
    padded = np.full((rows, length), value, np.int64)
    for place, text in zip(padded, texts, strict=False):
        place[: len(text)] = text
    return torch.from_numpy(padded)


def checked(ids: Integers, row: int, tokenizer: Tokenizer) -> NDArray[np.int32]:
    """`ids`, from row `row` of the data; ConfigError if they are not all the tokenizer's."""
    if len(ids) and int(ids.max()) >= tokenizer.vocab_size:
        raise ConfigError(
            f"Row {row} of the data has id {ids.max()}, but tokenizer {tokenizer.name} only "
            f"{tokenizer.vocab_size} ids: the data was made with another one."
        )
    return ids.astype(np.int32)
