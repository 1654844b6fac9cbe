"""The command line as a page of the catalogue runs it, in a browser's Python.

A page sends the words of one `fsdpkit submit … --dry-run` and what its form says of the shell; what
comes back is what the command would have written there, byte by byte. The command is the real one:
its files are laid where they would lie, `config.surroundings` stands in for the shell, and `main`
runs. Nothing here decides or words anything of a script.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fsdpkit.config.surroundings import Surroundings, stand_in

_MOST_WORDS, _LONGEST_WORD = 1000, 100_000


class PageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends."""

    words: list[str]
    """Behind `fsdpkit submit`."""
    surroundings: Surroundings
    centres: list[str]
    """Where the centre's folders lie, as many as the catalogue was built from."""
    files: dict[str, str] = {}
    """Files of the person's own, by their whole path."""


class Answered(msgspec.Struct, frozen=True):
    """What the command wrote, and its exit status."""

    status: int
    out: str
    err: str


class CatalogueFiles:
    """The files of a catalogue, which can be laid out where a form says that they are. They stay
    there for the next question, which changes only what differs."""

    def __init__(self, folders: Mapping[str, Mapping[str, bytes]]) -> None:
        """folders: by name (`packaged`, `centre0`, …) the content of each file by its path."""
        self._folders = folders
        self._laid: dict[Path, bytes | None] = {}
        """None: perhaps not all of it."""
        self._made: list[Path] = []
        """Directories, the outer first."""

    def lay(self, asked: PageRequest) -> None:
        """Raises OSError where something cannot lie where it is said to."""
        places = {"packaged": asked.surroundings.packaged, "root": "/"}
        places |= {f"centre{number}": place for number, place in enumerate(asked.centres)}
        wanted = {
            Path(place, name): content
            for folder, place in places.items()
            for name, content in self._folders.get(folder, {}).items()
        }
        own = {Path(path): text.encode() for path, text in asked.files.items()}
        self.take_away(wanted | own)
        for path, content in (wanted | own).items():
            if path not in self._laid:
                self._directory(path.parent)
                self._laid[path] = None  # a write that fails leaves half of it
                path.write_bytes(content)
                self._laid[path] = content
        for place in (asked.surroundings.work_dir, *asked.centres):
            self._directory(Path(place))

    def take_away(self, wanted: Mapping[Path, bytes] | None = None) -> None:
        """All but what is wanted, and directories that are empty then. Raises OSError."""
        for path, laid in list(self._laid.items()):
            if laid is None or (wanted or {}).get(path) != laid:
                path.unlink(missing_ok=True)
                del self._laid[path]
        for directory in reversed(self._made.copy()):
            if not any(directory.iterdir()):
                directory.rmdir()
                self._made.remove(directory)

    def _directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self._directory(path.parent)
        path.mkdir()
        self._made.append(path)


def read_folders(top: Path) -> dict[str, dict[str, bytes]]:
    """What the page unpacked into `top`, a directory each."""
    return {
        folder.name: {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        for folder in sorted(top.iterdir())
    }


def answer(message: str, files: CatalogueFiles) -> str:
    """JSON of a `PageRequest` to JSON of an `Answered`; never raises."""
    try:
        asked = msgspec.json.decode(message, type=PageRequest)
        _check(asked)
        files.lay(asked)
        with stand_in(asked.surroundings, verified=True):
            answered = dry_run(asked.words)
    except (OSError, ValueError, RecursionError) as error:
        answered = Answered(70, "", f"the page cannot ask for this: {error}\n")
    except Exception as error:  # a page that waits for an answer would wait for ever
        what = f"{type(error).__name__}: {error}"
        answered = Answered(70, "", f"a defect of fsdpkit in this page: {what}; please report it\n")
    return msgspec.json.encode(answered).decode()


def _check(asked: PageRequest) -> None:
    """Raises ValueError for what the form must not say."""
    said = asked.surroundings
    paths = [said.work_dir, said.packaged, *asked.centres, *asked.files]
    for path in paths:
        if not os.path.isabs(path) or os.path.normpath(path) != path or path.count("/") > 64:
            raise ValueError(f"{path[:200]!r} is not the whole path of a place")
    for word in (*paths, *said.variables.values(), *asked.words):
        if "\0" in word or len(word) > _LONGEST_WORD:
            raise ValueError("a text holds a NUL, or is too long")
    if len(asked.words) > _MOST_WORDS:
        raise ValueError(f"more than {_MOST_WORDS} words")


def dry_run(words: list[str]) -> Answered:
    """What `fsdpkit submit WORDS --dry-run` writes."""
    from fsdpkit.cli.main import main

    end = words.index("--") if "--" in words else len(words)
    typed = ["fsdpkit", "submit", *words[:end], "--dry-run", *words[end:]]
    with _streams(typed) as (out, err):
        try:
            main()
        except SystemExit as ending:
            status = ending.code if isinstance(ending.code, int) else 1
    return Answered(status, out.getvalue(), err.getvalue())


@contextmanager
def _streams(typed: list[str]) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Standard output and error of this process kept, its command line as typed."""
    before = sys.argv, sys.stdout, sys.stderr
    out, err = io.StringIO(), io.StringIO()
    sys.argv, sys.stdout, sys.stderr = typed, out, err
    try:
        yield out, err
    finally:
        sys.argv, sys.stdout, sys.stderr = before
