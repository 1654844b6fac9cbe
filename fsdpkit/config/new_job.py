"""The text of a person's first job file and defaults, with comments that say what else can stand
there. What it says was asked by `fsdpkit init` (cli/init.py), or read from a batch script; nothing
is read or written here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdpkit.config.as_toml import inline, key_text, text
from fsdpkit.config.job import JOB_SCHEMA, Environment
from fsdpkit.config.job_loading import name_after
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.retry import Retry

_COMMENT_AT = 36
_WIDTH = 98


@dataclass(frozen=True)
class Answers:
    """What a person said of a first job. `script` is a whole path, or an entry that is no file."""

    script: Path | str
    environment: Environment
    account: str | None
    nodes: int = 1
    gpus: int = 1
    time: str = "01:00:00"
    name: str | None = None
    """None: after the script."""
    args: Sequence[str] = ()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further keys, by table; below `environment` tables of their own."""
    each_node: Sequence[str] = ()
    """Lines of a shell script that every node runs: a file of its own, beside the job's."""
    left_out: Sequence[str] = ()
    """Of a batch script, what the job has not: a line each."""


def job_text(
    answers: Answers, site: SiteProfile, file: Path, account_from: str | None = None
) -> str:
    """The job file that `file` is to be, for `site`. account_from: which file has the account."""
    lines = [
        *_head(answers, site, file),
        *_resources(answers, site, account_from),
        *_environment(answers.environment, site),
        *_tables(answers),
        *_retry(),
        *_others(answers),
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
    script = answers.script
    name = answers.name or name_after(script if isinstance(script, Path) else file)
    yield _line("name", text(name), "seen in squeue and in the run's id")
    if isinstance(script, Path):
        beside = script.is_relative_to(file.parent)
        entry = script.relative_to(file.parent) if beside else script
        yield _line("entry", text(str(entry)), "the script, looked for beside this file")
    else:
        yield _line("entry", text(script))
    yield from _args(answers.args)


def _args(args: Sequence[str]) -> Iterator[str]:
    comment = 'its arguments, such as ["--lr", "1e-4"]'
    line = _line("args", inline(args), "" if args else comment)
    if len(line) <= _WIDTH:
        yield line
        return
    yield "args = ["
    row = "   "
    for each in args:
        item = f" {text(each)},"
        if row.strip() and (len(row + item) > _WIDTH or each.startswith("-")):
            yield row
            row = "   "
        row += item
    yield from (row, "]")


def _resources(answers: Answers, site: SiteProfile, account_from: str | None) -> Iterator[str]:
    yield from ("", "[resources]")
    yield _line("nodes", str(answers.nodes))
    yield _line("gpus", str(answers.gpus), f"per node, a rank on each{_most_gpus(site)}")
    yield _line("time", text(answers.time), "limit: HH:MM:SS, D-HH:MM:SS or minutes")
    if account_from is not None:
        yield f"# account is in {text(account_from)}"
    elif answers.account is not None:
        yield _line("account", text(answers.account), "the project to charge")
    further = answers.tables.get("resources", {})
    yield from (_line(key, inline(value)) for key, value in further.items())
    if site.kind != "local":
        if "partition" not in further:
            yield _line("# partition", '"NAME"', _partitions(site))
        if "memory" not in further:
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
    elif wanted.container is not None:
        yield _line("container", text(wanted.container), "the site says which engine runs it")
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


def _tables(answers: Answers) -> Iterator[str]:
    for table, keys in answers.tables.items():
        if table != "resources":
            yield from ("", f"[{table}]")
            yield from (_line(key_text(key), inline(value)) for key, value in keys.items())


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


def _others(answers: Answers) -> Iterator[str]:
    yield from ("", "# [source]")
    yield _line("# snapshot", "true", "run in a copy of the work tree as it is when submitted")
    if "notify" not in answers.tables:
        yield from ("", "# [notify]")
        yield _line("# mail", '"me@example.org"', "at an end, a failure, a requeue")
    if answers.left_out:
        yield from ("", "# Of the batch script, this job does not do:")
        yield from (f"#   {line}" for line in answers.left_out)


def _line(key: str, value: str, comment: str = "") -> str:
    """`key = value  # comment`; the comment stands above where the line would be too long."""
    said = f"{key} = {value}"
    if not comment:
        return said
    whole = f"{said:<{_COMMENT_AT}}  # {comment}"
    return whole if len(whole) <= _WIDTH else f"# {comment}\n{said}"
