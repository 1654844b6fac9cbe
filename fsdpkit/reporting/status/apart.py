"""What sets runs of one name apart, by what their jobs say: for a list of runs. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NOT_TOLD = ("schema", "name", "description", "notify", "args")
_LAST = ("resources", "launch", "retry")
"""Tables of which a list can do without before others."""


def set_apart(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By run, the arguments and settings that not all runs of its name have, arguments first:
    `--lr 3e-4, steps=300`. jobs: what is in each run's job.json."""
    by_name: dict[object, list[str]] = defaultdict(list)
    for run, job in jobs.items():
        if job:
            by_name[str(job.get("name"))].append(run)
    found = {}
    for runs in by_name.values():
        told = {run: [*_arguments(jobs[run]), *_settings(jobs[run])] for run in runs}
        often = Counter(one for each in told.values() for one in set(each))
        short = Counter(key.rpartition(".")[2] for key in {k for k, _ in often})
        for run, each in told.items():
            own = [one for one in each if often[one] < len(runs)]
            words = [_word(key, value, short) for key, value in own]
            if words := list(filter(None, words)):
                found[run] = ", ".join(words)
    return found


def _word(key: str, value: str, short: Mapping[str, int]) -> str:
    last = key.rpartition(".")[2]
    if not key or not value:
        return value
    return f"{last if short[last] == 1 else key}={value}"


def _arguments(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each option with its values."""
    found: list[str] = []
    args = job.get("args")
    for word in map(str, args if isinstance(args, list) else []):
        if word.startswith("-") or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return [("", one) for one in found]


def _settings(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    tables = sorted((key for key in job if key not in _NOT_TOLD), key=lambda key: key in _LAST)
    for key in tables:
        yield from _flat(key, job[key])


def _flat(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flat(f"{key}.{name}", each)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield key, " ".join(map(str, value))
    else:
        text = "" if value is None else str(value)
        yield key, text.lower() if isinstance(value, bool) else text
