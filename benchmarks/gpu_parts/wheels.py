"""Wheels in a folder, for a machine with a GPU on which nothing can be installed.

`fetch` fills the folder where a package index can be reached, `carried` makes what this Python can
import of it. torch and triton are never carried: they come with the machine. Only the standard
library is used, because this runs before anything else can be imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 64 * 2**20
"""Of the whole folder: what travels with a work tree to another machine."""

NEEDED = ("msgspec", "numpy", "click", "psutil", "safetensors", "jinja2", "markupsafe")
"""Distributions without which no part starts."""

OPTIONAL = ("nvidia-ml-py", "transformers", "accelerate", "cloudpickle", "submitit")
"""What some rows need; the rows say so where they are missing."""

ALSO = (
    *("tokenizers", "huggingface_hub", "regex", "pyyaml", "tqdm", "packaging", "filelock"),
    *("fsspec", "httpx2", "httpcore2", "anyio", "idna", "certifi", "h11", "typer", "click"),
    *(
        "rich",
        "shellingham",
        "truststore",
        "annotated-doc",
        "markdown-it-py",
        "mdurl",
        "typing_extensions",
    ),
)
"""What transformers and accelerate need in turn."""

STAYS = ("numpy",)
"""Used from the folder only where the machine has none: other packages there are built on it."""

MANIFEST = "wheels.json"
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "linux")
_WHEEL = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<os>[^-]+)\.whl"
)


class WheelError(Exception):
    """What is wrong with the folder, for the person."""


def fetch(
    folder: Path, pythons: Sequence[str], machine: str = "", *, index: Sequence[str] = ()
) -> int:
    """Download all wheels for these Pythons ("3.12") and `machine` (x86_64); the folder's bytes.

    Versions are those of constraints.txt. Raises WheelError when a download fails, or when the
    folder is larger than MOST_BYTES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    machine = machine or platform.machine()
    names = sorted({*NEEDED, *OPTIONAL, *ALSO})
    for python in pythons:
        abi = "cp" + python.replace(".", "")
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        argv += ["--only-binary=:all:", "--dest", str(folder), "--implementation", "cp"]
        argv += ["--python-version", python, "-c", str(ROOT / "constraints.txt"), *index]
        for tag in (abi, "abi3", "none"):
            argv += ["--abi", tag]
        for kind in PLATFORMS[:-1]:
            argv += ["--platform", f"{kind}_{machine}"]
        done = subprocess.run([*argv, *names], capture_output=True, text=True, check=False)
        if done.returncode:
            raise WheelError(f"Wheels for Python {python}: {done.stderr.strip()[-1500:]}")
    wheels = sorted(folder.glob("*.whl"))
    digests = {wheel.name: _digest(wheel) for wheel in wheels}
    (folder / MANIFEST).write_text(json.dumps(digests, indent=1) + "\n", "utf-8")
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > MOST_BYTES:
        raise WheelError(
            f"{folder} has {size / 2**20:.1f} MiB, more than {MOST_BYTES / 2**20:.0f}: take fewer "
            "Pythons."
        )
    return size


def carried(folder: Path, into: Path) -> list[str]:
    """Unpack what this Python can use and the machine lacks, into `into`; the names, sorted.

    Each wheel is checked first: against the folder's manifest, and that it is a whole archive which
    writes nowhere else. Raises WheelError, with all that is wrong.
    """
    usable = [wheel for wheel in sorted(folder.glob("*.whl")) if fits(wheel.name)]
    if not usable:
        raise WheelError(f"{folder} has no wheel for Python {platform.python_version()}.")
    if wrong := problems(folder, usable):
        raise WheelError("\n".join(wrong))
    chosen = [wheel for wheel in usable if not _stays(wheel.name)]
    into.mkdir(parents=True, exist_ok=True)
    for wheel in chosen:
        done = into / f".{wheel.name}"
        if not done.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(into)
            done.touch()
    return sorted(wheel.name.partition("-")[0] for wheel in chosen)


def problems(folder: Path, wheels: Collection[Path]) -> list[str]:
    """What is wrong with these wheels: changed, cut short, or writing outside of their place."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        return [f"{manifest} is missing: make the folder with --fetch-wheels."]
    digests = json.loads(manifest.read_text("utf-8"))
    found = []
    for wheel in wheels:
        if digests.get(wheel.name) != _digest(wheel):
            found.append(f"{wheel.name} is not the file that {MANIFEST} lists.")
            continue
        try:
            with zipfile.ZipFile(wheel) as archive:
                names, broken = archive.namelist(), archive.testzip()
        except zipfile.BadZipFile as error:
            found.append(f"{wheel.name}: {error}")
            continue
        outside = [name for name in names if name.startswith("/") or ".." in Path(name).parts]
        if broken or outside:
            found.append(f"{wheel.name}: {broken or outside[0]} cannot be unpacked.")
    return found


def fits(name: str, version: tuple[int, int] | None = None, machine: str = "") -> bool:
    """Whether a wheel of this file name can be imported by this Python on this machine."""
    match = _WHEEL.fullmatch(name)
    if match is None:
        return False
    minor = (version or sys.version_info[:2])[1]
    machine = machine or platform.machine()
    systems = match["os"].split(".")
    if systems != ["any"] and not any(
        system.startswith(PLATFORMS) and system.endswith(machine) for system in systems
    ):
        return False
    pythons, abis = match["python"].split("."), match["abi"].split(".")
    if "none" in abis:
        return any(tag in ("py3", f"py3{minor}", f"cp3{minor}") for tag in pythons)
    if "abi3" in abis:
        return any(tag.startswith("cp3") and int(tag[3:]) <= minor for tag in pythons)
    return f"cp3{minor}" in pythons and f"cp3{minor}" in abis


def _stays(wheel: str) -> bool:
    """Whether the machine's own takes the place of this wheel."""
    name = wheel.partition("-")[0].replace("_", "-").lower()
    if name not in STAYS:
        return False
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def place(folder: Path) -> Path:
    """Where a folder's wheels are unpacked for this Python, inside the folder."""
    soabi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return folder / "unpacked" / str(soabi)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
