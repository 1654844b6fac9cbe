"""Where runs are kept, and how to find one again."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from fsdpkit.bounded import LISTED_BYTES, read_bytes
from fsdpkit.config.spelling import nearest
from fsdpkit.errors import NotFoundError, StorageError, storage_errors
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import build_types


def runs_dir(given: str | os.PathLike[str] | None = None) -> Path:
    """The directory of runs: as given, `$FSDPKIT_RUNS`, else `runs` in the current directory."""
    return Path(os.path.expanduser(given or os.environ.get("FSDPKIT_RUNS") or "runs")).absolute()


def all_runs(top: Path) -> list[Path]:
    """Run directories below `top`, newest first by name's time stamp, then name. Raises
    StorageError if `top` cannot be read."""
    return [top / name for name in names_in(top) if os.path.exists(f"{top}/{name}/run.json")]


def newest_run(top: Path) -> Path | None:
    """The first of `all_runs` that is this user's: in a shared directory others may date theirs as
    they like. Raises StorageError."""
    found = (top / n for n in names_in(top) if os.path.exists(f"{top}/{n}/run.json"))
    return next((run for run in found if is_mine(run)), None)


def is_mine(run: Path) -> bool:
    """Whether the directory is this user's, also where a link leads to it."""
    try:
        return {os.lstat(run).st_uid, os.stat(run).st_uid} == {os.geteuid()}
    except OSError:
        return False


def names_in(top: Path) -> list[str]:
    """What may be runs, newest first."""
    missing = contextlib.suppress(FileNotFoundError, NotADirectoryError)
    with storage_errors(top, "read"), missing:
        names = os.listdir(top)
        return sorted(names, key=lambda name: (name.split("-")[-3:], name), reverse=True)
    return []


class EndedJobs(msgspec.Struct, frozen=True):
    """The little of a record that tells whether its end is on it; decoded from run.json."""

    state: Literal["submitting", "submitted"]
    ended: dict[str, Any] | None = None
    earlier: list[_EarlierJob] = []
    resuming: dict[str, Any] | None = None

    @property
    def for_good(self) -> bool:
        """Whether there is no need to ask about the run any more."""
        settled = self.ended is not None and all(job.ended is not None for job in self.earlier)
        return settled and self.resuming is None and self.state == "submitted"


class _EarlierJob(msgspec.Struct, frozen=True):
    ended: dict[str, Any] | None = None


def runs_by_end(top: Path, over: set[str] | None = None) -> list[tuple[str, bool]]:
    """The name of each run below `top`, newest first, with whether its end is on record.

    over: the names of those of which that is known, which are not read; those found are added.
    Made for ten thousand runs: one file is read of each, and little of it decoded. A run whose
    record cannot be read or understood counts as not ended. Raises StorageError for `top`.
    """
    names, decoder = names_in(top), msgspec.json.Decoder(EndedJobs)
    over = set() if over is None else over

    def look(name: str) -> bool | None:
        if name in over:
            return True
        try:
            return decoder.decode(read_bytes(f"{top}/{name}/run.json", LISTED_BYTES)).for_good
        except (FileNotFoundError, NotADirectoryError):
            return None  # not a run
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False

    answers = zip(names, looked_at(look, names), strict=True)
    found = [(name, ended) for name, ended in answers if ended is not None]
    over |= {name for name, ended in found if ended}
    return found


_SEARCHED = 1_000
"""How many runs are read to find a job's."""
_PART = 4
"""Characters of an id that name a run: a shorter word ends many an id by chance."""
_SAMPLE, _SLOW_S, _THREADS = 64, 0.0003, 16
Seen = TypeVar("Seen")


def looked_at(look: Callable[[str], Seen], names: Sequence[str]) -> Iterator[Seen]:
    """For each name, in order; many at once, as on slow file systems nearly all time is waiting."""
    took_s = []
    for name in names[:_SAMPLE]:
        began = time.perf_counter()
        yield look(name)
        took_s.append(time.perf_counter() - began)
    rest = names[_SAMPLE:]
    if rest and sorted(took_s)[len(took_s) // 2] > _SLOW_S:
        from concurrent.futures import ThreadPoolExecutor

        build_types()
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(look, rest)
    else:
        yield from map(look, rest)


def _is_there(path: Path) -> bool:
    """Whether anything exists there. Raises OSError if access is denied."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return False
        raise
    except ValueError:  # a NUL
        return False
    return True


def runs_of_job(job_id: str, top: Path) -> list[Path]:
    """This user's runs, of the newest in `top`, that have or had a job of that number. It is one
    run, unless there are several clusters."""
    from fsdpkit.runs.record import load

    found = []
    for name in names_in(top)[:_SEARCHED]:
        with contextlib.suppress(NotFoundError, StorageError):
            record = load(run := top / name)
            if job_id in (record.job_id, *(job.job_id for job in record.earlier)) and is_mine(run):
                found.append(run)
    return found


def find_run(run: str | os.PathLike[str], top: Path) -> Path:
    """The directory of a run given by its path, its id, the name of its job or another part that
    only its id has (`_PART` characters or more), or the number of a job of it. Raises NotFoundError
    with the nearest id and where it looked."""
    direct = Path(os.path.expanduser(run)).absolute()
    for place in (direct, *(direct.parents if direct.exists() else ())):  # a file of it, too
        if _is_there(RunPaths(place).record):
            return place
    names = {p.name: p for p in all_runs(top)}
    text = str(run).rstrip("/")
    matches = [n for n in names if n == text]
    if text and not matches:
        of_job = {run.name for run in runs_of_job(text, top)} if text.isdigit() else ()
        known = len(text) >= _PART
        matches = [
            name
            for name in names
            if name.startswith(f"{text.rstrip('-')}-") or (known and text in name) or name in of_job
        ]
    if len(matches) == 1:
        return names[matches[0]]
    if matches:
        raise NotFoundError(f"{text!r} matches several runs: {', '.join(matches[:5])}")
    newest = f" The newest are {', '.join([*names][:3])}." if names else ""
    if direct.is_file():
        raise NotFoundError(f"{text!r} is a file, and no run.{newest}")
    raise NotFoundError(
        f"there is no run {text!r} in {top}.{nearest(text, names) or newest} Give its path, or "
        "--runs DIR."
    )
