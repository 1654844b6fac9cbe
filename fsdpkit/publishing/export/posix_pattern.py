"""A template's pattern as bash reads it: POSIX's extended form, for text of printable ASCII.

Only what Python and POSIX read alike is said: letters, classes, groups, alternatives and counts.
"""

from __future__ import annotations

import re

_SHORT = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
_MOST = 255
"""Of a count (RE_DUP_MAX)."""
_PIECE = re.compile(
    r"(?P<short>\\[dw])|(?P<escaped>\\[!-/:-@[-`{-~])|(?P<any>\.)"
    r"|\[(?P<members>\^?(?:[A-Za-z0-9]-[A-Za-z0-9]|\\[dw]|[^][\\^-])+-?)\]"
    r"|(?P<open>\((?:\?:)?)|(?P<sign>[)|])"
    r"|(?P<count>[*+?]|\{(?P<least>\d{1,3})(?:,(?P<most>\d{0,3}))?\})"
    r"|(?P<letter>[^\\.^$*+?()\[\]{}|])"
)
_UNDEFINED = re.compile(r"(?:^|[(|])(?:[|)*]|$)|\*\*")
"""By `_shape`: a count of nothing or of a count, an alternative that is empty."""


def for_bash(pattern: str) -> str | None:
    """The pattern for a whole text; None where it says more than that."""
    text = pattern.removeprefix("^")
    if text.endswith("$") and not text.endswith(r"\$"):
        text = text[:-1]  # it is for a whole text as it is
    made, shape, at = "", "", 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or not piece[0].isprintable() or not piece[0].isascii():
            return None
        counts = piece.group("least", "most")
        if any(int(count or 0) > _MOST for count in counts):
            return None
        made, shape, at = made + _posix(piece), shape + _shape(piece), piece.end()
    return None if _UNDEFINED.search(shape) else made


def _posix(piece: re.Match[str]) -> str:
    if piece["short"]:
        return f"[{_SHORT[piece['short']]}]"
    if piece["escaped"]:
        char = piece["escaped"][1]
        return piece["escaped"] if char in r"\^[]" else f"[{char}]"
    if piece["any"]:
        return "[ -~]"
    if piece["members"]:
        members = re.sub(r"\\[dw]", lambda short: _SHORT[short[0]], piece["members"])
        return f"[{members}]"
    return "(" if piece["open"] else piece[0]


def _shape(piece: re.Match[str]) -> str:
    """`(`, `)` or `|`; `*` for a count, `a` for what may be counted."""
    if piece["open"] or piece["sign"]:
        return piece[0][0]
    return "*" if piece["count"] else "a"
