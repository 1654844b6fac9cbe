"""Whether a process may be forked, given what it holds at the moment and what its imports read.

A thread that runs during a fork may hold a lock that is never released in the child; a connection
or the state of a GPU driver cannot be shared. And environment variables that a library reads on
import must have had the values that the rank would have seen.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fsdpkit.launching import slurm_variables

_GPU_DRIVERS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")

_SHARED_FILES = ("socket:", "pipe:", "anon_inode:")
# Set for each rank by torchrun and the agent, and not read before a process group or a device is
# created. Anything else that differs may have been read by a library on import.
_OF_RANKS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        *("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
        "TORCH_FR_DUMP_TEMP_FILE",
        *slurm_variables.NAMES,
    }
)
# Set anew where nodes do not meet on the chosen interface, and read when a process group is made;
# what copies the whole environment on import may read them before.
_OF_SOCKETS = frozenset({"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})
_OF_RANKS_BY_PREFIX = ("TORCHELASTIC_", "FSDPKIT_", "SUBMITIT_")


def of_ranks(name: str) -> bool:
    """Whether this environment variable is one that ranks get for themselves."""
    return name in _OF_RANKS | _OF_SOCKETS or name.startswith(_OF_RANKS_BY_PREFIX)


def open_files() -> set[int]:
    """File descriptors of this process beyond the three standard ones."""
    return {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2}


def inherited_files() -> set[int]:
    """Those of them that this process was started with: what Python opens is closed on exec."""
    found = set()
    for number in open_files():
        with suppress(OSError):  # of the listing itself
            if os.get_inheritable(number):
                found.add(number)
    return found


def reason_not_to_begin(inherited: Collection[int]) -> str | None:
    """What has happened in this process, as Python started, that must happen in each rank.

    Environments have Python import `sitecustomize` and what `.pth` files name before any program.
    """
    for number in sorted(open_files() - set(inherited)):
        with suppress(FileNotFoundError):
            return f"as Python started, it opened {os.readlink(f'/proc/self/fd/{number}')}"
    for name in ("sitecustomize", "usercustomize"):
        path = getattr(sys.modules.get(name), "__file__", None)
        with suppress(OSError):
            text = Path(path).read_text(errors="replace") if path else ""
            if named := sorted(set(re.findall(r"""["'](\w+)["']""", text)) & _OF_RANKS):
                return f"{path} names {', '.join(named)}"
    return None


def reason_not_to_fork(own: Collection[int] = ()) -> str | None:
    """What this process holds that a fork cannot share; None if it may be forked. own: file
    descriptors that are meant to be shared."""
    if len(_threads()) > 1:
        # OpenBLAS ends its threads before each fork, by pthread_atfork(3): look again after one.
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    if len(threads := _threads()) > 1:
        return f"threads run in the process ({', '.join(sorted(set(threads[1:])))})"
    if _children():
        return "it has a child process"
    for number in sorted(open_files() - set(own)):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # of the listing itself
            continue
        if target.startswith(_SHARED_FILES):
            return f"a file that ranks cannot share is open ({target})"
        if target.startswith(_GPU_DRIVERS):
            return f"{target} is open"
    if _semaphores():
        return "it holds a semaphore"
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "a CUDA context exists"
    return None


def has_sockets() -> bool:
    """Whether this process has a connection, or waits for one."""
    for number in open_files():
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                return True
    return False


def _threads() -> list[str]:
    """Their names, the main thread's first."""
    names = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda path: int(path.name)):
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it has just ended
            continue
    return names


def _children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the kernel does not list them, or the thread has ended
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def end_children() -> None:
    """End the processes that this one has started, before it gives up."""
    for pid in _children():
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _semaphores() -> bool:
    """Whether a POSIX semaphore is mapped, such as that of a multiprocessing.Lock."""
    with open("/proc/self/maps") as maps:
        return any("/dev/shm/sem." in line for line in maps)


def of_ranks_among(reads: Collection[str], before: Mapping[str, str]) -> list[str]:
    """Those of the variables read that each rank has of its own."""
    # Code that copies the whole environment asks for all of ours that are set, the same for every
    # rank; torchrun's are set only if somebody set them for this process.
    return sorted(n for n in reads if n in _OF_RANKS or (of_ranks(n) and n not in before))


class Reads(set[str]):
    """Names of variables that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.named = set[str]()
        """Those that were asked for by name, and not only met when all were copied."""


@contextmanager
def reads_of_variables() -> Iterator[Reads]:
    """Collects the names of variables that Python code asks for in the block. Those of Slurm that
    this process has, for its node, are hidden meanwhile: who copies all asks for none by name."""
    found = Reads()
    kind: Any = type(os.environ)
    getitem, iterate = kind.__getitem__, kind.__iter__
    copied: list[str] = []

    def watched(self: Any, key: Any) -> Any:
        if isinstance(key, str):
            found.add(key)
            if copied[-1:] == [key]:
                copied.pop()
            else:
                found.named.add(key)
        return getitem(self, key)

    def from_now_on(self: Any) -> Iterator[str]:
        copied[:] = [*iterate(self)][::-1]
        return iter(copied[::-1])

    hidden = {name: os.environ.pop(name) for name in slurm_variables.NAMES if name in os.environ}
    kind.__getitem__, kind.__iter__ = watched, from_now_on
    try:
        yield found
    finally:
        kind.__getitem__, kind.__iter__ = getitem, iterate
        os.environ.update(hidden)


@contextmanager
def missing_modules() -> Iterator[set[str]]:
    """Collects the top-level modules that imports in the block look for and do not find."""
    missing: set[str] = set()

    class AfterAllOthers:
        @staticmethod
        def find_spec(name: str, path: object = None, _: object = None) -> None:
            if path is None:
                missing.add(name)

    finder: Any = AfterAllOthers
    sys.meta_path.append(finder)
    try:
        yield missing
    finally:
        sys.meta_path.remove(finder)


def changed_variables(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of variables that differ and are not set per rank, in order."""
    return sorted(
        name
        for name in before.keys() | now.keys()
        if before.get(name) != now.get(name) and not of_ranks(name)
    )


def shadowed_module(
    directory: str, missing: Collection[str] = (), loaded: Mapping[str, Any] | None = None
) -> str | None:
    """A file or package in a script's directory that Python would have imported in place of a
    module that is loaded already, or is `missing`; None if there is none."""
    modules = sys.modules if loaded is None else loaded
    try:
        entries = os.listdir(directory)
    except OSError:
        return None
    for entry in sorted(entries):
        name, _, suffix = entry.partition(".")
        module = modules.get(name)
        if module is None and name not in missing:
            continue
        if name == "__main__" or name in sys.builtin_module_names:
            continue
        path = os.path.join(directory, entry)
        if suffix:
            importable = suffix == "py" or suffix.endswith(("so", "pyc"))
        else:
            importable = os.path.isfile(os.path.join(path, "__init__.py"))
        loaded = getattr(getattr(module, "__spec__", None), "origin", None)
        same = loaded in (path, os.path.join(path, "__init__.py"))
        if importable and loaded != "frozen" and not same:
            return path
    return None
