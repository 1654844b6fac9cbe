"""Text in, tensors out: Python's own documentation, or a user's JSONL or CSV, as ByT5 bytes.

The default needs no download: the standard library's sources (write a function's docstring from
its code) and the language reference that `help()` shows (fill the gaps). Every rank builds the same
list in the same order; which rank reads which sample is the sampler's business.

The vocabulary is ByT5's (Xue et al. 2022): pad 0, end of text 1, unknown 2, byte b is b + 3.
Gaps are marked by the highest byte ids, 258 and downwards, as in the released models; valid UTF-8
never uses the first eleven of them.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import random
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from model import EOS, IGNORE, PAD
from torch import Tensor

from fsdpkit.config.training import DataSettings
from fsdpkit.errors import ConfigError, NotFoundError

BYTE_OFFSET = 3
FIRST_SENTINEL = 258
NOISE_DENSITY, MEAN_SPAN_BYTES = 0.15, 20  # ByT5's recipe for span corruption

# Well documented and quick to parse: a third of a second for some 1,700 functions. A module that
# a Python version lacks is left out.
# fmt: off
MODULES = [
    "_collections_abc", "_pydecimal", "_pydatetime", "bdb", "bisect", "calendar", "cmd", "code",
    "codecs", "configparser", "contextlib", "datetime", "difflib", "dis", "fileinput",
    "fractions", "ftplib", "functools", "genericpath", "graphlib", "heapq", "hmac", "imaplib",
    "inspect", "ipaddress", "linecache", "lzma", "numbers", "operator", "pathlib", "platform",
    "poplib", "posixpath", "random", "sched", "secrets", "selectors", "shlex", "shutil", "site",
    "smtplib", "socket", "socketserver", "stat", "statistics", "symtable", "tarfile",
    "textwrap", "threading", "traceback", "typing",
]
# fmt: on


class Sample(NamedTuple):
    """What the encoder reads and the decoder should write, as token ids ending in EOS."""

    source: list[int]
    target: list[int]


class Batch(NamedTuple):
    """B samples, padded to the longest: S source and T target tokens."""

    source: Tensor  # int64 [B, S], PAD after the end
    source_mask: Tensor  # bool [B, S], true on real tokens
    labels: Tensor  # int64 [B, T], IGNORE after the end: padding is never trained on

    def to(self, device: torch.device) -> Batch:
        return Batch(*(part.to(device, non_blocking=True) for part in self))


def load_samples(data: DataSettings, seed: int) -> list[Sample]:
    """All samples, the same on every rank; `seed` decides where span corruption cuts its gaps.

    Raises NotFoundError for a missing file and ConfigError, with file and row, for a bad one.
    """
    if data.task == "span-corruption":
        texts = _python_topics() if data.source == "python-docs" else _column(data)
        return list(_span_corruption(texts, data, seed))
    if data.source == "python-docs":
        pairs = _python_docstrings()
    else:
        pairs = _rows(Path(data.source), [data.source_field, data.target_field])
    return [
        Sample(encode(source, data.source_length), encode(target, data.target_length))
        for source, target in pairs
    ]


def split(samples: Sequence[Sample], held_out: float) -> tuple[list[Sample], list[Sample]]:
    """Training and held-out samples: every n-th is held out, wherever it stands in the text."""
    every = round(1 / held_out) if held_out else len(samples) + 1
    kept = [s for i, s in enumerate(samples, 1) if i % every]
    return kept, [s for i, s in enumerate(samples, 1) if not i % every]


def collate(samples: Sequence[Sample]) -> Batch:
    """Pad to the longest; no samples at all give one row of nothing, whose loss is zero.

    A rank that has run out of data still has to take part in every collective of the step.
    """
    rows = samples or [Sample([PAD], [IGNORE])]
    source = _pad([s.source for s in rows], PAD)
    return Batch(source, source != PAD, _pad([s.target for s in rows], IGNORE))


def encode(text: str, length: int) -> list[int]:
    """At most `length` ids, the last of them EOS."""
    return [b + BYTE_OFFSET for b in text.encode()[: length - 1]] + [EOS]


def decode(ids: Sequence[int]) -> str:
    """The text that `ids` stand for, up to EOS; what is no byte is left out."""
    ids = list(ids)
    ids = ids[: ids.index(EOS)] if EOS in ids else ids
    return bytes(i - BYTE_OFFSET for i in ids if 0 <= i - BYTE_OFFSET < 256).decode(
        errors="replace"
    )


def fingerprint(samples: Sequence[Sample]) -> str:
    """A short hash of all samples, to check that ranks read the same data."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr(sample).encode())
    return digest.hexdigest()[:16]


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def _python_docstrings() -> Iterator[tuple[str, str]]:
    """(code without its docstring, docstring) of every documented function in MODULES."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in (library / f"{name}.py" for name in MODULES):
        if not path.exists():
            continue
        code = path.read_text(encoding="utf-8")
        lines = code.splitlines()
        for function in _functions(ast.parse(code).body):
            docstring = ast.get_docstring(function)
            if docstring and len(function.body) > 1:
                header = lines[function.lineno - 1 : function.body[0].lineno - 1]
                body = lines[function.body[1].lineno - 1 : function.end_lineno]
                yield "\n".join(line.strip() for line in header + body), docstring


def _functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body)


def _python_topics() -> Iterator[str]:
    from pydoc_data import topics

    for _, text in sorted(topics.topics.items()):
        yield text


def _column(data: DataSettings) -> Iterator[str]:
    for (text,) in _rows(Path(data.source), [data.source_field]):
        yield text


def _rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The named fields of each row of a JSONL or CSV file; a bad row is an error that names it."""
    read = _jsonl if path.suffix == ".jsonl" else _csv
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for number, row in read(path, file):
                values = [row.get(field) for field in fields]
                for field, value in zip(fields, values, strict=True):
                    if not isinstance(value, str) or not value:
                        raise ConfigError(
                            f"{path}, line {number}: field {field!r} must be a non-empty string, "
                            f"but is {value!r}; the row has {', '.join(map(str, row))}."
                        )
                yield tuple(map(str, values))
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file (training.data.source).") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 near byte {error.start}: {error.reason}.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None


def _jsonl(path: Path, file: Iterator[str]) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise ConfigError(f'{path}, line {number}: must be an object like {{"source": "…"}}.')
        yield number, row


def _csv(path: Path, file: Iterator[str]) -> Iterator[tuple[int, dict[str, object]]]:
    reader = csv.DictReader(file, strict=True)
    try:
        for row in reader:
            yield reader.line_num, dict(row)
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: not CSV: {error}.") from None


def _span_corruption(texts: Iterator[str], data: DataSettings, seed: int) -> Iterator[Sample]:
    """Cut `texts` into windows and replace some spans of each by sentinels; the target is the
    spans (Raffel et al. 2020, §3.1.4). Which spans depends on the seed and the window's number."""
    window = _window(data.source_length, data.target_length)
    number = 0
    for text in texts:
        raw = text.encode()
        for start in range(0, len(raw), window):
            ids = [b + BYTE_OFFSET for b in raw[start : start + window]]
            if len(ids) >= 8:
                yield corrupt(ids, random.Random(f"{seed}:{number}"))
                number += 1


def _window(source_length: int, target_length: int) -> int:
    """The most bytes whose corrupted source and target both fit."""
    window = 8
    while True:
        noise, spans = _noise(window + 1)
        source, target = window + 1 - noise + spans + 1, noise + spans + 1
        if source > source_length or target > target_length:
            return window
        window += 1


def _noise(length: int) -> tuple[int, int]:
    """Bytes to remove from `length`, and in how many spans."""
    noise = max(1, round(length * NOISE_DENSITY))
    return noise, max(1, round(noise / MEAN_SPAN_BYTES))


def corrupt(ids: Sequence[int], rng: random.Random) -> Sample:
    """Replace random spans of `ids` by sentinels; the target lists sentinels and spans.

    A window may begin or end with a gap or with kept text; the original recipe always ends with a
    gap, which in a window of one gap would make it the same task each time.
    """
    noise, spans = _noise(len(ids))
    removed = _partition(noise, spans, rng)
    kept = _partition(len(ids) - noise + 2, spans + 1, rng)
    kept[0], kept[-1] = kept[0] - 1, kept[-1] - 1  # only between two gaps must something be kept
    source: list[int] = []
    target: list[int] = []
    at = 0
    for i, (keep, remove) in enumerate(zip(kept[:-1], removed, strict=True)):
        sentinel = FIRST_SENTINEL - i
        source += [*ids[at : at + keep], sentinel]
        target += [sentinel, *ids[at + keep : at + keep + remove]]
        at += keep + remove
    return Sample([*source, *ids[at:], EOS], [*target, EOS])


def _partition(total: int, parts: int, rng: random.Random) -> list[int]:
    """`total` as a sum of `parts` positive numbers, each such sum as likely as any other."""
    cuts = sorted(rng.sample(range(1, total), parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
