"""Where a value may stand in a script: in whole lines of a few shapes, above all other shell text.

Each of these lines is complete in itself: it ends with no quote, parenthesis or here-document open,
for bash and for sbatch. So nothing but such lines can stand above a value, and what a value means
depends on its own line alone. Everything below takes the values from variables; only numbers,
which no lexer can misread, may be printed there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from fsdpkit.errors import RenderError
from fsdpkit.rendering.quoting import QUOTERS, Quoted
from fsdpkit.rendering.variables import Undecided, Variable

HOLE = "\0"  # stands for a value; no template holds one
Place = str

# The places, what they are called in messages, and the quoters' kinds that may stand there.
PLACES: dict[Place, tuple[str, tuple[str, ...]]] = {
    "comment": ("a comment", ("comment",)),
    "shebang": ("the first line", ("comment",)),
    "option": ("a directive", ("directive",)),
    "directive": ("a directive", ("directive",)),
    "word": ("an assignment", ("shell",)),
    "words": ("a list of words", ("shell", "words")),
    "body": ("the shell's own text", ()),
}
_REMEDY = (
    "values belong at the top, above all other shell text, each on its own line: "
    "#SBATCH --option={{ value | sb }}, # {{ value | note }}, NAME={{ value | sh }} or "
    'NAME=({{ list | sh }}); below, write "$NAME" or "${NAME[@]}"'
)

_NAME = r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
_NOTE = rf"(?:[ \t]+#[^{HOLE}]*)?[ \t]*"
_SHAPES: list[tuple[re.Pattern[str], tuple[Place, ...]]] = [
    (re.compile(rf"#SBATCH --[a-z][a-z-]*={HOLE}"), ("directive",)),
    (re.compile(rf"#SBATCH --{HOLE}={HOLE}"), ("option", "directive")),
    (re.compile(rf"#SBATCH --{HOLE}"), ("option",)),
    (re.compile(rf"[ \t]*(?:export )?{_NAME}={HOLE}{_NOTE}"), ("word",)),
    (re.compile(rf"[ \t]*{_NAME}\+?=\({HOLE}\){_NOTE}"), ("words",)),
]
_COMMENT = re.compile(r"[ \t]*#[ \t].*", re.DOTALL)
# Without a value: blank, a comment, a directive, or a name set to something plain.
_PLAIN_LINE = re.compile(
    rf"[ \t]*(?:#[^{HOLE}]*|(?:export )?{_NAME}=(?:\(\)|[A-Za-z0-9_./:,@%+-]*){_NOTE})?"
)
# bash(1), Shell Variables: assigning some of them evaluates the value (RANDOM='a[$(id)]' runs id),
# others change how what follows is read.
_BASHS_OWN = re.compile(
    r"_|PS\d|IFS|ENV|PATH|CDPATH|SHELL|SHELLOPTS|GLOBIGNORE|POSIXLY_CORRECT|PROMPT_\w*|COPROC|"
    r"COMP_\w*|COMPREPLY|CHILD_MAX|BASH\w*|DIRSTACK|E?UID|GROUPS|PPID|PIPESTATUS|FUNC\w*|"
    r"S?RANDOM|SECONDS|EPOCH\w*|LINENO|HIST\w*|histchars|OPT(?:ARG|IND|ERR)|REPLY|MAPFILE|READLINE_\w*|"
    r"SHLVL|INSIDE_EMACS|auto_resume|TIMEFORMAT|EXECIGNORE|FIGNORE|INPUTRC|TMOUT"
)
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_SHEBANG = re.compile(r"#!/[!-~]+(?: [!-~]+){0,2}")


def places_in(shape: str, *, first: bool) -> tuple[Place, ...] | None:
    """What stands at each hole of a line (without its end); None: other shell text. shape: the line
    with a HOLE for each value. first: whether it is the script's first line. Raises ValueError,
    with the reason, for a variable that is not for values."""
    holes = shape.count(HOLE)
    if first and shape == HOLE:
        return ("shebang",)
    if holes and _COMMENT.fullmatch(shape):
        return ("comment",) * holes
    patterns = _SHAPES if holes else [(_PLAIN_LINE, ())]
    for pattern, places in patterns:
        if found := pattern.fullmatch(shape):
            name = found.groupdict().get("name")
            if name and _BASHS_OWN.fullmatch(name):
                if not holes:
                    return None
                raise ValueError(f"{name} means something to bash; choose another name")
            return places
    return None


def places_of(shape: str) -> Iterator[Place]:
    """What stands at each hole of a script, in order. shape: the script with a HOLE for each value.
    Raises ValueError as `places_in` does."""
    in_body = False
    for number, line in enumerate(shape.split("\n")):
        found = None if in_body else places_in(line, first=number == 0)
        in_body = found is None
        yield from ("body",) * line.count(HOLE) if found is None else found


_KINDS = {
    "comment": "a comment",
    "directive": "a directive",
    "shell": "the shell",
    "words": "a list of words",
}


def printed(value: Any, place: Place) -> str:
    """The text of a value at its place. Raises RenderError for no quoter, or a wrong one."""
    if type(value) in (int, float) and math.isfinite(value):
        return str(value)
    if isinstance(value, Variable) and value.kind == "number":
        if place in ("directive", "option", "shebang"):
            raise Undecided(value, "it stands in a directive")
        return value.note if place == "comment" else value.number
    if not isinstance(value, Quoted):
        shown = repr(value[:60]) if isinstance(value, str) else f"a {type(value).__name__}"
        raise RenderError(f"prints {shown} unquoted; pass it through {', '.join(QUOTERS)}")
    called, allowed = PLACES[place]
    if value.kind not in allowed:
        raise RenderError(f"a value quoted for {_KINDS[value.kind]} is in {called}; {_REMEDY}")
    if place == "option" and not _OPTION.fullmatch(value.text):
        raise RenderError(f"{value.text[:60]!r} is not the name of an sbatch option")
    if place == "shebang" and not _SHEBANG.fullmatch(value.text):
        raise RenderError(
            f"{value.text[:60]!r} is not the first line of a script, which begins with #!/"
        )
    return value.text
