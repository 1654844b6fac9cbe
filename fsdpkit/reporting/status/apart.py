"""What sets runs of one name apart, by what their jobs say: for a list of runs. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from typing import Any

_NOT_TOLD = ("schema", "name", "description", "notify", "args")


def set_apart(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By run, the arguments and settings that not all runs of its name have, arguments first:
    `--lr 3e-4, steps=300`. jobs: what is in each run's job.json; empty if that cannot be read."""
    by_name: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for run, job in jobs.items():
        if job:
            by_name[str(job.get("name"))][run] = [*_arguments(job), *_settings(job, _NOT_TOLD)]
    found = {}
    for told in by_name.values():
        often = Counter(one for each in told.values() for one in set(each))
        for run, each in told.items():
            if own := [one for one in dict.fromkeys(each) if often[one] < len(told)]:
                found[run] = ", ".join(own)
    return found


def _arguments(job: Mapping[str, Any]) -> list[str]:
    """Each option with its values."""
    found: list[str] = []
    args = job.get("args")
    for word in map(str, args if isinstance(args, list) else []):
        if word.startswith("-") or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def _settings(table: Mapping[str, Any], left_out: Container[str] = ()) -> Iterator[str]:
    """Those that are set, by the last part of their keys."""
    for key, value in table.items():
        if key in left_out or value in (None, "", []):
            continue
        if isinstance(value, Mapping):
            yield from _settings(value)
        else:
            yield f"{key}={value}"
