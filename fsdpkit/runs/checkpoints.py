"""Checkpoints on disk: which exist, what each contains, and whether every byte is still intact.

    checkpoints/
        writer.json          who may write here: the process started last
        step-<s>/            complete: named after everything in it was written and synced
            checkpoint.json  what it is (Description)
            .metadata, __<rank>_0.distcp   tensors, as torch.distributed.checkpoint lays them out
            config.json, …   what Hugging Face needs beside the weights, if the trainer wrote it
            SHA256SUMS       of all other files; `sha256sum -c SHA256SUMS` checks it by hand, too
        .step-<s>.<writer>/  being written, or left by a process that was killed

Needs no torch, so a login node lists and checks checkpoints quickly. The content of the tensors is
`fsdpkit.training.checkpoint`'s business.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.errors import ConfigError, DamagedError, StorageError
from fsdpkit.runs.reading import open_regular, read_bytes, read_json

FORMAT = 1
DESCRIPTION, CHECKSUMS, METADATA = "checkpoint.json", "SHA256SUMS", ".metadata"

_STEP = re.compile(r"step-(\d+)")
_CHECKSUM = re.compile(r"([0-9a-f]{64})  ([^/\0\n]+)")
_READ_BYTES = 1 << 20

Report = Callable[[int], object]
"""Told the bytes read since it was last called."""


@dataclass(frozen=True)
class Best:
    """What makes one checkpoint better than another: the lowest, or highest, value of a metric."""

    metric: str
    highest: bool = False

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether `value` beats `than`; a value that is not finite beats nothing."""
        if not math.isfinite(value):
            return False
        return than is None or (value > than if self.highest else value < than)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What `checkpoint.json` says. Sizes are in bytes, times in UTC."""

    step: int
    saved_at: str  # ISO 8601, to the second
    world_size: int  # ranks that wrote it; any number can read it
    optimizer: str  # the class's name
    versions: dict[str, str]  # of fsdpkit, torch, numpy and python
    progress: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)  # small state by name: loss scale etc.
    export: dict[str, Any] = field(default_factory=dict)  # what an export adds; see HuggingFace
    settings: dict[str, Any] = field(default_factory=dict)  # the trainer's, to look up later
    data: dict[str, Any] = field(default_factory=dict)  # what `progress` counts in; see DataOrder
    measured: dict[str, float] = field(default_factory=dict)  # of these weights, by metric
    best_by: Best | None = None  # the metric by which the run keeps its best checkpoint
    files: dict[str, int]  # name → size of every file but this one and the checksums
    format: int = FORMAT

    @property
    def total_bytes(self) -> int:
        return sum(self.files.values())

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def step_of(path: Path) -> int | None:
    """The step in a checkpoint's name; None for anything else."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def checkpoints_in(directory: Path) -> list[Path]:
    """Everything with a checkpoint's name in `directory`, oldest first: complete when it was named.
    Raises StorageError if the directory cannot be read; one that does not exist has none."""
    try:
        named = [(step_of(path), path) for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{directory} cannot be read: {error.strerror}.") from None
    return [path for _, path in sorted((step, path) for step, path in named if step is not None)]


def describe(path: Path) -> Description:
    """What the checkpoint `path` is, by its own description. Raises DamagedError naming the file
    that is missing or incomplete, StorageError if one cannot be read now, ConfigError for one in
    another format, written by another fsdpkit."""
    file = path / DESCRIPTION
    try:
        table = read_json(file)
        if (form := table["format"]) != FORMAT:
            writer = table.get("versions", {}).get("fsdpkit", "?")
            raise ConfigError(
                f"{file} has format {form}, written by fsdpkit {writer}; this one reads format "
                f"{FORMAT}. Use that version."
            )
        return msgspec.convert(table, Description)
    except FileNotFoundError:
        raise DamagedError(f"{file} is missing: not a whole checkpoint of fsdpkit.") from None
    except OSError as error:
        raise _unreadable(file, error) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedError(
            f"{file} is incomplete or was changed: not what fsdpkit writes."
        ) from None


def best_of(found: Sequence[Path], by: Best | None = None) -> tuple[Path, Best, float] | None:
    """The best of `found`, by what and its value; the earlier of two that are equal. If unset, `by`
    is the metric recorded in the last of them. None if that has none or no checkpoint was measured;
    those that cannot be read are skipped."""
    described = []
    for path in found:
        with suppress(StorageError, ConfigError):
            described.append((path, describe(path)))
    by = by or (described[-1][1].best_by if described else None)
    if by is None:
        return None
    best: tuple[Path, Best, float] | None = None
    for path, description in described:
        value = description.measured.get(by.metric)
        if value is not None and by.is_better(value, best[2] if best else None):
            best = path, by, value
    return best


def checksums(path: Path) -> dict[str, str]:
    """SHA-256 of each file of the checkpoint `path`, as written. Raises DamagedError if the list is
    missing or incomplete, or lacks a required file, and what `describe` raises."""
    file = path / CHECKSUMS
    try:
        *lines, last = read_bytes(file).decode("ascii").split("\n")
    except FileNotFoundError:
        raise DamagedError(f"{file} is missing: not a whole checkpoint of fsdpkit.") from None
    except OSError as error:
        raise _unreadable(file, error) from None
    except ValueError:
        raise DamagedError(
            f"{file} is incomplete or was changed: not what fsdpkit writes."
        ) from None
    sums = {match[2]: match[1] for match in map(_CHECKSUM.fullmatch, lines) if match}
    if not last and len(sums) == len(lines) and DESCRIPTION in sums:
        # The description's own checksum first: only unchanged data is trusted.
        if problem := problem_with(path, DESCRIPTION, sums[DESCRIPTION]):
            raise DamagedError(f"{problem}.")
        if {DESCRIPTION, *describe(path).files} == sums.keys():
            return sums
    raise DamagedError(f"{file} is incomplete or was changed: it does not list the files here.")


def problem_with(path: Path, name: str, sha256: str, report: Report | None = None) -> str | None:
    """What is wrong with the file `name` of the checkpoint `path`; None if it is as written. Raises
    StorageError if it cannot be read now, so that this is unknown."""
    file = path / name
    try:
        found = sha256_of(file, report)
    except FileNotFoundError:
        return f"{file} is missing"
    except OSError as error:
        if isinstance(problem := _unreadable(file, error), DamagedError):
            return str(problem).rstrip(".")
        raise problem from None
    return None if found == sha256 else f"{file} is not what was written (SHA-256 differs)"


def _unreadable(file: Path, error: OSError) -> StorageError:
    """A failing disk or network says nothing about the file itself; a directory is no file."""
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        return DamagedError(f"{file} is not a file.")
    return StorageError(
        f"{file} cannot be read: {error.strerror}. It may be whole nevertheless: try again."
    )


def wrong_size(path: Path, sizes: Mapping[str, int]) -> str | None:
    """The first file of the checkpoint `path` that is missing or has the wrong size, in words."""
    for name, size in sizes.items():
        try:
            found = os.stat(path / name)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if not stat.S_ISREG(found.st_mode):
            return f"{name} is not a file"
        if found.st_size != size:
            return f"{name} has {found.st_size:,} bytes instead of {size:,}"
    return None


def problems_of(path: Path, report: Report | None = None) -> list[str]:
    """What is wrong with the checkpoint `path`; reads every byte of its files. Raises StorageError
    if they cannot be read now, ConfigError for another format."""
    try:
        sums = checksums(path)
    except DamagedError as error:
        return [str(error).rstrip(".")]
    found = (problem_with(path, name, sha256, report) for name, sha256 in sums.items())
    return [problem for problem in found if problem]


def sha256_of(file: Path, report: Report | None = None) -> str:
    """Of the file's bytes, in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with open_regular(file) as stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
            if report:
                report(len(chunk))
    return digest.hexdigest()


def checksum_lines(sums: dict[str, str]) -> str:
    """The text of SHA256SUMS."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
