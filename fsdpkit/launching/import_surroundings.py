"""What an import can see of its process, and whether it has changed since the process began."""

from __future__ import annotations

import builtins
import ctypes
import locale
import os
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from fsdpkit.launching import fork_safety

# Read when a device or a process group is made, when Python starts, or by other libraries: not when
# torch is loaded.
_READ_LATE = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"),
        *("MPLCONFIGDIR", "PYTHONHASHSEED", "TORCH_HOME"),
        *("PYTORCH_NVML_BASED_CUDA_CHECK", "USE_LIBUV"),
    }
)
_READ_LATE_BY_PREFIX = (
    *("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "WANDB_", "TF_", "MLFLOW_", "HYDRA_", "COMET_"),
)


@dataclass(frozen=True)
class ImportSurroundings:
    """As they were when the script began."""

    environs: tuple[dict[str, str], dict[str, str]]
    """Python's copy of the environment, and the C library's."""
    path: tuple[str, ...]
    finders: tuple[Any, ...]
    importer: Any
    directory: str | None
    errors: tuple[Any, ...]
    """Filters that make errors of warnings."""
    others: dict[str, Any]

    @classmethod
    def now(cls) -> ImportSurroundings:
        return cls(
            (dict(os.environ), _environ_of_c()),
            tuple(sys.path),
            tuple(_finders_before_the_path()),
            vars(builtins)["__import__"],
            _directory(),
            tuple(each for each in warnings.filters if each[0] == "error"),
            {
                "the CPUs that it may use": os.sched_getaffinity(0),
                "the flags of dlopen": sys.getdlopenflags(),
                "the locale": locale.setlocale(locale.LC_ALL),
            },
        )

    def variables_changed(self) -> set[str]:
        """Names of those that each rank does not have of its own."""
        now = (dict(os.environ), _environ_of_c())
        return {
            name
            for before, after in zip(self.environs, now, strict=True)
            for name in fork_safety.changed_variables(before, after)
        }

    def settings_changed(self) -> str | None:
        """What a library may notice that loads others of C or C++."""
        now = ImportSurroundings.now()
        if names := [name for name in sorted(self.variables_changed()) if not is_read_late(name)]:
            return _changed(names)
        if now.directory != self.directory:
            return "the working directory changed"
        if set(now.errors) - set(self.errors):
            return "warnings were made errors"
        others = [name for name, value in now.others.items() if value != self.others[name]]
        return f"{others[0]} changed" if others else None

    def reads_changed(self, reads: Collection[str]) -> str | None:
        """Which of the variables that it reads a library would find changed."""
        names = sorted(self.variables_changed() & set(reads))
        return _changed(names) if names else None

    def modules_changed(self, packages: Mapping[str, Any], missing: Collection[str]) -> str | None:
        """Why importing these packages might give others by now, or find what was missing."""
        for finder in _finders_before_the_path():
            if finder not in self.finders and _finds_any(finder, [*packages, *missing]):
                return "sys.meta_path changed"
        if vars(builtins)["__import__"] is not self.importer:
            return "builtins.__import__ changed"
        if tuple(sys.path) == self.path:
            return None
        now, before = list(dict.fromkeys(sys.path)), list(dict.fromkeys(self.path))
        if [each for each in now if each in before] != [each for each in before if each in now]:
            return "sys.path was put in another order"
        origins = [getattr(each.__spec__, "origin", None) or "" for each in packages.values()]
        for gone in set(before) - set(now):
            if any(origin.startswith(os.path.join(gone, "")) for origin in origins):
                return f"{gone} was taken from sys.path"
        last = max((i for i, each in enumerate(now) if each in before), default=-1)
        for i, entry in enumerate(now):
            if entry in before:
                continue
            if os.path.isfile(entry):  # an archive
                return f"{entry} was added to sys.path"
            where = os.path.abspath(entry)
            if path := fork_safety.shadowed_module(where, missing, packages if i < last else {}):
                return f"{path} was added to what is found"
        return None


def _changed(names: list[str]) -> str:
    return f"{', '.join(names[:3])} changed"


def is_read_late(name: str) -> bool:
    """Whether this variable is not read when torch is loaded, but later, if at all."""
    return name in _READ_LATE or name.startswith(_READ_LATE_BY_PREFIX)


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None


def _finders_before_the_path() -> Iterator[Any]:
    for finder in sys.meta_path:
        if finder is PathFinder:
            return
        yield finder


def _finds_any(finder: Any, names: Collection[str]) -> bool:
    """Libraries put hooks there that look out for modules of theirs."""
    find = getattr(finder, "find_spec", lambda *_: None)
    return any(find(name, None, None) is not None for name in names)


def _environ_of_c() -> dict[str, str]:
    """Also what was set by putenv(3)."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: dict[str, str] = {}
    for i in range(1 << 20):
        if not entries or (entry := entries[i]) is None:
            break
        name, _, value = os.fsdecode(entry).partition("=")
        found[name] = value
    return found
