"""PYTHONPATH as the job's script should see it, and as it is used to find our own modules.

An empty or relative entry means the working directory, which may contain anybody's files. The batch
shell removes such entries for our own processes and keeps the original in another variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence

KEPT = "FSDPKIT_PYTHONPATH"


def restore(environ: MutableMapping[str, str]) -> None:
    """Restore the original variable for processes started from here."""
    if (kept := environ.pop(KEPT, None)) is not None:
        environ["PYTHONPATH"] = kept


def entries(environ: Mapping[str, str]) -> list[str]:
    """The directories that Python takes from the variable, absolute, each once."""
    text = environ.get("PYTHONPATH", "")
    return list(dict.fromkeys(map(os.path.abspath, text.split(os.pathsep)))) if text else []


def search_path(path: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """This process's `sys.path`, with what a new one would have of the variable."""
    wanted = entries(environ)
    if set(wanted) <= set(path):
        return list(path)
    return [*wanted, *(directory for directory in path if directory not in wanted)]
