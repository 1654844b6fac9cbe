"""Every command of fsdpkit as somebody types it who was asked to look at what a stranger wrote:
what stands in commands.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("commands.txt")
REFUSALS = (1, 2, 65, 66, 69, 74, 78)
Command = tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """Words after the command, in which `{sam}`, `{alex}`, `{run}` and `{bad}` are places."""

    words: tuple[str, ...]
    says: str = ""
    statuses: tuple[int, ...] = (0,)
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(self.words)


def line_of(text: str) -> Line:
    told, _, says = text.partition(" => ")
    kind, _, typed = told.partition(":")
    words = typed.split()
    env: dict[str, str] = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, env[name] = words.pop(0).partition("=")
    if kind in ("asks", "refused"):
        return Line(tuple(words), "--trust" if kind == "asks" else says, REFUSALS, env)
    return Line(tuple(words), says, (int(kind.removeprefix("looks") or 0),), env)


def lines() -> Iterator[tuple[Command, Line]]:
    command: Command = ()
    for text in FILE.read_text(encoding="utf-8").splitlines():
        if text.startswith("["):
            command = tuple(text.strip("[]").split())
        elif text and not text.startswith("#"):
            yield command, line_of(text)


COMMANDS: dict[Command, list[Line]] = {}
for _command, _line in lines():
    COMMANDS.setdefault(_command, []).append(_line)
