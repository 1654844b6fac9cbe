"""The quoters, one for each lexer that a script meets.

sbatch reads `#SBATCH` lines with a lexer of its own in which a backslash escapes even inside
single quotes, so `shlex.quote` is wrong there; bash reads the body. What a quoter made is no text
any more but a `Quoted`, which says for which lexer; `rendering.places` says where each may stand.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Literal

import msgspec

from fsdpkit.config.loading import CONTROL_CHARACTER
from fsdpkit.errors import RenderError
from fsdpkit.rendering.variables import Undecided, Variable

_PLAIN_DIRECTIVE = re.compile(r"[A-Za-z0-9_.,/=+@%^:-]*")


class Quoted(msgspec.Struct, frozen=True):
    """What a template may print, besides numbers. Nothing can be done to it but that."""

    kind: Literal["shell", "words", "directive", "comment"]
    text: str

    def __str__(self) -> str:
        raise RenderError("what a quoter made can only be printed")


def _refuse_control(text: str) -> None:
    if found := CONTROL_CHARACTER.search(text):
        raise RenderError(f"a value holds the control character {found.group()!r}: {text[:80]!r}")


def shell_quote(text: str) -> str:
    """`text` as one word of a bash script. Raises RenderError on control characters."""
    _refuse_control(text)
    return shlex.quote(text)


def directive_quote(text: str) -> str:
    """`text` as one argument of an `#SBATCH` line (sbatch's get_argument, src/sbatch/opt.c). Raises
    RenderError on control characters. It is for the value behind `--option=`: at an argument that
    begins with a colon sbatch stops, quoted or not."""
    _refuse_control(text)
    if text and _PLAIN_DIRECTIVE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def for_shell(value: Any) -> Quoted:
    """Jinja filter `sh`: one word of bash; of a list its words, for `NAME=({{ list | sh }})`."""
    if isinstance(value, Variable):
        return Quoted("words" if value.kind == "words" else "shell", value.word)
    if isinstance(value, list):
        return Quoted("words", " ".join(_word(each) for each in value))
    return Quoted("shell", shell_quote(_plain(value)))


def _word(value: Any) -> str:
    """One entry of a list."""
    if isinstance(value, Variable) and value.kind == "text":
        return value.word
    return shell_quote(_plain(value))


def with_array_task(value: Any) -> Quoted:
    """Jinja filter `sh_arg`: like `sh`, but `{array_task}` becomes the array task's number."""
    if isinstance(value, Variable):
        return for_shell(value)  # what a form says is no pattern for array tasks
    if isinstance(value, list):
        return Quoted("words", " ".join(with_array_task(each).text for each in value))
    pieces = _plain(value).split("{array_task}")
    quoted = '"$SLURM_ARRAY_TASK_ID"'.join(shell_quote(p) if p else "" for p in pieces)
    return Quoted("shell", quoted or "''")


def for_directive(value: Any) -> Quoted:
    """Jinja filter `sb`: the value of an `#SBATCH` option."""
    if isinstance(value, Variable):
        raise Undecided(value, "it stands in a directive")
    return Quoted("directive", directive_quote(_plain(value)))


def for_comment(value: Any) -> Quoted:
    """Jinja filter `note`: text in a comment line."""
    if isinstance(value, Variable):
        return Quoted("comment", value.note)
    text = _plain(value)
    _refuse_control(text)
    return Quoted("comment", text)


QUOTERS = {
    "sh": for_shell,
    "sh_arg": with_array_task,
    "sb": for_directive,
    "note": for_comment,
}


def _plain(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "nothing" if value is None else f"a {type(value).__name__}"
        raise RenderError(f"{kind} cannot be printed; the template must make text of it")
    return str(value)
