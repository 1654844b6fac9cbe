"""What NCCL says of a failure. `unhandled system error` is no cause: its `Last error:` line is, or
the last warning that it printed.

Source: NCCL 2.18 to 2.27, the texts of WARN() and of ncclGetLastError() under src/; torch 2.13,
NCCLUtils.hpp, for what torch puts around them.
"""

from __future__ import annotations

import re

from fsdpkit.failures.patterns import Pattern, Shown
from fsdpkit.runs.failures import Level

_LAST = re.compile(r"(?:Last error:\s*\n?\s*|^NCCL: )(.+)")
_WARNING = re.compile(r"^.*NCCL WARN (.+)$", re.MULTILINE)
_OWN_WORDS = re.compile(
    r"\bnccl(?:\w+Error|InvalidUsage|InvalidArgument)\b|NCCL [Ee]rror|\bNCCL WARN |^NCCL: "
)

_CAUSES: tuple[tuple[str, str, Level], ...] = (
    # (cause, regular expression, level)
    (
        "disk-full",
        r"(?i)(?:/dev/shm|shared memory|shm|posix_fallocate|fallocate).*|No space left on device",
        Level.OWN,
    ),
    (
        "gpu-out-of-memory",
        r"(?i)cuda failure (?:\d+ )?'?out of memory|cudaErrorMemoryAllocation|"
        r"failed to cuda (?:host )?(?:calloc|malloc)|cuMem(?:Create|Alloc)\w*.*out of memory",
        Level.OWN,
    ),
    (
        "bad-gpu",
        r"(?i)uncorrectable|fallen off the bus|GPU is lost|NVLink error|hardware error|"
        r"system not yet initialized|Nvlink SHARP .*fatal",
        Level.OWN,
    ),
    (
        "version-mismatch",
        r"(?i)version mismatch|mismatched? .*version|versions? .*(?:differ|do not match)|"
        r"incompatible .*version|driver version is insufficient",
        Level.OWN,
    ),
    (
        "collective-mismatch",
        r"(?i)collective mismatch|mismatched collective|message truncated|"
        r"(?:sizes?|types?|counts?) (?:mismatch|differ)",
        Level.OWN,
    ),
    (
        "network-setup",
        r"(?i)duplicate GPU",
        Level.OWN,
    ),
    (
        "network-setup",
        r"(?i)ibv_\w+.*(?:cannot allocate|memory)|memlock|max locked memory|memory lock|"
        r"ibv_(?:reg_mr|create_cq|create_qp|alloc_pd)\w* ",
        Level.OWN,
    ),
    (
        "network-setup",
        r"(?i)neither AF_INET|no IP interface|no usable .*interface|"
        r"no (?:\w+ )?(?:socket )?interface|"
        r"interface .* (?:not found|does not exist)|peer access|no device found|No such device|"
        r"NET/\w+ .*(?:failed|unable|couldn't|could not|cannot)|unsupported .*transport|"
        r"cannot find .*(?:HCA|network)|Failed to (?:initialize|find) any NET|"
        r"No route to host|Network is unreachable|libfabric|ncclNet\w*",
        Level.OWN,
    ),
    (
        "connection-reset",
        r"(?i)closed by|connection reset|reset by peer|broken pipe|remote process|"
        r"peer .*(?:exit|gone|closed)|connection refused|socketProgress|"
        r"socket (?:recv|send|poll)|recv(?:ed)? 0 bytes|Got completion |proxy ?call|abort",
        Level.LOST_PEER,
    ),
    (
        "network-setup",
        r"(?i)connect(?:ion)? (?:to .* )?(?:failed|timed out)|timed out",
        Level.WAITED,
    ),
)
_COMPILED = tuple(
    (cause, re.compile(words), Pattern((), "NCCL", level)) for cause, words, level in _CAUSES
)
_LOST = Pattern((), "NCCL, also in torch's words", Level.LOST_PEER)
_GENERAL: tuple[tuple[str, str, Pattern], ...] = (
    ("connection-reset", "ncclRemoteError", _LOST),
    ("connection-reset", "ncclSystemError", _LOST),
    ("connection-reset", "unhandled system error", _LOST),
    ("exception", "nccl", Pattern((), "NCCL, of itself")),
)


def explained(message: str) -> Shown | None:
    """The cause that a message of NCCL's shows; None where it is none of NCCL's."""
    if _OWN_WORDS.search(message) is None:
        return None
    warnings = _WARNING.findall(message)
    last = _LAST.search(message)
    for words in (*([last[1]] if last else []), *reversed(warnings[-3:])):
        for cause, told, found in _COMPILED:
            if told.search(words):
                return Shown(cause, found, 0, 0, words=f"NCCL: {words.strip()}")
    words = f"NCCL: {last[1].strip()}" if last else None
    for cause, sign, found in _GENERAL:
        if sign in message:
            return Shown(cause, found, 0, 0, words=words)
    return None
