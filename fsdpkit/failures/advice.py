"""What to do about an exception, where its cause in general says too little: by its number, by the
place that it names, by its words.
"""

from __future__ import annotations

import re

import msgspec

from fsdpkit.failures.cause import RESUME
from fsdpkit.failures.families.network import OWN_PORT
from fsdpkit.failures.patterns import Shown
from fsdpkit.failures.tracebacks import PrintedException

_PATH = re.compile(r"'([^'\n]+)'")
_MAY_NOT = (
    "See who may do that, on a node of the job too: ls -ld of the path and of the directories "
    "above it, and id for your groups; its owner gives you access, or choose another path."
)
_RENEW = (
    "The ticket or key for this file system is missing or has run out in the job: renew it (kinit, "
    "aklog), and ask the centre how jobs longer than a ticket keep one; or choose another place "
    "with --runs. " + RESUME
)
BY_ERRNO = {
    1: _MAY_NOT,  # EPERM
    11: "A limit on processes and threads is reached (ulimit -u, the job's cgroup): fewer loader "
    "workers and threads (OMP_NUM_THREADS), or more cores a GPU (resources.cpus_per_gpu).",
    13: _MAY_NOT,  # EACCES
    24: "Keep fewer files open at once (fewer loader workers, torch.multiprocessing."
    'set_sharing_strategy("file_system")), or raise the limit at the head of the script: '
    "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)).",  # EMFILE
    98: OWN_PORT,  # EADDRINUSE
    **dict.fromkeys((126, 127, 128, 129), _RENEW),
}
"""By errno, where the cause in general says too little."""
_OF_A_PATH = frozenset({1, 13})
"""Of these, those that say something only of a file that the message names."""
_BY_WORDS = (
    (
        re.compile(r"(?i)unable to (?:un)?lock file"),
        "The file system has no locks, or another process has the file open for writing: set "
        "HDF5_USE_FILE_LOCKING=FALSE (--set environment.variables.HDF5_USE_FILE_LOCKING=FALSE) if "
        "all only read it.",
    ),
    (
        re.compile(r"invalid device ordinal"),
        "This rank asked for a GPU that it does not see: compare the ranks of a node "
        "(resources.gpus) with nvidia-smi -L and CUDA_VISIBLE_DEVICES there, and choose the GPU by "
        "LOCAL_RANK.",
    ),
    (
        re.compile(r"^Weights only load failed"),
        "The file holds more than tensors, and torch.load reads only tensors unless it is told "
        "otherwise (since 2.6): if you trust the file, weights_only=False, or "
        "torch.serialization.add_safe_globals; or a release of the library that does so.",
    ),
    (
        re.compile(r"invalid load key, 'v'"),
        "That file is a pointer of Git LFS, not the file itself: git lfs pull.",
    ),
    (
        re.compile(r"invalid load key, '<'"),
        "That file is a page of HTML, which a download left in its place: fetch it again.",
    ),
)
_PLACES = (
    (
        re.compile(r"/dev/shm|shared memory|\bshm\b|Bus error"),
        "/dev/shm of the node is full: fewer or smaller batches in flight "
        "(training.data.workers), a larger /dev/shm for the container, or remove what other jobs "
        "left there.",
    ),
    (
        re.compile(r"['\" ]/tmp\b|TMPDIR|/var/tmp|temporary directory"),
        "The node's own disk is full: set TMPDIR to a place with room, or leave the node out "
        "(--set resources.exclude={node}).",
    ),
    (
        re.compile(r"quota", re.IGNORECASE),
        "See what uses it (quota -s, lfs quota, du), remove what is not needed, or choose another "
        "place: --runs, HF_HOME, XDG_CACHE_HOME.",
    ),
    (
        re.compile(r"checkpoint", re.IGNORECASE),
        "Make room (df -h, du), keep fewer checkpoints (training.checkpoint.keep_last), or choose "
        "another place with --runs. " + RESUME,
    ),
)


def with_action(found: Shown, raised: PrintedException, number: int | None) -> Shown:
    """With what to do at the place that the message names, or about its number.

    number: its errno, as far as it has one.
    """
    action = None
    if found.cause == "disk-full":
        action = next((what for words, what in _PLACES if words.search(raised.message)), None)
    elif found.cause in ("exception", "storage", "checkpoint-unreadable", "port-taken"):
        action = next((what for words, what in _BY_WORDS if words.search(raised.message)), None)
        of_a_path = _PATH.search(raised.message) or re.search(r"(?:^|\s)/\S+:", raised.message)
        if action is None and (number not in _OF_A_PATH or of_a_path):
            action = BY_ERRNO.get(number or 0)
    if action is None:
        return found
    return msgspec.structs.replace(found, pattern=found.pattern._replace(action=action))
