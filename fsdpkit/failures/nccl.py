"""What NCCL says of a failure (nccl.toml). `unhandled system error` is no cause: its `Last error:`
line is, or the last warning that it printed.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from fsdpkit.failures.patterns import Pattern, Shown, stands_in
from fsdpkit.runs.failures import Level

_LAST = re.compile(r"(?:Last error:\s*\n?\s*|^NCCL: )(.+)")
_WARNING = re.compile(r"^.*NCCL WARN (.+)$", re.MULTILINE)
_OWN_WORDS = re.compile(
    r"\bnccl(?:\w+Error|InvalidUsage|InvalidArgument)\b|NCCL [Ee]rror|\bNCCL WARN |^NCCL: "
)

_LOST_PEER = Pattern((), "NCCL", Level.LOST_PEER)


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of nccl.toml."""

    cause: str
    words: tuple[str, ...]
    level: str = "OWN"


_SAID = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, tuple[_Said, ...]]
)["said"]
_GENERAL: tuple[tuple[str, str, Pattern], ...] = (
    ("connection-reset", "ncclRemoteError", _LOST_PEER),
    ("connection-reset", "ncclSystemError", _LOST_PEER),
    ("connection-reset", "unhandled system error", _LOST_PEER),
    ("exception", "nccl", Pattern((), "NCCL, of itself")),
)


def explained(message: str) -> Shown | None:
    """The cause that a message of NCCL's shows; None where it is none of NCCL's."""
    if _OWN_WORDS.search(message) is None:
        return None
    warnings = _WARNING.findall(message)
    last = _LAST.search(message)
    for words in (*([last[1]] if last else []), *reversed(warnings[-3:])):
        small = words.lower()
        for one in _SAID:
            if any(stands_in(small, told) for told in one.words):
                pattern = Pattern((), "NCCL", Level[one.level])
                return Shown(one.cause, pattern, 0, 0, words=f"NCCL: {words.strip()}")
    words = f"NCCL: {last[1].strip()}" if last else None
    for cause, sign, found in _GENERAL:
        if sign in message:
            return Shown(cause, found, 0, 0, words=words)
    return None
