"""Where runs are kept, and how one is found again."""

from __future__ import annotations

import os
from pathlib import Path

from fsdpkit.config.assets import nearest
from fsdpkit.errors import NotFoundError
from fsdpkit.runs.layout import RunPaths


def runs_dir(given: str | os.PathLike[str] | None = None) -> Path:
    """The directory of runs: as given, `$FSDPKIT_RUNS`, else `runs` in the current directory."""
    return Path(given or os.environ.get("FSDPKIT_RUNS") or "runs").expanduser().absolute()


def all_runs(top: Path) -> list[Path]:
    """Run directories below `top`, newest first by name's time stamp, then name."""
    found = [p.parent for p in top.glob("*/run.json")]
    return sorted(found, key=lambda p: (p.name.split("-")[-3:], p.name), reverse=True)


def find_run(run: str | os.PathLike[str], top: Path) -> Path:
    """The directory of a run given by its path, its id, or the unique beginning or end of one.

    Raises NotFoundError with the nearest id and where it looked.
    """
    direct = Path(run).expanduser()
    if RunPaths(direct).record.is_file():
        return direct.absolute()
    names = {p.name: p for p in all_runs(top)}
    text = str(run)
    matches = [n for n in names if n == text] or [
        n for n in names if text and (n.startswith(text) or n.endswith(text))
    ]
    if len(matches) == 1:
        return names[matches[0]]
    if matches:
        raise NotFoundError(f"{text!r} begins or ends several runs: {', '.join(matches[:5])}")
    raise NotFoundError(
        f"there is no run {text!r} in {top}.{nearest(text, names)} Give its path, or --runs DIR."
    )
