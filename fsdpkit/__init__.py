"""From a login node, one command to a multi-node PyTorch FSDP run on Slurm.

What a program needs is here: `submit`, `run`, `Run` and the errors. Names are imported on first
use, so that `import fsdpkit` costs nothing in a training rank or in shell completion.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fsdpkit.errors import FsdpkitError as FsdpkitError
    from fsdpkit.errors import FunctionError as FunctionError
    from fsdpkit.interactive.running import run as run
    from fsdpkit.scheduling.functions import submit_function as submit_function
    from fsdpkit.scheduling.run import Run as Run
    from fsdpkit.scheduling.submission import submit as submit

_HOME = {
    "FsdpkitError": "fsdpkit.errors",
    "FunctionError": "fsdpkit.errors",
    "Run": "fsdpkit.scheduling.run",
    "run": "fsdpkit.interactive.running",
    "submit": "fsdpkit.scheduling.submission",
    "submit_function": "fsdpkit.scheduling.functions",
}
__all__ = [
    "FsdpkitError",
    "FunctionError",
    "Run",
    "__version__",
    "run",
    "submit",
    "submit_function",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fsdpkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
