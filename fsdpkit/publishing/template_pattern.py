"""A regular expression read the other way round: texts that it allows.

`template test` needs the longest and the nastiest text that a parameter's pattern lets through.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdpkit.bounded import PATTERN_STEPS
from fsdpkit.config.linear_regex import LinearRegex

LONG = 2000
"""Characters of the longest text where a pattern sets no limit."""
NASTY = "'\"`$\\;&|<>(){}[]*?!#~%=:,@^ -+./é日_0aZ"
"""What means something to a shell, to sbatch or to Slurm's file names, the worst first."""
_ANY = (*NASTY, *map(chr, range(33, 127)))
_TURNS = 6
"""Texts of one length: each with other characters of the classes, and by other branches."""
_MOST_STEPS = 2_000_000


def allowed_texts(pattern: str | None) -> list[str]:
    """Texts that the pattern allows: the shortest, long ones, nasty ones. None found: empty.
    Without a pattern everything but control characters is allowed."""
    if pattern is None:
        return ["", "-x", "--wrap=id", NASTY, "{array_task} %j $(id)", "x" * LONG]
    regex = LinearRegex(pattern)
    alphabet = dict.fromkeys((*_ANY, *pattern))
    found = dict.fromkeys([*_walked(regex, alphabet), NASTY, "-x", "it's $(id)", "a"])
    return [text for text in found if text.isprintable() and regex.matches(text)]


def _walked(regex: LinearRegex, alphabet: dict[str, None]) -> Iterator[str]:
    """The shortest and the longest texts along the pattern's program."""
    program = regex.program
    chars = {
        place: [char for char in alphabet if one.test(char)]
        for place, one in enumerate(program)
        if one.kind == "char"
    }
    end = len(program) - 1
    chars[end] = [""]
    follow = {place: _next(regex, place + 1, chars) for place in chars if place != end}
    steps = max(1, sum(map(len, follow.values())))
    most = min(LONG, PATTERN_STEPS // len(program), _MOST_STEPS // steps)
    # By the number of characters: what may come next, and after which place.
    levels: list[dict[int, list[int]]] = [{place: [] for place in _next(regex, 0, chars)}]
    while levels[-1] and len(levels) <= most:
        reached: dict[int, list[int]] = {}
        for place in levels[-1]:
            for after in follow.get(place, ()):
                reached.setdefault(after, []).append(place)
        levels.append(reached)
    lengths = [length for length, reached in enumerate(levels) if end in reached]
    for length in dict.fromkeys([*lengths[:1], *lengths[-1:]]):
        for turn in range(_TURNS):
            place, text = end, ""
            for level in range(length, 0, -1):
                before = levels[level][place]
                place = before[turn * level % len(before)]
                text = chars[place][(turn and turn + level) % len(chars[place])] + text
            yield text


def _next(regex: LinearRegex, place: int, chars: dict[int, list[str]]) -> list[int]:
    """Which characters, or the end, may come next."""
    found, seen, stack = [], set[int](), [place]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        one = regex.program[at]
        if one.kind not in ("char", "match"):
            stack += one.to or (at + 1,)
        elif chars[at]:
            found.append(at)
    return found
