"""Which cause an exception shows: by its type, by what it says in its own words, by where it arose.

What a message quotes is data, and so is the whole message of a type such as KeyError: words in it
prove nothing.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Container, Iterator

import msgspec

from fsdpkit.failures.causes import CAUSES, shown_in
from fsdpkit.failures.nccl import explained as by_nccl
from fsdpkit.failures.patterns import Pattern, Shown
from fsdpkit.failures.tracebacks import PrintedException, inner, is_by_the_way, of_a_rank
from fsdpkit.failures.wording import (
    is_no_internet,
    is_of_data,
    is_of_gpu,
    quotes_data,
    without_quotes,
)
from fsdpkit.runs.failures import Level

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
_BY_TYPE = {name: cause.name for cause in CAUSES.values() for name in cause.types}
_BY_ERRNO = {number: cause.name for cause in CAUSES.values() for number in cause.errnos}
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
_TIMED_OUT = 110
"""Of a file system where it names a file, else of a connection."""


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
    """What one exception shows, without those that led to it: the first judge that knows."""
    raised = inner(outer)
    plain = Shown("exception", _RAISED, outer.begin, outer.end, raised=raised)
    for judge in _JUDGES:
        if (found := judge(raised, plain)) is not None:
            return msgspec.structs.replace(found, begin=outer.begin, end=outer.end)
    return plain


def _named(plain: Shown, cause: str, pattern: Pattern | None = None) -> Shown:
    return msgspec.structs.replace(plain, cause=cause, pattern=pattern or plain.pattern)


def _only_data(raised: PrintedException, plain: Shown) -> Shown | None:
    about = raised.name in _ABOUT_DATA
    return (
        plain if about or (raised.name == "FileNotFoundError" and not is_of_data(raised)) else None
    )


def _out_of_memory(raised: PrintedException, plain: Shown) -> Shown | None:
    if raised.name not in ("OutOfMemoryError", "ResourceExhaustedError"):
        return None
    if "out of resource" in raised.message:  # of a multiprocessor: Triton calls that so, too
        return None
    gpu = raised.type.startswith("torch") or is_of_gpu(raised) or not raised.message
    return _named(plain, f"{'gpu' if gpu else 'host'}-out-of-memory")


def _by_type(raised: PrintedException, plain: Shown) -> Shown | None:
    if raised.name == "UnpicklingError" and raised.message.startswith("Weights only load failed"):
        return plain
    if raised.name == "ImportError":  # the module is there, but another one, or cannot be read
        another = (f for f in said(raised.message) if f.cause in ("version-mismatch", "storage"))
        if (found := next(another, None)) is not None:
            return msgspec.structs.replace(found, raised=raised)
    if raised.name == "EOFError" and "Ran out of input" in raised.message:
        return _named(plain, "checkpoint-unreadable")  # pickle, of a file cut short
    cause = _BY_TYPE.get(raised.name)
    if cause is None or _errno(raised) in _BY_ERRNO:
        return None
    if cause == "host-out-of-memory" and is_of_gpu(raised):
        cause = "gpu-out-of-memory"
    return _named(plain, cause)


def _by_place(raised: PrintedException, plain: Shown) -> Shown | None:
    """By what could not be reached, found or resolved."""
    if is_no_internet(raised):
        return _named(plain, "no-internet")
    if raised.name == "gaierror":
        return _named(plain, "head-address")
    if raised.type.partition(".")[0] in ("ucp", "ucxx", "mpi4py"):
        return _named(plain, "network-setup")
    missed = "Unable to" in raised.message and "errno = 2," in raised.message  # HDF5
    return _named(plain, "data-missing") if missed else None


def _by_errno(raised: PrintedException, plain: Shown) -> Shown | None:
    number = _errno(raised)
    if raised.name in _ALSO_OF_NUMBERS:
        return None
    if number in _BY_ERRNO:
        return _named(plain, _BY_ERRNO[number])
    if number == _TIMED_OUT and ": '/" in raised.message:
        return _named(plain, "storage")
    if number == errno.EPIPE and _of_its_output(raised):
        return plain
    if number in _BY_ERRNO_OF_A_PEER:
        return _named(plain, "connection-reset", _PEER)
    if number in _BY_ERRNO_OF_A_ROUTE:
        return _named(plain, "head-address", _NO_ROUTE)
    return None


def _of_nccl(raised: PrintedException, _: Shown) -> Shown | None:
    answer = by_nccl(raised.message)
    return None if answer is None else msgspec.structs.replace(answer, raised=raised)


def _by_pattern(raised: PrintedException, _: Shown) -> Shown | None:
    """By the patterns of the causes, in their order."""
    for found in said(f"{raised.type}: {raised.message}" if raised.type else raised.message):
        if raised.name in _ALSO_OF_NUMBERS and found.cause not in _IN_ANY_TYPE:
            continue
        if found.cause == "data-missing" and not quotes_data(raised):
            continue
        return _of_a_checkpoint(msgspec.structs.replace(found, raised=raised), raised)
    return None


def _of_settings(raised: PrintedException, plain: Shown) -> Shown | None:
    """A parser of arguments or of a configuration raised it, of what it was given; Hydra wraps what
    the program raises while it is put together."""
    if raised.name == "InstantiationException":
        return None
    of_parser = bool(raised.frames) and _PARSERS.search(raised.frames[-1].file) is not None
    known = of_parser or raised.type.startswith(("omegaconf.", "hydra."))
    return _named(plain, "settings") if known else None


def _of_the_head(raised: PrintedException, _: Shown) -> Shown | None:
    """TCPStore says above that a name does not resolve, and then that it could not connect."""
    waits = "client socket" in raised.message
    found = _above(raised, ("head-address",)) if waits else None
    return msgspec.structs.replace(found, raised=raised, sure=True) if found is not None else None


def _of_a_checkpoint(found: Shown, raised: PrintedException) -> Shown:
    """Torch says only that ranks failed at a checkpoint; what they say of it follows, and whether
    they read or wrote it."""
    if raised.name != "CheckpointException" or found.cause != "checkpoint-unreadable":
        return found
    if (of_rank := of_a_rank(raised)) is None:
        return found
    wrote = any(re.search(r"save|write", frame.function) for frame in of_rank.frames)
    cause = "exception" if wrote else found.cause
    return msgspec.structs.replace(found, cause=cause, words=f"{raised.name}: {of_rank}")


def _of_its_output(raised: PrintedException) -> bool:
    """Whether a pipe broke into which the script, a logger or a progress bar wrote."""
    last = raised.frames[-1] if raised.frames else None
    writes = last is not None and (
        last.file.endswith("/logging/__init__.py") or "/tqdm/" in last.file
    )
    return writes or (last is not None and last is raised.own_frame)


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


def _referred_to(raised: PrintedException, _: Shown) -> Shown | None:
    """What was printed above an exception that points there."""
    if not _REFERS_ABOVE.search(raised.message):
        return None
    if (found := _above(raised, _SAID_ABOVE)) is not None:
        return found
    found = _of_one(raised.above) if raised.above is not None else None
    if found is None:
        return None
    of_its_own = "thread exited unexpectedly" in raised.message
    near = raised.above_near and (of_its_own or found.cause in _SAID_ABOVE)
    return msgspec.structs.replace(found, sure=False) if near else None


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


def _of_an_interrupt(raised: PrintedException, plain: Shown) -> Shown | None:
    """OpenBLAS interrupts its own process where it gets no threads."""
    if raised.name not in _INTERRUPTS:
        return None
    lines = raised.in_front.split("\n")
    told = [line for line in lines if any(words in line for words, _ in _WITHOUT_NUMBER)]
    if not told:
        return msgspec.structs.replace(plain, pattern=_ASKED)
    return msgspec.structs.replace(plain, raised=None, words=told[0].strip())


_ASSERTED = re.compile(r"^\S+\.(?:cuh?|hip|h):\d+: .*Assertion [`'](.+?)['`]? failed", re.MULTILINE)
_ON_GPU = Pattern((), "a kernel's assertion, which CUDA prints before the exception")


def _of_an_assertion(raised: PrintedException, plain: Shown) -> Shown | None:
    """What the kernel asserted in vain stands above, once for each of its threads."""
    if "device-side assert triggered" not in raised.message:
        return None
    if not (told := _ASSERTED.findall(raised.in_front)):
        return msgspec.structs.replace(plain, pattern=_ON_GPU)
    no_number = re.search(r"(?i)\b(?:nan|inf)\b|isfinite", told[-1])
    cause = "nan-loss" if no_number else "exception"
    pattern = _ON_GPU if cause == "exception" else _RAISED
    words = f"{raised.type}: device-side assertion failed: {told[-1]}"
    return msgspec.structs.replace(plain, cause=cause, pattern=pattern, words=words, raised=None)


_PARSERS = re.compile(
    r"/(?:argparse|optparse|getopt|hf_argparser)\.py$|"
    r"-packages/(?:jsonargparse|tyro|simple_parsing|fire|click|typer|draccus|absl/flags|omegaconf|"
    r"hydra|pydantic_settings)/"
)


def said(text: str) -> Iterator[Shown]:
    """The causes that a process's own last words show, the more particular first."""
    return shown_in(text, "rank", without_quotes(text), below=Level.OUTSIDE)


def _errno(raised: PrintedException) -> int | None:
    if raised.errno is not None:
        return raised.errno
    if match := _ERRNO.search(raised.message):
        return int(next(filter(None, match.groups())))
    for words, number in _WITHOUT_NUMBER:
        if words in raised.message:
            return number
    return None


# Processes that this one had started


_CHILDREN_FAILED = frozenset({"CalledProcessError", "ChildFailedError", "ProcessExitedException"})
_OF_A_SIGNAL = re.compile(
    r"^.*(?:<Signals\.(\w+): \d+>|Signal \d+ \((\w+)\) received by PID|"
    r"terminated with signal (\w+)).*$",
    re.MULTILINE,
)
"""How subprocess, a nested torchrun and torch's spawn say which signal ended one."""


def _of_a_child(raised: PrintedException, plain: Shown) -> Shown | None:
    if raised.name not in _CHILDREN_FAILED:
        return None
    signalled = _OF_A_SIGNAL.search(raised.message)
    words = signalled[0].strip() if signalled else None
    if signalled is not None and "SIGKILL" in signalled.groups():
        return msgspec.structs.replace(plain, cause="unknown", pattern=CHILD_KILLED, words=words)
    called = raised.name == "CalledProcessError"
    if called and (found := _above(raised, _OF_A_CHILD)) is not None:
        return msgspec.structs.replace(found, begin=plain.begin, end=plain.end)
    return None if words is None else msgspec.structs.replace(plain, words=words)


# What stands above


_REFERS_ABOVE = re.compile(
    r"(?i)\b(?:see|look at|check)\b[^.\n]{0,20}"
    r"\b(?:errors?|messages?|warnings?|logs?|output|traceback|root cause|further up)\b|"
    r"^error building extension|\b(?:worker|thread)\b.*exited unexpectedly|"
    r"(?:could not|failed to|unable to) (?:start|create|initiali[sz]e) (?:\w+ ){0,2}server\b"
)
"""An exception that only says that something was printed before it."""
_SAID_ABOVE = frozenset({*_OF_A_CHILD, "port-taken", "bad-gpu", "network-setup", "head-address"})
_JUDGES: tuple[Callable[[PrintedException, Shown], Shown | None], ...] = (
    _of_an_interrupt,
    _of_a_child,
    _only_data,
    _out_of_memory,
    _by_type,
    _by_place,
    _by_errno,
    _of_nccl,
    _of_the_head,
    _by_pattern,
    _of_an_assertion,
    _of_settings,
    _referred_to,
)
"""The order of the rules for one exception."""
