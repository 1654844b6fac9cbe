"""The files of a job's Python environment, as a copy of it on another path needs them.

The prefix; the directories that its editable installs and `.pth` files name; the Python that a
virtual environment was made from, where that lies on a network file system. Nothing is imported
and no content is read, but that of small files which name the environment's own path.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fsdpkit.config.surroundings import PythonEnvironment
from fsdpkit.runs.file_system import NETWORK, type_of
from fsdpkit.scheduling.packages import conda_prefix
from fsdpkit.scheduling.snapshot import editable_dirs
from fsdpkit.staging.manifest import CopiedEntry, Manifest
from fsdpkit.staging.relocate import HERE, WRITTEN

_Unwanted = Callable[[Path], bool]
_SYSTEM = Path("/usr")
_MOST_NAMES, _MOST_BYTES = 100_000, 4 << 30
"""Of a directory that an environment imports from; more is hardly a package's source."""
_FIRST_BYTES, _TEXT_BYTES = 512, 1 << 20
_MAPPING = re.compile(
    r"(?m)^MAPPING(?:: dict\[str, str\])? = (\{('[^'\\\n]*': '[^'\\\n]*'(, )?)*\})$"
)
"""In a finder of setuptools; what is quoted otherwise is not followed."""
_BEFORE, _AFTER = r"(?<![\w./~+@)}-])", r"(?=/|[^\w.@+-]|\Z)"
_REST = r"(?:/[\w.@+~-]+)*"
"""Around a path in a text, where it is not a part of a longer one."""


class StaysShared(Exception):
    """Why an environment is not copied, in a sentence."""


class EnvironmentFiles(NamedTuple):
    """What is copied of an environment."""

    manifest: Manifest
    sources: list[str]
    """Where each of its files is, in the manifest's order."""
    notes: list[str]
    """What stays on the shared file system, a sentence each."""


class _Name(NamedTuple):
    """What a directory has."""

    path: str
    """In the copy: below the name of its root."""
    source: str
    found: os.stat_result


class _Root(NamedTuple):
    """A directory that is copied."""

    name: str
    given: Path
    real: Path
    names: list[_Name]


def files_of(python: PythonEnvironment, stays: Iterable[Path] = ()) -> EnvironmentFiles:
    """stays: what must stay where it is, as the working directory and the script; an editable
    install that contains one of these stays, too. Raises StaysShared, or OSError."""
    prefix = _prefix_of(python)
    virtual = (prefix / "pyvenv.cfg").is_file()
    configured = (_text_of(prefix / "pyvenv.cfg") or "") if virtual else ""
    open_to_all = not configured or re.search(r"system-site-packages *= *true", configured)
    notes: list[str] = []
    roots = [_root("prefix", prefix, _another_environment)]
    if (base := _base_of(prefix, configured)) is not None:
        roots.append(_root("base", base, _another_environment if open_to_all else _no_library))
    kept = [path.resolve() for path in stays]
    for directory in _imported_from(prefix):
        if inside := [path for path in kept if path.is_relative_to(directory)]:
            notes.append(f"{directory} stays shared: it contains {inside[0]}")
        elif not any(str(directory) == name.source for root in roots for name in root.names):
            try:
                roots.append(_root(f"src{len(roots)}", directory, _no_source, True))
            except StaysShared as error:
                notes.append(str(error))
    notes += _other_editables(prefix, roots, notes)
    return _listed(python, roots, notes)


# ---- Which directories


def _prefix_of(python: PythonEnvironment) -> Path:
    path = Path(python.path)
    if python.kind == "container":
        raise StaysShared("a container is one file already, and is not packed")
    if python.kind == "conda":
        if (found := conda_prefix(python.path)) is None:
            raise StaysShared(f"there is no conda environment {python.path!r} here")
        path = found
    elif python.kind == "prefix":
        path = path.parent
        if not any((path / name).exists() for name in ("pyvenv.cfg", "conda-meta")):
            path = _above_executable(Path(python.path))
    real = path.resolve()
    if real.is_relative_to(_SYSTEM) or real == Path("/"):
        raise StaysShared(f"{real} is the system's own Python, which each node has")
    if Path.home().resolve().is_relative_to(real):
        raise StaysShared(f"{real} holds more than a Python, and is not packed")
    if not (path / "bin").is_dir():
        raise StaysShared(f"there is no Python environment in {path}")
    return Path(os.path.abspath(path))


def _above_executable(directory: Path) -> Path:
    """The prefix of the Python in a `bin`, which may be a link to another one's."""
    for name in ("python3", "python"):
        if (directory / name).exists():
            return (directory / name).resolve().parent.parent
    return directory.parent


def _base_of(prefix: Path, configured: str) -> Path | None:
    """Of the Python that a virtual environment was made from, if nodes read it over a network."""
    home = re.search(r"(?m)^home *= *(.+?) *$", configured)
    base = _above_executable(Path(home[1])).resolve() if home else _SYSTEM
    if base.is_relative_to(_SYSTEM) or Path.home().resolve().is_relative_to(base):
        return None
    kind = type_of(base) or ""
    return base if kind in NETWORK or kind.startswith("fuse") else None


def _imported_from(prefix: Path) -> Iterator[Path]:
    """The directories that the environment's `.pth` files and editable finders name."""
    found: dict[Path, None] = {}
    for site in sorted({path.resolve() for path in prefix.glob("lib*/python3*/site-packages")}):
        lines = [
            line.rstrip()
            for file in sorted(site.glob("*.pth"))
            for line in (_text_of(file) or "").splitlines()
            if not line.startswith(("#", "import ", "import\t"))
        ]
        for file in sorted(site.glob("__editable__*_finder.py")):
            if mapping := _MAPPING.search(_text_of(file) or ""):
                lines += ast.literal_eval(mapping[1]).values()
        found |= {Path(line).resolve(): None for line in lines if os.path.isabs(line)}
    yield from (path for path in found if path.is_dir() and not path.is_relative_to(_SYSTEM))


def _other_editables(prefix: Path, roots: Sequence[_Root], notes: Sequence[str]) -> Iterator[str]:
    """What was installed editable in a way that this does not follow."""
    for directory in editable_dirs([prefix], Path("/")):
        followed = [r.real for r in roots if r.name != "prefix" or directory.is_relative_to(r.real)]
        near = any(p.is_relative_to(directory) or directory.is_relative_to(p) for p in followed)
        if not near and not any(note.startswith(f"{directory}") for note in notes):
            yield f"{directory} stays shared: it is imported by code of its own"


# ---- Their files


def _root(name: str, directory: Path, unwanted: _Unwanted, limited: bool = False) -> _Root:
    """limited: raises StaysShared for more than a package's source can have."""
    names: list[_Name] = []
    size = 0
    for each in _below(name, directory.resolve(), unwanted):
        names.append(each)
        size += each.found.st_size
        if limited and (len(names) > _MOST_NAMES or size > _MOST_BYTES):
            raise StaysShared(f"{directory} stays shared: it is too large for a package's source")
    return _Root(name, directory, directory.resolve(), names)


def _below(path: str, directory: Path, unwanted: _Unwanted) -> Iterator[_Name]:
    """Depth first, parents before children."""
    yield _Name(path, str(directory), os.stat(directory))
    with os.scandir(directory) as scan:
        found = sorted(scan, key=lambda each: each.name)
    for each in found:
        if not each.is_dir(follow_symlinks=False):
            yield _Name(f"{path}/{each.name}", each.path, each.stat(follow_symlinks=False))
        elif not unwanted(Path(each.path)):
            yield from _below(f"{path}/{each.name}", Path(each.path), unwanted)


def _another_environment(directory: Path) -> bool:
    """In conda's own prefix: what other environments have, and were installed from."""
    return directory.name in ("envs", "pkgs") and (directory.parent / "condabin").is_dir()


def _no_library(directory: Path) -> bool:
    """Of a Python that a virtual environment has only the standard library of."""
    return directory.name == "site-packages" or _another_environment(directory)


def _no_source(directory: Path) -> bool:
    marks = ("pyvenv.cfg", "conda-meta")
    return directory.name.startswith(".") or any((directory / mark).exists() for mark in marks)


def _listed(
    python: PythonEnvironment, roots: Sequence[_Root], notes: list[str]
) -> EnvironmentFiles:
    places = _Places(roots)
    entries: list[CopiedEntry] = []
    sources: list[str] = []
    written: dict[str, tuple[int, str]] = {}
    for root in roots:
        for name in root.names:
            mode = name.found.st_mode
            runs = 0o600 | (0o100 if mode & 0o111 else 0)
            if stat.S_ISDIR(mode):
                # Python adds to __pycache__ in the copy, too, so a directory's time says nothing.
                entries.append(CopiedEntry(name.path, "dir"))
            elif stat.S_ISLNK(mode):
                entries.append(CopiedEntry(name.path, "link", target=places.target(name)))
            elif not stat.S_ISREG(mode):
                notes.append(f"{name.source} is left out: it is no file")
            elif (text := places.text(name)) is not None:
                written[name.path] = runs, text
            else:
                entries.append(
                    CopiedEntry(name.path, "file", name.found.st_size, runs, name.found.st_mtime_ns)
                )
                sources.append(name.source)
    facts = {"prefix": str(roots[0].given), "kind": python.kind, WRITTEN: json.dumps(written)}
    manifest = Manifest(tuple(entries), {root.name: str(root.given) for root in roots}, (), facts)
    return EnvironmentFiles(manifest, sources, notes)


class _Places:
    """Where in the copy a path is that leads into one of its roots."""

    def __init__(self, roots: Sequence[_Root]) -> None:
        self._known = {name.path for root in roots for name in root.names}
        self._roots = {str(path): root for root in roots for path in (root.given, root.real)}
        alternatives = "|".join(map(re.escape, sorted(self._roots, key=len, reverse=True)))
        self._pattern = re.compile(f"{_BEFORE}({alternatives})({_REST}){_AFTER}")
        self._based = any(root.name == "base" for root in roots)

    def target(self, name: _Name) -> str:
        """A link's target: relative where it leads to what is copied, else absolute."""
        target = os.readlink(name.source)
        text = os.path.normpath(os.path.join(os.path.dirname(name.source), target))
        for path in (text, os.path.realpath(name.source)):
            if (found := self._pattern.match(path)) and (
                inside := self._roots[found[1]].name + path[found.end(1) :]
            ) in self._known:
                return os.path.relpath(inside, os.path.dirname(name.path))
        return text

    def text(self, name: _Name) -> str | None:
        """Of a small text file that names a root, with marks in place of that; None for others."""
        _, *parts, last = name.path.split("/")
        of_site = parts[-1:] == ["site-packages"] and last.endswith((".pth", "_finder.py"))
        configured = name.path == "prefix/pyvenv.cfg"
        named = configured or of_site or parts == ["bin"]
        if not named or (before := _text_of(Path(name.source))) is None:
            return None
        text = self._pattern.sub(self._placed, before)
        if configured and self._based:
            text = re.sub(r"(?m)^home *=.*$", f"home = {HERE}/base/bin", text)
        return text if text != before else None

    def _placed(self, found: re.Match[str]) -> str:
        """What is not copied of a directory stays where it is."""
        inside = self._roots[found[1]].name + found[2]
        is_there = inside.startswith("prefix/") or inside in self._known
        return f"{HERE}/{inside}" if is_there else found[0]


def _text_of(path: Path) -> str | None:
    """None for what is no text, or too long."""
    with open(path, "rb") as file:
        content = file.read(_FIRST_BYTES)
        if b"\0" not in content:
            content += file.read(_TEXT_BYTES)
    whole = b"\0" not in content and len(content) <= _TEXT_BYTES
    return content.decode("utf-8", "surrogateescape") if whole else None
