"""What is installed in the environment that a job runs in, without importing any of it.

The environment's own interpreter lists what pip would; a conda environment says by the names of the
files in `conda-meta` what conda would. A container is named, not opened.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from fsdpkit.rendering.script import Plan, PythonEnvironment
from fsdpkit.runs.provenance import Packages

_LIMIT_S = 30.0
_LISTING = """
import importlib.metadata as m, json, platform, re
found = []
for d in m.distributions():
    try:
        url, text = {}, d.read_text("METADATA") or d.read_text("PKG-INFO") or ""
        head = text.partition("\\n\\n")[0]  # to parse all of it as a mail takes half of all time
        about = dict(re.findall("^(Name|Version): *(.*[^ ]) *$", head, re.MULTILINE))
        if len(about) < 2:
            about = d.metadata
        try:
            url = json.loads(d.read_text("direct_url.json") or "{}")
        except ValueError:
            pass
        commit = (url.get("vcs_info") or {}).get("commit_id")
        place = url.get("url", "") + (f"@{commit}" if commit else "")
        found.append([about["Name"], about["Version"], place])
    except Exception:
        pass
print(json.dumps([platform.python_version(), found]))
"""
_CREDENTIALS = re.compile(r"//[^/\s@]+@")


def packages_of(plan: Plan, work_dir: Path, problems: list[str]) -> Packages | None:
    """Of the environment that the job activates; None, and a problem, where nobody can say."""
    environment = plan.job.spec.environment
    if environment.container:
        problems.append("packages: those of a container are not listed")
        return Packages(environment=environment.container)
    if environment.conda:
        prefix = conda_prefix(environment.conda)
        if prefix is None:
            problems.append(f"packages: there is no conda environment {environment.conda!r} here")
            return None
        return _listed(prefix, prefix / "bin" / "python", problems)
    if environment.venv:
        prefix = work_dir / os.path.expanduser(environment.venv)
        return _listed(prefix, prefix / "bin" / "python", problems)
    return _listed(*_own(plan.python), problems)


def _own(python: PythonEnvironment) -> tuple[Path, Path]:
    import sys

    return Path(python.path or sys.prefix), Path(sys.executable)


def _listed(prefix: Path, python: Path, problems: list[str]) -> Packages:
    version, pip = None, []
    try:
        done = subprocess.run(
            [str(python), "-c", _LISTING],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=True,
        )
        version, found = json.loads(done.stdout)
        pip = sorted({_line(name, release, url) for name, release, url in found}, key=str.lower)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        problems.append(f"packages: {python} does not list its packages: {_why(error)}")
    return Packages(environment=str(prefix), python=version, pip=pip, conda=_conda(prefix))


def _line(name: str, release: str, url: str) -> str:
    place = _CREDENTIALS.sub("//", url)
    return f"{name}=={release}" + (f" @ {place}" if place else "")


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took more than {_LIMIT_S:.0f} s"
    return type(error).__name__


def _conda(prefix: Path) -> list[str]:
    """`name=version=build`, from names like `numpy-2.4.6-py311h64a7726_0.json`."""
    try:
        names = os.listdir(prefix / "conda-meta")
    except OSError:
        return []
    parts = (name.removesuffix(".json").rsplit("-", 2) for name in names if name.endswith(".json"))
    return sorted("=".join(part) for part in parts if len(part) == 3)


def conda_prefix(name: str) -> Path | None:
    """Where conda keeps the environment: a path, or one of those that it has on its list."""
    if "/" in name:
        path = Path(os.path.expanduser(name))
        return path if path.is_dir() else None
    places = [
        Path(text) / name for text in os.environ.get("CONDA_ENVS_PATH", "").split(":") if text
    ]
    if conda := os.environ.get("CONDA_EXE"):
        root = Path(conda).parent.parent
        places += [root / "envs" / name, *([root] if name == "base" else [])]
    home = Path.home() / ".conda"
    places.append(home / "envs" / name)
    try:
        listed = (home / "environments.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        listed = ""
    places += [Path(line) for line in listed.splitlines() if Path(line).name == name]
    return next((place for place in places if (place / "conda-meta").is_dir()), None)
