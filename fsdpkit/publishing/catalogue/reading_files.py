"""One small file of a centre's folder, or nothing."""

from __future__ import annotations

from pathlib import Path

_MOST_BYTES = 4_000_000
"""Of one file: jobs, profiles, templates, plans and scripts are far smaller."""


def content_of_file(path: Path) -> bytes | None:
    """None for what is no plain file, cannot be read or is too large; the reading of the catalogue
    has named it then."""
    try:
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return path.read_bytes()
    except OSError:
        pass
    return None
