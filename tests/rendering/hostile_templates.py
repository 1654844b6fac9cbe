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
from tests.rows import pairs

PLACES = {
    name: (text, quoter or None)
    for given, quoter in pairs(Path(__file__).with_name("places_of_values.txt"))
    for name, text in [given.split(" | ", 1)]
}
"""By name a template in which @ is the value, and the quoter that makes it data there, if any."""
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
    for name, (line, right) in PLACES.items():
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
            timeout=300,
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
