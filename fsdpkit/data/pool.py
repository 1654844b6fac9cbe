"""The processes that write shards: how they are started, watched, and ended.

Nothing of the parent is inherited but what is handed over (a fork server starts them), Ctrl-C is
the parent's to answer, and a process whose parent has died ends at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fsdpkit.data.index import Preparation
from fsdpkit.data.prepared import tokenizer_of
from fsdpkit.data.rows import FilePiece
from fsdpkit.data.shards import write_shard
from fsdpkit.data.tokenizers import Tokenizer
from fsdpkit.errors import FsdpkitError

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from multiprocessing.synchronize import Event

REPORT_S = 0.2


class PreparationProgress(NamedTuple):
    """How far a preparation is; `bytes` and `rows` count what this command has done itself."""

    shards: int
    shards_whole: int
    bytes: int
    bytes_found: int  # of shards that were whole before
    bytes_total: int
    rows: int


class _Stopped(Exception):
    """The parent wants no more."""


@dataclass
class _Worker:
    """What a process keeps between shards."""

    directory: Path
    asked: Preparation
    tokenizer: Tokenizer
    counters: Any  # shared array: bytes read, rows written
    stop: Event

    def report(self, read_bytes: int, rows: int) -> None:
        with self.counters.get_lock():
            self.counters[0] += read_bytes
            self.counters[1] += rows
        if self.stop.is_set():
            raise _Stopped


_worker: _Worker | None = None


def write_shards(
    directory: Path,
    asked: Preparation,
    shards: Sequence[Sequence[FilePiece]],
    todo: Sequence[int],
    processes: int,
    report: Callable[[PreparationProgress], None],
) -> None:
    """Write the shards numbered in `todo`; returns when all are whole. Raises what the first of
    them (by number, not by time) fell over; on that and on KeyboardInterrupt no process is left and
    the whole shards stay."""
    sizes = [sum(piece.bytes for piece in shard) for shard in shards]
    found = sum(sizes) - sum(sizes[number] for number in todo)
    context = _fork_server()
    counters, stop = context.Array("q", 2), context.Event()
    futures: list[Future[None]] = []

    def progress() -> PreparationProgress:
        whole = len(shards) - len(todo) + sum(f.done() for f in futures)
        return PreparationProgress(len(shards), whole, counters[0], found, sum(sizes), counters[1])

    report(progress())
    if not todo:
        return
    with ProcessPoolExecutor(
        min(processes, len(todo)), context, _start, (directory, asked, counters, stop)
    ) as pool:
        try:
            futures += [pool.submit(_write, number, shards[number]) for number in todo]
            pending = set(futures)
            while pending:
                done, pending = wait(pending, REPORT_S, FIRST_EXCEPTION)
                report(progress())
                if any(future.exception() for future in done):
                    break
        except BaseException:
            stop.set()
            raise
        finally:
            # Shards before a failed one have all begun: they end, and the first failure is known.
            pool.shutdown(wait=True, cancel_futures=True)
    _raise_first(futures)


def _fork_server() -> ForkServerContext:
    """Where processes come from, running, and deaf to Ctrl-C from their first moment."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with _at_the_root():
        resource_tracker.ensure_running()  # first, for it unblocks SIGINT once it is started
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()  # what it starts inherits the mask
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    return context


@contextmanager
def _at_the_root() -> Iterator[None]:
    """Both are `python -c`, which looks for modules where it is started first: not in a directory
    whose files somebody else may have written."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def _raise_first(futures: Sequence[Future[None]]) -> None:
    try:
        for future in futures:
            if not future.cancelled():
                future.result()
    except BrokenProcessPool:
        raise FsdpkitError(
            "a preparing process was killed, perhaps for its memory use: run the command again, "
            "which continues where it stopped, or use fewer --processes."
        ) from None


def _start(directory: Path, asked: Preparation, counters: Any, stop: Event) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tokenizer = tokenizer_of(directory, asked.tokenizer)
    _worker = _Worker(directory, asked, tokenizer, counters, stop)


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _write(shard: int, pieces: Sequence[FilePiece]) -> None:
    assert _worker is not None
    w = _worker
    write_shard(w.directory, shard, pieces, w.asked, w.tokenizer, w.report)
