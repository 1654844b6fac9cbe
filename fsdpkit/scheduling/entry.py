"""What is wrong with what a job starts, told before it waits in a queue: it is not there, it does
not compile, it imports what its environment has not, it is given settings that it will not read.

Nothing of it is run but the job's own Python, which is asked (scheduling/import_check.py): this
one, or that of its virtual or conda environment if it can be started here. Where neither is sure (a
container, modules loaded on the node) nothing is said: a guess that is wrong costs more than a job
that fails.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from fsdpkit.config.entry import Entry, environment_prefix, own_places
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.ownership import only_owner_writes
from fsdpkit.config.script_source import names_fsdpkit, read_source, reads_settings, syntax_of
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.surroundings import stood_in
from fsdpkit.config.trainers import OWN
from fsdpkit.config.trust import TrustedJob
from fsdpkit.errors import ConfigError
from fsdpkit.scheduling import import_check
from fsdpkit.scheduling.packages import conda_prefix

_ANSWER_S = 20.0
_SKIP = "skip this check: --set launch.check=false"


class _Answer(msgspec.Struct):
    """What a Python says of a program; see import_check.answer."""

    version: str
    module: tuple[str, str] | None
    """What keeps `python -m` from starting it, and the name concerned."""
    syntax: tuple[str, int | None, int | None, str | None, str] | None
    """File, line, column, the line's text and why it does not compile."""
    relative: tuple[str, int] | None
    """Where a script, which belongs to no package, imports relatively."""
    missing: list[tuple[str, int, str]]
    """File, line and module of imports that will fail."""


def check_entry(job: TrustedJob, site: LoadedSite) -> None:
    """Raises ConfigError for a program that would fail at its first line, saying which."""
    if job.origin("entry").startswith("packaged ") or not job.spec.launch.check:
        return
    _check_environment(job)
    _check_conda(job, site)
    entry, python = job.entry, python_of(job, site)
    variables = {**site.profile.environment.variables, **job.spec.environment.variables}
    environment = msgspec.structs.replace(job.spec.environment, variables=variables)
    if entry.kind == "command":
        _check_command(job, python)
        return
    _check_settings(job)
    places = own_places(environment, Path.cwd())
    if python is not None and not _may_start(job, python):
        python = None
    if python is None and not _is_seen_without(entry, places):
        return
    answer = _ask(python or Path(sys.executable), entry, places)
    if answer is not None and (wrong := _wrong(job, answer, python)):
        raise ConfigError(f"job {job.spec.name}: {wrong}")


def _check_environment(job: LoadedJob) -> None:
    """Raises ConfigError where the environment is a directory that is not there."""
    wanted = job.spec.environment
    prefix = environment_prefix(wanted, Path.cwd())
    if prefix is None or wanted.container is not None or stood_in() is not None:
        return
    key = "venv" if wanted.venv is not None else "conda"
    if not os.path.lexists(prefix / "bin" / "python"):
        there = "has no bin/python" if prefix.is_dir() else "is not there"
        raise ConfigError(
            f"job {job.spec.name}: environment.{key}: {prefix} {there}, so the job could not start "
            f"in it; name one that is, or, if only the nodes see it, {_SKIP}"
        )


def _check_conda(job: LoadedJob, site: LoadedSite) -> None:
    """Raises ConfigError for the name of an environment that this shell's conda has not; the conda
    of a module, or one that keeps environments elsewhere, may have it."""
    name, conda = job.spec.environment.conda, os.environ.get("CONDA_EXE")
    if name is None or "/" in name or not conda or stood_in() is not None:
        return
    settings = [place / ".condarc" for place in (Path.home(), Path(conda).parents[1])]
    elsewhere = any("envs_dirs" in one.read_text() for one in settings if one.is_file())
    modules = job.spec.environment.modules or site.profile.environment.modules
    if not (modules or elsewhere or conda_prefix(name)):
        raise ConfigError(
            f"job {job.spec.name}: environment.conda: {conda} has no environment {name!r} (conda "
            f"env list shows them); name one of them, or, if the nodes have another conda, {_SKIP}"
        )


def python_of(job: LoadedJob, site: LoadedSite) -> Path | None:
    """The interpreter that the program will have, if it is known and on this machine."""
    wanted = job.spec.environment
    if wanted.container is not None or stood_in() is not None:
        return None
    if wanted.venv is not None or wanted.conda is not None:
        prefix = environment_prefix(wanted, Path.cwd())
        python = prefix / "bin" / "python" if prefix else None
        return python if python and os.access(python, os.X_OK) else None
    modules = wanted.modules if wanted.modules is not None else site.profile.environment.modules
    return None if modules else Path(sys.executable)


def _may_start(job: TrustedJob, python: Path) -> bool:
    """Not what a word such as `.venv` means where somebody else is at home."""
    named = job.spec.environment.venv or job.spec.environment.conda
    if named is None or os.path.isabs(os.path.expanduser(named)):
        return True
    return only_owner_writes(python) and only_owner_writes(python.parent.parent)


def handles_warnings(job: LoadedJob) -> bool:
    """Whether it may look at the warning and needs time to save: our trainer, or names fsdpkit."""
    entry = job.entry
    if job.spec.training is not msgspec.UNSET:
        return True
    if entry.file is None or entry.kind == "command":
        return False
    tree = _tree(job, entry.file)
    return tree is None or names_fsdpkit(tree, *entry.source_dirs)


def _check_command(job: LoadedJob, python: Path | None) -> None:
    """Raises ConfigError for one that the node could not start, either."""
    name, file = job.entry.name, job.entry.file
    if file is None and python is not None:
        raise ConfigError(
            f"job {job.spec.name}: entry {name}: there is no such command in {python.parent} or on "
            f"PATH; aliases and functions of a shell do not count. Install it there, name its "
            f"environment (environment.venv, environment.conda), or {_SKIP}"
        )
    if file is None or name != str(file) or stood_in() is not None:
        return
    with open(file, "rb") as opened:
        first = opened.readline(256)
    wrong = None
    if not os.access(file, os.X_OK):
        wrong = f"is not executable: chmod +x {shlex.quote(name)}"
    elif not first.startswith((b"#!", b"\x7fELF")):
        wrong = "has no #! line that says which program reads it"
    elif first.startswith(b"#!") and b"\r" in first:
        wrong = "ends its lines as Windows does, so its #! line names no program: dos2unix mends it"
    if wrong:
        raise ConfigError(f"job {job.spec.name}: entry {name} {wrong}")


def _is_seen_without(entry: Entry, places: Sequence[Path]) -> bool:
    """Whether all of a module that is to be started lies here, whatever Python it gets."""
    top = Path(entry.name.partition(".")[0], "__init__.py")
    missing = entry.kind == "module" and entry.file is None and stood_in() is None
    return missing and any((place / top).is_file() for place in places)


def _tree(job: LoadedJob, file: Path) -> ast.Module | None:
    """Raises ConfigError if it cannot be read."""
    try:
        source = read_source(file)
    except OSError as error:
        raise ConfigError(
            f"job {job.spec.name}: entry {file}: cannot be read: {error.strerror}"
        ) from error
    return None if source is None else syntax_of(source)


def _check_settings(job: LoadedJob) -> None:
    entry = job.entry
    tree = _tree(job, entry.file) if entry.file else None
    origins = {k: o for k, o in job.layered.origins.items() if k.partition(".")[0] == "training"}
    # Who writes [training] into a job file, or puts a script in our trainer's place, means it.
    typed = {key: origin for key, origin in origins.items() if origin in ("--set", "command line")}
    others = (origin for origin in origins.values() if origin not in typed.values())
    if (
        job.spec.trainer_name != OWN
        or not typed
        or not all(origin.endswith(" defaults.toml") for origin in others)
    ):
        return
    try:
        if tree is None or reads_settings(tree, *entry.source_dirs):
            return
    except OSError:
        return
    key = max(typed, key=len)
    raise ConfigError(
        f"job {job.spec.name}: {key} ({job.origin(key)}): settings in [training] are for the "
        f"fsdpkit trainer, and {entry.path.name} does not read them; give your script its own "
        "arguments after --, such as: -- --lr 1e-4. To read them, the script imports "
        "fsdpkit.training.command_line.read_settings and takes --job"
    )


def _ask(python: Path, entry: Entry, places: Sequence[Path]) -> _Answer | None:
    """What the program's Python says; None if it gives no answer."""
    here, *path = places
    first = entry.file.parent if entry.kind == "script" and entry.file else here
    asked = {
        "script" if entry.kind == "script" else "module": entry.name,
        "path": [str(place) for place in (first, *path)],
    }
    if python == Path(sys.executable):
        return msgspec.convert(import_check.answer(asked), _Answer)
    try:
        done = subprocess.run(
            [str(python), "-c", Path(import_check.__file__).read_text(encoding="utf-8")],
            input=msgspec.json.encode(asked),
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Answer)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):  # msgspec's are such
        return None


def _wrong(job: LoadedJob, answer: _Answer, python: Path | None) -> str | None:
    if answer.module is not None:
        return _no_module(job.entry, answer.module, python)
    if python is None:
        return None
    if answer.missing:
        return _missing(answer.missing, python)
    if answer.syntax is not None:
        return _shown(answer)
    return _needs_package(*answer.relative) if answer.relative is not None else None


def _no_module(entry: Entry, problem: tuple[str, str], python: Path | None) -> str:
    what, name = problem
    if what == "no main":
        return (
            f"entry {entry}: {name} is a package without __main__.py, so python -m cannot start "
            f"it; name the module in it that trains, such as -m {name}.train"
        )
    where = f" or in the path of {python}" if python else ""
    nearby = "".join(f" (here: {p})" for p in _places_of(name, [Path.cwd(), Path.cwd().parent]))
    return (
        f"entry {entry}: there is no module {name} in the directory that is submitted from, on "
        f"PYTHONPATH{where}; submit from the directory that holds its package{nearby}, or {_SKIP}"
    )


def _shown(answer: _Answer) -> str:
    """The line that does not compile, with a mark below, as Python itself shows it."""
    assert answer.syntax is not None
    file, line, column, text, why = answer.syntax
    told = f"{file}:{line}: Python {answer.version} cannot compile it: {why}"
    if not text:
        return told
    shown = "".join(c if c.isprintable() else " " for c in text.rstrip()[:200])
    indent = len(shown) - len(shown.lstrip())
    mark = " " * max(0, (column or 1) - 1 - indent)
    return f"{told}\n    {shown.lstrip()}\n    {mark}^"


def _missing(missing: Iterable[tuple[str, int, str]], python: Path) -> str:
    found: dict[str, tuple[str, int]] = {}
    for file, line, name in missing:
        found.setdefault(name, (file, line))
    first, _ = next(iter(found.values()))
    places = ", ".join(
        f"{name} (line {line})" if file == first else f"{name} ({file}:{line})"
        for name, (file, line) in [*found.items()][:8]
    )
    around = [Path.cwd(), *Path(first).parents[:4]]
    hints = (
        f"{name} lies in {place}, where Python does not look: --set "
        f"{shlex.quote(f'environment.variables.PYTHONPATH={place}')}. "
        for name in found
        for place in _places_of(name, around)
    )
    hint = next(hints, "")
    return (
        f"{first} imports modules that its environment lacks: {places}; looked beside the script "
        f"and in the path of {python}. {hint}Install them there, name another environment "
        f"(environment.venv, environment.conda), or {_SKIP}"
    )


def _places_of(name: str, around: Iterable[Path]) -> Iterator[Path]:
    """Directories near those `around` that a module of that name lies in."""
    for place in (each / below for each in around for below in ("", "src")):
        if (place / f"{name}.py").is_file() or (place / name).is_dir():
            yield place


def _needs_package(file: str, line: int) -> str:
    """A script with a relative import, and how it is started as what it is."""
    path = Path(file)
    root = path.parent.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    told = f"{file}:{line}: a relative import works only in a module that belongs to a package"
    if not all(part.isidentifier() for part in module.split(".")):
        return f"{told}, and {module!r} can be no module's name"
    at = "" if root == Path.cwd() else f"cd {shlex.quote(str(root))} && "
    return f"{told}; to start it as one: {at}fsdpkit submit -m {module}"
