"""The ends of log files, with line numbers; the time does not depend on the size of the log."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

import msgspec

from fsdpkit.runs.reading import open_regular

_MOST_COUNTED = 32 << 20
"""Bytes in front of the end whose lines are counted; beyond, a line's number is not told."""
_BLOCK = 1 << 20


class LogText(msgspec.Struct, frozen=True):
    """Text from a file, or from what a command printed."""

    text: str
    file: Path | None = None
    line: int | None = 1
    """Number of its first line in the file; None: not counted."""
    begin: int = 0
    """Where it begins in the file, in bytes."""

    def line_at(self, position: int) -> int | None:
        """The number of the line at a position in the text."""
        return None if self.line is None else self.line + self.text.count("\n", 0, position)

    def part(self, begin: int, end: int) -> LogText:
        return LogText(
            self.text[begin:end], self.file, self.line_at(begin), self.begin + self.size(begin)
        )

    def size(self, position: int) -> int:
        """In bytes, of the text before a position."""
        return len(self.text[:position].encode(errors="replace"))


def end_of(file: Path, most_bytes: int) -> LogText | None:
    """The last complete lines of a file; None if it cannot be read or is empty."""
    try:
        with open_regular(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            skipped = max(0, size - most_bytes)
            line: int | None = 1
            if skipped:
                line = 1 + _lines_in(opened, skipped) if skipped <= _MOST_COUNTED else None
                opened.seek(skipped)
            content = opened.read(most_bytes)
    except OSError:
        return None
    if skipped:  # the first line is probably incomplete
        cut, _, content = content.partition(b"\n")
        skipped += len(cut) + 1
        line = None if line is None else line + 1
    text = content.decode("utf-8", errors="replace")
    return LogText(text, file, line, skipped) if text.strip() else None


def part_from(file: Path, words: bytes, searched_bytes: int, most_bytes: int) -> LogText | None:
    """What a file holds from the last line with `words` on; None if its end has no such line.
    searched_bytes: at its end, among which the line is looked for."""
    try:
        with open_regular(file) as opened:
            skipped = max(0, os.fstat(opened.fileno()).st_size - searched_bytes)
            opened.seek(skipped)
            content = opened.read(searched_bytes)
            at = content.rfind(words)
            if at < 0:
                return None
            begin = content.rfind(b"\n", 0, at) + 1
            line = None
            if skipped + begin <= _MOST_COUNTED:
                opened.seek(0)
                line = 1 + _lines_in(opened, skipped + begin)
    except OSError:
        return None
    text = content[begin : begin + most_bytes].decode("utf-8", errors="replace")
    return LogText(text, file, line, skipped + begin)


def _lines_in(opened: BinaryIO, size: int) -> int:
    lines, left = 0, size
    while left > 0:
        block = opened.read(min(_BLOCK, left))
        if not block:
            break
        lines, left = lines + block.count(b"\n"), left - len(block)
    return lines


def without(text: LogText, prefix: str) -> LogText:
    """The text with lines that begin with `prefix` emptied, so that line numbers stay correct."""
    kept = ("" if line.startswith(prefix) else line for line in text.text.split("\n"))
    return LogText("\n".join(kept), text.file, text.line)


def newest_part(text: LogText, begins: str, ends: str, requeued: str) -> LogText:
    """Of a file that all attempts append to, what the newest wrote. Three regular expressions: the
    line that an attempt writes first, mostly; the last line of one, which says something of an end
    but perhaps not the very end; that of one which is followed by another for certain."""
    begun = [match.start() for match in re.finditer(begins, text.text, re.MULTILINE)]
    cut = begun[-1] if len(begun) > 1 else 0
    for match in re.finditer(f"(?:{ends}|{requeued}).*\n", text.text, re.MULTILINE):
        if begun and match.end() <= begun[-1]:
            cut = match.end()  # what it wrote before its first line also belongs to the next
    for match in re.finditer(f"(?:{requeued}).*\n", text.text, re.MULTILINE):
        cut = max(cut, match.end())
    return text.part(cut, len(text.text))
