"""What a script imports, and the first thing it does that could affect a later import.

The source is read in the order in which Python would run it, including the script's own modules,
and never executed. Here is which files those are and what is found in them; what a statement may
do is in script_effects.py.
"""

from __future__ import annotations

import ast
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from fsdpkit.launching.import_state import QUIET_LIBRARIES
from fsdpkit.launching.script_effects import Reading, SourceFile

_TORCH_VARIABLES = ("TORCH", "PYTORCH", "AOT_", "INDUCTOR")


class ProgramReader:
    """Reads one program.

    elsewhere: the program will run in another environment, so what is not found here is a library.
    """

    def __init__(self, directory: Path, *, elsewhere: bool = False) -> None:
        self.found = Reading(directories=[directory])
        self.appended: list[Path] = []
        self._elsewhere = elsewhere
        self._seen: set[str] = set()
        self._path = [p for p in sys.path if p and Path(p) != directory]
        paths = sysconfig.get_paths()
        installed = {paths["purelib"], paths["platlib"], *site.getsitepackages()}
        self._installed = tuple(os.path.join(path, "") for path in installed)

    def enter(self, path: Path, *, main: bool = False) -> None:
        """Read one source file, once. For the main one raises OSError, SyntaxError, ValueError."""
        if str(path) in self._seen:
            return
        self._seen.add(str(path))
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (OSError, SyntaxError, ValueError):
            if main:
                raise
            return  # importing it fails, too
        self.found.names_torch_variables |= any(
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(_TORCH_VARIABLES)
            for node in ast.walk(tree)
        )
        SourceFile(self, path, main).visit(tree.body)

    def enter_module(self, name: str) -> bool:
        """Read what `python -m NAME` would run; False if there is no such module."""
        for base in (*self.found.directories, *map(Path, self._path)):
            if (files := sources(base, name)) is None:
                continue
            *packages, last = files
            if last.name == "__init__.py":
                packages, last = files, last.with_name("__main__.py")
            for package in packages:
                self.enter(package)
            self.enter(last, main=True)
            return True
        return False

    def enter_from(self, base: Path, name: str, members: Iterable[str] = ()) -> None:
        """Read what importing `name` from this directory would run, if it is there."""
        for file in sources(base, name, members) or ():
            self.enter(file)

    def own(self, name: str, members: Iterable[str] = ()) -> list[Path] | None:
        """The source files that run when a module of the program's own is imported; None if it
        belongs to a library, or does not exist."""
        for base in self.found.directories:
            if sources(base, name.partition(".")[0]):
                return sources(base, name, members) or []
        if self.is_library(name):
            return None
        for base in (*map(Path, self._path), *self.appended, *self.found.directories):
            if (files := sources(base, name, members)) is not None:
                return files
        return None

    def is_library(self, name: str) -> bool:
        """Whether the module is an installed library's, or Python's own."""
        top = name.partition(".")[0]
        if top in ("fsdpkit", *QUIET_LIBRARIES) or top in sys.stdlib_module_names:
            return True
        spec = PathFinder.find_spec(top, self._path)
        if spec is None:
            return self._elsewhere
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        return any(
            str(place).startswith(self._installed)
            or {"site-packages", "dist-packages"} & set(Path(str(place)).parts)
            for place in places
        )


def sources(base: Path, name: str, members: Iterable[str] = ()) -> list[Path] | None:
    """The files that importing `name` from this directory runs, packages first, and those of
    `members` that are modules; None if it is not there. Packages may lack an `__init__.py`."""
    files: list[Path] = []
    where = base
    *packages, last = name.split(".")
    for part in packages:
        where = where / part
        if os.path.isfile(where / "__init__.py"):
            files.append(where / "__init__.py")
        elif not os.path.isdir(where):
            return None
    module = where / f"{last}.py"
    if os.path.isfile(where / last / "__init__.py"):
        files.append(where / last / "__init__.py")
    elif os.path.isfile(module):
        return [*files, module]
    elif not os.path.isdir(where / last):
        return None
    for member in members:
        files += sources(where / last, member) or []
    return files
