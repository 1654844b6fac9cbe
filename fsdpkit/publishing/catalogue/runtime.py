"""The Python that runs in a browser: two archives of fixed versions, checked by their sha256.

They come from a directory that an administrator names, or once through `npm pack` and `pip
download` into the user's cache. What is served is what lies in them, but for one thing: `.mjs` is
called `.js`, which every web server knows to be JavaScript.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.runs.caches import cache_directory

_FETCH_S = 300.0


@dataclass(frozen=True)
class Archive:
    """A file of a registry, and the command that downloads it into the current directory."""

    file: str
    sha256: str
    command: Sequence[str]


PYODIDE = Archive(
    "pyodide-314.0.7.tgz",
    "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0",
    ["npm", "pack", "--silent", "pyodide@314.0.7"],
)
MSGSPEC = Archive(
    "msgspec-0.22.0-cp314-cp314-pyemscripten_2026_0_wasm32.whl",
    "a66b1766311e42371e509c996c3933b161c7ae0eabdf361af5316dec197e1022",
    [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", "3.14", "--abi", "cp314"),
        *("--platform", "pyemscripten_2026_0_wasm32", "msgspec==0.22.0"),
    ],
)
ARCHIVES = (PYODIDE, MSGSPEC)

_OF_PYODIDE = {
    "pyodide.mjs": "pyodide.js",
    "pyodide.asm.mjs": "pyodide.asm.js",
    "pyodide.asm.wasm": "pyodide.asm.wasm",
    "python_stdlib.zip": "python_stdlib.zip",
    "pyodide-lock.json": "pyodide-lock.json",
}
_LICENCE = """Pyodide 314.0.7 is distributed under the Mozilla Public License 2.0; its sources are
the npm package pyodide and the repository that it names. pyodide.js is its pyodide.mjs, in which
the name pyodide.asm.mjs reads pyodide.asm.js. python_stdlib.zip and pyodide.asm.wasm contain
CPython, under the PSF License; msgspec.zip is msgspec 0.22.0, under the BSD 3-Clause License.
"""


def runtime_files(directory: Path) -> dict[str, bytes]:
    """The files to serve, by name, of `directory`'s archives. Raises NotFoundError, ConfigError."""
    pyodide, msgspec = (_read(directory / archive.file, archive) for archive in ARCHIVES)
    files = {"msgspec.zip": msgspec, "LICENCES.txt": _LICENCE.encode()}
    with tarfile.open(fileobj=io.BytesIO(pyodide)) as archive:
        for name, served in _OF_PYODIDE.items():
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            files[served] = member.read()
    # Nothing is loaded from Pyodide's own collection of packages, so none is listed.
    about = json.loads(files["pyodide-lock.json"])["info"]
    return files | {
        "pyodide.js": files["pyodide.js"].replace(b"pyodide.asm.mjs", b"pyodide.asm.js"),
        "pyodide-lock.json": json.dumps({"info": about, "packages": {}}).encode(),
    }


def cache_dir() -> Path:
    """Where the archives are kept that were downloaded."""
    return cache_directory() / "browser"


def _read(path: Path, archive: Archive) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotFoundError(
            f"{path}: cannot be read: {error.strerror}; the catalogue's form needs "
            f"{' and '.join(a.file for a in ARCHIVES)} in that directory"
        ) from error
    if (found := hashlib.sha256(content).hexdigest()) != archive.sha256:
        raise ConfigError(f"{path}: its sha256 is {found}, not {archive.sha256}: remove the file")
    return content


def fetch(cache: Path, archives: Sequence[Archive] = ARCHIVES) -> Path:
    """`cache` with the archives in it, downloaded where they are not there. Raises NotFoundError
    with the commands to type elsewhere, or ConfigError."""
    for archive in archives:
        if (cache / archive.file).is_file():
            continue
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as fresh:
                _download(archive, Path(fresh))
                _read(Path(fresh) / archive.file, archive)
                os.replace(Path(fresh) / archive.file, cache / archive.file)
        except OSError as error:
            raise NotFoundError(f"{cache}: cannot be written: {error.strerror}") from error
    return cache


def _download(archive: Archive, into: Path) -> None:
    program = shutil.which(archive.command[0])
    command = " ".join(["python" if w == sys.executable else w for w in archive.command])
    by_hand = f"on a machine that can, type\n  {command}\nand name its directory with --runtime"
    if program is None:
        raise NotFoundError(
            f"{archive.file} has to be downloaded and there is no {archive.command[0]}: {by_hand}"
        )
    try:
        done = subprocess.run(
            [program, *archive.command[1:]],
            cwd=into,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotFoundError(f"{archive.file}: no answer in {_FETCH_S:.0f} s: {by_hand}") from error
    if done.returncode or not (into / archive.file).is_file():
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1][:300] if said else f"exit status {done.returncode}"
        raise NotFoundError(f"{archive.file} could not be downloaded ({why}): {by_hand}")
