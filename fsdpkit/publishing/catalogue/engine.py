"""The browser's Python, compiled where the pages are built.

It comes as sources, and to compile what a first script needs takes a browser longer than all the
rest. Bytecode is made by the very interpreter that reads it, which node runs here. Without node the
sources are served: the form starts later, and writes the same.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fsdpkit.publishing.catalogue.bundle import modules_zip
from fsdpkit.publishing.catalogue.runtime import runtime_files

_LIMIT_S = 600.0
_ARCHIVES = ("python_stdlib.zip", "modules.zip", "msgspec.zip")


@dataclass(frozen=True)
class Engine:
    """Files to serve, by name. note: what to tell whoever builds; empty: nothing."""

    files: Mapping[str, bytes]
    note: str = ""


def engine_of(archives: Path) -> Engine:
    """Of the archives in a directory. Raises NotFoundError or ConfigError."""
    files = {**runtime_files(archives), "modules.zip": modules_zip()}
    node = shutil.which("node")
    if node is None:
        return Engine(files, "there is no node, so each browser compiles Python for itself")
    try:
        return Engine({**files, **_compiled(node, files)})
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        why = (said.strip().splitlines() or [""])[-1][:300]
        return Engine(files, f"node could not compile Python, so each browser does: {why}")


def _compiled(node: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Raises OSError, SubprocessError."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-engine-") as folder:
        top = Path(folder)
        for name, content in files.items():
            (top / name).write_bytes(content)
        for name in ("compiling.mjs", "compiling.py"):
            content = resources.files("fsdpkit.publishing.catalogue").joinpath(name).read_bytes()
            (top / name).write_bytes(content)
        (top / "package.json").write_text('{"type": "module"}')
        subprocess.run(
            [node, "compiling.mjs", *_ARCHIVES],
            cwd=top,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=True,
        )
        return {name: (top / name).read_bytes() for name in _ARCHIVES}
