"""What a file is that a shell would run, and its text, bounded."""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from pathlib import Path

from fsdpkit.bounded import open_regular, read_bytes
from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.scheduling.batch_file.shape import BatchFileError

_MOST_BYTES = 262_144
_OTHER_SCHEDULER = re.compile(r"^#(PBS\b|BSUB\b|\$\s+-|\s?(?i:flux):).*", re.MULTILINE)
"""The first of the options of PBS, LSF, Grid Engine or Flux."""
_SBATCH = re.compile(r"^#SBATCH\b", re.MULTILINE)
_SHELL = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(?:\S*/)?(\w+)")
_BY_SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".slm", ".pbs", ".lsf", ".sge", ".bsub")


def shell_script_kind(path: Path) -> str | None:
    """What a file is, if a shell would run it; None: anything else."""
    try:
        with open_regular(path, links=True) as file:
            head = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return None
    found = _SHELL.match(head)
    by_shell = path.suffix.lower() in _BY_SHELLS or (found and found[1].endswith("sh"))
    if _SBATCH.search(head):
        return "an sbatch script" if by_shell or found is None else None
    return "a shell script" if by_shell else None


def read_text(path: Path) -> str:
    """The text of a batch script. Raises NotFoundError, StorageError or BatchFileError."""
    try:
        content = read_bytes(path, _MOST_BYTES, links=True)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no batch script {path}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if b"\0" in content:
        raise BatchFileError(f"{path} is a binary file, not a batch script")
    return content.decode("utf-8-sig", "replace")


def check_text(text: str) -> str:
    """What the script is. Raises BatchFileError for what is none of sbatch's or bash's."""
    if "\r" in text:
        line = text[: text.index("\r")].count("\n") + 1
        raise BatchFileError(
            f"line {line} ends in a carriage return, as files from Windows do; sbatch refuses it "
            f"as well: dos2unix removes them"
        )
    if not text.strip():
        raise BatchFileError("it is empty")
    found = _SHELL.match(text)
    if found is not None and (found[1] in ("csh", "tcsh", "fish") or not found[1].endswith("sh")):
        raise BatchFileError(f"it is a script for {found[1]}; only those of bash and sh are read")
    if _SBATCH.search(text):
        return "an sbatch script"
    if option := _OTHER_SCHEDULER.search(text):
        line = text[: option.start()].count("\n") + 1
        raise BatchFileError(
            f"its options are for another scheduler (line {line}: {option.group()[:80]}), not for "
            f"Slurm: write them as #SBATCH lines"
        )
    return "a shell script"


def environ_of_person() -> dict[str, str]:
    """The environment, with the names that every login has."""
    here = dict(os.environ)
    with suppress(KeyError):
        entry = pwd.getpwuid(os.getuid())
        for name in ("USER", "LOGNAME"):
            here.setdefault(name, entry.pw_name)
        here.setdefault("HOME", entry.pw_dir)
    return here
