"""`bash -n` and shellcheck over many scripts at once: one process, not one a script.

Scripts are looked at as files in a private directory; nothing of them is run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import RenderError

_LIMIT_S = 600
_BATCH = 50  # files of one shellcheck, so that an interrupt ends it soon

# A child of this shell reads each file; it says whose complaint follows.
_BASH = r"""
for file; do
    said=$(bash -n -- "$file" 2>&1) || printf '%s\0%s\0' "$file" "$said"
done
"""


@dataclass(frozen=True)
class Complaint:
    """What a tool says of one script. line: of the script, where it names one."""

    script: int
    line: int | None
    message: str


def syntax_errors(scripts: Sequence[str]) -> list[Complaint]:
    """What `bash -n` says. Raises RenderError if bash cannot be run."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-template-") as directory:
        names = _write(scripts, Path(directory))
        output = _run(["bash", "-c", _BASH, "bash", *names], directory)
    pieces = output.split("\0")[:-1]
    found = []
    for name, said in zip(pieces[::2], pieces[1::2], strict=True):
        first = said.splitlines()[0] if said else "bash -n refuses it"
        at, _, message = first.partition(": line ")[2].partition(":")
        line = int(at) if at.isdecimal() else None
        found.append(Complaint(int(name), line, message.strip() if line else first))
    return found


def has_shellcheck() -> bool:
    return shutil.which("shellcheck") is not None


def shellcheck(scripts: Sequence[str]) -> list[Complaint]:
    """What shellcheck says. Raises RenderError if it cannot be run."""
    found: list[Complaint] = []
    with tempfile.TemporaryDirectory(prefix="fsdpkit-template-") as directory:
        names = _write(scripts, Path(directory))
        for first in range(0, len(names), _BATCH):
            some = names[first : first + _BATCH]
            output = _run(["shellcheck", "--norc", "--format=json", "--", *some], directory)
            try:
                remarks = json.loads(output or "[]")
            except ValueError as error:
                raise RenderError(f"shellcheck's answer cannot be read: {error}") from error
            for each in remarks:
                message = f"SC{each['code']}: {each['message']}"
                found.append(Complaint(int(each["file"]), each["line"], message))
    return found


def _write(scripts: Sequence[str], directory: Path) -> list[str]:
    for number, text in enumerate(scripts):
        (directory / str(number)).write_text(text, encoding="utf-8")
    return [str(number) for number in range(len(scripts))]


def _run(argv: Sequence[str], directory: str) -> str:
    try:
        done = subprocess.run(
            argv,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RenderError(f"{argv[0]} could not be run: {error}") from error
    if done.returncode > 1:
        raise RenderError(f"{argv[0]} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout
