"""What NCCL says of a failure. `unhandled system error` is no cause: its `Last error:` line is, or
the last warning that it printed.

Source: NCCL 2.18 to 2.27, the texts of WARN() and of ncclGetLastError() under src/; torch 2.13,
NCCLUtils.hpp, for what torch puts around them.
"""

from __future__ import annotations

import re

from fsdpkit.failures.patterns import Pattern, Shown, stands_in
from fsdpkit.runs.failures import Level

_LAST = re.compile(r"(?:Last error:\s*\n?\s*|^NCCL: )(.+)")
_WARNING = re.compile(r"^.*NCCL WARN (.+)$", re.MULTILINE)
_OWN_WORDS = re.compile(
    r"\bnccl(?:\w+Error|InvalidUsage|InvalidArgument)\b|NCCL [Ee]rror|\bNCCL WARN |^NCCL: "
)

_OWN = Pattern((), "NCCL")
_LOST_PEER = Pattern((), "NCCL", Level.LOST_PEER)
_WAITED = Pattern((), "NCCL", Level.WAITED)
_CAUSES: tuple[tuple[str, Pattern, str], ...] = (
    # (cause, level, words in small letters)
    ("disk-full", _OWN, "shared memory | shm | fallocate | no space left on device"),
    (
        "gpu-out-of-memory",
        _OWN,
        "cuda failure …out of memory | cudaerrormemoryallocation | failed to cuda …alloc | "
        "cumem…out of memory",
    ),
    (
        "bad-gpu",
        _OWN,
        "uncorrectable | fallen off the bus | gpu is lost | nvlink error | hardware error | "
        "system not yet initialized | nvlink sharp …fatal",
    ),
    (
        "version-mismatch",
        _OWN,
        "version mismatch | mismatch…version | version…differ | versions …do not match | "
        "incompatible …version | driver version is insufficient",
    ),
    (
        "collective-mismatch",
        _OWN,
        "collective mismatch | mismatched collective | message truncated | size mismatch | "
        "sizes differ | type mismatch | types differ | count mismatch | counts differ",
    ),
    ("settings", _OWN, "duplicate gpu"),
    (
        "network-setup",
        _OWN,
        "ibv_…memory | memlock | max locked memory | memory lock | ibv_reg_mr | "
        "ibv_create_cq | ibv_create_qp | ibv_alloc_pd | neither af_inet | no ip interface | "
        "no usable …interface | no socket interface | no interface | interface …not found | "
        "interface …does not exist | peer access | no device found | no such device | "
        "net/…failed | net/…unable | net/…couldn't | net/…could not | net/…cannot | "
        "unsupported …transport | cannot find …hca | cannot find …network | "
        "failed to initialize any net | failed to find any net | no route to host | "
        "network is unreachable | libfabric | ncclnet",
    ),
    (
        "connection-reset",
        _LOST_PEER,
        "closed by | connection reset | reset by peer | broken pipe | remote process | "
        "peer …exit | peer …gone | peer …closed | connection refused | socketprogress | "
        "socket recv | socket send | socket poll | recv 0 bytes | recved 0 bytes | "
        "got completion  | proxycall | proxy call | abort",
    ),
    (
        "network-setup",
        _WAITED,
        "connect…failed | connect…timed out",
    ),
)
_GENERAL: tuple[tuple[str, str, Pattern], ...] = (
    ("connection-reset", "ncclRemoteError", _LOST_PEER),
    ("connection-reset", "ncclSystemError", _LOST_PEER),
    ("connection-reset", "unhandled system error", _LOST_PEER),
    ("exception", "nccl", Pattern((), "NCCL, of itself")),
)


def explained(message: str) -> Shown | None:
    """The cause that a message of NCCL's shows; None where it is none of NCCL's."""
    if _OWN_WORDS.search(message) is None:
        return None
    warnings = _WARNING.findall(message)
    last = _LAST.search(message)
    for words in (*([last[1]] if last else []), *reversed(warnings[-3:])):
        small = words.lower()
        for cause, found, told in _CAUSES:
            if any(stands_in(small, one) for one in told.split(" | ")):
                return Shown(cause, found, 0, 0, words=f"NCCL: {words.strip()}")
    words = f"NCCL: {last[1].strip()}" if last else None
    for cause, sign, found in _GENERAL:
        if sign in message:
            return Shown(cause, found, 0, 0, words=words)
    return None
