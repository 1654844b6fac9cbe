"""The table of what to do, and the rules that every advice obeys.

An entry holds where it applies (causes, scopes, phases, words) and sentences. A sentence is left
out where it does not suit the facts, by what it mentions: a setting that the job has already, a
node that may not be left out, keys of `[training]` for a script that reads none, environment
modules where there is a container, a name that is not known. The first entry that has a sentence
left is the advice; a failure for which none has any gets none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from fsdpkit.failures.advice.entry import Advice
from fsdpkit.failures.advice.facts import Facts
from fsdpkit.failures.patterns import stands_in

_FAMILIES = ("gpus", "memory", "storage", "software", "network", "scheduler", "training")


class _Family(msgspec.Struct, forbid_unknown_fields=True):
    """What a file of the table holds."""

    advice: tuple[Advice, ...]


@lru_cache
def table() -> tuple[Advice, ...]:
    """The more particular first: what the words or the phase say goes before what is true of a
    cause in general. Without what cannot be read, for the file system may be what failed."""
    entries: list[Advice] = []
    for name in _FAMILIES:
        with contextlib.suppress(OSError):
            text = (Path(__file__).parent / f"{name}.toml").read_bytes()
            entries += msgspec.toml.decode(text, type=_Family).advice
    return tuple(sorted(entries, key=lambda one: not (one.words or one.phases)))


_GO_ON = frozenset(
    {
        *("bad-gpu", "hang", "host-out-of-memory", "rendezvous-timeout", "connection-reset"),
        *("preemption", "time-limit", "cancelled", "idle", "node-failure", "disk-full", "storage"),
        *("nan-loss", "no-internet"),
    }
)
"""Causes after which the work that is saved can be gone on with."""
RESUME = "To go on: fsdpkit resume {run}"
ELSE = "[else] "
"""Of a sentence that is for where none before it suits."""
BLANK = re.compile(r"\{(\w+)(?::([\w.-]+)=([^}]*))?\}")
CONDITIONS = re.compile(r"^\[([a-z ]+)\] ")
_OF_A_HOST = re.compile(r"\bmodules\b|\bconda\b")


def advise(facts: Facts) -> str | None:
    """What to do; None where nobody knows."""
    told = next((text for one in entries_for(facts) if (text := _told(one, facts))), None)
    if facts.cause in _GO_ON:
        end = "" if told is None or told.endswith((".", ")")) else "."
        told = " ".join(filter(None, (told and told + end, filled(RESUME, facts))))
    return told


def entries_for(facts: Facts) -> Iterator[Advice]:
    said, around = facts.said.lower(), facts.around.lower()
    for one in table():
        if one.causes and facts.cause not in one.causes:
            continue
        if one.scopes and facts.scope not in one.scopes:
            continue
        if one.phases and facts.phase not in one.phases:
            continue
        if one.killed and not facts.killed:
            continue
        text = f"{said}\n{around}" if one.around else said
        if not one.words or any(stands_in(text, words) for words in one.words):
            yield one


def _told(one: Advice, facts: Facts) -> str:
    told: list[str] = []
    for sentence in one.say:
        otherwise = sentence.removeprefix(ELSE)
        if (told and otherwise != sentence) or (text := filled(otherwise, facts)) is None:
            continue
        told.append(text)
    return " ".join(told)


def filled(sentence: str, facts: Facts) -> str | None:
    """The sentence with its names; None where it does not suit the facts."""
    if conditions := CONDITIONS.match(sentence):
        sentence = sentence[conditions.end() :]
        if not all(_holds(condition, facts) for condition in conditions[1].split()):
            return None
    if "training." in sentence and not facts.reads_training:
        return None
    if facts.container and _OF_A_HOST.search(sentence):
        return None
    for blank in BLANK.finditer(sentence):
        name, key, value = blank.groups()
        known = _proposed(key, value, facts) if key else facts.name(name)
        if known is None:
            return None
        sentence = sentence.replace(blank[0], known)
    return sentence


def _holds(condition: str, facts: Facts) -> bool:
    holds = {
        "container": facts.container,
        "host": not facts.container,
        "trainer": facts.reads_training,
        "script": not facts.reads_training,
        "alike": not facts.may_exclude,
        "one": facts.may_exclude,
        "apart": facts.apart,
        "taken": facts.taken,
        "agent": facts.speaker != "rank",
        "rank": facts.speaker == "rank",
    }
    return holds[condition]


def _proposed(key: str, value: str, facts: Facts) -> str | None:
    """The option that sets it; None where the job has it. A larger value (`…`) names today's."""
    today = facts.settings.get(key)
    if today in (None, "", [], {}):
        return f"--set {key}={value}"
    return f"{key}, {today} today" if value == "…" else None
