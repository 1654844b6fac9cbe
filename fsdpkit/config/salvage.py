"""What a broken profile still says of the machine that it is for.

A profile that cannot be used must not let its own login node go on with another. So [identify] is
read by itself, table by table and then line by line, whatever is wrong elsewhere in the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from fsdpkit.bounded import TOML_BYTES
from fsdpkit.config.layers import Places
from fsdpkit.config.loading import toml_in
from fsdpkit.config.profile import Identify

_LONGEST_HEAD = 200
_HEADER = re.compile(r"^\s*\[", re.MULTILINE)


def read_identify(places: Places) -> tuple[Identify, bool]:
    """[identify] of a profile as far as its files say it, layer over layer, and whether that may be
    all: not where a file cannot be read, or none says anything, as one that was cut does not."""
    found: dict[str, Any] = {}
    whole = True
    for layer, path in places:
        text = _text(path if layer.release is None else layer.release.dir / path.name)
        table = None if text is None else _identify_of(text)
        whole = whole and table is not None
        _merge(found, table or {})
    hostname, env = found.get("hostname"), found.get("env", {})
    env = {str(k): v for k, v in env.items()} if isinstance(env, dict) else {}
    env = {name: value for name, value in env.items() if isinstance(value, str)}
    try:
        known = Identify(env=env, hostname=hostname if isinstance(hostname, str) else None)
    except ValueError:
        return Identify(env=env), False
    return known, whole and bool(known.env or known.hostname)


def _text(path: Path) -> str | None:
    from fsdpkit.config.published.centre import read_file

    try:
        return read_file(Path(os.path.realpath(path)), TOML_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def _identify_of(text: str) -> dict[str, Any] | None:
    """The table as it stands; None where lines of it cannot be understood."""
    found: dict[str, Any] = {}
    for part in _parts(text):
        if not re.search(r"\bidentify\b|\bhostname\b", part):
            continue
        table = _tables(part)
        if table is None:
            table = _by_lines(part)
        if table is None:
            return None
        about = table.get("identify", {})
        if not isinstance(about, dict):
            return None
        _merge(found, about)
    return found


def _parts(text: str) -> Iterator[str]:
    """What stands before the first table, and each table by itself."""
    starts = [0, *(match.start() for match in _HEADER.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        yield text[start:end]


def _tables(text: str) -> dict[str, Any] | None:
    try:
        return toml_in(text)
    except ValueError:
        return None


def _by_lines(part: str) -> dict[str, Any] | None:
    """The lines of one table that say how a machine is recognised; None if one cannot be read."""
    head, _, rest = part.partition("\n")
    if not _HEADER.match(part):
        head, rest = "", part
    if head and (len(head) > _LONGEST_HEAD or _tables(head) is None):
        return None
    found: dict[str, Any] = {}
    for line in rest.splitlines():
        table = _tables(f"{head}\n{line}")
        if table is None:
            if re.search(r"identify|hostname|env", line):
                return None
            continue
        _merge(found, table)
    return found


def _merge(into: dict[str, Any], table: dict[str, Any]) -> None:
    for key, value in table.items():
        below = into.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(below, value)
        else:
            into[key] = value
