"""A lock that is a file, since not every cluster's file system supports locks.

    {"host": "login1", "pids": "pid:[4026531836]", "pid": 4711, "user": "alex",
     "since_s": 1795300000.0, "token": "9f…"}

Whoever creates it holds it; it appears complete or not at all. A lock whose holder is dead is
replaced: of several processes that find it dead, only one can claim the right to do so, in
`<lock>.<digest of what it replaces>`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsdpkit.config.ownership import name_of
from fsdpkit.errors import StorageError, storage_errors
from fsdpkit.runs.layout import write_atomically, write_new
from fsdpkit.runs.reading import parsed, read_bytes

ABANDONED_S = 600.0
"""After so long a lock is nobody's whose holder cannot be looked at, such as one on another host.
What is done under a lock takes four minutes at most: sbatch is given two."""
_SKEW_S = 10.0
"""What the clock may be set forward meanwhile."""
_LOOK_S = 0.1
_MOST_BYTES = 4096


class BusyError(StorageError):
    """Somebody else holds the lock."""


@contextlib.contextmanager
def locked(lock: Path, patience_s: float) -> Iterator[None]:
    """Hold the lock. Raises BusyError after `patience_s`, StorageError if it cannot be written."""
    own = _own_text()
    deadline = time.monotonic() + patience_s
    while not ((_text(lock) is None and _take(lock, own)) or _take_over(lock, own)):
        if time.monotonic() > deadline:
            raise BusyError(_who_holds(lock))
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        if _text(lock) == own:
            lock.unlink(missing_ok=True)


def _own_text() -> bytes:
    holder = {
        **_place(),
        "pid": os.getpid(),
        "user": name_of(os.getuid()),
        "since_s": round(time.time(), 3),
        "token": os.urandom(8).hex(),
    }
    return json.dumps(holder).encode()


def _place() -> dict[str, str]:
    """Where a process id means the same process: a container on this host has its own ids."""
    ids = ""
    with contextlib.suppress(OSError):  # only Linux has it
        ids = os.readlink("/proc/self/ns/pid")
    return {"host": os.uname().nodename, "pids": ids}


def _take(lock: Path, own: bytes) -> bool:
    with storage_errors(lock, "made"), contextlib.suppress(FileExistsError):
        write_new(lock, own)
        return True
    return False


def _take_over(lock: Path, own: bytes) -> bool:
    """Replace a lock whose holder is dead; returns whether that was done."""
    found = _text(lock)
    if found is None or not _is_dead(lock, _holder(found)):
        return False
    claim = lock.with_name(f"{lock.name}.{hashlib.sha256(found).hexdigest()[:16]}")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        if _age_s(claim) > ABANDONED_S:  # the claimant died meanwhile
            claim.unlink(missing_ok=True)
        return False
    except OSError as error:
        raise StorageError(f"{claim} cannot be made: {error.strerror}") from error
    try:
        if _text(lock) != found:
            return False
        with storage_errors(lock, "written"):
            write_atomically(lock, own)
    finally:
        claim.unlink(missing_ok=True)
    return True


def _text(lock: Path) -> bytes | None:
    try:
        return read_bytes(lock, _MOST_BYTES)
    except OSError:
        return None


def _holder(text: bytes) -> dict[str, Any]:
    """What the lock says about its holder; empty if it is not one of our locks."""
    try:
        found = parsed(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_dead(lock: Path, holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    if _place().items() <= holder.items() and isinstance(pid, int) and 0 < pid < 1 << 31:
        return not _is_running(pid, holder.get("since_s"))
    return _age_s(lock) > ABANDONED_S


def _is_running(pid: int, since_s: object) -> bool:
    """Whether the process exists, and did when the lock was made."""
    import psutil

    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        began_s = psutil.Process(pid).create_time()
    except psutil.Error:  # another user's, where /proc shows only one's own (hidepid)
        return True
    return not isinstance(since_s, float) or began_s < since_s + _SKEW_S


def _age_s(path: Path) -> float:
    """Seconds since the file was written, by the clock of the file system, which set its time."""
    trial = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        written_s = path.stat().st_mtime
        trial.touch(mode=0o600, exist_ok=False)
        now_s = trial.stat().st_mtime
        trial.unlink()
    except OSError:
        return 0.0
    return now_s - written_s


def _who_holds(lock: Path) -> str:
    holder = _holder(_text(lock) or b"")
    who = "another process"
    if holder:
        pid, host, user = (str(holder.get(key))[:80] for key in ("pid", "host", "user"))
        who = f"process {pid} on {host}" + (f" of {user}" if "user" in holder else "")
    if isinstance(since_s := holder.get("since_s"), float) and 0 < since_s < 1e11:
        who += time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since_s))
    return (
        f"{lock.parent.name} is being changed by {who}: try again when it is done; if that "
        f"process is gone, remove {shlex.quote(str(lock))}"
    )
