"""A rendered script, and which line of the template each piece of it comes from."""

from __future__ import annotations

import msgspec

from fsdpkit.errors import RenderError
from fsdpkit.rendering.places import HOLE


class Where(msgspec.Struct, frozen=True, array_like=True):
    """A line of the template, for messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class TemplateError(RenderError):
    """What is wrong with a template, where that is known."""

    def __init__(self, where: Where, message: str) -> None:
        super().__init__(f"{where}: {message}")


class RenderLimitError(RenderError):
    """Rendering takes too long, or too much memory."""


class Traced(msgspec.Struct, frozen=True):
    """A script and where in the template each piece of it comes from."""

    pieces: list[tuple[str, Where, bool]]
    """Text, the template's line, and whether it is a value."""

    @property
    def script(self) -> str:
        return "".join(text for text, _, _ in self.pieces)

    @property
    def skeleton(self) -> str:
        """The script without its values: two scripts with the same one are the same shell code,
        because a value is a number or a quoted word."""
        return "".join(HOLE if is_value else text for text, _, is_value in self.pieces)

    def line_of(self, line: int) -> Where | None:
        """Where the template makes this line of the script, counted from 1."""
        number = 1
        for text, where, is_value in self.pieces:
            end = number + text.count("\n")
            if line < end or (line == end and text and not text.endswith("\n")):
                return where if is_value else Where(where.file, where.line + line - number)
            number = end
        return None
