"""Which libraries may be loaded before a script runs: those whose early import it cannot notice.

torch is always loaded. If a script changes the environment, or calls something that might, and
only then imports torch, it expects torch to see the change: its ranks get a cold start. What is
preloaded is what torch itself imports later, and the few libraries below; a job may name others
(`launch.preload`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from fsdpkit.launching import python_path
from fsdpkit.launching.program import ColdStartError, Program
from fsdpkit.launching.script_effects import Reading
from fsdpkit.launching.script_reading import ProgramReader

WITH_TORCH = (
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "torch._dynamo",
)
"""What a script that imports torch comes to need; the last by the first step of an optimizer."""
_KNOWN = frozenset({"torch", "numpy", "fsdpkit", "msgspec", "safetensors"})
"""Libraries whose import keeps nothing that each rank must have of its own: no lock, no temporary
directory, no generator of random numbers, no process."""


@dataclass(frozen=True)
class Preload:
    """What may be loaded before a program runs."""

    modules: tuple[str, ...]
    """In the program's order; `a.b:c` is c of a.b, a module or not."""
    directories: tuple[str, ...]
    """Where the program would find other modules of the same names first."""


def preloads_of(program: Program, named: Sequence[str]) -> list[Preload]:
    """What may be loaded before the program runs, then each module named by the job separately: one
    that turns out to be unsafe affects only itself. Raises ColdStartError."""
    own = preload_of(program)
    return [own, *(Preload((name,), own.directories) for name in named)]


def preload_of(program: Program, *, elsewhere: bool = False) -> Preload:
    """What may be loaded before the program runs, according to its source.

    elsewhere: it will run in another environment, so a module
    that is not found here is taken for a library. Raises ColdStartError if torch must be loaded
    later, or that cannot be told.
    """
    reading = reading_of(program, elsewhere=elsewhere)
    early = reading.tops()
    others = {
        name: place
        for name, place in reading.later.items()
        if name not in sys.stdlib_module_names and name != "fsdpkit"
    }
    if "torch" not in early:
        for name, place in others.items():
            after = f"after {reading.noticed}" if reading.noticed else "perhaps"
            loads = "" if name == "torch" else ", which may load torch,"
            raise ColdStartError(f"{place} imports {name}{loads} {after}")
        if reading.unread and reading.noticed:
            raise ColdStartError(f"what {reading.unread} loads is not known, torch perhaps")
    known = [name for name in reading.first if _top(name) in _KNOWN or _is_pythons(name)]
    plain = not others and len(known) == len(reading.first) and not reading.unread
    ahead = plain and "torch" in early and not reading.names_torch_variables
    modules = [*(WITH_TORCH if ahead else ()), *known]
    return Preload(tuple(dict.fromkeys(modules)), tuple(map(str, reading.directories)))


def reading_of(program: Program, *, elsewhere: bool = False) -> Reading:
    """The program's source, and that of its own modules. Raises ColdStartError."""
    reader = ProgramReader(Path(program.directory), elsewhere=elsewhere)
    own = (Path(entry) for entry in python_path.entries(os.environ) if entry not in sys.path)
    reader.found.directories.extend(own)  # of the working directory
    try:
        if not program.is_module:
            reader.enter(Path(program.name).absolute(), main=True)
        elif not reader.enter_module(program.name):
            raise ColdStartError(f"the module {program.name} is not found")
    except ColdStartError:
        raise
    except Exception as error:  # a script that Python can run must run, even if unreadable here
        why = f"{type(error).__name__}: {error}"
        raise ColdStartError(f"{program.name} cannot be read as Python ({why})") from error
    return reader.found


def _top(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _is_pythons(name: str) -> bool:
    return _top(name) in sys.stdlib_module_names


def load(modules: Iterable[str]) -> None:
    """Import them; `a.b:c` imports a.b, and a.b.c if that is a module."""
    for name in modules:
        module, _, member = name.partition(":")
        __import__(module)
        if member and not hasattr(sys.modules[module], member):
            path = f"{module}.{member}"
            if hasattr(sys.modules[module], "__path__") and PathFinder.find_spec(
                path, [*sys.modules[module].__path__]
            ):
                __import__(path)
