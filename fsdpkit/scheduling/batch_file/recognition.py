"""What a file is that a shell would run, and its text, bounded."""

from __future__ import annotations

import os
import pwd
import re
import stat
from contextlib import suppress
from pathlib import Path

from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.scheduling.batch_file.resources import BatchFileError

_MOST_BYTES = 262_144
_OTHER_SCHEDULERS = (
    ("PBS", re.compile(r"^#PBS\b", re.MULTILINE)),
    ("LSF", re.compile(r"^#BSUB\b", re.MULTILINE)),
    ("Grid Engine", re.compile(r"^#\$\s+-", re.MULTILINE)),
    ("Flux", re.compile(r"^#\s?[Ff][Ll][Uu][Xx]:", re.MULTILINE)),
    ("Cobalt", re.compile(r"^#COBALT\b", re.MULTILINE)),
    ("OAR", re.compile(r"^#OAR\b", re.MULTILINE)),
    ("Fujitsu's PJM", re.compile(r"^#PJM\b", re.MULTILINE)),
    ("LoadLeveler", re.compile(r"^#\s?@\s*\w+\s*=", re.MULTILINE)),
)
_SHELL = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(?:\S*/)?(\w+)")
_BY_SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".slm", ".pbs", ".lsf", ".sge", ".bsub")


def shell_script_kind(path: Path) -> str | None:
    """What a file is, if a shell would run it; None: anything else."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            head = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return None
    first = head.partition("\n")[0]
    found = _SHELL.match(first)
    shell = found is not None and found[1].endswith("sh")
    named = path.suffix.lower() in _BY_SHELLS
    if re.search(r"^#SBATCH\b", head, re.MULTILINE):
        return "an sbatch script" if shell or named or found is None else None
    if shell or named:
        other = next((name for name, sign in _OTHER_SCHEDULERS if sign.search(head)), None)
        return f"a batch script of {other}" if other else "a shell script"
    return None


def read_text(path: Path) -> str:
    """The text of a batch script. Raises NotFoundError, StorageError or BatchFileError."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BatchFileError(f"{path} is not a file")
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no batch script {path}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise BatchFileError(f"{path} is larger than {_MOST_BYTES // 1024} KiB: no batch script")
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
    shell = found[1] if found is not None else "bash"
    if shell in ("csh", "tcsh", "fish") or not shell.endswith("sh"):
        raise BatchFileError(f"it is a script for {shell}; only those of bash and sh are read")
    if re.search(r"^#SBATCH\b", text, re.MULTILINE):
        return "an sbatch script"
    for name, sign in _OTHER_SCHEDULERS:
        if match := sign.search(text):
            line = text[: match.start()].count("\n") + 1
            said = text[match.start() :].partition("\n")[0][:80]
            raise BatchFileError(
                f"its options are for {name} (line {line}: {said}), not for Slurm: write them as "
                f"#SBATCH lines"
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


def without_other_options(text: str) -> str:
    """The text of a script for another scheduler without the options for that."""
    if re.search(r"^#SBATCH\b", text, re.MULTILINE):
        return text
    for _, sign in _OTHER_SCHEDULERS:
        text = sign.sub("##", text)
    return text
