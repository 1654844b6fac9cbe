"""Cases of a test as lines of a text file, `what is given => what is expected`.

Empty lines and those that begin with `#` are none; `\\n` and other escapes are read as in Python.
"""

from __future__ import annotations

import re
from pathlib import Path

_ESCAPE = re.compile(r"\\(?:[ntr\\]|x[0-9a-f]{2}|u[0-9a-f]{4})")


def pairs(file: Path) -> list[tuple[str, str]]:
    """The two sides of each line; the right one is empty where there is nothing."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            given, arrow, expected = line.rpartition(" =>")
            assert arrow, f"{file.name}: no => in {line!r}"
            found.append((unescaped(given), unescaped(expected.removeprefix(" "))))
    return found


def unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: found[0].encode().decode("unicode_escape"), text)
