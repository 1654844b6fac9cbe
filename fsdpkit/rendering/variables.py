"""A value that is known only when the script runs: a shell variable in place of a text or number.

An exported script is rendered once and then submitted with whatever a portal's form says, so its
values are variables that the script has checked. They can be printed where the value could, and
nothing else: a template that would decide by one cannot be exported with that field open.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fsdpkit.errors import RenderError


class Undecided(RenderError):
    """A template needs a value before the script runs: to decide by it, or in a directive."""

    def __init__(self, variable: Variable, use: str = "the script decides by it") -> None:
        super().__init__(f"{use}, and only the form will say what {variable.of} is")
        self.variable, self.use = variable, use


class Variable(msgspec.Struct, frozen=True):
    """An exported variable of bash whose value has been checked above.

    of: the name in the template's context. low and high: the bounds of a number.
    """

    name: str
    kind: Literal["text", "words", "number"]
    of: str
    low: float | None = None
    high: float | None = None

    @property
    def word(self) -> str:
        """As a word, or words, of bash."""
        return f'"${{{self.name}[@]}}"' if self.kind == "words" else f'"${self.name}"'

    @property
    def number(self) -> str:
        return f"${{{self.name}}}"

    @property
    def note(self) -> str:
        """In a comment, where bash puts nothing in its place: what it is, as `<nodes>`."""
        return f"<{self.of}>"

    def compared(self, operation: str, other: Any) -> bool:
        """Whether it is so for every value within the bounds. Raises Undecided if that depends."""
        if self.kind != "number" or type(other) not in (int, float):
            raise Undecided(self)
        bounds = (
            (float("-inf") if self.low is None else self.low),
            (float("inf") if self.high is None else self.high),
        )
        low, high = bounds
        always = {
            "eq": low == high == other,
            "lt": high < other,
            "le": high <= other,
            "gt": low > other,
            "ge": low >= other,
        }
        never = {
            "eq": other < low or other > high,
            "lt": low >= other,
            "le": low > other,
            "gt": high <= other,
            "ge": high < other,
        }
        if operation == "ne":
            return not self.compared("eq", other)
        if always.get(operation):
            return True
        if never.get(operation):
            return False
        raise Undecided(self)
