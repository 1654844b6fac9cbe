"""What a word of the command line is, where a command was given something that another one takes:
the name of a run for a job, a batch script for a program, Slurm's number for a run's name. It is
looked up once a command has failed, so no command needs a rule for what it does not take.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from fsdpkit.errors import FsdpkitError


class _Kind(NamedTuple):
    what: str
    instead: str
    """What to type for it; {} is the word."""
    taken_by: Sequence[str] = ()


_PROGRAMS = ("submit", "plan", "scale", "init", "check")
_FOR_RUNS = (
    *("status", "logs", "diagnose", "report", "compare", "watch", "shell", "stacks", "top"),
    *("cancel", "resume", "checkpoint", "track", "prune", "generate"),
)
_RUN = _Kind(
    "a run", "fsdpkit status {0} shows it, fsdpkit resume {0} continues it", (*_FOR_RUNS, "release")
)
_HOLD = _Kind("a hold", "fsdpkit status {0}, fsdpkit release {0}", (*_FOR_RUNS, "release"))
_SWEEP = _Kind("a sweep", "fsdpkit sweep status {}", ("sweep",))
_JOB = _Kind("a job", "fsdpkit submit {}", (*_PROGRAMS, "jobs", "template"))
_PYTHON = _Kind("a Python program", "fsdpkit submit {}", ("submit", "plan", "scale", "check"))
_BY_SCHEMA = {
    "job": _JOB._replace(what="a job's file"),
    "sweep": _Kind("a sweep's file", "fsdpkit sweep {}", ("sweep",)),
    "site": _Kind(
        "a cluster's profile", "--cluster {}", ("site", "sites", "publish", "audit", "template")
    ),
}
_SCHEMA = re.compile(r'^schema\s*=\s*"fsdpkit\.(\w+)/', re.MULTILINE)
_PROPOSED = 3
_IN_THE_WAY = (FsdpkitError, ImportError, OSError, ValueError)
"""Of looking around, which must not replace the message that there is: a laptop lacks modules."""


def what_follows(error: click.ClickException, top: click.Group, words: Sequence[str]) -> str:
    """Lines below the message of wrong usage: names that could stand where one is missing, and what
    the words are that the command does not take."""
    if isinstance(error, click.NoSuchOption) and words[:1] == [error.option_name]:
        for command in (word for word in words if word in top.list_commands(click.Context(top))):
            return f"\nOptions of {command} follow it: fsdpkit {command} {words[0]} …"
    there = _options(error) if isinstance(error, click.NoSuchOption) else ""
    return there + _proposed(error, top, words) + hints(words, error.format_message())


def _options(error: click.NoSuchOption) -> str:
    params = error.ctx.command.params if error.ctx else []
    ours = [one for one in params if isinstance(one, click.Option) and not one.hidden]
    names = [max(one.opts, key=len) for one in ours]
    return f"\nThere are {', '.join(names)}, --help" if names else ""


def _proposed(error: click.ClickException, top: click.Group, words: Sequence[str]) -> str:
    if (found := _without_a_value(error, top, words)) is None:
        return ""
    (ctx, parameter), names = found, []
    with contextlib.suppress(*_IN_THE_WAY):
        names = [item.value for item in parameter.shell_complete(ctx, "") if item.type == "plain"]
    listed = names and not isinstance(parameter.type, click.Choice)
    return f"\nSuch as {', '.join(names[:_PROPOSED])}" if listed else ""


def _without_a_value(
    error: click.ClickException, top: click.Group, words: Sequence[str]
) -> tuple[click.Context, click.Parameter] | None:
    """The argument that is missing, or the option that stands last and needs a value."""
    if isinstance(error, click.MissingParameter) and error.ctx and error.param:
        return error.ctx, error.param
    if isinstance(error, click.BadOptionUsage) and words:
        ctx = click.Context(top)
        command = top.get_command(ctx, words[0])
        for parameter in command.params if command else ():
            if error.option_name in parameter.opts:
                return ctx, parameter
    return None


_NOT_TYPED = {
    **dict.fromkeys(map(ord, "\N{NO-BREAK SPACE}\u202f"), " "),
    **dict.fromkeys(map(ord, "\r\u200b\ufeff")),
    **dict.fromkeys(map(ord, "\u2018\u2019"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e"), '"'),
}
DASHES = re.compile("^-*[\u2010-\u2015\u2212][-\u2010-\u2015\u2212]*(?=([a-zA-Z])(.?))")


def by_hand(word: str) -> str:
    """A word as keyboards type it, without the dashes, quotes and spaces of a web page or chat, and
    without the line ends of Windows."""
    return DASHES.sub(lambda at: "--" if at[2] else "-", word.translate(_NOT_TYPED)).strip()


def hints(words: Sequence[str], message: str) -> str:
    """Lines that say of each word in `message` what it is, if the command is not for such things.
    words: the command and what follows it, as typed."""
    no_command = message.startswith("There is no command")
    given = dict.fromkeys(w for w in words[not no_command :] if not w.startswith("-"))
    named = (
        word for word in given if re.search(rf"(?<![\w./-]){re.escape(word)}(?![\w/-])", message)
    )
    found = ((word, _kind_of(word)) for word in named)
    kinds = "".join(
        f"\n{word} is {kind.what}: {kind.instead.format(shlex.quote(word))}"
        for word, kind in found
        if kind is not None and words[0] not in kind.taken_by
    )
    return kinds + "".join(
        f"\n{word!r} has a dash, quote, space or line end of a web page, a chat or Windows: type "
        f"{by_hand(word)}"
        for word in words
        if by_hand(word) != word.strip(" ")
    )


def instead_of_option(command: click.Command, spelling: str, typed: Sequence[str]) -> str | None:
    """What to type for an option of sbatch, or one that launchers have; None: it is neither."""
    from fsdpkit.config.sbatch_spellings import KEYS, LETTERS, LONG_OPTIONS, OF_OTHERS, OTHERWISE
    from fsdpkit.scheduling.wanted import key_of

    name = spelling.lstrip("-").replace("_", "-")
    name = name if spelling.startswith("--") else LETTERS.get(name[:1], name)
    of_others = next((ours for ours, theirs in OF_OTHERS.items() if name in theirs), None)
    name, of = of_others or name, "another launcher" if of_others else "sbatch"
    if name.endswith("FILE.toml") and not any(word.endswith(".toml") for word in typed):
        return None
    if name in OTHERWISE:
        return f"{spelling} is an option of {of}: {OTHERWISE[name]}"
    if name not in LONG_OPTIONS:
        return f"{spelling}: here it is {of_others}" if of_others else None
    key = KEYS.get(name, f"slurm.options.{name}")
    own = {key_of(one.name or ""): max(one.opts, key=len) for one in command.params}
    here = own.get(key, f"--set {key}=VALUE")
    if key not in KEYS.values() and any("--sbatch-option" in one.opts for one in command.params):
        here = f"--sbatch-option {name}=VALUE"
    return f"{spelling} is an option of {of}; here it is {here}"


def holds(run: Path) -> bool:
    from fsdpkit.runs.record import load

    with contextlib.suppress(FsdpkitError):
        return load(run).holds
    return False


def _kind_of(word: str) -> _Kind | None:
    with contextlib.suppress(*_IN_THE_WAY):
        return _looked_up(word)
    return None


def _looked_up(word: str) -> _Kind | None:
    from fsdpkit.config import assets
    from fsdpkit.runs.store import runs_dir

    if (path := Path(word)).is_file():
        return _kind_of_file(path)
    top = runs_dir()
    found = _kind_of_run(word, top) if top.is_dir() else None
    return found or (_JOB if word in assets.available("job") else None)


def _kind_of_run(word: str, top: Path) -> _Kind | None:
    from fsdpkit.runs.store import runs_of_job
    from fsdpkit.sweeps.record import sweeps_dir

    is_name = re.fullmatch(r"[\w.+-]+", word) is not None  # looked up, since there may be thousands
    if is_name and (top / word / "run.json").is_file():
        return _HOLD if holds(top / word) else _RUN
    if (job := re.fullmatch(r"([0-9]+)(_[0-9]+)?", word)) and (its := runs_of_job(job[1], top)):
        return _Kind(f"a job of the run {its[0].name}", f"fsdpkit status {its[0].name}")
    is_sweep = is_name and (sweeps_dir(top) / word / "sweep.json").is_file()
    return _SWEEP if is_sweep else None


def _kind_of_file(path: Path) -> _Kind | None:
    if path.suffix == ".py":
        return _PYTHON
    if path.suffix == ".toml":
        with path.open(errors="replace") as file:
            schema = _SCHEMA.search(file.read(65_536))
        return _BY_SCHEMA.get(schema[1]) if schema else None
    from fsdpkit.scheduling.batch_file.recognition import shell_script_kind

    kind = shell_script_kind(path)
    made = "fsdpkit init --from {} makes a job file of it"
    return _Kind(kind, made, ("submit", "init")) if kind else None
