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


class Variable(msgspec.Struct, frozen=True, eq=False):
    """An exported variable of bash whose value has been checked above.

    of: the name in the template's context. low and high: the bounds of a number. A comparison has
    an answer where every value within the bounds gives the same; all else raises Undecided.
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

    def __bool__(self) -> bool:
        if self.kind == "number":
            return self != 0
        return True  # a text that is checked is not empty; no words expand to none

    def __lt__(self, other: Any) -> bool:
        low, high = self._bounds(other)
        return self._agreed(always=high < other, never=low >= other)

    def __le__(self, other: Any) -> bool:
        low, high = self._bounds(other)
        return self._agreed(always=high <= other, never=low > other)

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __eq__(self, other: Any) -> bool:
        low, high = self._bounds(other)
        return self._agreed(always=low == high == other, never=not low <= other <= high)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _bounds(self, other: Any) -> tuple[float, float]:
        if self.kind != "number" or type(other) not in (int, float):
            raise Undecided(self)
        low = float("-inf") if self.low is None else self.low
        return low, float("inf") if self.high is None else self.high

    def _agreed(self, *, always: bool, never: bool) -> bool:
        if always == never:
            raise Undecided(self)
        return always

    def _undecided(self, *others: Any) -> Any:
        raise Undecided(self)

    __str__ = __int__ = __len__ = __iter__ = __contains__ = __neg__ = _undecided
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _undecided
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _undecided
    __mod__ = __rmod__ = __pow__ = __rpow__ = _undecided
