"""What a person types and reads. One module a command, imported when it is called."""

import atexit
import gc
import os
import sys

TYPE_CHECKING = False  # until excepthook is set, Ctrl-C in an import would show a traceback
if TYPE_CHECKING:
    from typing import Any


def _not_from_here() -> None:
    """Take no module, and no program, from the directory that a command is typed in, which may be a
    stranger's.

    It is on the search path where PYTHONPATH has an empty entry, or by `python -m`. What a relative
    entry names comes behind all that is installed. Python itself, and what imported this file, had
    the other path (SECURITY.md).
    """
    given = os.environ.get("PYTHONPATH") or os.sep
    relative = {
        os.path.abspath(each) for each in given.split(os.pathsep) if not os.path.isabs(each)
    }
    here = {os.getcwd()} if "" in given.split(os.pathsep) else set()
    installed = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    main = sys.modules["__main__"].__spec__
    if main is not None and main.name == "fsdpkit.__main__" and sys.path[0] != installed:
        del sys.path[0]
    first = [each for each in sys.path if each == installed or each not in here | relative]
    sys.path[:] = [*first, *(each for each in sys.path if each in relative - here - {installed})]
    if (programs := os.environ.get("PATH")) is not None:
        os.environ["PATH"] = os.pathsep.join(filter(os.path.isabs, programs.split(os.pathsep)))


def _unless_interrupted(kind: type[BaseException], error: BaseException, trace: "Any") -> None:
    """Shows no traceback of an import at which Ctrl-C came."""
    if kind is not KeyboardInterrupt:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _unless_interrupted
try:  # noqa: SIM105
    _not_from_here()
except OSError:  # the directory is gone
    pass

# Importing makes many objects that all stay: looking through them for garbage takes a tenth of a
# short command's time. A command that follows a run for days still collects.
gc.set_threshold(100_000)


@atexit.register
def _spare_the_last_look() -> None:
    """Python looks once more at its end, when all of it is given back anyway. Not with torch, whose
    Triton would report as leaks what is not collected."""
    if "torch" not in sys.modules:
        gc.freeze()
