"""Plans of memory and speed that the catalogue carries, for its form to show.

They are what `fsdpkit plan` keeps in ~/.cache/fsdpkit/plans on an administrator's account, a small
file for each job, shape and GPU that somebody planned. Their names say what they depend on, torch's
version included, so the page has to know which torch that was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fsdpkit.errors import NotFoundError, UsageError
from fsdpkit.launching.torch_release import installed_torch
from fsdpkit.planning.remembered import Remembered
from fsdpkit.publishing.catalogue.reading_files import content_of_file

MOST_PLANS = 2000
_NAME = re.compile(r"[0-9a-f]{64}\.json")


@dataclass(frozen=True)
class CataloguePlans:
    """By name the file of each, and the torch that they were made with."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    torch: str = ""


NO_PLANS = CataloguePlans()


def read_plans(directory: Path) -> CataloguePlans:
    """Those in a directory; what is no plan is left out. Raises NotFoundError, UsageError."""
    if not directory.is_dir():
        raise NotFoundError(
            f"--plans {directory}: is not a directory; fsdpkit plan keeps its answers in "
            "~/.cache/fsdpkit/plans"
        )
    torch = installed_torch()
    if torch is None:
        raise NotFoundError(
            f"--plans {directory}: a plan is of one torch, and this environment has none: build "
            "the pages in the one that planned"
        )
    found: dict[str, bytes] = {}
    for path in sorted(directory.iterdir()):
        content = content_of_file(path) if _NAME.fullmatch(path.name) else None
        if content is not None and _is_plan(content):
            found[path.stem] = content
        if len(found) > MOST_PLANS:
            raise UsageError(
                f"--plans {directory}: has more than {MOST_PLANS} plans: name a directory with "
                "those that the pages are to show"
            )
    return CataloguePlans(found, torch)


def _is_plan(content: bytes) -> bool:
    try:
        msgspec.json.decode(content, type=Remembered)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
