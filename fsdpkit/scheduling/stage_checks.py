"""What a submission refuses of `[stage]`: settings that contradict one another or the cluster, and
data that is not there or has no room on a node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice, takewhile
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.stage import StagedItem
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.rendering.containers import is_by_plugin
from fsdpkit.scheduling.room import why_not_read

_GB = 10**9
_MOST_ENTRIES, _LONGEST_S = 20_000, 2.0
"""How much of the data a submission looks at; what is beyond, the nodes find out."""


def check_stage(job: LoadedJob, site: LoadedSite) -> None:
    """Raises UsageError or ConfigError; looks at no file."""
    stage, spec, name = job.spec.staged, job.spec, f"job {job.spec.name}"
    given = {
        "args": spec.args,
        "array_args": [*chain.from_iterable(job.array_args.values())],
        "retry.args_again": spec.retry.args_again,
    }
    for key, words in given.items():
        if not stage.has_directory and any("{stage}" in word for word in words):
            raise UsageError(
                f"{name}: {key}: {{stage}} stands for the directory that [stage] fills on each "
                "node, but the job copies nothing there: name files in stage.data"
            )
    if stage.is_asked and is_by_plugin(job, site.profile):
        raise UsageError(
            f"{name}: stage: pyxis starts all of a node's work in the container, which does not "
            "see the copies on the node's disk: leave [stage] out"
        )
    if stage.is_asked and site.profile.storage.local is None:
        raise ConfigError(f"{name}: stage: {_no_place(site)}")


def _no_place(site: LoadedSite) -> str:
    own = assets.user_dir() / "site" / "profiles" / f"{site.id}.toml"
    where = own if site.id in assets.available("site") else site.files[-1]
    return (
        f"the profile {site.id} does not say where a node's own disk is (storage.local), and "
        f"fsdpkit does not guess: look it up in the centre's manual, and write into {where}\n"
        '[storage]\nlocal = "$TMPDIR"    # or what it is there'
    )


def look_at_staged(job: LoadedJob, profile: SiteProfile, runs: Path, work_dir: Path) -> list[str]:
    """What to know of the data that the nodes get. Raises ConfigError."""
    name = f"job {job.spec.name}"
    try:
        items = job.spec.staged.items(work_dir)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    written = {str(p) for runs in (runs, runs.resolve()) for p in (runs, *runs.parents)}
    for item in items:
        if why := _why_not(item, written):
            raise ConfigError(f"{name}: stage.data: {item.pattern}: {why}")
    for path in job.spec.staged.back:
        if os.path.normpath(path).partition("/")[0] in {item.name for item in items}:
            raise ConfigError(f"{name}: stage.back: {path} is a copy of stage.data: leave it out")
    room_gb = profile.storage.local_gb
    return [] if room_gb is None else _room(job, profile, items, room_gb)


def _why_not(item: StagedItem, written: set[str]) -> str | None:
    found = _found(item)
    if (first := next(found, None)) is None:
        return why_not_read(Path(item.pattern)) or "nothing is there"
    for path in chain([first], found):
        if path in written:
            return "the runs are in there, to which jobs write: name what is below it"
    return why_not_read(Path(first))


def _found(item: StagedItem) -> Iterator[str]:
    """The paths that it stands for."""
    if os.path.lexists(item.pattern):  # whatever its name is like
        return iter([item.pattern])
    import glob  # few jobs have data to copy

    return glob.iglob(item.pattern, recursive=True)


def _room(
    job: LoadedJob, profile: SiteProfile, items: Iterable[StagedItem], room_gb: float
) -> list[str]:
    """Raises ConfigError if there is less of it on a node than the data certainly needs."""
    until_s, sizes = time.monotonic() + _LONGEST_S, chain.from_iterable(map(_sizes, items))
    counted = takewhile(lambda _: time.monotonic() < until_s, islice(sizes, _MOST_ENTRIES))
    nodes = job.spec.resources.nodes if job.spec.staged.share == "sharded" else 1
    takes_gb = sum(counted) / nodes / _GB
    least = "" if next(sizes, None) is None else "at least "
    if takes_gb > room_gb:
        raise ConfigError(
            f"job {job.spec.name}: stage.data takes {least}{takes_gb:,.3g} GB of each node's disk, "
            f"and a job has {room_gb:g} GB there on {profile.title} (storage.local_gb): copy "
            'less, or share = "sharded" on more nodes'
        )
    if not least:
        return []
    return [
        f"stage.data takes {least}{takes_gb:,.3g} of the {room_gb:g} GB on each node's disk: it "
        "has too many files to count before the job runs"
    ]


def _sizes(item: StagedItem) -> Iterator[int]:
    """Bytes of each file. Links in directories are not followed."""
    for path in _found(item):
        with suppress(OSError):
            yield os.path.isfile(path) * os.path.getsize(path)
        for directory, _, names in os.walk(path):
            for name in names:
                with suppress(OSError):  # it is gone
                    yield os.lstat(os.path.join(directory, name)).st_size
