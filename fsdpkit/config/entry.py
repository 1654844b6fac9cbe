"""What a job starts on each rank: a Python script, a module (`-m package.module`), or a command of
its environment such as `litgpt`.

Found by its name and by files alone; nothing is imported and nothing is run. Whether the job's
Python agrees is for scheduling/entry.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsdpkit.config.job import Environment
from fsdpkit.config.launchers import refuse_launcher
from fsdpkit.config.spelling import nearest
from fsdpkit.config.surroundings import stood_in
from fsdpkit.errors import UsageError

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_COMMAND = re.compile(r"[A-Za-z0-9_][\w.+-]*")
_DATA = frozenset({".yaml", ".yml", ".json", ".jsonl", ".csv", ".txt", ".md", ".log", ".out"})
_SHELL_SCRIPTS = frozenset({".sh", ".bash", ".sbatch", ".slurm"})


@dataclass(frozen=True)
class Entry:
    """One such program."""

    kind: Literal["script", "module", "command"]
    name: str
    """A file's whole path, a module's dotted name, or a command's name."""
    file: Path | None = None
    """The file that is started, if it is known here; of a module, only if it is the job's own."""
    root: Path | None = None
    """Where Python finds the job's modules: beside the script, or around a module's package."""

    def __str__(self) -> str:
        """As `entry` says it."""
        return f"-m {self.name}" if self.kind == "module" else self.name

    @classmethod
    def of_file(cls, path: Path) -> Entry:
        """path: absolute."""
        if _is_executable_only(path):
            return cls("command", str(path), path, path.parent)
        return cls("script", str(path), path, path.parent)

    @property
    def path(self) -> Path:
        """Its file; for what has none here, its name."""
        return self.file or Path(self.name)

    @property
    def title(self) -> str:
        """What to name a job after."""
        return self.name if self.kind == "module" else Path(self.name).stem

    @property
    def words(self) -> tuple[str, ...]:
        """What follows `python -u`; a command is not Python's to start."""
        return ("-m", self.name) if self.kind == "module" else (self.name,)

    @property
    def source_dirs(self) -> tuple[Path, ...]:
        """Where the modules lie that it imports by a name of one part, relative ones included."""
        beside = self.file.parent if self.file else None
        return tuple(dict.fromkeys(filter(None, (self.root, beside))))


def _is_executable_only(path: Path) -> bool:
    """Whether a file starts without Python: its `#!` names another program, or it is a binary."""
    if path.suffix == ".py" or is_shell_script(path):
        return path.suffix != ".py"
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first)


def find_entry(
    text: str, places: Sequence[Path], environment: Environment, what: str, *, here: Path
) -> Entry | None:
    """What `entry = text` names; None if there is no such file and it can be no command's name.
    places: where a file may lie, in order. here: the directory that the job runs in. what: names
    the setting in messages. Raises UsageError."""
    if text.startswith("-m"):
        return _module(text[2:].strip(), own_places(environment, here), what)
    for place in places:
        if (path := (place / text).resolve()).is_file():
            if wrong := _why_no_program(path):
                raise UsageError(f"{what}: {path.name} {wrong}")
            return Entry.of_file(path)
    _refuse_several_words(text, places, environment, what, here)
    if not _COMMAND.fullmatch(text) or Path(text).suffix in {".py", *_SHELL_SCRIPTS}:
        return None
    return Entry("command", text, _found_command(text, environment, here))


def nearby(path: Path) -> str:
    """What may be meant by a file that is not there, or is a directory; see `nearest`."""
    if path.is_dir():
        return f" {path} is a directory: name the program in it."
    try:
        names = [one for one in os.listdir(path.parent) if one.endswith((".py", ".toml"))]
    except OSError:
        names = []
    near = nearest(path.name, names)
    return near.replace("'", f"'{path.parent}/", 1) if path.parent != Path() else near


def _why_no_program(path: Path) -> str | None:
    """What a file is that Python would take for a program: so it does a notebook, and much YAML."""
    if path.suffix == ".ipynb":
        return "is a notebook: jupyter nbconvert --to script makes a Python script of it"
    if path.suffix in _DATA:
        return "is no program: name the Python script that reads it, and the file behind --"
    return None


def is_shell_script(path: Path) -> bool:
    return path.suffix in _SHELL_SCRIPTS


def _refuse_several_words(
    text: str, places: Sequence[Path], environment: Environment, what: str, here: Path
) -> None:
    try:
        words = shlex.split(text)
    except ValueError:
        return
    refuse_launcher(words, what)
    if len(words) < 2:
        return
    is_file = any((place / words[0]).is_file() for place in places)
    if is_file or (_COMMAND.fullmatch(words[0]) and _found_command(words[0], environment, here)):
        raise UsageError(
            f"{what}: this is one program, {words[0]}; its arguments belong in args, on a command "
            f'line behind "--": {shlex.join(words[1:])}'
        )


def _module(name: str, places: Sequence[Path], what: str) -> Entry:
    if not _MODULE.fullmatch(name) or name.endswith(".py"):
        raise UsageError(f"{what}: -m takes the dotted name of one module{_meant(name)}")
    refuse_launcher([name], what)
    for root in places:
        if file := _file_of(name, root):
            return Entry("module", name, file, root)
    return Entry("module", name)


def _meant(name: str) -> str:
    module, _, more = name.partition(" ")
    dotted = module.removesuffix(".py").strip("./").replace("/", ".")
    if not _MODULE.fullmatch(dotted):
        return f", not {name!r}"
    more = f'; its arguments belong in args, on a command line behind "--": {more}' if more else ""
    return f", such as -m {dotted}{more}"


def own_places(environment: Environment, here: Path) -> list[Path]:
    """Where Python looks before what is installed: `here`, where the job runs, and PYTHONPATH."""
    inherited = os.environ.get("PYTHONPATH", "") if stood_in() is None else ""
    prepended = environment.prepend.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, (prepended, inherited)))
    path = environment.variables.get("PYTHONPATH", path)
    return [here, *(here / entry for entry in path.split(os.pathsep) if entry)]


def is_module_in(name: str, root: Path) -> bool:
    """Whether `python -m NAME` finds something to start below `root`."""
    return _MODULE.fullmatch(name) is not None and _file_of(name, root) is not None


def _file_of(name: str, root: Path) -> Path | None:
    """The file that `python -m NAME` runs, if it lies below `root`."""
    base = root.joinpath(*name.split("."))
    package, module = base / "__main__.py", base.with_name(f"{base.name}.py")
    both = (module, package) if not (base / "__init__.py").is_file() else (package,)
    return next((file for file in both if file.is_file()), None)


def _found_command(name: str, environment: Environment, here: Path) -> Path | None:
    """The executable of that name in the job's environment or on PATH, as far as it is here."""
    if environment.container is not None or stood_in() is not None:
        return None
    prefix = environment_prefix(environment, here)
    bin_dir = prefix / "bin" if prefix else Path(sys.executable).parent
    found = shutil.which(name, path=f"{bin_dir}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    return Path(found) if found else None


def environment_prefix(environment: Environment, here: Path) -> Path | None:
    """The directory of the job's virtual or conda environment, if the job says it."""
    if environment.venv is not None:
        return here / os.path.expanduser(environment.venv)
    if environment.conda is not None and "/" in environment.conda:
        return here / os.path.expanduser(environment.conda)
    return None
