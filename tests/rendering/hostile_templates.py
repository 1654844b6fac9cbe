"""Templates that try to get an unquoted value into a script, and which of them do.

Each place takes each quoter; what is accepted is run by a real bash, with values that leave a file
behind if bash reads them as anything but data.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from fsdpkit.errors import RenderError
from fsdpkit.rendering.quoting import QUOTERS
from fsdpkit.rendering.sandbox import TemplateSandbox, sandbox_of

# @ is the value. These hold it as data, if its quoter is the one named.
SAFE = {
    "an assignment": ("X=@\n", "sh"),
    "an indented assignment": ("  X=@\n", "sh"),
    "an assignment with a comment": ("X=@  # why\n", "sh"),
    "an exported assignment": ("export X=@\n", "sh"),
    "one word of a list": ("X=(@)\n", "sh"),
    "one more word": ("X=()\nX+=(@)\n", "sh"),
    "an assignment below a directive": ("#SBATCH --time=1\n# don't\n\nX=@\n", "sh"),
    "an assignment in a loop": ("{% for a in names %}\nX=@\n{% endfor %}\n", "sh"),
    "an assignment in a case": ("{% if v %}\nX=@\n{% else %}\nY=@\n{% endif %}\n", "sh"),
    "an assignment begun before a tag": ("X={% if v %}@{% endif %}\n", "sh"),
    "a directive": ("#SBATCH --comment=@\n", "sb"),
    "a comment": ("# it's @ and @\n", "note"),
    "an indented comment": ("  # @\n", "note"),
    "a comment begun before a tag": ("# x {% if v %}\n@\n{% endif %}\n", "note"),
}
_BELOW = {  # other shell text, and then what would be safe alone
    "a command": "true\n",
    "an open here-document": "cat <<EOF\n",
    "an open quoted here-document": "cat <<'EOF'\n",
    "an odd double quote": 'echo "\n',
    "an odd single quote": "echo '\n",
    "an open substitution": "echo $(\n",
    "open backticks": "echo `\n",
    "an open list": "Y=(\n",
    "open arithmetic": "echo $((\n",
    "a continued line": "true \\\n",
    "a continued assignment": "Y=a\\\n",
    "an odd quote in an assignment": 'Y="\n',
    "an open function": "f() {\n",
    "an open case": "case x in\n",
    "set": "set -e\n",
}
UNSAFE = {
    "a word": "echo @\n",
    "double quotes": 'echo "@"\n',
    "single quotes": "echo '@'\n",
    "after an odd quote in a comment": "true # don't\necho @ '\n",
    "arithmetic": "echo $(( @ ))\n",
    "a numeric test": "[[ @ -eq 1 ]]\n",
    "a subscript": "a[@]=1\n",
    "a default": "echo ${x:-@}\n",
    "backticks": "echo `echo @`\n",
    "a substitution": "echo $(echo @)\n",
    "a here-document": "cat <<EOF\nx @\nEOF\n",
    "a here-document's line": "cat <<EOF\n@\nEOF\n",
    "a quoted here-document's line": "cat <<'EOF'\n@\nEOF\n",
    "an assignment in a here-document": "cat <<EOF\nX=@\nEOF\n",
    "a directive in a here-document": "cat <<EOF\n#SBATCH --comment=@\nEOF\n",
    "a here-document's end": "cat <<@\nx\nEOF\n",
    "eval": "eval @\n",
    "another shell": "bash -c @\n",
    "a trap": "trap @ EXIT\n",
    "the name of an assignment": "@=1\n",
    "printed into": "printf -v @ x\n",
    "a case's pattern": "case x in @) ;; esac\n",
    "a redirection": "true > @\n",
    "a whole line": "@\n",
    "a subscript of a list": "X=([@]=1)\n",
    "a second word of a list": "X=(a @)\n",
    "an assignment's end": "X=a@\n",
    "a quoted assignment": 'X="@"\n',
    "an addition": "X+=@\n",
    "two assignments": "X=@ Y=@\n",
    "an assignment for a command": "X=@ true\n",
    "a number's declaration": "declare -i X=@\n",
    "exported seconds": "export SECONDS=@\n",
    "a prompt": "PS4=@\nset -x\n",
    "a start-up file": "export BASH_ENV=@\nbash -c true\n",
    "a directive in quotes": '#SBATCH --comment="@"\n',
    "a directive's end": "#SBATCH --comment=a@\n",
    "two directives on a line": "#SBATCH --comment=@ --account=@\n",
    "a directive alone": "#SBATCH @\n",
    "a directive's name": "#SBATCH --@=1\n",
    "a comment that becomes a directive": "#@\n",
    "half a directive": "#SB@\n",
    "a note behind a command": "true # @\n",
    "a command begun before a tag": "echo {% if v %}@{% endif %}\n",
    "a line joined by a tag": "X=a \\\n{%- if v %}@\n{% endif %}\n",
    "a value kept for later": "{% set w = v | sh %}\necho {{ w }}\n",
    "a loop that ends in a here-document": (
        "{% for a in names %}\nX=@\ncat <<EOF\n{% endfor %}\nEOF\nEOF\n"
    ),
    "an included command": "{% include 'part.j2' %}\nX=@\n",
    "an included half line": "{% include 'half.j2' %}X=@\n",
    **{f"below {what}": f"{text}X=@\n" for what, text in _BELOW.items() if text},
    **{f"a comment below {what}": f"{text}# @\n" for what, text in _BELOW.items() if text},
}
_PARTS = {"part.j2": b"cat <<EOF\n", "half.j2": b'echo "'}
# Each leaves the file HIT behind if it is read as more than text, somewhere.
PAYLOADS = (
    "$(touch HIT)",
    "`touch HIT`",
    "'; touch HIT; '",
    '"; touch HIT; "',
    "'\"; touch HIT; \"'",
    "a[$(touch HIT)]",
    "x) touch HIT;;",
    "EOF",
    "EOF touch HIT",
    "\\",
    "x\\'; touch HIT; '",
    "-v a[$(touch HIT)]",
    "touch HIT",
    "SBATCH --wrap=touch",
    "touch HIT #",
)


def templates() -> Iterator[tuple[str, str, bool]]:
    """(name, text, whether it may be accepted) of each place with each quoter."""
    unsafe = {name: (line, None) for name, line in UNSAFE.items()}
    for name, (line, right) in {**SAFE, **unsafe}.items():
        for quoter in QUOTERS if "@" in line else ("",):
            text = "#!/bin/bash\n" + line.replace("@", f"{{{{ v | {quoter} }}}}")
            yield f"{name}, {quoter}", text, right == quoter.removesuffix("_arg")


def render(text: str, value: object) -> str:
    """The script of a template. Raises RenderError."""
    return rendered(text, {"v": value, "names": ["a", "b"], "number": 3})


def rendered(text: str, context: Mapping[str, object]) -> str:
    """The same, in this process and with other values. Raises RenderError."""
    return _sandbox(text).trace("job.sbatch.j2", context).script


@lru_cache(maxsize=1)
def _sandbox(text: str) -> TemplateSandbox:
    return sandbox_of({"job.sbatch.j2": text.encode(), **_PARTS})


def harmed(script: str) -> bool:
    """Whether a real bash does more with the script than keep its values."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            ["bash", "-c", script],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        return any(Path(directory).iterdir())


def accepted() -> dict[str, list[str]]:
    """The scripts of those hostile templates that make any, by name."""
    found: dict[str, list[str]] = {}
    for name, text, may in templates():
        for value in () if may else PAYLOADS:
            with suppress(RenderError):
                script = render(text, value)
                found.setdefault(name, []).append(script)
    return found
