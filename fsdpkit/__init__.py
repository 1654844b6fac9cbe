"""From a login node, one command to a multi-node PyTorch FSDP run on Slurm.

What a program needs is here: `submit`, `run`, `hold`, `Run` and the errors; what a training script
may call: `log`, `staged`, `stop_requested`, `task_dir` and `STOPPED`, the status to end with when
stopped.
Names are imported on first use, so that `import fsdpkit` costs nothing in a rank or in shell
completion.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in cli/__init__.py
if TYPE_CHECKING:
    from typing import Any

    from fsdpkit.errors import STOPPED_EARLY as STOPPED  # noqa: F401
    from fsdpkit.errors import FsdpkitError as FsdpkitError
    from fsdpkit.errors import FunctionError as FunctionError
    from fsdpkit.interactive.holding import hold as hold
    from fsdpkit.interactive.running import run as run
    from fsdpkit.runs.staged import local_path as staged  # noqa: F401
    from fsdpkit.scheduling.functions import submit_function as submit_function
    from fsdpkit.scheduling.run import Run as Run
    from fsdpkit.scheduling.submission import submit as submit
    from fsdpkit.script.log import log as log
    from fsdpkit.script.stopping import stop_requested as stop_requested
    from fsdpkit.script.stopping import task_dir as task_dir

_HOME = {
    "FsdpkitError": "fsdpkit.errors",
    "FunctionError": "fsdpkit.errors",
    "Run": "fsdpkit.scheduling.run",
    "STOPPED": "fsdpkit.errors:STOPPED_EARLY",
    "hold": "fsdpkit.interactive.holding",
    "log": "fsdpkit.script.log",
    "run": "fsdpkit.interactive.running",
    "staged": "fsdpkit.runs.staged:local_path",
    "stop_requested": "fsdpkit.script.stopping",
    "submit": "fsdpkit.scheduling.submission",
    "submit_function": "fsdpkit.scheduling.functions",
    "task_dir": "fsdpkit.script.stopping",
}
__all__ = [
    *("STOPPED", "FsdpkitError", "FunctionError", "Run", "__version__", "hold", "log", "run"),
    *("staged", "stop_requested", "submit", "submit_function", "task_dir"),
]


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module 'fsdpkit' has no attribute {name!r}")
    from importlib import import_module

    module, _, there = _HOME[name].partition(":")
    found = getattr(import_module(module), there or name)
    globals()[name] = found  # the next look costs nothing
    return found
