"""The causes that a run can have ended for, and which of them goes first.

An entry (cause.py; they stand in families/) has the sentence that a person reads, what to do, and
how the cause is recognised: by a line that somebody wrote (`patterns`), by an exit status, by
Slurm's state of the job, by how the batch shell summed it up (`endings`). Where one line fits
several entries the first counts, so what is more particular stands further up. Exceptions are told
by their types as well (exceptions.py). Sources of the words are the programs named in each
pattern's `why`; those of Slurm 22.05, torch 2.13 and NCCL 2.2x were read in real logs.

A new cause is added to its family, and to the order here.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.families import (
    collectives,
    gpus,
    memory,
    network,
    scheduler,
    software,
    storage,
    training,
)
from fsdpkit.failures.patterns import Level, Shown, Speaker

CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        memory.HOST_OUT_OF_MEMORY,
        scheduler.IDLE,
        scheduler.PREEMPTION,
        scheduler.TIME_LIMIT,
        scheduler.CANCELLED,
        scheduler.NODE_FAILURE,
        scheduler.REFUSED,
        training.WRONG_WORLD,
        software.OWN_STEP,
        network.NO_INTERNET,
        software.VERSION_MISMATCH,
        network.PORT_TAKEN,
        network.PORTS_BLOCKED,
        network.HEAD_ADDRESS,
        software.ENVIRONMENT_MISSING,
        software.SCRIPT_NOT_VISIBLE,
        software.IMPORT_ERROR,
        network.NETWORK_SETUP,
        memory.GPU_OUT_OF_MEMORY,
        gpus.BAD_GPU,
        storage.DISK_FULL,
        storage.STORAGE,
        storage.CHECKPOINT_UNREADABLE,
        storage.DATA_MISSING,
        training.NAN_LOSS,
        collectives.COLLECTIVE_MISMATCH,
        collectives.HANG,
        network.RENDEZVOUS_TIMEOUT,
        network.CONNECTION_RESET,
        training.SETTINGS,
        training.EXCEPTION,
        scheduler.PENDING_FOREVER,
        scheduler.PENDING,
        Cause("running", "The job is running, and nothing is wrong so far."),
        Cause("done", "The run is complete."),
        Cause("unknown", "The cause is unknown: {words}."),
    )
}
"""By name, the more particular first."""


def shown_in(
    text: str, speaker: Speaker, masked: str | None = None, below: int = Level.OUTSIDE + 1
) -> Iterator[Shown]:
    """The causes that a text of this speaker shows, the more particular first: for each the first
    place, by patterns below a level. masked: the text without what it quotes."""
    for cause in CAUSES.values():
        for pattern in cause.patterns:
            if speaker not in pattern.by or pattern.level >= below:
                continue
            searched = text if masked is None or pattern.quoted else masked
            if (place := pattern.found_in(searched)) is not None:
                yield Shown(cause.name, pattern, place.begin, place.end, place.node, place.rank)
                break


_WITHOUT_A_PAGE = ("running", "done")


def page_of(cause: str) -> str | None:
    """The page on a cause, as a path from what is packaged; None where nothing went wrong."""
    return None if cause in _WITHOUT_A_PAGE else f"docs/failures/{cause}.md"
