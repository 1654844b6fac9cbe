"""Names of what an import can see of a process, and of what changes it or runs unread code.

How a script gets at them is followed in script_effects.py.
"""

from __future__ import annotations

import ast

# Read when a device or a process group is made, or by other libraries: not when torch is loaded.
_READ_LATE = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT"),
        *("CUBLAS_WORKSPACE_CONFIG", "MPLCONFIGDIR"),
    }
)
_READ_LATE_BY_PREFIX = (
    *("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "WANDB_", "TF_", "MLFLOW_", "HYDRA_", "COMET_"),
)
AT_RUN_TIME = frozenset({"importlib", "runpy", "ctypes", "site", "pkgutil", "imp", "builtins"})
"""Python's own modules that can run code which cannot be read."""
_NOTICED_CALLS = frozenset(
    {
        *("os.putenv", "os.unsetenv", "os.chdir", "os.fork", "os.setuid", "os.sched_setaffinity"),
        *("posix.putenv", "posix.unsetenv", "posix.chdir"),
        *("sys.setdlopenflags", "resource.setrlimit", "locale.setlocale"),
        "warnings.resetwarnings",
        *("multiprocessing.set_start_method", "torch.multiprocessing.set_start_method"),
    }
)
BUILTINS_AT_RUN_TIME = frozenset({"exec", "eval", "compile", "__import__"})
NOTICED_BUILTINS = frozenset({"setattr", "delattr", "globals", "locals", "vars", "input"})
QUIET_LIBRARIES = ("torch", "numpy")
"""Whose own functions have no effect that a later import could notice."""
QUIET_CALLS = frozenset({"matplotlib.use"})
ENVIRON_CHANGES = frozenset({"update", "setdefault", "pop", "clear", "popitem", "__setitem__"})
SEEN_BY_IMPORTS = frozenset(
    {"os.environ", "os.environb", "sys.path", "sys.modules", "sys.meta_path", "sys.path_hooks"}
)
_CHANGES = ENVIRON_CHANGES | frozenset(
    {*("insert", "append", "remove", "extend", "reverse", "sort", "__delitem__", "__ior__")}
)
ONLY_READ = frozenset(
    {
        *("subprocess", "copy", "json", "pprint", "string", "logging", "collections", "types"),
        *("configparser", "os"),
    }
)
"""Modules of Python's whose functions only read a mapping that they get."""


def changes(dotted: str) -> bool:
    """Whether this function of Python's own changes what a later import may see."""
    where, _, how = dotted.rpartition(".")
    return dotted in _NOTICED_CALLS or (where in SEEN_BY_IMPORTS and how in _CHANGES)


def only_prints(call: ast.Call) -> bool:
    """Whether this filter of warnings raises none. torch puts filters of its own before one that
    does, if it is imported afterwards."""
    actions = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("action", None))]
    return all(isinstance(action, ast.Constant) and action.value != "error" for action in actions)


def is_read_late(key: ast.expr) -> bool:
    match key:
        case ast.Constant(value=str(name)):
            return name in _READ_LATE or name.startswith(_READ_LATE_BY_PREFIX)
        case ast.Dict(keys=keys):
            return all(name is not None and is_read_late(name) for name in keys)
    return False
