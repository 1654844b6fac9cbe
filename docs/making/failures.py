"""One page a cause of failure: what is seen, what to do, and how it is recognised, by the table
that `fsdpkit diagnose` goes by. What a person adds to a page stands outside of what is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.making import markdown
from fsdpkit.config.retry import Retry
from fsdpkit.failures.advice.entry import Advice
from fsdpkit.failures.advice.table import BLANK, CONDITIONS, ELSE, table
from fsdpkit.failures.cause import Cause
from fsdpkit.failures.causes import CAUSES, page_of

_SPELT = {"gpu": "GPU", "nan": "NaN"}
_STAND_FOR = {"{who}": "*rank 3 on node2*", "{words}": "*what was printed*"}
_KEY: Mapping[str, str] = {
    "crash": "on_crash",
    "hang": "on_hang",
    "out-of-memory": "on_out_of_memory",
    "node-failure": "on_node_failure",
}
_ENDS: Mapping[str, str] = {
    "idle": 'With `retry.on_idle_gpus = "stop"` the job is asked to save, ends and is not queued '
    "again, nor does what is chained behind it start; by default it is only reported.",
    "storage": "The job ends; checkpoints that are whole stay.",
    "settings": "The job ends: another start would meet the same settings.",
}
_BY_CAUSE: Mapping[str, str] = {"preemption": "on_preemption", "time-limit": "on_time_limit"}
_ONLY_IF: Mapping[str, str] = {
    "container": "In a container: ",
    "trainer": "With `[training]`: ",
    "script": "In a script that reads no `[training]`: ",
    "one": "On one node only: ",
    "alike": "On all nodes: ",
}
"""How a page puts the conditions of a sentence."""
_NOTHING = frozenset({"cancelled", "refused", "pending", "pending-forever", "unknown"})
_ACTIONS = {
    "restart": "all ranks restart in the same allocation, from the newest whole checkpoint",
    "requeue": "the job is requeued and continues from the newest whole checkpoint",
    "stop": "the job ends",
}


def pages() -> dict[Path, Cause]:
    """The cause of each page, by its path below the repository."""
    found = {name: page_of(name) for name in CAUSES}
    return {Path(path): CAUSES[name] for name, path in found.items() if path is not None}


def title(cause: Cause) -> str:
    words = [_SPELT.get(word, word) for word in cause.name.split("-")]
    text = " ".join(words)
    return text[0].upper() + text[1:]


def block(cause: Cause) -> str:
    """The part of its page that is made."""
    return "\n".join(_lines(cause)).rstrip()


def new_page(cause: Cause) -> str:
    """Of a cause that has none yet."""
    return f"# {title(cause)}\n\n{markdown.BEGIN}\n\n{markdown.END}\n"


def _lines(cause: Cause) -> Iterator[str]:
    yield f"`fsdpkit diagnose` calls it `{cause.name}` and says:"
    yield ""
    for sentence in filter(None, (cause.sentence, cause.waited)):
        yield from (*markdown.folded(_filled(sentence), "> ", "> "), "")
    for label, text in (
        ("What to do.", " ".join(map(_advised, general_advice(cause)))),
        ("Would a restart help?", _sentence(cause.again or "")),
        ("What happens automatically.", _follows(cause)),
    ):
        if text:
            yield from (*markdown.folded(f"**{label}** {text}"), "")
    yield from _particular(cause)
    yield from _recognised(cause)


def _filled(text: str) -> str:
    """With what stands for a rank, words and a node."""
    text = markdown.typed(text.replace("{run}", "RUN").replace("{node}", "NODE"))
    text = text.replace("cancelled{words}", "cancelled by USER")
    text = re.sub(r"\{\w+\}", lambda found: _STAND_FOR[found[0]], markdown.escaped(text))
    text = re.sub("^[*]rank", "*Rank", text)
    return text if not text or re.search(r"[.…:]$", text) else f"{text}."


def _sentence(text: str) -> str:
    text = markdown.escaped(text)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _follows(cause: Cause) -> str:
    if cause.name in _NOTHING:
        return ""
    key = _BY_CAUSE.get(cause.name) or _KEY.get(cause.retry)
    if key is None:
        return _ENDS.get(cause.retry, "")
    default = str(getattr(Retry(), key))
    when = "If ranks die of it while they train, " if key == "on_crash" else ""
    told = f'{when}{_ACTIONS[default]} (`retry.{key} = "{default}"`, the default).'
    if key == "on_node_failure":
        told += " That needs a standby node (`--spare 1`); without one the job is requeued."
    if key in ("on_crash", "on_hang"):
        told += " The same failure at the same step again ends the job."
    return told[0].upper() + told[1:]


def general_advice(cause: Cause) -> list[Advice]:
    return [one for one in table() if not _conditional(one) and cause.name in one.causes]


def _conditional(one: Advice) -> bool:
    """Whether it is for some failures of its cause alone."""
    return bool(one.words or one.phases or one.killed)


def _particular(cause: Cause) -> Iterator[str]:
    """What to do where the words say more than the cause, on the page of the likeliest cause."""
    special = filter(_conditional, table())
    on_page = [one for one in special if (*one.causes, "exception")[0] == cause.name]
    told = {one.say: one for one in reversed(on_page)}
    if told:
        yield from ("## In particular", "")
    for one in reversed(told.values()):
        yield from markdown.folded(f"{one.about}: {_advised(one)}", "- ", "  ")
    if told:
        yield ""


def _advised(one: Advice) -> str:
    """Its sentences, with what stands for names; without those that stand in for others."""
    return " ".join(map(_sentence_of, (text for text in one.say if not text.startswith(ELSE))))


def _sentence_of(text: str) -> str:
    found = CONDITIONS.match(text)
    if found is None:
        return _filled(BLANK.sub(_stands_for, text))
    only_if = next((_ONLY_IF[name] for name in found[1].split() if name in _ONLY_IF), "")
    return only_if + _filled(BLANK.sub(_stands_for, text[found.end() :]))


def _stands_for(blank: re.Match[str]) -> str:
    name, key, value = blank.groups()
    if key:
        return f"--set {key}={value}"
    return "--set resources.exclude=NODE" if name == "exclude" else name.upper()


def _recognised(cause: Cause) -> Iterator[str]:
    told = []
    if cause.states:
        told.append(f"Slurm's state of the job: {_listed(cause.states)}")
    if cause.statuses:
        told.append(f"the exit status: {_listed(map(str, cause.statuses))}")
    told += dict.fromkeys(f"words of {_author(p.why)}" for p in cause.patterns)
    if told:
        yield from ("## How it is recognised", "")
    for line in told:
        yield from markdown.folded(line, "- ", "  ")


def _author(why: str) -> str:
    return markdown.escaped(why).replace("our ", "fsdpkit's ")


def _listed(words: frozenset[str] | map[str]) -> str:
    return ", ".join(f"`{word}`" for word in sorted(words))


def overview(titles: Mapping[Path, str]) -> str:
    """Of the first page: every cause with its sentence, the more particular first."""
    rows = [
        (f"[{titles[path]}]({path.name})", f"`{cause.name}`", _filled(cause.sentence))
        for path, cause in pages().items()
    ]
    return "\n".join(markdown.table(("page", "`diagnose` calls it", "it says"), rows))
