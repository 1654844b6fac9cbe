"""How much is read of what somebody else may have written; and the one way to open such a file.

Whoever looks at a job, a template or a run of somebody else must not wait for it, nor run out of
memory. What has more than a limit is refused, or read in part where the limit's sentence says so.
SECURITY.md lists all of them (tests/packaging/test_bounded.py compares). Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

LIMITS: list[tuple[str, int, str]] = []
"""What is limited, the most of it, and the unit."""


def _limit(most: int, unit: str, of: str) -> int:
    LIMITS.append((of, most, unit))
    return most


# Jobs, profiles, templates and what lies beside them

TOML_BYTES = _limit(1_000_000, "bytes", "a TOML file")
TOML_DOTS = _limit(
    50_000_000, "dots²", "a TOML file: the dots of each line, squared and added up (dotted keys)"
)
TABLES = _limit(16, "levels", "tables in tables")
TEXT = _limit(4096, "characters", "a text in a TOML file")
PATTERN = _limit(500, "characters", "a regular expression in a file, matched in linear time")
PATTERN_SIZE = _limit(1000, "steps", "the same, compiled")
PATTERN_STEPS = _limit(200_000, "steps", "matching one text; a longer one does not match")
PARAMETERS = _limit(500, "entries", "parameters of a template")
TEMPLATE_BYTES = _limit(128_000, "bytes", "all parts of a template together")
TEMPLATE_NODES = _limit(8000, "entries", "tags, names and operations in a part of a template")
RENDERING_S = _limit(2, "s", "processor time of rendering a template that is not the package's")
RENDERING_BYTES = _limit(256 << 20, "bytes", "memory of rendering it, beyond what there was")
TEMPLATE_FILES = _limit(1000, "entries", "a template's folder")
SCRIPT_BYTES = _limit(4 << 20, "bytes", "a training script, as it is looked through")
MODEL_BYTES = _limit(64 << 20, "bytes", "a model's config.json, or the index of its weights")
COUNTED_BYTES = _limit(32 << 20, "bytes", "training data, as its rows are counted")
BALANCE_BYTES = _limit(1 << 16, "bytes", "what a centre's command says of an account's balance")
BALANCE_S = _limit(10, "s", "how long that command may take")
LAYERS = _limit(1000, "entries", "layers, blocks or experts of a model, in its config.json")

# Runs

RECORD_BYTES = _limit(64 << 20, "bytes", "a record of a run, such as run.json or job.json")
METRICS_BYTES = _limit(1 << 30, "bytes", "metrics.jsonl; of a larger one, its end")
TAIL_BYTES = _limit(
    64 << 20, "bytes", "the end of an output, or of samples; more of it is passed over"
)
EVENTS_BYTES = _limit(8 << 20, "bytes", "the end of a node's events, or of the agents' orders")
QUOTED = _limit(2000, "characters", "a line of an output that is quoted among others")
LINE_BYTES = _limit(1 << 20, "bytes", "a line of an output or of metrics; a longer one is cut")
JOBS = _limit(1000, "entries", "jobs of a run")
TASKS = _limit(100_000, "entries", "tasks of a job's array")
NODES = _limit(100_000, "entries", "nodes of a job, or nodes that it leaves out")
RANKS = _limit(4096, "entries", "ranks of a node")
DETAILS_BYTES = _limit(16 << 20, "bytes", "a run's provenance, or the analysis of a flight record")
NOTE_BYTES = _limit(1 << 16, "bytes", "a small record: a failure, a request, a plan's prediction")
SHARED_BYTES = _limit(64 << 10, "bytes", "a shared record, as `audit` reads it")
ATTEMPTS_READ = _limit(8, "entries", "attempts that a diagnosis reads, the newest")
TASKS_READ = _limit(64, "entries", "tasks of an array that are looked into")
NODES_READ = _limit(8192, "entries", "nodes that a diagnosis reads of an attempt")
RANKS_READ = _limit(4096, "entries", "ranks that a diagnosis reads of an attempt")
FILES_READ = _limit(8192, "entries", "failures on record, or nodes with events, of an attempt")
LISTED_BYTES = _limit(4 << 20, "bytes", "a run.json among those of other runs")
LISTED_TASKS = _limit(10_000, "entries", "tasks of an array among other runs")


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: str | os.PathLike[str], *, links: bool = False) -> BinaryIO:
    """The file, to be read; a link only where `links` may be followed. Raises OSError."""
    return open(descriptor(path, links=links), "rb")


def descriptor(
    path: str | os.PathLike[str], directory: int | None = None, *, links: bool = False
) -> int:
    """Of a regular file: opening a pipe without a writer, or a device, blocks. Raises OSError."""
    try:
        number = os.open(path, _FLAGS | (0 if links else os.O_NOFOLLOW), dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "it is a symbolic link", os.fspath(path)) from None
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path)) from None
        raise
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise kind(code, "it is not a regular file", os.fspath(path))
    return number


def read_end(path: str | os.PathLike[str], most: int = TAIL_BYTES) -> bytes:
    """The whole lines among a file's last bytes; all of it, if it has no more. Raises OSError."""
    with open_regular(path) as file:
        older = os.fstat(file.fileno()).st_size - most
        if older <= 0:
            return file.read(most)
        file.seek(older - 1)  # which may end a line
        return file.read(most + 1).partition(b"\n")[2]


def lines_in(file: BinaryIO, most: int = METRICS_BYTES) -> Iterator[bytes]:
    """The lines among the last bytes of a file, with an empty one for each that is too long; none
    behind TAIL_BYTES without a line's end, which nobody wrote line by line."""
    older = max(0, os.fstat(file.fileno()).st_size - most)
    file.seek(older)
    inside, left, since_end = older > 0, most, 0
    while left > 0 and since_end <= TAIL_BYTES and (line := file.readline(LINE_BYTES)):
        left -= len(line)
        since_end = 0 if line.endswith(b"\n") else since_end + len(line)
        ends = line.endswith(b"\n")
        if ends or left <= 0 or len(line) < LINE_BYTES:
            yield b"" if inside else line
        inside = not ends


def parsed(text: str | bytes) -> Any:
    """The content of a JSON text. Raises ValueError, also for excessive nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def json_of_model(path: Path) -> Any:
    """What a JSON file of a model says, perhaps through a link. Raises OSError, ValueError."""
    return parsed(read_bytes(path, MODEL_BYTES, links=True).decode())


def read_bytes(
    path: str | os.PathLike[str],
    most: int = RECORD_BYTES,
    *,
    own: bool = False,
    links: bool = False,
) -> bytes:
    """All of the file. Raises OSError, also for more than `most` bytes, and PermissionError for
    another user's (not root's) if it must be one's `own`. Ten thousand records are read in a row: a
    Python file object would cost more than the reading."""
    number = descriptor(path, links=links)
    try:
        found = os.fstat(number)
        if own and found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "it belongs to another user", os.fspath(path))
        size = found.st_size
        parts, left = [b""], most + 1
        # One call reads most records completely; a file that grows meanwhile is read to its end.
        while size <= most and (part := os.read(number, min(left, max(size + 1, 1 << 15)))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(number)
    if size > most or left <= 0:
        told = f"{most} bytes" if most % (1 << 20) else f"{most >> 20} MiB"
        raise OSError(errno.EFBIG, f"it has more than {told}", os.fspath(path))
    return b"".join(parts)
