"""Which cause an exception shows: by its type, by what it says in its own words, by where it arose.

What a message quotes is data, and so is the whole message of a type such as KeyError: words in it
prove nothing.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Container, Iterator

import msgspec

from fsdpkit.failures.causes import CAUSES
from fsdpkit.failures.nccl import explained as by_nccl
from fsdpkit.failures.patterns import Level, Pattern, Shown
from fsdpkit.failures.tracebacks import PrintedException, inner, is_by_the_way

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
_OF_A_CHILD = (
    *("no-internet", "disk-full", "host-out-of-memory", "gpu-out-of-memory"),
    *("version-mismatch", "environment-missing"),
)
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
_WITHOUT_NUMBER = (
    ("Too many open files", 24),
    ("can't start new thread", 11),
    ("pthread_create failed", 11),
    ("hread creation failed", 11),
)
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
        return _of_an_interrupt(raised, plain)
    if _SHADOWS.search(raised.message):
        return msgspec.structs.replace(plain, cause="import-error", pattern=_SHADOWED)
    if name in _CHILDREN_FAILED and (of_child := _of_a_child(raised, plain)) is not None:
        return of_child
    if name in _ABOUT_DATA or (name == "FileNotFoundError" and not _of_data(raised)):
        return plain
    if name in ("OutOfMemoryError", "ResourceExhaustedError") and not _of_a_kernel(raised.message):
        gpu = raised.type.startswith("torch") or _is_of_gpu(raised) or not raised.message
        return msgspec.structs.replace(plain, cause=f"{'gpu' if gpu else 'host'}-out-of-memory")
    if name == "UnpicklingError" and raised.message.startswith("Weights only load failed"):
        return plain
    if name == "ImportError" and (another := _other_release(raised)) is not None:
        return msgspec.structs.replace(another, begin=outer.begin, end=outer.end, raised=raised)
    if (cause := _BY_TYPE.get(name)) is not None and _errno(raised) not in _BY_ERRNO:
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
        return msgspec.structs.replace(plain, cause=_BY_ERRNO[number])
    if number in _BY_ERRNO_OF_A_PEER and name not in _ALSO_OF_NUMBERS:
        return msgspec.structs.replace(plain, cause="connection-reset", pattern=_PEER)
    if number in _BY_ERRNO_OF_A_ROUTE and name not in _ALSO_OF_NUMBERS:
        return msgspec.structs.replace(plain, cause="head-address", pattern=_NO_ROUTE)
    if (answer := by_nccl(raised.message)) is not None:
        return msgspec.structs.replace(answer, begin=outer.begin, end=outer.end, raised=raised)
    for found in said(f"{raised.type}: {raised.message}" if raised.type else raised.message):
        if name in _ALSO_OF_NUMBERS and found.cause not in _IN_ANY_TYPE:
            continue
        if found.cause == "data-missing" and not _quotes_data(raised):
            continue
        return msgspec.structs.replace(found, begin=outer.begin, end=outer.end, raised=raised)
    if name not in _ALSO_OF_NUMBERS and _misses_a_file(raised):
        return msgspec.structs.replace(plain, cause="data-missing")
    if (cause := _memory(raised, only_first=name in _ALSO_OF_NUMBERS)) is not None:
        return msgspec.structs.replace(plain, cause=cause)
    if (by_status := _by_status(raised)) is not None:
        return msgspec.structs.replace(by_status, begin=outer.begin, end=outer.end, raised=raised)
    if "device-side assert" in raised.message:
        return _of_an_assertion(raised, plain)
    if _of_settings(raised):
        return msgspec.structs.replace(plain, cause="settings")
    if (told := _referred_to(raised)) is not None:
        return msgspec.structs.replace(told, begin=outer.begin, end=outer.end)
    return plain


def _above(raised: PrintedException, causes: Container[str]) -> Shown | None:
    """What the nearest line above the traceback shows, of these causes. That somebody tries again
    shows only what he cannot reach."""
    lines = raised.in_front.split("\n")[::-1]
    tried = [line for line in lines if is_by_the_way(line)]
    for line in (*(line for line in lines if line not in tried), *tried):
        found = _of_one(PrintedException(type="", message=line.strip()))
        if found.cause in causes and (found.cause == "no-internet" or line not in tried):
            words = found.words or line.strip()
            return msgspec.structs.replace(found, words=words, raised=None, sure=False)
    return None


def _referred_to(raised: PrintedException) -> Shown | None:
    """What was printed above an exception that points there."""
    if not _REFERS_ABOVE.search(raised.message):
        return None
    if (found := _above(raised, _SAID_ABOVE)) is not None:
        return found
    found = _of_one(raised.above) if raised.above is not None else None
    if found is None or found.cause not in _SAID_ABOVE:
        return None
    return msgspec.structs.replace(found, sure=False)


_RAISED = Pattern((), "Python, as the last line of a traceback")
_PEER = Pattern((), "Python, of a connection that its other end broke", Level.LOST_PEER)
_NO_ROUTE = Pattern((), "Python, of an address that no way leads to", Level.WAITED)
_ASKED = Pattern((), "Python, of a process that a person or Slurm interrupted", Level.KILLED)
CHILD_KILLED = Pattern((), "whoever had started a process that was killed", Level.KILLED)
_INTERRUPTS = frozenset({"KeyboardInterrupt", "SignalException"})
"""What a process raises because a signal asked it to end: whoever sent that knows why."""
_NO_THREAD = re.compile(r"^.*(?:pthread_create failed|hread creation failed).*$", re.MULTILINE)
_SHADOWS = re.compile(r"\bpartially initialized module\b|\bsince it has the same name as the ")
_SHADOWED = Pattern(
    (), "Python, of a module that it finds in place of another, or that is not loaded to its end"
)
_OF_THE_MACHINE = frozenset(
    {"disk-full", "storage", "gpu-out-of-memory", "host-out-of-memory", "bad-gpu"}
)
"""What fails in a handler of one of these follows from it, where it only misses a file."""


def _of_an_interrupt(raised: PrintedException, plain: Shown) -> Shown:
    """OpenBLAS interrupts its own process where it gets no threads."""
    told = _NO_THREAD.search(raised.in_front)
    if told is None:
        return msgspec.structs.replace(plain, pattern=_ASKED)
    return msgspec.structs.replace(plain, raised=None, words=told[0].strip())


_ASSERTED = re.compile(r"^\S+\.(?:cuh?|hip|h):\d+: .*Assertion [`'](.+?)['`]? failed", re.MULTILINE)
_NO_NUMBER = re.compile(r"(?i)\b(?:nan|inf)\b|isfinite")
_ON_GPU = Pattern((), "a kernel's assertion, which CUDA prints before the exception")


def _of_an_assertion(raised: PrintedException, plain: Shown) -> Shown:
    """What the kernel asserted in vain stands above, once for each of its threads."""
    if not (told := _ASSERTED.findall(raised.in_front)):
        return msgspec.structs.replace(plain, pattern=_ON_GPU)
    cause = "nan-loss" if _NO_NUMBER.search(told[-1]) else "exception"
    pattern = _ON_GPU if cause == "exception" else _RAISED
    words = f"{raised.type}: device-side assertion failed: {told[-1]}"
    return msgspec.structs.replace(plain, cause=cause, pattern=pattern, words=words, raised=None)


_PARSERS = re.compile(
    r"/(?:argparse|optparse|getopt|hf_argparser)\.py$|"
    r"-packages/(?:jsonargparse|tyro|simple_parsing|fire|click|typer|draccus|absl/flags|omegaconf|"
    r"hydra|pydantic_settings)/"
)


def _of_settings(raised: PrintedException) -> bool:
    """Whether a parser of arguments or of a configuration raised it, of what it was given; Hydra
    wraps what the program raises while it is put together."""
    if raised.name == "InstantiationException":
        return False
    of_parser = bool(raised.frames) and _PARSERS.search(raised.frames[-1].file) is not None
    return of_parser or raised.type.startswith(("omegaconf.", "hydra."))


def _of_a_kernel(text: str) -> bool:
    """Whether it is a multiprocessor that has too little of its own: Triton calls that so, too."""
    return "out of resource" in text


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


_CHILDREN_FAILED = frozenset({"CalledProcessError", "ChildFailedError", "ProcessExitedException"})
_OF_A_SIGNAL = re.compile(
    r"^.*(?:<Signals\.(\w+): \d+>|Signal \d+ \((\w+)\) received by PID|"
    r"terminated with signal (\w+)).*$",
    re.MULTILINE,
)
"""How subprocess, a nested torchrun and torch's spawn say which signal ended one."""


def _of_a_child(raised: PrintedException, plain: Shown) -> Shown | None:
    signalled = _OF_A_SIGNAL.search(raised.message)
    words = signalled[0].strip() if signalled else None
    if signalled is not None and "SIGKILL" in signalled.groups():
        return msgspec.structs.replace(plain, cause="unknown", pattern=CHILD_KILLED, words=words)
    called = raised.name == "CalledProcessError"
    if called and (found := _above(raised, _OF_A_CHILD)) is not None:
        return msgspec.structs.replace(found, begin=plain.begin, end=plain.end)
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
    r"(?i)\b(?:see|look at|check)\b[^.\n]{0,20}"
    r"\b(?:errors?|messages?|warnings?|logs?|output|traceback|root cause)\b|"
    r"^error building extension|"
    r"(?:could not|failed to|unable to) (?:start|create|initiali[sz]e) (?:\w+ ){0,2}server\b"
)
"""An exception that only says that something was printed before it."""
_SAID_ABOVE = frozenset({*_OF_A_CHILD, "port-taken", "bad-gpu", "network-setup", "head-address"})
_TWO_RELEASES = re.compile(
    r"(?i)\b(?:needs?|requires?|required|expects?|expected)\b[^\n]*?\d+\.\d+[^\n]*?"
    r"(?:\b(?:but|got|found|have|installed)\b[^\n]*?\d+\.\d+|"
    r"\d+\.\d+[^\n]{0,20}\binstalled\b)"
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


_FOUND_NO_FILE = re.compile(r"FileNotFoundError: (.*)")


def _quotes_data(raised: PrintedException) -> bool:
    """The same of a FileNotFoundError that another exception quotes."""
    quoted = _FOUND_NO_FILE.search(raised.message)
    return quoted is None or _of_data(PrintedException(type="", message=quoted[1]))


_NO_SUCH_FILE = re.compile(
    r"['\"<]/[^'\"<>\n]+['\">][^\n]*: No such file or directory\b|"
    r"^No such file or directory \(os error 2\)|"
    r"'/[^'\n]+', (?:probable )?reason 'No such file or directory'|\bOs \{ code: 2,|"
    r"(?i:\bno (?:\w+ )?files? (?:named|found|in|at|under|match)\b[^\n]* /\S|"
    r"/\S+['\"]? (?:doesn't|does not|contains no|holds no)(?: contain any)? (?:\w+ )?files?\b)"
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


_PATH_OF_A_URL = re.compile(r"(\w+://[^/\s'\"]+)[^\s'\"]*")


def not_reached(text: str) -> bool:
    """Whether the text says that something could not be reached, and no server that refused."""
    said_itself = _PATH_OF_A_URL.sub(r"\1", text)
    if not _OUT_OF_REACH.search(said_itself) or _REFUSED_BY_SERVER.search(text):
        return False
    return not re.search(r"TCPStore|c10d|gloo/|NCCL|nccl", text)


def outside_not_reached(text: str) -> bool:
    """Whether what could not be reached is a service that the text names, outside the cluster."""
    return not_reached(text) and _ELSEWHERE.search(text) is not None


def _no_internet(raised: PrintedException) -> bool:
    """Whether a program tried to reach a service outside, and could not."""
    first = "\n".join(raised.message.split("\n")[:4])
    if raised.name == "FileNotFoundError" and re.match(r"\w+://", first):
        return not_reached(raised.in_front)  # a stream of a remote file, after it tried again
    if not not_reached(f"{raised.name} {first}"):
        return False
    by_client = bool(_BY_CLIENT.match(raised.type))
    through_client = any(_IN_CLIENT.search(frame.file) for frame in raised.frames)
    local = re.search(r"localhost|127\.0\.0\.1", first)
    return bool(_ELSEWHERE.search(first) or ((by_client or through_client) and not local))
