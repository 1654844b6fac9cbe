"""Which cause an exception shows: by its type, by what it says in its own words, by where it arose.

What a message quotes is data, and so is the whole message of a type such as KeyError: words in it
prove nothing.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

import msgspec

from fsdpkit.failures.cause import RESUME
from fsdpkit.failures.causes import CAUSES
from fsdpkit.failures.nccl import explained as by_nccl
from fsdpkit.failures.patterns import Level, Pattern, Shown
from fsdpkit.failures.tracebacks import PrintedException, inner

_ABOUT_DATA = frozenset(
    {
        *("KeyError", "IndexError", "TypeError", "AttributeError", "NameError"),
        *("UnboundLocalError", "ZeroDivisionError", "UnicodeDecodeError", "UnicodeEncodeError"),
        *("SyntaxError", "IndentationError", "TabError", "JSONDecodeError", "StopIteration"),
        *("RecursionError", "NotImplementedError", "ValidationError", "ParserError"),
        *("KeyboardInterrupt", "CalledProcessError", "ArrowInvalid", "ParsingError"),
    }
)
"""Types whose messages hold what the program worked on."""
_ALSO_OF_NUMBERS = frozenset({"ValueError", "AssertionError"})
"""Types that say something of data, or that numbers overflowed, or that a hub is out of reach."""
_IN_ANY_TYPE = ("nan-loss", "no-internet", "version-mismatch")
_OF_A_CHILD = ("no-internet", "disk-full", "host-out-of-memory", "gpu-out-of-memory")
"""What the words of a program that it had called may show."""
_BY_TYPE = {
    "MemoryError": "host-out-of-memory",
    "_ArrayMemoryError": "host-out-of-memory",
    "ArrowMemoryError": "host-out-of-memory",
    "ModuleNotFoundError": "import-error",
    "ImportError": "import-error",
    "FloatingPointError": "nan-loss",
    "LocalEntryNotFoundError": "no-internet",
    "OfflineModeIsEnabled": "no-internet",
    "SafetensorError": "checkpoint-unreadable",
    "BadZipFile": "checkpoint-unreadable",
    "RendezvousTimeoutError": "rendezvous-timeout",
    "RendezvousConnectionError": "rendezvous-timeout",
    "ConfigError": "settings",
    "UsageError": "settings",
}
_BY_ERRNO = {
    5: "storage",  # EIO
    12: "host-out-of-memory",  # ENOMEM
    28: "disk-full",  # ENOSPC
    30: "storage",  # EROFS
    37: "storage",  # ENOLCK
    70: "storage",  # ECOMM, BeeGFS's
    74: "storage",  # EBADMSG, of a block whose checksum is wrong
    98: "port-taken",  # EADDRINUSE
    99: "network-setup",  # EADDRNOTAVAIL
    107: "storage",  # ENOTCONN, of a file system whose server is gone
    108: "storage",  # ESHUTDOWN, Lustre's of a client that was evicted
    116: "storage",  # ESTALE
    117: "storage",  # EUCLEAN, of a file system that needs repair
    121: "storage",  # EREMOTEIO
    122: "disk-full",  # EDQUOT
    126: "storage",  # ENOKEY, of a file system that asks for a ticket, as do the next three
    127: "storage",  # EKEYEXPIRED
    128: "storage",  # EKEYREVOKED
    129: "storage",  # EKEYREJECTED
}
_BY_ERRNO_OF_A_PEER = frozenset({32, 103, 104, 111})
"""EPIPE, ECONNABORTED, ECONNRESET, ECONNREFUSED: their words differ by language."""
_BY_ERRNO_OF_A_ROUTE = frozenset({101, 113})
"""ENETUNREACH, EHOSTUNREACH."""
_ERRNO = re.compile(
    r"\[[Ee]rrno (\d+)\]|\berrno(?: = |:)(\d+)|\(os error (\d+)\)|\bOs \{ code: (\d+),"
)
_WITHOUT_NUMBER = (("Too many open files", 24), ("can't start new thread", 11))
"""Words of libraries that leave the number out."""
_TIMED_OUT_ON_A_FILE = re.compile(r"\[Errno 110\] [^\n:]*: ['\"]/")
_OF_HDF5 = re.compile(r"Unable to (?:\w+ )*open file .*errno = 2\b")
_QUOTED = re.compile(r"(?<![A-Za-z0-9])(['\"`])(?!\s)[^'\"`\n]{1,400}\1(?![A-Za-z])")


def shown(raised: PrintedException) -> Shown:
    """The cause that an exception and those that led to it show; `exception` where none does."""
    links = list(raised.chain())
    answers = [_of_one(link) for link in links]
    newest = answers[0]
    if newest.cause == "data-missing":
        for answer in answers[1:]:
            if answer.cause in _OF_THE_MACHINE:
                return answer
    if newest.cause != "exception" and newest.level >= Level.OWN:
        return newest
    wrapper = newest.cause != "exception" or inner(raised).name not in _ABOUT_DATA
    for place, answer in enumerate(answers[1:], start=1):
        led_to_it = all(link.meant for link in links[:place])
        particular = answer.cause != "exception" or newest.level < Level.OWN
        if particular and answer.level >= newest.level and (led_to_it or wrapper):
            return answer
    return newest


def _of_one(outer: PrintedException) -> Shown:
    raised = inner(outer)
    name = raised.name
    plain = Shown("exception", _RAISED, outer.begin, outer.end, raised=raised)
    if name in _INTERRUPTS:
        return msgspec.structs.replace(plain, pattern=_ASKED)
    if name in _CHILDREN_FAILED and (of_child := _of_a_child(raised, plain)) is not None:
        return of_child
    if name in _ABOUT_DATA or (name == "FileNotFoundError" and not _of_data(raised)):
        return plain
    if name in ("OutOfMemoryError", "ResourceExhaustedError"):
        gpu = raised.type.startswith("torch") or _is_of_gpu(raised) or not raised.message
        return msgspec.structs.replace(plain, cause=f"{'gpu' if gpu else 'host'}-out-of-memory")
    if name == "UnpicklingError" and raised.message.startswith("Weights only load failed"):
        return plain
    if name == "ImportError" and (another := _other_release(raised)) is not None:
        return msgspec.structs.replace(another, begin=outer.begin, end=outer.end, raised=raised)
    if (cause := _BY_TYPE.get(name)) is not None:
        if cause == "host-out-of-memory" and _is_of_gpu(raised):
            cause = "gpu-out-of-memory"
        return msgspec.structs.replace(plain, cause=cause)
    if name == "EOFError" and "Ran out of input" in raised.message:  # pickle, of a file cut short
        return msgspec.structs.replace(plain, cause="checkpoint-unreadable")
    if _no_internet(raised):
        return msgspec.structs.replace(plain, cause="no-internet")
    if name == "gaierror":
        return msgspec.structs.replace(plain, cause="head-address")
    if _TIMED_OUT_ON_A_FILE.search(raised.message):
        return msgspec.structs.replace(plain, cause="storage")
    if raised.type.partition(".")[0] in ("ucp", "ucxx", "mpi4py"):
        return msgspec.structs.replace(plain, cause="network-setup")
    if _OF_HDF5.search(raised.message):
        return msgspec.structs.replace(plain, cause="data-missing")
    if (number := _errno(raised)) in _BY_ERRNO and name not in _ALSO_OF_NUMBERS:
        found = msgspec.structs.replace(plain, cause=_BY_ERRNO[number])
        return _with_action(found, raised)
    if number in _BY_ERRNO_OF_A_PEER and name not in _ALSO_OF_NUMBERS:
        return msgspec.structs.replace(plain, cause="connection-reset", pattern=_PEER)
    if number in _BY_ERRNO_OF_A_ROUTE and name not in _ALSO_OF_NUMBERS:
        return msgspec.structs.replace(plain, cause="head-address", pattern=_NO_ROUTE)
    if (answer := by_nccl(raised.message)) is not None:
        return msgspec.structs.replace(answer, begin=outer.begin, end=outer.end, raised=raised)
    for found in said(f"{raised.type}: {raised.message}" if raised.type else raised.message):
        if name in _ALSO_OF_NUMBERS and found.cause not in _IN_ANY_TYPE:
            continue
        found = msgspec.structs.replace(found, begin=outer.begin, end=outer.end, raised=raised)
        return _with_action(found, raised)
    if name not in _ALSO_OF_NUMBERS and _misses_a_file(raised):
        return msgspec.structs.replace(plain, cause="data-missing")
    if (cause := _memory(raised, only_first=name in _ALSO_OF_NUMBERS)) is not None:
        return msgspec.structs.replace(plain, cause=cause)
    if (by_status := _by_status(raised)) is not None:
        return msgspec.structs.replace(by_status, begin=outer.begin, end=outer.end, raised=raised)
    if _REFERS_ABOVE.search(raised.message):
        found = _of_one(PrintedException(type="", message=raised.in_front))
        if found.cause in _SAID_ABOVE:
            return msgspec.structs.replace(found, begin=outer.begin, end=outer.end, sure=False)
    return _with_action(plain, raised)


_RAISED = Pattern((), "Python, as the last line of a traceback")
_PEER = Pattern((), "Python, of a connection that its other end broke", Level.LOST_PEER)
_NO_ROUTE = Pattern((), "Python, of an address that no way leads to", Level.WAITED)
_ASKED = Pattern((), "Python, of a process that a person or Slurm interrupted", Level.KILLED)
CHILD_KILLED = Pattern((), "whoever had started a process that was killed", Level.KILLED)
_INTERRUPTS = frozenset({"KeyboardInterrupt", "SignalException"})
"""What a process raises because a signal asked it to end: whoever sent that knows why."""
_OF_THE_MACHINE = frozenset(
    {"disk-full", "storage", "gpu-out-of-memory", "host-out-of-memory", "bad-gpu"}
)
"""What fails in a handler of one of these follows from it, where it only misses a file."""


def said(text: str) -> Iterator[Shown]:
    """The causes that a process's own last words show, the more particular first."""
    masked = _QUOTED.sub(_masked, text)
    for cause in CAUSES.values():
        for pattern in cause.patterns:
            if "rank" in pattern.by and (
                place := pattern.found_in(text if pattern.quoted else masked)
            ):
                yield Shown(cause.name, pattern, place.begin, place.end, place.node, place.rank)
                break


def _masked(quoted: re.Match[str]) -> str:
    """What is quoted is data, but for a line that stands in quotation marks as a whole."""
    before = quoted.string[: quoted.start()][-1:]
    behind = quoted.string[quoted.end() :][:1]
    if before in ("", "\n") and behind in ("", "\n"):
        return quoted[0]
    return quoted[1] + "·" * (len(quoted[0]) - 2) + quoted[1]


def _errno(raised: PrintedException) -> int | None:
    if match := _ERRNO.search(raised.message):
        return int(next(filter(None, match.groups())))
    for words, number in _WITHOUT_NUMBER:
        if words in raised.message:
            return number
    last = _LAST_WORDS.search(raised.message.partition("\n")[0])
    number = _NUMBERS.get(last[1].lower(), 0) if last else 0
    return None if not number or (number == errno.ENOMEM and _is_of_gpu(raised)) else number


_LAST_WORDS = re.compile(r": ([A-Za-z][A-Za-z/ -]+)\.?$")
_NUMBERS = {os.strerror(number).lower(): number for number in (13, *_BY_ERRNO)}
_NUMBERS["stale nfs file handle"] = 116
"""By strerror(3)'s words, with which a message ends that has no number; Go writes them small."""


# Processes that this one had started


_CHILDREN_FAILED = frozenset({"CalledProcessError", "ChildFailedError"})
_OF_A_SIGNAL = re.compile(
    r"^.*(?:<Signals\.\w+: (\d+)>|Signal (\d+) \(\w+\) received by PID).*$", re.MULTILINE
)
"""How subprocess and a nested torchrun say which signal ended one."""


def _of_a_child(raised: PrintedException, plain: Shown) -> Shown | None:
    signalled = _OF_A_SIGNAL.search(raised.message)
    words = signalled[0].strip() if signalled else None
    if signalled is not None and (signalled[1] or signalled[2]) == "9":
        return msgspec.structs.replace(plain, cause="unknown", pattern=CHILD_KILLED, words=words)
    if raised.name == "CalledProcessError":
        for found in said(raised.in_front):
            if found.cause in _OF_A_CHILD:
                return msgspec.structs.replace(found, begin=plain.begin, end=plain.end, sure=False)
    return None if words is None else msgspec.structs.replace(plain, words=words)


# Memory


_SHORT_OF_MEMORY = re.compile(
    r"(?i)\bout of (?:\w+ )?memory\b|\bno (?:available|free) memory\b|\bmemory exhausted\b|"
    r"\b(?:can ?not|can't|could not|unable to|failed to) allocate\b[^\n]{0,60}?"
    r"(?:\bmemory\b|\bbytes?\b|\bblock\b|\bvector of size\b|\d ?[KMGT]i?B\b)"
)
_OF_A_GPU = re.compile(
    r"(?i)\bcuda|\bcu(?:py|blas|dnn|fft)|\bhip|gpu|\bxpu|\brocm|\brmm\b|thrust|"
    r"device (?:ordinal|memory)"
)


def _is_of_gpu(raised: PrintedException) -> bool:
    return _OF_A_GPU.search(f"{raised.type} {raised.message}") is not None


def _memory(raised: PrintedException, *, only_first: bool) -> str | None:
    """The memory that a message says was not enough, in whatever program's words: of the node,
    unless something of a GPU is named.

    only_first: only where the message begins with it.
    """
    text = _QUOTED.sub(_masked, raised.message)
    match = _SHORT_OF_MEMORY.search(text)
    if match is None or (only_first and match.start()):
        return None
    return "gpu-out-of-memory" if _is_of_gpu(raised) else "host-out-of-memory"


# Statuses of gRPC and Abseil, which JAX, TensorFlow and TensorStore put in front


_STATUS = re.compile(r"^(NOT_FOUND|DATA_LOSS|UNAVAILABLE|DEADLINE_EXCEEDED): ")
_OF_THE_START = re.compile(r"(?i)\binit|connect|register")


def _by_status(raised: PrintedException) -> Shown | None:
    if (match := _STATUS.match(raised.message)) is None:
        return None
    if match[1] == "NOT_FOUND":
        missed = re.search(r"['\"]/[^'\"\n]+['\"]", raised.message)
        return Shown("data-missing", _RAISED, 0, 0) if missed else None
    if match[1] == "DATA_LOSS":
        return Shown("checkpoint-unreadable", _RAISED, 0, 0)
    if match[1] == "UNAVAILABLE":
        return Shown("connection-reset", _PEER, 0, 0)
    cause = "rendezvous-timeout" if _OF_THE_START.search(raised.message) else "hang"
    return Shown(cause, _WAITED, 0, 0)


_WAITED = Pattern((), "gRPC, of others that did not come in time", Level.WAITED)


# What stands above, and other releases


_REFERS_ABOVE = re.compile(
    r"(?i)\b(?:see|look at|check)\b[^.\n]{0,20}\b(?:errors?|messages?|warnings?|logs?|output)\b|"
    r"(?:could not|failed to|unable to) (?:start|create|initiali[sz]e) (?:\w+ ){0,2}server\b"
)
"""An exception that only says that something was printed before it."""
_SAID_ABOVE = frozenset(
    {*_OF_A_CHILD, "version-mismatch", "port-taken", "bad-gpu", "network-setup", "head-address"}
)
_TWO_RELEASES = re.compile(
    r"(?i)\b(?:needs?|requires?|required|expects?|expected)\b[^\n]*?\d+\.\d+[^\n]*?"
    r"\b(?:but|got|found|have|installed)\b[^\n]*?\d+\.\d+"
)


def _other_release(raised: PrintedException) -> Shown | None:
    """What says of a module that is there, but cannot be loaded, that another release is needed."""
    said_so = (found for found in said(raised.message) if found.cause == "version-mismatch")
    two = _TWO_RELEASES.search(raised.message)
    return next(said_so, Shown("version-mismatch", _RAISED, 0, 0) if two else None)


# Files that are not there


_PATH = re.compile(r"'([^'\n]+)'")
_OF_A_TOOL = re.compile(
    r"triton|torchinductor|inductor|torch_extensions|/__pycache__/|\.lock$|/proc/"
)


def _of_data(raised: PrintedException) -> bool:
    """Whether the file is one that a person would have put there: a name without a directory is a
    program that was to be run, two are a rename that another process was faster with, and the
    caches of compilers belong to nobody."""
    paths = _PATH.findall(raised.message)
    if " -> " in raised.message or any(_OF_A_TOOL.search(path) for path in paths):
        return False
    return not (paths and re.fullmatch(r"[\w.+-]+", paths[0]) and "." not in paths[0])


_NO_SUCH_FILE = re.compile(
    r"['\"<]/[^'\"<>\n]+['\">][^\n]*: No such file or directory\b|"
    r"^No such file or directory \(os error 2\)|"
    r"'/[^'\n]+', (?:probable )?reason 'No such file or directory'|\bOs \{ code: 2,"
)
_OF_NO_PERSON = re.compile(
    r"shared memory|\.so\b|\.sock\b|['\"<]/(?:tmp|dev|proc|run|sys|var)/|exec|NCCL|nccl"
)


def _misses_a_file(raised: PrintedException) -> bool:
    """Whether any other type of exception says so: libraries in C++ and Rust have types of their
    own. Not of libraries, sockets and what programs put down for themselves."""
    text = raised.message
    missed = _NO_SUCH_FILE.search(text) is not None
    return missed and not _OF_NO_PERSON.search(text) and not _OF_A_TOOL.search(text)


# Out of reach


_CLIENTS = (
    "requests|urllib3|httpx|httpcore|aiohttp|botocore|boto3|aiobotocore|s3fs|gcsfs|fsspec|"
    "huggingface_hub|wandb|mlflow|comet_ml|neptune|google|azure|swanlab|clearml"
)
_BY_CLIENT = re.compile(
    rf"^(?:{_CLIENTS})\.|(?:^|\.)(?:URLError|EndpointConnectionError|NewConnectionError|MaxRetryError|"
    r"ConnectTimeout|ClientConnectorError|ProxyError|CommError|LocalEntryNotFoundError)$"
)
_IN_CLIENT = re.compile(rf"-packages/(?:{_CLIENTS})/|/urllib/request\.py|/http/client\.py")
_OUT_OF_REACH = re.compile(
    r"(?i)connect|resol(?:ve|ution)|name or service not known|unreachable|timed?[ -]?out|"
    r"max retries|offline|no route|network|no such host|dial tcp"
)
_ELSEWHERE = re.compile(
    r"https?://(?!localhost|127\.|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|\[?::1)[\w.-]+|"
    r"host='(?!localhost|127\.|10\.)[\w.-]+'|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|co|io|ai|net):\d+"
)
_REFUSED_BY_SERVER = re.compile(
    r"\b(?:40[0-9]|429|5\d\d)\b[^\n]*(?:Error|Forbidden|Unauthorized|for url)"
)


def not_reached(text: str) -> bool:
    """Whether the text says that something could not be reached, and no server that refused."""
    if not _OUT_OF_REACH.search(text) or _REFUSED_BY_SERVER.search(text):
        return False
    return not re.search(r"TCPStore|c10d|gloo/|NCCL|nccl", text)


def outside_not_reached(text: str) -> bool:
    """Whether what could not be reached is a service that the text names, outside the cluster."""
    return not_reached(text) and _ELSEWHERE.search(text) is not None


def _no_internet(raised: PrintedException) -> bool:
    """Whether a program tried to reach a service outside, and could not."""
    first = "\n".join(raised.message.split("\n")[:4])
    if not not_reached(f"{raised.name} {first}"):
        return False
    by_client = bool(_BY_CLIENT.match(raised.type))
    through_client = any(_IN_CLIENT.search(frame.file) for frame in raised.frames)
    local = re.search(r"localhost|127\.0\.0\.1", first)
    return bool(_ELSEWHERE.search(first) or ((by_client or through_client) and not local))


# What to do


_MAY_NOT = (
    "See who may do that, on a node of the job too: ls -ld of the path and of the directories "
    "above it, and id for your groups; its owner gives you access, or choose another path."
)
_RENEW = (
    "The ticket or key for this file system is missing or has run out in the job: renew it (kinit, "
    "aklog), and ask the centre how jobs longer than a ticket keep one; or choose another place "
    "with --runs. " + RESUME
)
_ACTIONS = {
    1: _MAY_NOT,  # EPERM
    11: "A limit on processes and threads is reached (ulimit -u, the job's cgroup): fewer loader "
    "workers and threads (OMP_NUM_THREADS), or more cores a GPU (resources.cpus_per_gpu).",
    13: _MAY_NOT,  # EACCES
    24: "Keep fewer files open at once (fewer loader workers, torch.multiprocessing."
    'set_sharing_strategy("file_system")), or raise the limit at the head of the script: '
    "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)).",  # EMFILE
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


def _with_action(found: Shown, raised: PrintedException) -> Shown:
    """With what to do at the place that the message names, or about its number."""
    action, number = None, _errno(raised)
    if found.cause == "disk-full":
        action = next((what for words, what in _PLACES if words.search(raised.message)), None)
    elif found.cause in ("exception", "storage", "checkpoint-unreadable"):
        action = next((what for words, what in _BY_WORDS if words.search(raised.message)), None)
        of_a_path = _PATH.search(raised.message) or re.search(r"(?:^|\s)/\S+:", raised.message)
        if action is None and (number not in _OF_A_PATH or of_a_path):
            action = _ACTIONS.get(number or 0)
    if action is None:
        return found
    return msgspec.structs.replace(found, pattern=found.pattern._replace(action=action))
