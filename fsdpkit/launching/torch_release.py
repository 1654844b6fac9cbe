"""Which releases of torch the tests ran on (CONTRIBUTING.md), and what to say about others.

Reads torch's own record of its version and never imports torch, since `fsdpkit submit` also asks.
"""

from __future__ import annotations

import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

OLDEST, NEWEST = (2, 13), (2, 15)
_VERSION = re.compile(r"^__version__\s*(?::\s*\w+\s*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def installed_torch() -> str | None:
    """The version in this Python's environment; None if there is none, or it is unknown."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        found = _VERSION.search(Path(spec.origin).with_name("version.py").read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return found.group(1) if found else None


def problem_here() -> str | None:
    """Why jobs cannot run in this Python's environment, with what to do."""
    if PathFinder.find_spec("torch") is None:
        return (
            f"torch is not installed in {sys.prefix}, which jobs of this fsdpkit run in: "
            "pip install 'fsdpkit[torch]' there, or name the job's own environment "
            "(environment.venv, environment.conda, environment.modules, environment.container)"
        )
    version = installed_torch()
    return too_old(version) if version else None


def too_old(version: str) -> str | None:
    """Why a release is refused, with what to do; None for one that may be used."""
    if (release := release_of(version)) is None or release >= OLDEST:
        return None
    return (
        f"torch {version} is older than {_words(OLDEST)}, the first release that this version of "
        f"fsdpkit was tested with ({_words(NEWEST)} is the last)"
    )


def untested(version: str) -> str | None:
    """What to know about a release newer than the tested ones; None for others."""
    if (release := release_of(version)) is None or release <= NEWEST:
        return None
    return f"torch {version} is newer than {_words(NEWEST)}, the last release that was tested"


def release_of(version: str) -> tuple[int, int] | None:
    """Its first two numbers; None for a text that is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _words(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
