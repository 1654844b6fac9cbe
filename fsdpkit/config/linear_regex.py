"""Regular expressions whose matching takes time proportional to the text, whatever they say.

Python's own engine tries one way after the other, which takes years for some patterns; whoever
looks at a run, a job or a template must not wait for a pattern in it, so every pattern that comes
from a file is matched here. All ways are followed at once, character by character (Thompson's
construction with captures, as in Pike's virtual machine; R. Cox, "Regular Expression Matching: the
Virtual Machine Approach", 2009). What needs more than that is refused: references to groups,
looking ahead or behind, atomic groups.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from fsdpkit.bounded import PATTERN, PATTERN_SIZE, PATTERN_STEPS

_parser: Any
if sys.version_info >= (3, 11):
    _parser = importlib.import_module("re._parser")
else:
    _parser = importlib.import_module("sre_parse")
_LOOK_EVERY = 64
"""Characters between two looks at the clock."""

Test = Callable[[str], bool]


class _Instruction(NamedTuple):
    kind: str
    """char, at, save, split, match."""
    test: Any = None
    """char: of a character. at: of a text and a place in it. save: a group's border."""
    to: tuple[int, ...] = ()
    """split: where to go on, the preferred one first."""


class LinearRegex:
    """A pattern in Python's syntax. Raises ValueError with a sentence for one that is wrong, too
    long, or needs another engine."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN:
            raise ValueError(f"it has more than {PATTERN} characters")
        try:
            tree = _parser.parse(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"it is no regular expression: {error}") from None
        self.program: list[_Instruction] = []
        self._emit(tree, tree.state.flags)
        self._add("match")
        self.groups: dict[str, int] = dict(tree.state.groupdict)
        self._first: list[Test] = [one.test for one in self._at_start() if one.kind == "char"]
        self._may_be_empty = any(one.kind == "match" for one in self._at_start())
        self._begins: dict[str, bool] = {}

    def search(self, text: str, deadline: float = float("inf")) -> dict[str, str] | None:
        """The first match's named groups, without those that took no part; None if there is none.
        deadline: by time.monotonic(). Raises TimeoutError after it."""
        saved = self._search(text, deadline)
        if saved is None:
            return None
        borders = {n: (saved.get(2 * g), saved.get(2 * g + 1)) for n, g in self.groups.items()}
        return {n: text[a:b] for n, (a, b) in borders.items() if a is not None and b is not None}

    def matches(self, text: str) -> bool:
        """Whether it matches the whole text; not, where that would take more than PATTERN_STEPS."""
        if len(text) * len(self.program) > PATTERN_STEPS:
            return False
        return self._search(text, float("inf"), whole=True) is not None

    def _search(self, text: str, deadline: float, *, whole: bool = False) -> dict[int, int] | None:
        found: dict[int, int] | None = None
        waiting: list[tuple[int, dict[int, int]]] = []
        for at in range(len(text) + 1):
            if at % _LOOK_EVERY == 0 and time.monotonic() > deadline:
                raise TimeoutError
            over = found is not None or (whole and at > 0)
            if not waiting and (over or not self._may_begin(text[at : at + 1])):
                continue
            if not over:
                waiting.append((0, {}))
            character, going = text[at : at + 1], waiting
            waiting, seen = [], set[int]()
            for place, saved in self._reached(going, seen, text, at):
                one = self.program[place]
                if one.kind == "match" and not (whole and character):
                    found = saved
                    break  # those that follow are worse
                if one.kind == "char" and character and one.test(character):
                    waiting.append((place + 1, saved))
        return found

    def _at_start(self) -> Iterable[_Instruction]:
        """What comes first, wherever in a text that is."""
        stack, seen = [0], set[int]()
        while stack:
            place = stack.pop()
            if place not in seen:
                seen.add(place)
                one = self.program[place]
                stack += {"split": list(one.to), "char": [], "match": []}.get(one.kind, [place + 1])
                yield one

    def _may_begin(self, character: str) -> bool:
        """Whether a match may begin with that character, or at the end of the text."""
        if character not in self._begins:
            fits = bool(character) and any(test(character) for test in self._first)
            self._begins[character] = self._may_be_empty or fits
        return self._begins[character]

    def _reached(
        self, going: list[tuple[int, dict[int, int]]], seen: set[int], text: str, at: int
    ) -> Iterable[tuple[int, dict[int, int]]]:
        """Where these stand once all that takes no character is done, the preferred ones first."""
        stack = going[::-1]
        while stack:
            place, saved = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            kind, test, to = self.program[place]
            if kind == "split":
                stack += [(next_, saved) for next_ in reversed(to)]
            elif kind == "save":
                stack.append((place + 1, {**saved, test: at}))
            elif kind != "at":
                yield place, saved
            elif test(text, at):
                stack.append((place + 1, saved))

    # From Python's parse tree to instructions

    def _add(self, kind: str, test: Any = None, to: tuple[int, ...] = ()) -> int:
        if len(self.program) >= PATTERN_SIZE:
            raise ValueError("it is too large: repeat less")
        self.program.append(_Instruction(kind, test, to))
        return len(self.program) - 1

    def _split(self, place: int, *to: int) -> None:
        self.program[place] = _Instruction("split", None, to)

    def _emit(self, tree: Iterable[tuple[Any, Any]], flags: int) -> None:
        for operator, value in tree:
            name = str(operator)
            if name == "SUBPATTERN":
                group, more, fewer, inner = value
                if group is not None:
                    self._add("save", 2 * group)
                self._emit(inner, (flags | more) & ~fewer)
                if group is not None:
                    self._add("save", 2 * group + 1)
            elif name == "BRANCH":
                self._branch(value[1], flags)
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                least, most, inner = value
                self._repeat(least, most, inner, flags, greedy=name == "MAX_REPEAT")
            elif name == "AT":
                self._add("at", _AT[str(value)])
            elif name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
                self._add("char", _character(name, value, flags))
            else:
                raise ValueError(f"{_REFUSED.get(name, name)} cannot be used here")

    def _branch(self, ways: list[Any], flags: int) -> None:
        ends = []
        for way in ways[:-1]:
            fork = self._add("split")
            self._emit(way, flags)
            ends.append(self._add("split"))
            self._split(fork, fork + 1, len(self.program))
        self._emit(ways[-1], flags)
        for end in ends:
            self._split(end, len(self.program))

    def _repeat(self, least: int, most: Any, inner: Any, flags: int, *, greedy: bool) -> None:
        for _ in range(least):
            before = len(self.program)
            self._emit(inner, flags)
            if len(self.program) == before:
                return  # nothing, however often
        forks = []
        endless = str(most) == "MAXREPEAT"
        for _ in range(1 if endless else most - least):
            forks.append(self._add("split"))
            self._emit(inner, flags)
            if len(self.program) == forks[-1] + 1:
                break
        if endless:
            self._add("split", None, (forks[0],))
        for fork in forks:
            after = len(self.program)
            self._split(fork, *((fork + 1, after) if greedy else (after, fork + 1)))


_REFUSED = {
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition on a group",
    "ASSERT": "(?=…) or (?<=…)",
    "ASSERT_NOT": "(?!…) or (?<!…)",
    "ATOMIC_GROUP": "(?>…)",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _borders_word(text: str, at: int) -> bool:
    return (at > 0 and _is_word(text[at - 1])) != (at < len(text) and _is_word(text[at]))


_AT: dict[str, Callable[[str, int], bool]] = {
    "AT_BEGINNING": lambda _, at: at == 0,
    "AT_BEGINNING_STRING": lambda _, at: at == 0,
    "AT_END": lambda text, at: at == len(text),
    "AT_END_STRING": lambda text, at: at == len(text),
    "AT_BOUNDARY": _borders_word,
    "AT_NON_BOUNDARY": lambda text, at: not _borders_word(text, at),
}
"""A text is one line."""
_CATEGORIES: dict[str, Test] = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": _is_word}


def _character(name: str, value: Any, flags: int) -> Test:
    """Whether a character is one of those that an item of the parse tree stands for."""
    if name == "ANY":
        return lambda _: True
    test = _one_of(value) if name == "IN" else _one_of([("LITERAL", value)])
    if flags & re.IGNORECASE:
        exact = test
        test = lambda c: exact(c) or exact(c.lower()) or exact(c.upper())  # noqa: E731
    if name == "NOT_LITERAL" or (name == "IN" and str(value[0][0]) == "NEGATE"):
        return lambda c: not test(c)
    return test


def _one_of(items: Iterable[tuple[Any, Any]]) -> Test:
    tests: list[Test] = []
    for operator, value in items:
        name = str(operator)
        if name == "LITERAL":
            tests.append(chr(value).__eq__)
        elif name == "RANGE":
            tests.append(lambda c, low=value[0], high=value[1]: low <= ord(c) <= high)  # type: ignore[misc]
        elif name == "CATEGORY":
            word = str(value).removeprefix("CATEGORY_")
            known = _CATEGORIES[word.removeprefix("NOT_")]
            tests.append((lambda c, k=known: not k(c)) if word.startswith("NOT_") else known)  # type: ignore[misc]
    return lambda c: any(test(c) for test in tests)


@lru_cache(maxsize=64)
def compiled(pattern: str) -> LinearRegex:
    """A file's pattern. Raises ValueError for one that is none."""
    return LinearRegex(pattern)


def matches(pattern: str, text: str) -> bool:
    """Whether a file's pattern matches the whole text. Raises ValueError as LinearRegex."""
    return compiled(pattern).matches(text)
