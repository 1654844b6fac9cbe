"""What a training's own output says: the newest line of a rank, and the step, loss and rate that
common trainers print. For a person to see; nothing is decided by it, and what fsdpkit.log recorded
takes precedence over it.

The end of a rank's standard output and error is read, whatever their size. Everything below
`printed_in` is pure. No pattern here tries a line in more than a few ways, and each sees its first
`_LONGEST` characters; the pattern of `[metrics]` is matched in linear time within a budget.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from fsdpkit.config.linear_regex import LinearRegex
from fsdpkit.reporting.printable import one_line
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.runs.history import History
from fsdpkit.runs.reading import LARGEST, open_regular
from fsdpkit.runs.samples import decoded

TAIL_BYTES = 1 << 16
_FAR_BYTES = 1 << 20
"""Looked through where the last 64 KiB have no step."""
_MOST_LINES = 400
_LONGEST = 400
_BUDGET_S = 0.5
"""For the lines of one rank, each time that a run is looked at."""
_SETTLED_S = 2.0
"""After so long without more, a line without an end is taken for whole."""


class Tail(NamedTuple):
    """The end of a file that a rank prints into."""

    data: bytes
    whole: bool
    """Whether that is all of the file."""
    written_s: float
    """When it last grew, Unix time."""


class PrintedNumbers(NamedTuple):
    """What one line says."""

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    loss: float | None = None
    has_loss: bool = False
    """Also of one that is not finite."""
    rate: float | None = None
    rate_unit: str = ""
    unnamed: int | None = None
    """The total of a bar with no word and no number that says whether the training is counted."""


# From the files


def printed_by(history: History, job: Mapping[str, Any], ranks: int) -> Printed | None:
    """What the newest launch of a training has printed; None if nothing. `ranks`: how many it
    has; Megatron's trainers, for example, print on the last one."""
    found: Printed | None = None
    for rank in dict.fromkeys((0, max(0, ranks - 1))):
        one = printed_in(tails(history, rank), pattern_of(job), time.time(), rank)
        if one is not None and (one.place or found is None):
            found = one
        if found is not None and found.place:
            break
    if found is not None and not found.words and pattern_of(job) is None:
        found = _from_farther_back(history, found)
    if found is None or found.step is None:
        steps = _optimizer_steps(history)
        if steps is not None:
            found = msgspec.structs.replace(found or Printed(), optimizer_steps=steps)
    return found


def _optimizer_steps(history: History) -> int | None:
    """As the newest sample has it that has any, of the first nodes."""
    if not history.attempts:
        return None
    attempt = history.attempts[-1]
    for node in attempt.nodes[:_MOST_NODES]:
        tail = _tail(attempt.paths.node_samples(node.number), TAIL_BYTES)
        for sample in reversed([*decoded(tail.data)] if tail else []):
            if sample.optimizer_steps is not None:
                return sample.optimizer_steps
    return None


_MOST_NODES = 4
"""With the first rank of each node the same steps are made."""


def _from_farther_back(history: History, found: Printed) -> Printed:
    """Where much is printed between two steps: what the newest lines that may name one say."""
    far = tails(history, found.rank, _FAR_BYTES)
    if all(len(tail.data) <= TAIL_BYTES for tail in far):
        return found
    few = []
    for tail in far:
        pieces = [*filter(bytes.strip, _ENDS.split(tail.data)[not tail.whole :])]
        *kept, last = pieces or [b""]
        kept = [*filter(_MAY_COUNT.search, kept), last, b""]
        few.append(tail._replace(data=b"\n".join(kept)))
    one = printed_in(few, None, time.time(), found.rank)
    if one is None or not one.words:
        return found
    return msgspec.structs.replace(one, line=found.line, printed_s=found.printed_s)


def tails(history: History, rank: int = 0, most: int = TAIL_BYTES) -> list[Tail]:
    """The ends of the rank's output in the newest launch, of standard output first."""
    if not history.attempts:
        return []
    attempt = history.attempts[-1]
    launch = attempt.launches[-1].number if attempt.launches else 0
    files = [attempt.paths.rank_file(rank, kind, launch) for kind in STREAMS]
    return [tail for file in files if (tail := _tail(file, most)) is not None]


STREAMS: tuple[Literal["out"], Literal["err"]] = ("out", "err")


def _tail(file: Path, most: int) -> Tail | None:
    with contextlib.suppress(OSError), open_regular(file) as opened:
        found = os.fstat(opened.fileno())
        opened.seek(max(0, found.st_size - most))
        return Tail(opened.read(most), found.st_size <= most, found.st_mtime)
    return None


_MOST_FILES = 256


def last_print_s(history: History) -> float | None:
    """When any rank of the newest attempt last printed, Unix time; of many ranks some are asked."""
    if not history.attempts:
        return None
    newest = None
    with contextlib.suppress(OSError), os.scandir(history.attempts[-1].dir) as entries:
        files = [e for e in entries if e.name.startswith("rank-") and e.name.endswith(STREAMS)]
        for entry in files[:: -(-len(files) // _MOST_FILES) or 1]:
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if found.st_size:
                    newest = max(newest or 0.0, found.st_mtime)
    return newest


def pattern_of(job: Mapping[str, Any]) -> str | None:
    metrics = job.get("metrics")
    pattern = metrics.get("pattern") if isinstance(metrics, Mapping) else None
    return pattern if isinstance(pattern, str) else None


# Pure


def printed_in(
    tails: Sequence[Tail], pattern: str | None, now_s: float, rank: int = 0
) -> Printed | None:
    """What the ends of a rank's files say; None if they are empty."""
    newest_first = sorted(tails, key=lambda tail: -tail.written_s)
    lines = [found for tail in newest_first if (found := lines_in(tail, now_s))]
    if not lines:
        return None
    own = [[line for line in stream if not _OF_TORCH.match(line)] for stream in lines]
    lines = [stream for stream in own if stream] or lines
    numbers, remark = _numbers(lines, pattern)
    return Printed(
        rank=rank,
        line=one_line(lines[0][-1]),
        printed_s=newest_first[0].written_s,
        remark=remark,
        **{name: value for name, value in numbers._asdict().items() if name in _TOLD},
    )


_TOLD = frozenset(Printed.__struct_fields__)


_ENDS = re.compile(rb"[\r\n\x08]+")


def lines_in(tail: Tail, now_s: float, most: int = _MOST_LINES) -> list[str]:
    """Its lines and the versions of its bars, oldest first; what is still being written only if
    it is a whole bar, or has been there for a while."""
    pieces = _ENDS.split(tail.data)
    unfinished = pieces.pop()
    pieces = pieces if tail.whole else pieces[1:]
    settled = now_s - tail.written_s > _SETTLED_S
    if settled or _BAR_ENDS.search(unfinished) or not any(map(bytes.strip, pieces)):
        pieces.append(unfinished)
    texts = (_CSI.sub("", p[: 4 * _LONGEST].decode(errors="replace")) for p in pieces[-most:])
    return [text[:_LONGEST] for text in texts if text.strip()]


_MAY_COUNT = re.compile(rb"(?i)step|iter|epoch|update|batch|loss|\d\s*/\s*\d|\dit \[")
_BAR_ENDS = re.compile(rb"%\|[^|]*\| *\S+ \[[^\]]*\] *$")
_CSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LossPoint(NamedTuple):
    """A loss beside the step that the same line has, or beside the epoch."""

    epoch: float | None
    step: int | None
    total: int | None
    loss: float


def points_in(
    tails: Sequence[Tail], pattern: str | None, now_s: float, most_lines: int = _MOST_LINES
) -> list[LossPoint]:
    """Of the output that has the most of them, oldest first: those with a step, if there are any.
    `most_lines` also bounds the time."""
    budget_s = _BUDGET_S * min(4.0, most_lines / _MOST_LINES)
    found: list[LossPoint] = []
    for tail in tails:
        points: list[LossPoint] = []
        with contextlib.suppress(TimeoutError, ValueError):
            read = _reader(pattern, budget_s)
            for one in map(read, lines_in(tail, now_s, most_lines)):
                if one.loss is not None and (one.step is not None or one.epoch is not None):
                    points.append(LossPoint(one.epoch, one.step, one.total, one.loss))
        stepped = [point for point in points if point.step is not None]
        found = max(found, stepped or points, key=len)
    return found


Reader = Callable[[str], "PrintedNumbers"]


def _reader(pattern: str | None, budget_s: float) -> Reader:
    """Reads a line, and nothing in it once the budget is spent. Raises ValueError for a pattern
    that is none; what it returns for one raises TimeoutError then, and from then on."""
    deadline = time.monotonic() + budget_s
    if pattern is None:
        return lambda line: numbers_in(line) if time.monotonic() < deadline else PrintedNumbers()
    regex = _compiled(pattern)
    if isinstance(regex, str):
        raise ValueError(regex)

    def read(line: str) -> PrintedNumbers:
        if pattern in _SLOW:
            raise TimeoutError
        try:
            return _of_groups(regex.search(line, deadline) or {})
        except TimeoutError:
            _SLOW.add(pattern)
            raise

    return read


_SLOW: set[str] = set()
"""Patterns that took too long once, which this process does not use again."""


def _numbers(
    streams: Sequence[Sequence[str]], pattern: str | None
) -> tuple[PrintedNumbers, str | None]:
    found, why = PrintedNumbers(), "it matches no line at the end of the output"
    try:
        read = _reader(pattern, _BUDGET_S)
        found = _newest(map(read, reversed(lines)) for lines in streams)
    except TimeoutError:
        why = f"it takes more than {_BUDGET_S} s for the end of the output"
    except ValueError as error:
        why = str(error)
    said = pattern is None or found != PrintedNumbers()
    return found, None if said else f"[metrics] pattern: {why}"


def _newest(streams: Iterable[Iterable[PrintedNumbers]]) -> PrintedNumbers:
    """The newest step, loss and rate, each from the line that has it. An unnamed bar that came to
    its end before anything else was printed may have been one of the preparations."""
    found = PrintedNumbers()
    over: set[int | None] = set()
    followed = False
    for lines in streams:
        for one in lines:
            if one.unnamed is not None and followed and one.step == one.unnamed:
                over.add(one.unnamed)
            if one.unnamed in over:
                continue
            followed = True
            earlier = one.epoch is not None and (found.epoch or 0) > one.epoch
            if one.step is not None and found.step is None and not earlier:
                found = found._replace(step=one.step, total=one.total)
            if one.epoch is not None and found.epoch is None:
                found = found._replace(epoch=one.epoch, epochs=one.epochs)
            if one.has_loss and not found.has_loss:
                found = found._replace(loss=one.loss, has_loss=True)
            if one.rate is not None and found.rate is None:
                found = found._replace(rate=one.rate, rate_unit=one.rate_unit)
            if found.step is not None and found.has_loss and found.rate is not None:
                return found
    return found


# One line of a common trainer

_INTEGER = r"\d[\d,_]{0,18}"
_NUMBER = r"[-+]?(?:\d[\d,_]{0,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][-+]?\d{1,3})?"
_WHOLE = r"(?![\d.]*\d|%|\s?(?:ms|s|sec|it)\b)"
"""What may not follow a count."""
_BAR = re.compile(
    # `Epoch 1:  37%|███▋      | 37/100 [00:07<00:12,  5.01it/s, loss=0.0270]`; keras; rich
    r"\d{1,3}%\|[^|]{0,300}\|\s*(?P<n>[\d.]+[kMGT]?)/(?P<of>[\d.]+[kMGT]?)\s*\["
    r"|^\s*(?P<n2>\d+)/(?P<of2>\d+)\s*(?:\[[=.>]|[━╸╺])"
    r"|[━╸╺─]{3,}\s*(?P<n3>\d+)/(?P<of3>\d+)\b"
    r"|(?P<n4>\d+)it \[\d"
)
_BRACKET = re.compile(
    # `Epoch: [0][  10/5005]`, `Train Epoch: 1 [640/60000 (1%)]`, `Training  [  10/125000]`
    r"\[\s*(?P<n>\d{1,12})\s*/\s*(?P<of>\d{1,12})\s*(?:\(\s*\d{1,3}\s*%\s*\)\s*)?\]"
)
_COUNT = re.compile(
    # `iter 100:`, `iteration  100/ 5000 |`, `"global_step": 10`, `step 3 of 9`, `Batch [3/10]`
    r"(?<![A-Za-z])(?P<word>step|iter|iteration|update|batch|steps"
    rf"|updates)[\"']?\s{{0,8}}[:=#]?\s{{0,8}}[\[\"']?\s{{0,8}}(?P<n>{_INTEGER}){_WHOLE}"
    rf"(?:\s{{0,8}}(?:/|of|out of)\s{{0,8}}(?P<of>{_INTEGER}){_WHOLE})?",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"(?<![A-Za-z])(?P<word>epochs?)(?:\([a-z]{1,9}\))?[\"']?\s{0,8}[:=#]?\s{0,8}[\[\"'(]{0,2}\s{0,8}"
    r"(?P<n>\d{1,9}(?:\.\d{1,18})?)(?![\d.]*%|\d)"
    r"(?:\s{0,8}(?:/|of|out of)\s{0,8}(?P<of>\d{1,9}))?",
    re.IGNORECASE,
)
_SHARE = re.compile(
    r"(?<![\w/.:\[-])(?<!poch )(?<!poch: )(?<!poch:)(?P<n>\d{1,12})/(?P<of>\d{1,12})(?![\w/.-])"
)
_PAIR = re.compile(r"^\s*\[(?P<epoch>\d{1,9}),\s*(?P<n>\d{1,12})\]")
_LOSS = re.compile(
    r"(?<![a-z])loss(?:es)?(?:[\s_(]{1,2}(?:train|training|avg|mean|total)\)?)?[\"']?\s{0,8}[:=]?"
    rf"\s{{0,8}}[\"']?(?:tensor\()?(?P<value>nan\b|[-+]?inf\b|{_NUMBER})",
    re.IGNORECASE,
)
_RATE = re.compile(
    rf"(?P<value>{_NUMBER})\s?(?P<unit>[A-Za-z]{{0,12}}/(?:s|sec|second|it|step|iter|batch))\b"
    r"(?![\"']?\s{0,8}[:=])"
    r"|(?<![A-Za-z])(?P<unit2>tps|wps|tok(?:ens?)?_?(?:/|_per_|/_| per )s(?:ec(?:ond)?)?"
    r"|(?:img|image|sample)s?(?:/|_per_)s(?:ec(?:ond)?)?)[\"']?\s{0,8}[:=]?\s{0,8}"
    rf"(?P<value2>{_NUMBER}[kKMG]?)(?!\w*/)"
)
_NOT_TRAINING = re.compile(
    r"(?i)(?<![a-z])(?:load|download|upload|fetch|map|filter|token|generat|eval|val|test|predict"
    r"|sanity|prepar|process|read|cach|sav|writ|copy|convert|extract|compil|pack|group|warm|split"
    r"|quantiz|shard|files|examples)"
)
_OF_A_SETTING = re.compile(
    r"(?i)max|maximum|total|num|number|n|warmup|accum|accumulation|per|every|save|saving|eval|log"
    r"|logging|interval|optimization|decay|val|valid|validation|test|mini|best|until"
    r"|(?:hyper|h)?param(?:eter)?s?|config(?:uration)?|settings?|arg(?:ument)?s?|namespace"
)
"""A word before a count that was set, or is not the training's: `max_steps: 100`."""
_OF_THE_TRAINING = re.compile(
    r"(?i)global|train|training|trainer|optim|optimizer|cur|curr|current|this|iter|step|epoch|batch"
)
"""A part of a name that a training counts by: `trainer/global_step`."""
_OF_TORCH = re.compile(
    # glog's form: `[rank0]:W1126 07:55:13.692000 9755 torch/x.py:183] [4/0] …`
    r"\s*(?:\[rank\d+\]:\s?)?\[?[A-Z]\d{4} [\d:.]+ +(?:\d+ +)?"
    r"(?:(?:\S*/)?torch/\S+|\S+\.(?:cpp|cc|cxx|cu|h|hpp)):\d+\]"
)
_OF_HELD_OUT = re.compile(
    r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)[\s_./-]*$"
)


def numbers_in(line: str) -> PrintedNumbers:
    """What a line of a common trainer says; nothing where it counts something else, such as files
    that are loaded, or says what was set."""
    bar = _BAR.search(line)
    front = line[: bar.start()] if bar else line
    bracket = None if bar else _BRACKET.search(line)
    if _OF_TORCH.match(line) or (bar and _is_other(front)):
        return PrintedNumbers()
    if bracket and _is_other(line[: bracket.start()][-40:]):
        return PrintedNumbers()
    loss = _loss(line)
    epoch, epochs = _epoch(front, loss is not None)
    step, total = _step(line, bar, loss is not None)
    named = loss is not None or epoch is not None or _SAYS_TRAINING.search(front)
    if bar and not named and step is None:
        return PrintedNumbers()
    if bar and _EPOCH_BEFORE.search(front):
        epoch, epochs, step, total = step, total, None, None
    if pair := loss is not None and _PAIR.search(line):
        epoch = float(pair["epoch"])
    value, unit = _rate(line)
    return PrintedNumbers(
        step=step,
        total=total,
        epoch=epoch,
        epochs=epochs,
        loss=_finite(loss),
        has_loss=loss is not None,
        rate=value,
        rate_unit=unit,
        unnamed=total if bar and not named else None,
    )


_SAYS_TRAINING = re.compile("(?i)epoch|train")


def _is_other(front: str) -> bool:
    """Whether what stands before a count says that other things than training steps are counted."""
    return bool(_NOT_TRAINING.search(front)) and not _SAYS_TRAINING.search(front)


def _step(line: str, bar: re.Match[str] | None, has_loss: bool) -> tuple[int | None, int | None]:
    """The first step, and how many there are, that can be one of several."""
    ways = _of_bar(bar) if bar else _of_words(line, has_loss)
    return next(((n, of) for n, of in ways if of is None or n <= of > 1), (None, None))


_Steps = Iterator[tuple[int, int | None]]


def _of_bar(bar: re.Match[str]) -> _Steps:
    n, of = next((bar[f"n{i}"], bar.groupdict().get(f"of{i}")) for i in _WAYS if bar[f"n{i}"])
    if (step := _integer(n)) is not None:
        yield step, _integer(of)


def _of_words(line: str, has_loss: bool) -> _Steps:
    if pair := has_loss and _PAIR.search(line):
        yield int(pair["n"]), None
    counts = [one for one in _COUNT.finditer(line) if _counts(line, one, has_loss)]
    counts.sort(key=lambda one: _COUNTED.index(one["word"].lower().rstrip("s")[:4]))
    brackets = list(_BRACKET.finditer(line))
    if not counts and (has_loss or _SAYS_TRAINING.search(line)):
        for one in brackets[1:] or brackets:
            of_epochs = _EPOCH_BEFORE.search(line[: one.start()]) and len(brackets) == 1
            if not of_epochs:
                yield int(one["n"]), int(one["of"])
    for one in counts:
        if (step := _integer(one["n"])) is not None:
            yield step, _integer(one["of"])
    if not counts and has_loss:  # `12/90` that is no date and follows no word for an epoch
        yield from ((int(one["n"]), int(one["of"])) for one in _SHARE.finditer(line))


_WAYS = ("", "2", "3", "4")
_COUNTED = ("step", "iter", "upda", "batc")
"""Where a line has several, the first of these."""
_EPOCH_BEFORE = re.compile(r"(?i)epochs?[\s:=(]*$")


def _counts(line: str, one: re.Match[str], has_loss: bool) -> bool:
    """Whether it says how far the training is, and not what was set: `max_steps: 100`,
    `epochs: 4`."""
    front = line[max(0, one.start() - 40) : one.start()]
    name = _NAME.search(front)
    words = _WORDS.findall(name[0] if name else _PHRASE.findall(front)[0])
    word = one["word"].lower()
    if any(map(_OF_A_SETTING.fullmatch, words)) and (words, word) != (["num"], "updates"):
        return False
    if has_loss:
        return True
    if name and not all(map(_OF_THE_TRAINING.fullmatch, words)):
        return False
    if one["of"] is not None:
        return True
    return bool(_IN_EPOCH.search(front)) if word == "batch" else not word.endswith("s")


_NAME = re.compile(r"[\w./-]+[_./-]$")
_IN_EPOCH = re.compile(r"(?i)epoch\W{1,4}\d")
_PHRASE = re.compile(r"(?:[A-Za-z]+[ |]{1,3})*$")
_WORDS = re.compile("[A-Za-z]+")


def _epoch(line: str, has_loss: bool) -> tuple[float | None, int | None]:
    for found in _EPOCH.finditer(line):
        n, of = float(found["n"]), int(found["of"]) if found["of"] else None
        if _counts(line, found, has_loss) and (of is None or n <= of):
            return n, of
    return None, None


def _loss(line: str) -> float | None:
    """The first loss that is not one of held-out data."""
    for found in _LOSS.finditer(line):
        if not _OF_HELD_OUT.search(line[max(0, found.start() - 24) : found.start()]):
            return _float(found["value"])
    return None


def _rate(line: str) -> tuple[float | None, str]:
    for found in _RATE.finditer(line):
        unit = found["unit"] if found["unit2"] is None else found["unit2"]
        value = _scaled(found["value"] or found["value2"])
        if value is not None and 0 <= value <= LARGEST:
            return value, {"tps": "tokens/s", "wps": "words/s"}.get(unit, unit)
    return None, ""


_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _integer(text: str | None) -> int | None:
    """`1,234`, `1_234`, `1.2k`."""
    value = _scaled(text or "")
    return round(value) if value is not None and 0 <= value <= 2**53 else None


def _scaled(text: str) -> float | None:
    value = _float(text.rstrip("".join(_SCALES)))
    return None if value is None else value * _SCALES.get(text[-1:], 1)


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


# The pattern of [metrics]


def _of_groups(groups: Mapping[str, str]) -> PrintedNumbers:
    loss = _float(groups.get("loss", ""))
    return PrintedNumbers(
        step=_integer(groups.get("step", "").strip()),
        total=_integer(groups.get("total", "").strip()),
        epoch=_finite(_float(groups.get("epoch", ""))),
        loss=_finite(loss),
        has_loss=loss is not None,
        rate=_finite(_float(groups.get("rate", ""))),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= LARGEST else None


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> LinearRegex | str:
    try:
        return LinearRegex(pattern)
    except ValueError as error:
        return str(error)
