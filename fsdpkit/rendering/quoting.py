"""The quoters, one for each lexer that a script meets, and the proof that a value passed one.

sbatch reads `#SBATCH` lines with a lexer of its own in which a backslash escapes even inside
single quotes, so `shlex.quote` is wrong there; bash reads the body. A quoted value carries marks
(control characters, which no value may hold) until `unmark` has checked that each stands where its
quoter is the right one.
"""

from __future__ import annotations

import re
import shlex

from jinja2 import Undefined

from fsdpkit.config.loading import CONTROL_CHARACTER
from fsdpkit.errors import RenderError

_OPEN = {"shell": "\x01", "directive": "\x02", "comment": "\x03"}
_KIND = {mark: kind for kind, mark in _OPEN.items()}
_CLOSE = "\x04"
_READ_BY_SBATCH = re.compile("#(SBATCH|SLURM)")
_PLAIN_DIRECTIVE = re.compile(r"[A-Za-z0-9_.,/=+@%^:-]*")


class Quoted(str):
    """Text that passed a quoter; the only kind a template may print, besides numbers."""

    __slots__ = ()


def _refuse_control(text: str) -> None:
    if found := CONTROL_CHARACTER.search(text):
        raise RenderError(f"a value holds the control character {found.group()!r}: {text[:80]!r}")


def shell_quote(text: str) -> str:
    """`text` as one word of a bash script. Raises RenderError on control characters."""
    _refuse_control(text)
    return shlex.quote(text)


def directive_quote(text: str) -> str:
    """`text` as one argument of an `#SBATCH` line (sbatch's get_argument, src/sbatch/opt.c).

    Raises RenderError on control characters. It is for the value behind `--option=`: at an argument
    that begins with a colon sbatch stops, quoted or not.
    """
    _refuse_control(text)
    if text and _PLAIN_DIRECTIVE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def marked(kind: str, text: str) -> Quoted:
    return Quoted(f"{_OPEN[kind]}{text}{_CLOSE}")


def for_shell(value: object) -> Quoted:
    """Jinja filter `sh`: one bash word."""
    return marked("shell", shell_quote(_plain(value)))


def for_directive(value: object) -> Quoted:
    """Jinja filter `sb`: the value of an `#SBATCH` option."""
    return marked("directive", directive_quote(_plain(value)))


def for_comment(value: object) -> Quoted:
    """Jinja filter `note`: text in a comment line."""
    text = _plain(value)
    _refuse_control(text)
    return marked("comment", text)


def with_array_task(value: object) -> Quoted:
    """Jinja filter `sh_arg`: like `sh`, but `{array_task}` becomes the array task's number."""
    pieces = _plain(value).split("{array_task}")
    quoted = '"$SLURM_ARRAY_TASK_ID"'.join(shell_quote(p) if p else "" for p in pieces)
    return marked("shell", quoted or "''")


def _plain(value: object) -> str:
    if isinstance(value, Undefined):
        str(value)  # raises, with the undefined name
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "nothing" if value is None else f"a {type(value).__name__}"
        raise RenderError(f"{kind} cannot be printed; the template must make text of it")
    return str(value)


def unmark(script: str) -> str:
    """`script` without the marks, after a check of where each quoted value stands.

    Raises RenderError, with the line's number, if a value passed the wrong quoter for its place:
    a shell word in a directive or inside quotes, a directive's value outside one.
    """
    quotes = _ShellQuotes()
    lines = []
    for number, line in enumerate(script.split("\n"), 1):
        place = "directive" if line.startswith("#SBATCH") else None
        if number == 1 or (line.lstrip().startswith("#") and not place and not quotes.inside):
            place = "comment"
        plain = []
        for piece in re.split(f"([{''.join(_KIND)}][^{_CLOSE}]*{_CLOSE})", line):
            if piece[:1] not in _KIND:
                plain.append(piece)
                if place is None:
                    quotes.feed(piece)
                continue
            kind, text = _KIND[piece[0]], piece[1:-1]
            expected = place or "shell"
            if kind != expected:
                raise RenderError(
                    f"line {number} of the script: a value quoted for a {kind} stands in a "
                    f"{expected}: {text[:60]}"
                )
            if expected == "shell" and quotes.inside:
                raise RenderError(
                    f"line {number} of the script: a shell-quoted value stands inside quotes, "
                    f"which its own quotes would end: {text[:60]}"
                )
            plain.append(text)
        if place == "comment" and _READ_BY_SBATCH.match("".join(plain)):
            raise RenderError(
                f"line {number} of the script: a comment's value makes it a directive; put a space "
                "between the # and the value"
            )
        quotes.end_line()
        lines.append("".join(plain))
    return "\n".join(lines)


class _ShellQuotes:
    """Follows bash's quotes through the template's own text, across lines.

    Command substitution inside double quotes counts as inside: a value there is refused although
    bash would accept it, and the template gives it a variable first.
    """

    def __init__(self) -> None:
        self.inside = ""
        self._comment = False
        self._previous = "\n"

    def feed(self, text: str) -> None:
        skip = False
        for char in text:
            if skip:
                skip = False
            elif self._comment:
                pass
            elif self.inside:
                skip = char == "\\" and self.inside == '"'
                self.inside = "" if char == self.inside else self.inside
            elif char == "\\":
                skip = True
            elif char == "#" and self._previous in "\n \t;":
                self._comment = True
            elif char in "'\"":
                self.inside = char
            self._previous = char

    def end_line(self) -> None:
        self._comment = False
        self._previous = "\n"
