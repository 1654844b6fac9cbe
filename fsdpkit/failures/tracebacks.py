"""Tracebacks of Python in what a process wrote: which exception ended it, which ones it got over.

An exception that nobody caught is the last thing that a script does, so nothing that it would have
gone on to say stands behind it; torch marks such a traceback besides, on every line, with the rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from fsdpkit.failures.stacks import Frame

_MOST_MESSAGE_LINES = 60
_MOST_BEHIND = 25
_MOST_STEPS_BEHIND = 1
"""Lines that may follow the first line of the last exception: the rest of its message, or words
such as `training failed`; where more do, or steps are counted on, the program got over it."""


class TracebackLine(msgspec.Struct, frozen=True):
    """A line without the marks in front of it. begin, end: its place in the whole text."""

    text: str
    begin: int
    end: int
    marked: bool = False
    """Whether torch wrote the rank in front, as it does when nobody catches an exception."""


class PrintedException(msgspec.Struct, frozen=True, kw_only=True):
    """An exception as it was printed."""

    type: str
    """As printed, e.g. `torch.OutOfMemoryError`; empty where it is not known."""
    message: str
    """Without the type; several lines at most."""
    begin: int = 0
    end: int = 0
    """Place of its first line in the text."""
    frames: tuple[Frame, ...] = ()
    """The innermost last."""
    before: PrintedException | None = None
    """The exception that led to it."""
    meant: bool = False
    """Whether the program says that `before` caused it (`raise … from`)."""
    sure: bool = True
    """Whether it ended the process for certain; else it is only the last that was printed."""
    above: PrintedException | None = None
    """The exception that was printed before it, by whomever, and did not lead to it."""
    above_near: bool = False
    """Whether that was but a few lines before it."""
    in_front: str = ""
    """The last lines before the traceback, which a child process may have written."""
    errno: int | None = None
    """Where the process itself recorded it; else the message may say it."""
    source: str = ""
    """The user's own innermost line of code, where the process itself recorded it."""

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rpartition(".")[2]

    def __str__(self) -> str:
        lines = self.message.split("\n")
        begin = next((i for i, text in enumerate(lines) if re.search(r"\w", text)), 0)
        first, _, more = "\n".join([lines[begin].strip(), *lines[begin + 1 :]]).partition("\n")
        if first.endswith(":"):  # of a list, such as the keys that a checkpoint lacks
            first = f"{first} {more.strip().partition(chr(10))[0]}".rstrip()
        elif re.match(r"\d+ validation errors? for ", first):  # pydantic's: which key, and why
            first = " ".join([first, *(line.strip() for line in more.split("\n")[:2])])
        return f"{self.type}: {first}" if self.type and first else self.type or first

    def chain(self) -> Iterator[PrintedException]:
        """It, and those that led to it, the newest first."""
        raised: PrintedException | None = self
        while raised is not None:
            yield raised
            raised = raised.before

    @property
    def own_frame(self) -> Frame | None:
        """The innermost call that is the user's own and no library's."""
        own = [f for f in self.frames if not is_of_a_library(f.file)]
        return own[-1] if own else None


_OF_A_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/launching/at_start")


def is_of_a_library(file: str) -> bool:
    """Whether a call is Python's own or an installed package's, by its file."""
    return _OF_A_LIBRARY.search(file) is not None


_UNSEEN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")


def without_controls(text: str) -> str:
    """Without colours, and without what else a terminal would not show but obey."""
    return _UNSEEN.sub("", text)


_RANK_MARK = re.compile(r" ?\[rank\d+\]: ?")


def lines_of(text: str) -> list[TracebackLine]:
    """The lines of a text, without colours, torch's marks, and what a carriage return erased."""
    found, begin = [], 0
    for raw in text.split("\n"):
        end = begin + len(raw)
        shown = without_controls(raw.rstrip("\r").rpartition("\r")[2])
        mark = _RANK_MARK.match(shown)
        found.append(
            TracebackLine(shown[mark.end() :] if mark else shown, begin, end, mark is not None)
        )
        begin = end + 1
    return found


_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def without_numbers(line: str) -> str:
    """A line as all ranks print it alike."""
    return _NUMBER.sub("#", line.strip())


BEGINS = "Traceback (most recent call last):"
_HEADER = re.compile(
    r"^[ |+]*(?:Exception Group )?Traceback \(most recent call last\):\s*$|"
    r"^╭─+ Traceback \(most recent call last\) ─+╮$"
)
"""As Python prints it, or as rich draws it."""
_FRAME = re.compile(
    r'^(?:[ |]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?|'
    r"│ (?P<drawn>\S+\.py):(?P<at>\d+) in (?P<within>\S+) *│)$"
)
_EXCEPTION = re.compile(
    r"^(?:[| ]*\| )?(?P<type>(?:[A-Za-z_]\w*\.|<locals>\.)*"
    r"(?!(?:INFO|DEBUG|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)"
    r"(?:[A-Z_]\w*|error|timeout|gaierror|herror))(?:: (?P<message>.*)|:?\s*)$"
)
"""A class's name has a capital, but for a few of the standard library's."""
_MOST_BETWEEN = 3
"""Lines of another process that may stand between two lines of a traceback."""
_IMPLICIT = "During handling of the above exception, another exception occurred:"
_EXPLICIT = "The above exception was the direct cause of the following exception:"
_NOT_ITS_OWN = re.compile(
    r"^Exception ignored in|^Exception in thread |^Process \S+:$|^Error in atexit|"
    r"^--- Logging error ---|^Original Traceback|exception was never retrieved|"
    r"^Exception in callback|^Unhandled exception in|^Error in sys\.(?:excepthook|unraisablehook)"
)
"""What stands in front of the traceback of something that did not end the process."""


def ended_by(text: str) -> PrintedException | None:
    """The exception that ended the process which wrote the text, with those that led to it."""
    lines = lines_of(text)
    found = _all(lines)
    marked = [raised for raised, is_marked, *_ in found if is_marked]
    if marked:
        return marked[-1]
    for raised, _, own in reversed(found):
        if not own:
            continue
        behind = [line for line in lines if line.begin > raised.end]
        said = [line.text for line in behind if line.text.strip()]
        ordinary = [text for text in said if not _AFTERMATH.search(text)]
        steps = sum("INFO" in text or goes_on(text) for text in ordinary)
        if len(ordinary) > _MOST_BEHIND or steps > _MOST_STEPS_BEHIND:
            return _without_traceback(behind)
        return raised
    return None if found else _without_traceback(lines)


def behind_tracebacks(text: str) -> str:
    """What stands behind the first line of the last exception that was printed: if it did not end
    the process, what it said later may tell what did."""
    found = _all(lines_of(text))
    return text[found[-1][0].end :] if found else text


def last_printed(text: str) -> PrintedException | None:
    """The last exception that a text shows, whoever raised it."""
    found = _all(lines_of(text))
    return found[-1][0] if found else None


def last_unless_it_went_on(text: str, *, of_threads: bool = False) -> PrintedException | None:
    """The last exception that the process printed of itself, unless it went on after that: counted
    a step, or says that it tries again. Not for certain what ended it. of_threads: also of its
    threads and children."""
    lines = lines_of(text)
    found = reversed(_all(lines))
    raised = next((raised for raised, _, own in found if own or of_threads), None)
    if raised is None:
        return None
    behind = [line.text for line in lines if line.begin > raised.end and line.text.strip()]
    went_on = len(behind) > _MOST_BEHIND or any(map(goes_on, behind))
    return None if went_on else msgspec.structs.replace(raised, sure=False)


_WENT_ON = re.compile(
    r"(?i)\b(?:step|epoch|iter(?:ation)?|batch)\b\W{0,3}\d|\bloss\W{1,3}\d|\d+%\||"
    r"(?<![-/.\w])(?:retr(?:y|ied|ying)|recover(?:ed|ing)|skipp(?:ed|ing)|continu(?:ed|ing))\b"
)


_COUNTED = re.compile(
    r"(?im)\b(?:step|iter(?:ation)?|batch)s?\b\W{0,3}[1-9]|\bloss\W{1,4}\d|"
    r"\b[1-9]\d*/\d+ \[[\d:]+<[^\]]*it[/s]"
)


def counts_a_step(text: str) -> bool:
    """Whether a log shows a step that was done, in words or on a progress bar."""
    return bool(_COUNTED.search(text))


def goes_on(text: str) -> bool:
    """Whether a line is one of a process that works on: it counts a step, or tries again."""
    return bool(_WENT_ON.search(text))


_BY_THE_WAY = re.compile(
    r"(?i)(?<![-/.\w])(?:info|debug|warn(?:ing)?|hint|notice|retr(?:y|ied|ying))\b(?![-/=])|"
    r"\bif you\b|falling back|using the (?:cached|native)|skipp|\boptional\b|"
    r"\b(?:default|fallback|instead)\b.{0,40}\b(?:is|are|be) used\b|\busing\b.{1,60}\binstead\b"
)


def is_by_the_way(text: str) -> bool:
    """Whether a line tells of something that did not keep the process from going on."""
    return bool(_BY_THE_WAY.search(text))


_AFTERMATH = re.compile(
    r"^\s|^Exception ignored|^Traceback|Warning\b|^wandb:|^\[[WEI]\d*|resource_tracker|"
    r"^terminate called|^frame #|^\*\*\*|^Aborted|^Segmentation fault|NCCL (?:INFO|WARN)|"
    r"^Set the environment variable HYDRA|destroy_process_group|^srun:|^slurmstepd|"
    r"ProcessGroupNCCL|^[EWIF]\d{4} |^For debugging consider|^Compile with|^CUDA kernel errors|"
    r"^Python runtime state|^(?:Current thread|Thread) 0x|^Extension modules|^Fatal Python error|"
    r"^nanobind: |^See https?://|leaked semaphore|"
    r"(?i:at[ _]?exit|shutting down|cleaning up|exiting|aborting|terminating)|"
    r"^\W*$|^\w*Error\b.*ignored|\d+%\||^what\(\)|^Current exception|^https?://|"
    r"TORCH_(?:USE_CUDA_DSA|SHOW_CPP_STACKTRACES|NCCL)|^Original Traceback|^[A-Za-z_.]*Error:"
)
"""What appears behind the last words of a process that is on its way out."""


_Found = tuple[PrintedException, bool, bool]
"""Exception, whether marked, whether the process's own."""


def _all(lines: Sequence[TracebackLine]) -> list[_Found]:
    """All tracebacks in order; of a chain the last link, which leads to the others."""
    found: list[_Found] = []
    place, end = 0, -1
    while place < len(lines):
        if not _HEADER.match(lines[place].text):
            place += 1
            continue
        header, in_front = place, _in_front(lines, place)
        raised, place = _one(lines, place)
        if raised is None:
            continue
        own = True
        if in_front in (_IMPLICIT, _EXPLICIT) and found:
            link, _, own = found.pop()
            raised = msgspec.structs.replace(raised, before=link, meant=in_front == _EXPLICIT)
        elif _NOT_ITS_OWN.search(in_front) or _is_of_a_child(raised):
            own = False
        near = lines[max(0, header - 12) : header]
        before = [line.text for line in near if line.begin > end]
        above = found[-1][0] if found else None
        end = raised.end
        raised = msgspec.structs.replace(
            raised,
            in_front="\n".join(before),
            above=above,
            above_near=bool(above and near and near[0].begin <= above.begin),
        )
        found.append((raised, lines[header].marked, own))
    return found


def _is_of_a_child(raised: PrintedException) -> bool:
    """Whether another process raised it, begun by multiprocessing, that shares standard error."""
    frames = raised.frames
    begun = bool(frames) and frames[0].file == "<string>"
    return begun and any("/multiprocess" in frame.file for frame in frames)


def _in_front(lines: Sequence[TracebackLine], place: int) -> str:
    """What stands in front of a traceback and says whose it is; else the last line."""
    near = [line.text.strip() for line in lines[max(0, place - 4) : place] if line.text.strip()]
    for text in reversed(near):
        if text in (_IMPLICIT, _EXPLICIT) or _NOT_ITS_OWN.search(text):
            return text
    return near[-1] if near else ""


def _one(lines: Sequence[TracebackLine], place: int) -> tuple[PrintedException | None, int]:
    """The traceback that begins at `place`, and the place behind it."""
    marked, frames, between = lines[place].marked, [], 0
    place += 1
    match = None
    while place < len(lines) and between <= _MOST_BETWEEN:
        text = lines[place].text
        if frame := _FRAME.match(text):
            file, line, function = frame["file"], frame["line"], frame["function"]
            if file is None:
                file, line, function = frame["drawn"], frame["at"], frame["within"]
            frames.append(Frame(file, int(line), function or "<module>"))
            between = 0
        elif text[:1] in ("│", "╰"):
            between = 0
        elif text[:1] not in (" ", "\t", "|"):
            if match := _EXCEPTION.match(text):
                break
            if _HEADER.match(text):
                return None, place
            between += 1
        place += 1
    if match is None:
        return None, place
    first = lines[place]
    message, between, place = [match["message"] or ""], 0, place + 1
    while place < len(lines) and len(message) < _MOST_MESSAGE_LINES and between <= _MOST_BETWEEN:
        line = lines[place]
        if marked and not line.marked:
            between += 1
            place += 1
            continue
        if marked != line.marked or _ANEW.match(line.text) or _HEADER.match(line.text):
            break
        if line.text.strip() in (_IMPLICIT, _EXPLICIT):
            break
        message.append(line.text)
        between = 0
        place += 1
    place -= between
    while message and not message[-1].strip():
        message.pop()
    raised = PrintedException(
        type=match["type"],
        message="\n".join(message),
        begin=first.begin,
        end=first.end,
        frames=tuple(frames),
    )
    return raised, place


_ANEW = re.compile(
    r"^Exception ignored in|^Exception in thread|^Process \S+:$|^terminate called|^wandb:|"
    r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|"
    r"^\[[WEI]\d{3,4} |^[EWIF]\d{4} \d\d:|^srun:|^slurmstepd|^Fatal Python error|^Error in atexit|"
    r"^Set the environment variable HYDRA|^\d{4}-\d\d-\d\d[ T]\d\d:|^\S+:\d+:\d+ \[\d+\] NCCL|"
    r"^.*resource_tracker: |^[^ ]+\.py:\d+: \w*Warning|^\*\*\* Process"
)
"""A line that begins something else than one more line of an exception's message."""


_NAMES = ("Error", "Exception", "Interrupt", "Failure", "Unsupported")
"""With which a type's name ends, where no traceback shows that it is one."""


def names_an_error(line: str) -> bool:
    """Whether it is an error's type and message, as behind a traceback."""
    match = _EXCEPTION.match(line)
    return match is not None and match["type"].endswith(_NAMES[:2]) and bool(match["message"])


def _without_traceback(lines: Sequence[TracebackLine]) -> PrintedException | None:
    """A last line that only names an exception, as of a syntax error or a cut log."""
    for line in reversed([line for line in lines if line.text.strip()][-3:]):
        match = _EXCEPTION.match(line.text)
        if match and match["type"].endswith(_NAMES) and match["type"] not in _NAMES:
            return PrintedException(
                type=match["type"],
                message=match["message"] or "",
                begin=line.begin,
                end=line.end,
                sure=False,
            )
    return None


def of_a_rank(raised: PrintedException) -> PrintedException | None:
    """The last of the exceptions that torch's distributed checkpoint collects from the ranks."""
    return last_printed(re.sub(r"(?<=last\):) \(RANK \d+\)", "", raised.message))


def inner(raised: PrintedException) -> PrintedException:
    """The exception itself, where another process's was caught and raised again with its traceback
    in the message, as torch does with those of loader workers."""
    if BEGINS not in raised.message:
        return raised
    within = last_printed(raised.message.replace("Original Traceback", "Traceback"))
    if within is None:
        return raised
    return msgspec.structs.replace(
        within, begin=raised.begin, end=raised.end, frames=(*raised.frames, *within.frames)
    )
