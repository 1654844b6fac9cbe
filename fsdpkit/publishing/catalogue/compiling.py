"""Puts bytecode in the place of sources, in the browser's Python (compiling.mjs).

Of what fsdpkit brings all of it; of the standard library what that imports anywhere: the rest is
not worth its size. Nothing of it depends on the day or on a file's time.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import py_compile
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ARCHIVES = Path("/archives")
STANDARD = "python_stdlib.zip"
LIBRARY = Path("/catalogue/library")
"""Where the page unpacks what is not the standard library (static/worker.js)."""
_TIME = (1980, 1, 1, 0, 0, 0)


def imported(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def used_of_the_standard_library() -> set[str]:
    """Its files that are imported once all that our modules import has been."""
    names = {name for path in LIBRARY.rglob("*.py") for name in imported(path.read_bytes())}
    for name in sorted(names):
        if name.partition(".")[0] in sys.stdlib_module_names:
            with contextlib.suppress(ImportError):  # of another operating system
                importlib.import_module(name)
    files = [getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]]
    inside = [file.partition(".zip/") for file in files]
    return {path for _, mark, path in inside if mark}


def compiled(name: str, source: bytes, shown: str) -> bytes:
    """shown: the path in tracebacks."""
    path = Path("/compiled") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source)
    py_compile.compile(
        str(path),
        cfile=f"{path}c",
        dfile=shown,
        doraise=True,
        optimize=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return Path(f"{path}c").read_bytes()


def rewrite(archive: Path, where: str, wanted: set[str] | None) -> None:
    """wanted: what to compile; None: every module."""
    with zipfile.ZipFile(archive) as read:
        files = {name: read.read(name) for name in read.namelist() if not name.endswith("/")}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as written:
        for name, content in files.items():
            if name.endswith(".py") and (wanted is None or name in wanted):
                name, content = f"{name}c", compiled(name, content, f"{where}/{name}")
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            written.writestr(info, content)


def main() -> None:
    others = [path for path in sorted(ARCHIVES.iterdir()) if path.name != STANDARD]
    for path in others:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(LIBRARY)
    (standard,) = [path for path in sys.path if path.endswith(".zip")]
    rewrite(ARCHIVES / STANDARD, standard, used_of_the_standard_library())
    for path in others:
        rewrite(path, str(LIBRARY), None)
