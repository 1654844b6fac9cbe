"""The text of a person's first job file and defaults, with comments that say what else can stand
there. What it says was asked by `fsdpkit init` (cli/init.py); nothing is read or written here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.config.as_toml import text
from fsdpkit.config.job import JOB_SCHEMA, Environment
from fsdpkit.config.job_loading import name_after
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.retry import Retry

_COMMENT_AT = 36
_WIDTH = 98


@dataclass(frozen=True)
class Answers:
    """What a person said of a first job. `script` is a whole path."""

    script: Path
    environment: Environment
    account: str | None
    nodes: int = 1
    gpus: int = 1
    time: str = "01:00:00"


def job_text(
    answers: Answers, site: SiteProfile, file: Path, account_from: str | None = None
) -> str:
    """The job file that is going to be `file`, for submission to `site`. account_from: which
    file says the account, if it need not stand here."""
    lines = [
        *_head(answers, site, file),
        *_resources(answers, site, account_from),
        *_environment(answers.environment, site),
        *_retry(),
        *_others(),
    ]
    return "\n".join(lines) + "\n"


def defaults_text(account: str) -> str:
    """A person's defaults with an account."""
    lines = [
        "# What lies beneath every job of yours: a job file, --set and flags come before it.",
        "# Any key of a job file may stand here.",
        "",
        "[resources]",
        _line("account", text(account), "the project to charge"),
        "",
        "# [notify]",
        _line("# mail", '"me@example.org"', "at an end, a failure, a requeue"),
    ]
    return "\n".join(lines) + "\n"


def _head(answers: Answers, site: SiteProfile, file: Path) -> Iterator[str]:
    yield f"# A job for {site.title}: fsdpkit submit {shlex.quote(file.name)}"
    yield "# --set KEY=VALUE changes any key for one submission; fsdpkit jobs t5 --all lists them."
    yield ""
    yield _line("schema", text(JOB_SCHEMA))
    yield _line("name", text(name_after(answers.script)), "seen in squeue and in the run's id")
    beside = answers.script.is_relative_to(file.parent)
    entry = answers.script.relative_to(file.parent) if beside else answers.script
    yield _line("entry", text(str(entry)), "the script, looked for beside this file")
    yield _line("args", "[]", 'its arguments, such as ["--lr", "1e-4"]')


def _resources(answers: Answers, site: SiteProfile, account_from: str | None) -> Iterator[str]:
    yield from ("", "[resources]")
    yield _line("nodes", str(answers.nodes))
    yield _line("gpus", str(answers.gpus), f"per node, a rank on each{_most_gpus(site)}")
    yield _line("time", text(answers.time), "limit: HH:MM:SS, D-HH:MM:SS or minutes")
    if account_from is not None:
        yield f"# account is in {text(account_from)}"
    elif answers.account is not None:
        yield _line("account", text(answers.account), "the project to charge")
    if site.kind != "local":
        yield _line("# partition", '"NAME"', _partitions(site))
        yield _line("# memory", '"64G"', "per node")


def _most_gpus(site: SiteProfile) -> str:
    counts = sorted({kind.gpus for kind in site.node_types.values() if kind.gpus})
    return f"; nodes here have {' or '.join(map(str, counts))}" if counts else ""


def _partitions(site: SiteProfile) -> str:
    names = ", ".join(name for name, one in site.partitions.items() if one.automatic)
    return f"else the first that fits of {names}" if names else "else the cluster's own choice"


def _environment(wanted: Environment, site: SiteProfile) -> Iterator[str]:
    yield from ("", "[environment]")
    if wanted.venv is not None:
        yield _line("venv", text(wanted.venv), "activated in the job; compute nodes must see it")
    elif wanted.conda is not None:
        yield _line("conda", text(wanted.conda), "activated in the job; compute nodes must see it")
    elif wanted.modules is None:
        yield "# The job activates the environment that `fsdpkit submit` is called from, or:"
        yield _line("# venv", '"/path/to/venv"', "or conda, or container")
    if wanted.modules is not None:
        yield _line("modules", f"[{', '.join(map(text, wanted.modules))}]", "loaded in the job")
    elif site.kind != "local":
        yield _line("# modules", '["NAME"]', _modules(site))


def _modules(site: SiteProfile) -> str:
    names = " ".join(site.environment.modules)
    return f"instead of the cluster's: {names}" if names else "loaded before it"


def _retry() -> Iterator[str]:
    usual = Retry()
    yield from (
        "",
        "# What follows when an attempt is cut short; these are the defaults.",
        "[retry]",
    )
    yield _line("on_time_limit", text(usual.on_time_limit), '"stop": do not queue it again')
    yield _line("on_crash", text(usual.on_crash), "in the same allocation, from what was saved")
    yield _line("hang_s", str(usual.hang_s), "a rank that makes no step for so long hangs")


def _others() -> Iterator[str]:
    yield from ("", "# [source]")
    yield _line("# snapshot", "true", "run in a copy of the work tree as it is when submitted")
    yield from ("", "# [notify]")
    yield _line("# mail", '"me@example.org"', "at an end, a failure, a requeue")


def _line(key: str, value: str, comment: str = "") -> str:
    """`key = value  # comment`; the comment stands above where the line would be too long."""
    said = f"{key} = {value}"
    if not comment:
        return said
    whole = f"{said:<{_COMMENT_AT}}  # {comment}"
    return whole if len(whole) <= _WIDTH else f"# {comment}\n{said}"
