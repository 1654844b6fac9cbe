"""What is wrong with a job's script, told before it waits in a queue: it does not compile, it
imports what its environment has not, it is given settings that it will not read.

The script is read, never run. Its own Python is asked: this one, or that of the job's virtual or
conda environment if it can be started here. Where neither is sure (a container, modules loaded on
the node, a script that changes where Python looks) nothing is said: a guess that is wrong costs
more than a job that fails.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.script_source import read_source, reads_settings, syntax_of
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.surroundings import stood_in
from fsdpkit.errors import ConfigError

_ANSWER_S = 20.0
_ASK = """
import ast, importlib.util, json, sys, warnings
warnings.simplefilter("ignore")
asked = json.load(sys.stdin)
problem = None
try:
    with open(asked["script"], "rb") as file:
        compile(file.read(), asked["script"], "exec", dont_inherit=True)
except SyntaxError as error:
    problem = [error.lineno, error.offset, error.text, error.msg]
sys.path[:0] = asked["path"]
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True
missing = [name for name in asked["names"] if not found(name)]
print(json.dumps({"version": sys.version.split()[0], "problem": problem, "missing": missing}))
"""


class _Answer(msgspec.Struct):
    """What a Python says of a script."""

    version: str
    problem: tuple[int | None, int | None, str | None, str] | None
    """Line, column, the line's text and why it does not compile."""
    missing: list[str]


def check_entry(job: LoadedJob, site: LoadedSite) -> None:
    """Raises ConfigError for a script that would fail at its first line, saying which."""
    if job.origin("entry").startswith("packaged ") or not job.spec.launch.check:
        return
    try:
        source = read_source(job.entry)
    except OSError as error:
        raise ConfigError(
            f"job {job.spec.name}: entry {job.entry}: cannot be read: {error.strerror}"
        ) from error
    if source is None:
        return
    tree = syntax_of(source)
    _check_settings(job, tree)
    if (python := python_of(job, site)) is None:
        return
    names = [] if tree is None else list(dict.fromkeys(_needed(tree)))
    answer = _ask(python, job, names)
    if answer is None:
        return
    if answer.problem is not None:
        raise ConfigError(f"job {job.spec.name}: {_shown(job.entry, answer)}")
    if answer.missing and tree is not None and not _changes_where_python_looks(tree):
        raise ConfigError(_missing(job, tree, answer.missing, python))


def python_of(job: LoadedJob, site: LoadedSite) -> Path | None:
    """The interpreter that the script is going to have, if that is known and is on this machine."""
    wanted = job.spec.environment
    if wanted.container is not None or stood_in() is not None:
        return None
    if wanted.venv is not None or wanted.conda is not None:
        prefix = Path(os.path.expanduser(wanted.venv or wanted.conda or ""))
        python = prefix / "bin" / "python"
        return python if prefix.is_absolute() and os.access(python, os.X_OK) else None
    modules = wanted.modules if wanted.modules is not None else site.profile.environment.modules
    return None if modules else Path(sys.executable)


def _check_settings(job: LoadedJob, tree: ast.Module | None) -> None:
    origins = {k: o for k, o in job.layered.origins.items() if k.partition(".")[0] == "training"}
    # Who writes [training] into a job file, or puts a script in our trainer's place, means it.
    typed = {key: origin for key, origin in origins.items() if origin in ("--set", "command line")}
    others = (origin for origin in origins.values() if origin not in typed.values())
    if not typed or not all(origin.endswith(" defaults.toml") for origin in others):
        return
    try:
        if tree is None or reads_settings(tree, job.entry.parent):
            return
    except OSError:
        return
    key = max(typed, key=len)
    raise ConfigError(
        f"job {job.spec.name}: {key} ({job.origin(key)}): settings in [training] are for the "
        f"fsdpkit trainer, and {job.entry.name} does not read them; give your script its own "
        "arguments after --, such as: -- --lr 1e-4. To read them, the script imports "
        "fsdpkit.training.command_line.read_settings and takes --job"
    )


def _needed(tree: ast.Module) -> Iterator[str]:
    """Top-level names of modules without which the script ends: imported unconditionally."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _changes_where_python_looks(tree: ast.Module) -> bool:
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return bool({"path", "meta_path", "path_hooks", "addsitedir", "modules"} & (names | imported))


def _ask(python: Path, job: LoadedJob, names: Sequence[str]) -> _Answer | None:
    """What the script's Python says; None if it gives no answer."""
    path = [str(job.entry.parent)]
    given = job.spec.environment
    own = given.variables.get("PYTHONPATH", given.prepend.get("PYTHONPATH", ""))
    path += filter(None, own.split(":"))
    if python == Path(sys.executable):
        return _own_answer(job.entry, path, names)
    asked = {"script": str(job.entry), "path": path, "names": list(names)}
    try:
        done = subprocess.run(
            [str(python), "-c", _ASK],
            input=json.dumps(asked).encode(),
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Answer)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):  # msgspec's are such
        return None


def _own_answer(entry: Path, path: Sequence[str], names: Sequence[str]) -> _Answer:
    """The same of this Python, without starting it again."""
    problem = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(entry.read_bytes(), str(entry), "exec", dont_inherit=True)
    except SyntaxError as error:
        problem = (error.lineno, error.offset, error.text, error.msg)
    except (ValueError, RecursionError, MemoryError, OSError):
        pass
    missing = [name for name in names if not _is_found(name, path)]
    return _Answer(sys.version.split()[0], problem, missing)


def _is_found(name: str, path: Sequence[str]) -> bool:
    try:
        beside = PathFinder.find_spec(name, [*path])
        return beside is not None or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True


def _shown(entry: Path, answer: _Answer) -> str:
    """The line that does not compile, with a mark below, as Python itself shows it."""
    assert answer.problem is not None
    line, column, text, why = answer.problem
    told = f"{entry}:{line}: Python {answer.version} cannot compile it: {why}"
    if not text:
        return told
    shown = "".join(c if c.isprintable() else " " for c in text.rstrip()[:200])
    indent = len(shown) - len(shown.lstrip())
    mark = " " * max(0, (column or 1) - 1 - indent)
    return f"{told}\n    {shown.lstrip()}\n    {mark}^"


def _missing(job: LoadedJob, tree: ast.Module, missing: Sequence[str], python: Path) -> str:
    lines = {
        name: node.lineno
        for node in reversed(tree.body)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _needed(ast.Module([node], []))
    }
    places = ", ".join(f"{name} (line {lines[name]})" for name in missing[:8])
    return (
        f"job {job.spec.name}: {job.entry} imports modules that its environment lacks: {places}; "
        f"looked beside the script and in the path of {python}. Install them there, name another "
        f"environment (environment.venv, environment.conda), or skip this check: --set "
        f"launch.check=false"
    )
