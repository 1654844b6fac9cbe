"""A first job: what can be found out for it, what a person's words mean, and its two files.

`propose_…` looks around and may find nothing; `read_…` says what a word means or raises an error
for the person. `write` makes the job file and, if there is none, the person's defaults: each new
and whole, and kept only if a submission would take the job as it stands.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.config.job import Environment
from fsdpkit.config.loading import CONTROL_CHARACTER, FileTables, Layered, read_toml
from fsdpkit.config.new_job import Answers, defaults_text, job_text
from fsdpkit.config.placement import check_account
from fsdpkit.config.private_files import make_private_dir
from fsdpkit.config.script_source import has_main_guard, read_source, syntax_of
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.trust import items_of, refuse_forbidden
from fsdpkit.errors import NotFoundError, SchedulerError, StorageError, UsageError, storage_errors
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.layout import write_new
from fsdpkit.scheduling import submission
from fsdpkit.scheduling.packages import conda_prefix
from fsdpkit.scheduling.slurm_answers import answers_of

OWN = "current"
"""The word for the environment that `fsdpkit submit` is called from."""
_STEP = ("#!/bin/bash", "# Every node runs this before its ranks.", "set -eu")
_MODULE = "module:"
_MOST_FILES = 500
_MOST_BYTES = 200


@dataclass(frozen=True)
class FirstJobFiles:
    """What there is now. defaults: None if there was no reason to write any."""

    job: Path
    defaults: Path | None
    account_from: str | None
    """Which file says the account, where the job's own does not."""
    plan: Plan


def propose_accounts(site: LoadedSite) -> list[str]:
    """The accounts that Slurm lists as this person's, as the site writes them, else none."""
    if site.profile.kind == "local":
        return []
    try:
        found = answers_of(site.profile.slurm_clusters).accounts()
    except SchedulerError:
        return []
    # Slurm keeps them in lower case; a centre may have its own rule for what is typed.
    return [name for each in found if (name := _as_written(each, site)) is not None]


def _as_written(account: str, site: LoadedSite) -> str | None:
    for name in (account, account.upper()):
        with suppress(UsageError):
            return read_account(name, site)
    return None


def account_in_defaults() -> tuple[str, str] | None:
    """The account beneath every job so far, and which file has it. Raises ConfigError."""
    layered = Layered()
    for _, file in assets.defaults_files():
        layered.overlay(read_toml(file), str(file))
    resources = layered.values.get("resources")
    account = resources.get("account") if isinstance(resources, Mapping) else None
    return (account, layered.origin("resources.account")) if isinstance(account, str) else None


def propose_environment(environ: Mapping[str, str], prefix: Path, base: Path) -> str:
    """A word for the environment that is active. prefix, base: sys.prefix and sys.base_prefix."""
    own = str(prefix) if prefix != base else ""
    conda = environ.get("CONDA_PREFIX", "")
    if environ.get("CONDA_DEFAULT_ENV") == "base" and own:
        conda = ""  # active in every shell of many people
    modules = [m for m in environ.get("LOADEDMODULES", "").split(":") if "torch" in m.lower()]
    words = [environ.get("VIRTUAL_ENV", ""), conda, own, *(_MODULE + m for m in modules[:1])]
    for word in filter(None, words):
        with suppress(UsageError, NotFoundError):
            read_environment(word)
            return word
    return OWN


def propose_scripts(directory: Path) -> list[Path]:
    """The Python files that do something when run: with a guard of `__main__`, or one alone."""
    found, all_of_them = [], []
    for path in sorted(directory.glob("*.py"))[:_MOST_FILES]:
        with suppress(OSError):
            if not stat.S_ISREG(path.stat().st_mode) or (source := read_source(path)) is None:
                continue
            tree = syntax_of(source)
            if tree is not None:
                all_of_them.append(path)
                if has_main_guard(tree):
                    found.append(path)
    return found or (all_of_them if len(all_of_them) == 1 else [])


def read_account(word: str, site: LoadedSite) -> str:
    """An account by the site's rules. Raises UsageError."""
    _refuse_unprintable(word, "the account")
    if not word or word != word.strip() or word.startswith("-"):
        raise UsageError(f"{word!r} is not an account; for none, give --no-account")
    if any(not (c.isascii() and (c.isalnum() or c in "_.-+@%")) for c in word):
        raise UsageError(f"{word!r} is not an account: use letters, digits and _ . - + @ %")
    check_account(word, site)
    return word


def read_environment(word: str) -> Environment:
    """A directory of a virtual or conda environment, the name of a conda environment, `module:` and
    names, or `current`. Raises UsageError or NotFoundError."""
    _refuse_unprintable(word, "the environment")
    if word == OWN:
        return Environment()
    if word.startswith(_MODULE):
        names = [name.strip() for name in word.removeprefix(_MODULE).split(",")]
        if not all(names) or any(name.startswith("-") or " " in name for name in names):
            raise UsageError(f"{word!r}: write modules as {_MODULE}NAME,NAME")
        return Environment(modules=names)
    path = Path(os.path.abspath(os.path.expanduser(word)))
    if word and path.is_dir():
        if (path / "conda-meta").is_dir():
            return Environment(conda=str(path))
        if (path / "bin" / "activate").is_file():
            return Environment(venv=str(path))
        raise UsageError(f"{path} is neither a virtual nor a conda environment")
    if word and "/" not in word and (prefix := conda_prefix(word)) is not None:
        return Environment(conda=str(prefix))
    raise NotFoundError(
        f"there is no environment {word!r}: name the directory of a virtual or conda environment, "
        f"a conda environment, modules as {_MODULE}NAME,NAME, or {OWN!r}"
    )


def read_script(word: str) -> Path:
    """A Python file by its whole path; a link stays one. Raises UsageError, NotFoundError."""
    _refuse_unprintable(word, "the script")
    path = Path(os.path.expanduser(word))
    path = path.parent.resolve() / path.name
    if not word or not path.exists():
        raise NotFoundError(f"there is no script {word!r}")
    if not path.is_file():
        raise UsageError(f"{word!r} is not a file")
    if path.suffix != ".py" and not _says_python(path):
        raise UsageError(f"{word!r} is not a Python file: its name does not end in .py")
    return path


def _says_python(path: Path) -> bool:
    with storage_errors(path, "read"), open(path, "rb") as file:
        first = file.readline(_MOST_BYTES)
    return first.startswith(b"#!") and b"python" in first


def read_output(word: str) -> Path:
    """Where the job file goes. Raises UsageError if something is there, or NotFoundError."""
    _refuse_unprintable(word, "the job file")
    path = Path(os.path.expanduser(word))
    if path.suffix != ".toml":
        raise UsageError(f"{word!r}: a job file's name ends in .toml")
    path = path.parent.resolve() / path.name
    if not path.parent.is_dir():
        raise NotFoundError(f"{word!r}: there is no directory {path.parent}")
    if os.path.lexists(path):
        raise UsageError(
            f"{path} already exists and is not overwritten; choose another name with --output "
            f"NAME.toml, or move it away"
        )
    return path


def _refuse_unprintable(word: str, what: str) -> None:
    if found := CONTROL_CHARACTER.search(word):
        raise UsageError(
            f"{what} {word!r} contains the character {found.group()!r}, which is not allowed"
        )


def write(
    answers: Answers,
    site: LoadedSite,
    output: Path,
    *,
    cluster: str | None = None,
    with_defaults: bool = True,
    checked_with: Sequence[str] = (),
    array: str | None = None,
    said_in: Sequence[FileTables] = (),
) -> FirstJobFiles:
    """Make the files, and plan a submission of the job as `fsdpkit submit` does; cluster: its
    option. checked_with, array: what that plan has besides, as by --set and --array. said_in: the
    file that the answers come from. Raises an error of that plan, or of writing, and then leaves no
    new file."""
    before = account_in_defaults() if with_defaults else None
    account_from = before[1] if before is not None and before[0] == answers.account else None
    defaults = None
    wanted = with_defaults and account_from is None and answers.account is not None
    if wanted and _may_write_defaults():
        defaults = assets.user_dir() / "defaults.toml"
        account_from = str(defaults)
    made: list[Path] = []
    try:
        if defaults is not None and answers.account is not None:
            _make_user_dir()
            _make(defaults, defaults_text(answers.account), made)
        if answers.each_node:
            step = output.with_name(f"{output.stem}-each-node.sh")
            _make(step, "\n".join([*_STEP, *answers.each_node, ""]), made)
            tables = {**answers.tables, "steps": {"each_node": step.name}}
            answers = replace(answers, tables=tables)
        _make(output, job_text(answers, site.profile, output, account_from), made)
        request = submission.SubmitRequest(
            job=str(output), cluster=cluster, sets=[*checked_with], array=array, said_in=said_in
        )
        plan = submission.plan(request)[0]
        refuse_forbidden(items_of(plan.job, plan.site, plan.template))
        submission.script_of(plan)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return FirstJobFiles(output, defaults, account_from, plan)


def _may_write_defaults() -> bool:
    return not os.path.lexists(assets.user_dir() / "defaults.toml") and not assets.why_not_read()


def _make(path: Path, content: str, made: list[Path]) -> None:
    try:
        write_new(path, content)
    except FileExistsError as error:
        raise UsageError(f"{path} already exists and is not overwritten: move it away") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    made.append(path)


def _make_user_dir() -> None:
    directory = assets.user_dir()
    with storage_errors(directory, "made"):
        make_private_dir(directory)
