"""What one line of a training's output says: its step, loss and rate, in the formats of common
trainers, or by the pattern of `[metrics]`. Pure.

No pattern here tries a line in more than a few ways; `[metrics]` is matched in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fsdpkit.runs.reading import LARGEST


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
OF_TORCH = re.compile(
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
    if OF_TORCH.match(line) or (bar and _is_other(front)):
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


def numbers_in_groups(groups: Mapping[str, str]) -> PrintedNumbers:
    """What the named groups of a match of `[metrics] pattern` say."""
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
