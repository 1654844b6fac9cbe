"""Stacks of ranks as text: for each rank the innermost frame of its main thread and, if it is in a
library, the frame of the script that called it. Ranks at the same place share a line. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import msgspec

from fsdpkit.runs.stack_requests import NodeStacks

_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib(?:64)?/python3[.\d]*)/")
_OURS = re.compile(r"/fsdpkit/(?:launching|script)/")


class CodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the main thread of some ranks is."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    file: str
    line: int | None
    function: str
    caller: str = ""
    """`train.py:20 in main`: who called it, where `file` is a library's."""
    state: str = ""
    """`stopped` or `disk-sleep`, where the processes run no code now."""

    @property
    def words(self) -> str:
        """`train.py:14 in load_batch`."""
        return _in_words(self.file, self.line, self.function)


def places(answers: Iterable[NodeStacks]) -> list[CodePlace]:
    """Of all ranks that answered; those places first that the fewest share."""
    found: dict[tuple[str, int | None, str, str, str], list[tuple[int, str]]] = {}
    for node in answers:
        for rank in node.ranks:
            if rank.by is not None:
                place = (*_place(rank.text), rank.state or "")
                found.setdefault(place, []).append((rank.rank, node.name))
    return [
        CodePlace(
            ranks=tuple(sorted(rank for rank, _ in who)),
            nodes=tuple(dict.fromkeys(name for _, name in sorted(who))),
            file=file,
            line=line,
            function=function,
            caller=caller,
            state=state,
        )
        for (file, line, function, caller, state), who in sorted(
            found.items(), key=lambda item: (len(item[1]), min(item[1]))
        )
    ]


def _place(text: str) -> tuple[str, int | None, str, str]:
    _, _, main = text.rpartition("Current thread ")
    frames = [(file, _number(line), name) for file, line, name in _FRAME.findall(main)]
    if not frames:
        return "?", None, "no Python code", ""
    file, line, function = frames[0]
    caller = ""
    if _LIBRARY.match(file):
        own = [f for f in frames if not _LIBRARY.match(f[0]) and not _OURS.search(f[0])]
        own = [f for f in own if not f[0].startswith("<")]
        caller = _in_words(*own[0]) if own else ""
    return file, line, function, caller


def _number(line: str) -> int | None:
    return int(line) if line.isdecimal() else None


def _in_words(file: str, line: int | None, function: str) -> str:
    library = _LIBRARY.match(file)
    short = file[library.end() :] if library else os.path.basename(file)
    return f"{short}:{line or '?'} in {function}"
