"""The cases as they stand in text files: `cases/SET/NAME.txt`.

A file begins with what is not text, as TOML, up to a line `---`. Then come sections, each with a
head in brackets: `[rank 0-3,5] status=1 after_s=0.06`, `[others]`, `[stacks 3]`, `[batch]`,
`[node 1]`, `[file PATH]`. Of a rank the texts follow behind `err:` and `out:`. A line of text has a
space in front, or `>` where torch's excepthook wrote `[rankN]: ` there; «NAME» alone on it stands
for the lines of snippets.txt of that name, «r» for the number of the rank, «300*x» for as many
letters, and «9 more» below a line for as many of the same. Control characters and backslashes are
escaped as in Python; `\\c` at the end of a text says that its last line has no newline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from tests.reporting.unseen.case import Case, Rank, Want

HERE = Path(__file__).resolve().parent
CASES = HERE / "cases"
_NAME = re.compile(r"«([a-z_0-9]+)»")
_MORE = re.compile(r"«(\d+) more»")
_RUN = re.compile(r"«(\d+)\*(.)»")
_ESCAPED = re.compile(r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


class _Head(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What stands above the texts."""

    source: str
    nodes: int
    gpus: int
    step: int | None = None
    hung: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    slurm: str = "FAILED|1:0"
    memory_share: dict[str, float] = {}
    before_ranks: bool = False
    best: str
    also: tuple[str, ...] = ()
    rank: int | str | None = None
    node: str | None = None
    forbid: str = ""
    retry: str = "any"


def all_cases() -> list[Case]:
    return cases_below(CASES)


def cases_below(directory: Path) -> list[Case]:
    """Of all files, by set and name; those of two sets may have one name."""
    return [read_case(file) for file in sorted(directory.rglob("*.txt"))]


def read_case(file: Path) -> Case:
    above, _, below = file.read_text(encoding="utf-8").partition("\n---\n")
    head = msgspec.toml.decode(above, type=_Head)
    texts: dict[str, Any] = {"ranks": {}, "stacks": {}, "node_logs": {}, "files": {}}
    for kind, what, options, lines in _sections(below):
        if kind in ("rank", "others"):
            for number in _numbers(what) if kind == "rank" else [None]:
                left = Rank(**options, **_parts(lines, number))
                if number is None:
                    texts["others"] = left
                else:
                    texts["ranks"][number] = left
        elif kind == "stacks":
            texts["stacks"].update((n, _text(lines, n)) for n in _numbers(what))
        elif kind == "batch":
            texts["batch"] = _text(lines, None)
        elif kind == "node":
            texts["node_logs"].update((n, _text(lines, None)) for n in _numbers(what))
        else:
            texts["files"][what] = _text(lines, None)
    want: Any = {"rank": head.rank, "node": head.node, "forbid": head.forbid, "retry": head.retry}
    return Case(
        name=file.stem,
        source=head.source,
        nodes=head.nodes,
        gpus=head.gpus,
        step=head.step,
        hung=head.hung,
        lost=head.lost,
        slurm=head.slurm,
        memory_share={int(node): share for node, share in head.memory_share.items()},
        before_ranks=head.before_ranks,
        want=Want(frozenset((head.best, *head.also)), head.best, **want),
        **texts,
    )


_HEAD = re.compile(r"\[(rank|others|stacks|batch|node|file)(?: ([^]]+))?\](.*)")


def _sections(text: str) -> Iterator[tuple[str, str, dict[str, Any], list[str]]]:
    lines: list[str] = []
    head: re.Match[str] | None = None
    for line in [*text.split("\n"), "[batch]"]:
        found = _HEAD.fullmatch(line)
        if found is None:
            lines.append(line)
            continue
        if head is not None:
            options = dict(word.split("=") for word in head[3].split())
            numbers = {k: float(v) if k == "after_s" else int(v) for k, v in options.items()}
            yield head[1], head[2] or "", numbers, lines[:-1] if lines[-1:] == [""] else lines
        head, lines = found, []


def _numbers(words: str) -> Iterator[int]:
    for word in words.split(","):
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _parts(lines: list[str], rank: int | None) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for line in lines:
        if line in ("err:", "out:"):
            found[line[:-1]] = []
        else:
            found[[*found][-1]].append(line)
    return {name: _text(part, rank) for name, part in found.items()}


def _text(lines: list[str], rank: int | None) -> str:
    told: list[str] = []
    newest: list[str] = []
    for line in lines:
        more = _MORE.fullmatch(line)
        newest = newest if more else _lines(line)
        told += newest * (int(more[1]) if more else 1)
    text = "".join(f"{line}\n" for line in told).replace("«r»", "" if rank is None else str(rank))
    if text.endswith("\\c\n"):
        text = text[:-3]
    text = _RUN.sub(lambda found: found[2] * int(found[1]), text)
    return _ESCAPED.sub(lambda found: _unescaped(found[1]), text)


def _unescaped(code: str) -> str:
    return code if code == "\\" else chr(int(code[1:], 16))


def _lines(line: str) -> list[str]:
    """line: with its first character; the lines that it stands for, without."""
    front = "[rank«r»]: " if line[:1] == ">" else ""
    name = _NAME.fullmatch(line[1:])
    if name is None or name[1] == "r":
        return [front + line[1:]]
    return [front + one for one in snippets()[name[1]]]


@lru_cache
def snippets() -> dict[str, list[str]]:
    """By name; escaped as in the cases."""
    found: dict[str, list[str]] = {}
    for line in (HERE / "snippets.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        if line[:1] == "[":
            found[line.strip("[]")] = []
        else:
            found[[*found][-1]].append(line[1:])
    return found
