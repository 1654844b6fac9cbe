"""Where a Lightning run was: which batches of the epoch are done, and its ranks' random numbers.

Lightning saves the count of batches, but begins the epoch's data anew and draws other random
numbers, so a run that was interrupted sees some rows twice and others never. Here the data goes on
behind the last batch that counted. A shuffled epoch is the same again where its order is drawn from
the number of the epoch, as Lightning's sampler for several ranks does; one rank's RandomSampler
draws a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from fsdpkit.script.random_states import random_state, set_random_state
from fsdpkit.script.stopping import from_all


def position() -> dict[str, Any]:
    """What a checkpoint keeps: all ranks' random states; to be called on all of them."""
    return {"random": from_all(random_state())}


def restore(trainer: Any, saved: dict[str, Any]) -> None:
    """As training is about to begin: put data and random numbers where they were."""
    _advance_data(trainer)
    states = saved.get("random")
    if isinstance(states, list) and len(states) == trainer.world_size:
        set_random_state(states[trainer.global_rank])


def _advance_data(trainer: Any) -> None:
    """Begin the epoch's data behind the batches that are done."""
    loop = trainer.fit_loop
    fetcher, progress = loop._data_fetcher, loop.epoch_loop.batch_progress
    if fetcher is None:
        return
    loaders = list(fetcher.combined_loader.flattened)
    if all(hasattr(loader, "load_state_dict") for loader in loaders):
        return  # Lightning has told the loaders
    done = progress.current.ready
    if progress.is_last_batch or done >= trainer.num_training_batches:
        done = 0
    for loader in loaders:
        _set_epoch(loader, loop.epoch_progress.current.processed)
    by_index = done > 0 and all(_skip(loader, done) for loader in loaders)
    iter(fetcher)  # the iterator that there is may have drawn from an earlier epoch
    if done and not by_index:
        for _ in range(done):
            next(fetcher)
        fetcher.fetched = 0  # the loop adds what is done itself


def _set_epoch(loader: Any, epoch: int) -> None:
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        set_epoch = getattr(getattr(holder, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _skip(loader: Any, batches: int) -> bool:
    """Leave out as many batches without reading them; False where the loader cannot."""
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset

    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler or isinstance(sampler.sampler, _Rest):
        return False
    sampler.sampler = _Rest(sampler.sampler, batches * sampler.batch_size)
    return True


class _Rest:
    """A sampler's indices, without the first ones when it is read for the first time."""

    def __init__(self, sampler: Any, skipped: int) -> None:
        self._sampler, self._skipped = sampler, skipped

    def __iter__(self) -> Iterator[int]:
        skipped, self._skipped = self._skipped, 0
        return islice(iter(self._sampler), skipped, None)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:  # set_epoch
        return getattr(self._sampler, name)
