"""`provenance.json`: what was submitted, so that a number can be traced to the code it came from.

Written once for each job of a run, by `fsdpkit.scheduling.provenance`; read by `status`, `report`
and `compare`. Whatever could not be determined is None, and named in `problems`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fsdpkit.bounded import DETAILS_BYTES
from fsdpkit.errors import StorageError, storage_errors
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.reading import read_bytes

SCHEMA = "fsdpkit.provenance/1"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The training script as it was submitted."""

    path: str
    sha256: str | None = None
    bytes: int | None = None


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The git work tree that the script lies in."""

    top: str
    commit: str | None = None
    """None: there is no commit yet."""
    branch: str | None = None
    """None: a detached HEAD."""
    clean: bool | None = None
    """Whether the tracked files are those of the commit and nothing untracked lies beside."""
    under_way: str | None = None
    """`merge`, `rebase`, `cherry-pick`, `revert` or `bisect`."""
    changed: list[str] = []
    """Tracked files that differ from the commit, the first of them."""
    untracked: list[str] = []
    """Files that git neither tracks nor ignores, the first of them."""


class SourceDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The file source.diff beside this record."""

    bytes: int
    cut: bool = False
    """Whether it holds only the beginning."""


class Packages(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed where the job runs."""

    environment: str
    """Which one: a path, or a container's image."""
    python: str | None = None
    pip: list[str] = []
    """`name==version`, and after ` @ ` where a package was not installed from an index."""
    conda: list[str] = []
    """`name=version=build`."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: Any
    origin: str
    """A file, `command line`, `--set`, or `default`."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A template, site profile or job file of a centre that publishes, as it was verified."""

    kind: str
    name: str
    version: str
    sha256: str
    """Of its manifest."""
    channel: str
    """`stable`, `testing`, or `pinned`."""
    signer: str
    centre: str
    """The folder."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of the work tree that the job runs in."""

    source: str
    """The tree that was copied."""
    files: int
    bytes: int
    sha256: str
    """Of all names, modes and contents."""
    dangling: list[str] = []
    """Symbolic links whose target the copy does not have."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What one job of a run was made from."""

    schema: str = SCHEMA
    made_s: float
    """Unix time."""
    command: list[str]
    work_dir: str
    """Where the command was given."""
    script: Script
    repository: Repository | None = None
    diff: SourceDiff | None = None
    packages: Packages | None = None
    settings: list[Setting] = []
    published: list[Published] = []
    snapshot: Snapshot | None = None
    problems: list[str] = []
    """What could not be learned, a sentence each."""


def read_provenance(paths: RunPaths) -> Provenance | None:
    """Of the newest job of the run; None for a run of an fsdpkit that wrote none. Raises
    StorageError for one that cannot be read or understood."""
    path = paths.provenance
    try:
        return msgspec.json.decode(read_bytes(path, DETAILS_BYTES), type=Provenance)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is corrupt: {error}") from error


def save_provenance(paths: RunPaths, found: Provenance) -> None:
    """Write provenance.json, complete or not at all. Raises StorageError."""
    text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n"
    with storage_errors(paths.provenance, "written"):
        write_atomically(paths.provenance, text)


def in_words(found: Provenance) -> str:
    """Which code ran, in one line: `commit 1a2b3c4 on main, 2 files changed, 1 new`."""
    here = found.repository
    if here is None:
        digest = found.script.sha256
        return f"no git; script SHA-256 {digest[:12]}" if digest else "no git"
    words = [f"commit {here.commit[:12]}" if here.commit else "no commit yet"]
    if here.branch:
        words[0] += f" on {here.branch}"
    if here.under_way:
        words.append(f"in the middle of a {here.under_way}")
    if here.clean:
        words.append("clean")
    for names, what in ((here.changed, "changed"), (here.untracked, "untracked")):
        if names:
            words.append(f"{len(names)} {'file' if len(names) == 1 else 'files'} {what}")
    return ", ".join(words)
