"""One small file of a centre's folder, or nothing."""

from __future__ import annotations

from pathlib import Path

_MOST_BYTES = 4_000_000
"""Of one file: jobs, profiles, templates and scripts are far smaller."""


def content_of_file(path: Path) -> bytes | None:
    """None if it is no plain file, unreadable or too large, which the catalogue's reading names."""
    try:
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return path.read_bytes()
    except OSError:
        pass
    return None
