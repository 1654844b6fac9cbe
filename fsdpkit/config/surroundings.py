"""What a script takes from where its command is typed, in one record.

The command line fills it from its own process. The catalogue's page has no shell: its form says
what would be there, and the command that it runs stands in that record (`stand_in`). Nothing else
of a shell reaches a script; `tests/publishing/test_surroundings.py` holds the list of variables to
the code that reads them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

VARIABLES = (
    "CONDA_ENVS_PATH",
    "CONDA_EXE",
    "FSDPKIT_CHANNEL",
    "FSDPKIT_CLUSTER",
    "FSDPKIT_CONFIG_DIR",
    "FSDPKIT_RUNS",
    "FSDPKIT_SITE_PATH",
    "HOME",
    "SBATCH_ACCOUNT",
    "SLURM_JOB_ID",
    "XDG_CONFIG_HOME",
)
"""All that decide what is rendered. Others only reach the job itself, when it is submitted."""

_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class PythonEnvironment:
    """The Python that a job activates; for `conda`, `conda` is its executable where known."""

    kind: Literal["conda", "venv", "prefix", "container"]
    path: str = ""
    conda: str = ""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a command is typed. Standard library alone: a laptop's side imports this, too."""

    work_dir: str
    """The directory that is submitted from."""
    variables: dict[str, str]
    """Those of VARIABLES that are set."""
    python: PythonEnvironment
    """What a job gets that names no environment of its own."""
    packaged: str
    """The directory of fsdpkit's own templates, jobs and profiles."""
    expedites: bool = False
    """Whether Slurm is willing to start a job again at once (scheduling/slurm_answers.py)."""


def own_python() -> PythonEnvironment:
    """The environment this command runs in: conda, a virtual one, or a plain interpreter."""
    if _standing is not None:
        return _standing.python
    prefix = Path(sys.prefix)
    if (prefix / "conda-meta").is_dir():
        import shutil

        # Without a conda to activate it (micromamba, pixi) this is a directory like any other.
        if conda := os.environ.get("CONDA_EXE") or shutil.which("conda"):
            return PythonEnvironment("conda", str(prefix), conda)
    if (prefix / "bin" / "activate").is_file():
        return PythonEnvironment("venv", str(prefix))
    return PythonEnvironment("prefix", str(Path(sys.executable).parent))


def packaged_dir() -> Path:
    """The directory that holds `templates/`, `jobs/`, `site/`, `skills/` and `examples/`."""
    if _standing is not None:
        return Path(_standing.packaged)
    shared = _PACKAGE / "_shared"
    return shared if shared.is_dir() else _PACKAGE.parent


def of_this_process(*, expedites: bool = False) -> Surroundings:
    """What the command line would take here and now."""
    return Surroundings(
        work_dir=os.getcwd(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        python=own_python(),
        packaged=str(packaged_dir()),
        expedites=expedites,
    )


_standing: Surroundings | None = None
_verified = False


def stood_in() -> Surroundings | None:
    """What is stood in: then this machine is not the one that submits, and nothing is looked at but
    the files of jobs, sites and templates. None: a real shell."""
    return _standing


def verified_before() -> bool:
    """Whether files' signatures were verified when a page was built: it has no ssh-keygen."""
    return _verified


@contextmanager
def stand_in(surroundings: Surroundings, *, verified: bool = False) -> Iterator[None]:
    """Let what follows find these surroundings, in a process that does nothing else meanwhile. The
    directory and the variables become the process's own, for the standard library reads them, too.
    verified: see `verified_before`. Raises OSError if there is no such directory."""
    global _verified
    before = _standing, os.getcwd(), {n: os.environ[n] for n in VARIABLES if n in os.environ}
    was_verified = _verified
    _enter(surroundings, surroundings.work_dir, surroundings.variables)
    _verified = verified
    try:
        yield
    finally:
        _verified = was_verified
        _enter(*before)


def _enter(standing: Surroundings | None, directory: str, variables: dict[str, str]) -> None:
    global _standing
    os.chdir(directory)
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)
    _standing = standing
