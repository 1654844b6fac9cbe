"""Untrusted text made safe for a terminal.

A character that controls a terminal, reorders the text around it or is invisible is written as its
JSON escape (`\u001b`): the reader sees that it was there, and JSON that contains one raw keeps its
meaning. Tabs and line ends stay. Whole CSI sequences (colours, the movements of a progress bar)
carry no text and are dropped.
"""

from __future__ import annotations

import re
import unicodedata

_CSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_NOT_PLAIN = re.compile(r"[^\t\n -~]")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Unicode's Default_Ignorable_Code_Point beyond category Cf, without the variation selectors that
# emoji use; and the blank Braille pattern. All are invisible.
_IGNORED = [
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065)),
    *((0x2800, 0x2800), (0x3164, 0x3164), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF)),
]


class _Shown(dict[int, str]):
    """By code point, as `str.translate` asks for it."""

    def __missing__(self, code: int) -> str:
        shown = chr(code)
        if unicodedata.category(shown) in _UNSEEN or any(a <= code <= b for a, b in _IGNORED):
            units = shown.encode("utf-16-be", "surrogatepass").hex()
            shown = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        self[code] = shown
        return shown


_SHOWN = _Shown({ord("\t"): "\t", ord("\n"): "\n"})


def printable(text: str) -> str:
    """`text` without anything that a terminal would obey or hide."""
    if not _NOT_PLAIN.search(text):
        return text
    return _CSI.sub("", text).replace("\r\n", "\n").translate(_SHOWN)


def one_line(text: str) -> str:
    """What stands in a line of its own among others: of an exception whose text has several lines,
    the second would read as a statement about the run."""
    return " ".join(printable(text).split()).rstrip(":")
