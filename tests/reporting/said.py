"""What somebody says of an end, and the cause that it shows: the lines of said.txt."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("said.txt")


class Said(NamedTuple):
    who: str
    cause: str
    words: str


def all_said() -> list[Said]:
    found, who = [], ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            who = line.strip("[]")
        elif line and not line.startswith("#"):
            cause, _, words = line.partition(" | ")
            found.append(Said(who, cause, words.replace("\\n", "\n")))
    return found
