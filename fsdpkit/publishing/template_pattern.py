"""A regular expression read the other way round: texts that it allows.

`template test` needs the longest and the nastiest text that a parameter's pattern lets through.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

from fsdpkit.config.linear_regex import matches

# Python's own parser, whose module has no public name; before 3.11 it had another.
_NEW = sys.version_info >= (3, 11)
_c: Any = import_module("re._constants" if _NEW else "sre_constants")
_parser: Any = import_module("re._parser" if _NEW else "sre_parse")

LONG = 2000
"""Characters of the longest text where a pattern sets no limit."""
NASTY = "'\"`$\\;&|<>(){}[]*?!#~%=:,@^ -+./é日_0aZ"
"""What means something to a shell, to sbatch or to Slurm's file names, the worst first."""
_ANY = (*NASTY, *map(chr, range(33, 127)))

Tree = Any  # of Python's own parser, which has no public types


def tree_of(pattern: str) -> Tree:
    """The parsed pattern. Raises re.error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _parser.parse(pattern)


_REPEATS = {
    getattr(_c, name)
    for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
    if hasattr(_c, name)
}


def allowed_texts(pattern: str | None) -> list[str]:
    """Texts that the pattern allows: the shortest, long ones, nasty ones. None found: empty.

    Without a pattern everything but control characters is allowed.
    """
    if pattern is None:
        return ["", "-x", "--wrap=id", NASTY, "{array_task} %j $(id)", "x" * LONG]
    found = dict.fromkeys(_candidates(pattern))
    return [text for text in found if matches(pattern, text) and _printable(text)]


def _printable(text: str) -> bool:
    return all(char.isprintable() for char in text)


def _candidates(pattern: str) -> Iterator[str]:
    tree = tree_of(pattern)
    for length in ("short", "long"):
        for turn in range(6):  # another character of each class, another branch
            yield _text(tree, turn, length, LONG)
    yield from (text for text in (NASTY, "-x", "it's $(id)", "a") if matches(pattern, text))


def _text(tree: Tree, turn: int, length: str, left: int) -> str:
    made = ""
    for operation, argument in tree:
        if operation in _REPEATS:
            least, most, body = argument
            count = least if length == "short" else min(int(most), max(left - len(made), least))
            for n in range(min(count, LONG)):
                piece = _text(body, turn + n if turn else 0, length, 1)
                made += piece
                if not piece or len(made) > LONG:
                    break
        elif operation is _c.LITERAL:
            made += chr(argument)
        elif operation is _c.SUBPATTERN:
            made += _text(argument[3], turn, length, left)
        elif operation is _c.BRANCH:
            branches = argument[1]
            made += _text(branches[turn % len(branches)], turn, length, left)
        elif operation in (_c.IN, _c.ANY, _c.NOT_LITERAL, _c.CATEGORY):
            allowed = _class(operation, argument)
            made += allowed[turn % len(allowed)] if allowed else ""
    return made


def _class(operation: Any, argument: Any) -> list[str]:
    """Characters of a class, the nastiest first."""
    return _allowed(_source(operation, argument))


@lru_cache(maxsize=500)
def _allowed(source: str) -> list[str]:
    # Asking re itself about each character knows of ranges, categories and negation.
    one = re.compile(source, re.DOTALL)
    return [char for char in _ANY if one.fullmatch(char)]


def _source(operation: Any, argument: Any) -> str:
    """One character's class, as a pattern again."""
    if operation is _c.ANY:
        return "."
    if operation is _c.NOT_LITERAL:
        return f"[^{re.escape(chr(argument))}]"
    if operation is _c.CATEGORY:
        return _CATEGORIES[argument]
    negated = argument[0][0] is _c.NEGATE
    pieces = [_member(*member) for member in argument[1 if negated else 0 :]]
    return f"[{'^' if negated else ''}{''.join(pieces)}]"


def _member(operation: Any, argument: Any) -> str:
    if operation is _c.RANGE:
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    if operation is _c.CATEGORY:
        return _CATEGORIES[argument]
    return re.escape(chr(argument))


_CATEGORIES = {
    _c.CATEGORY_DIGIT: r"\d",
    _c.CATEGORY_NOT_DIGIT: r"\D",
    _c.CATEGORY_WORD: r"\w",
    _c.CATEGORY_NOT_WORD: r"\W",
    _c.CATEGORY_SPACE: r"\s",
    _c.CATEGORY_NOT_SPACE: r"\S",
}
