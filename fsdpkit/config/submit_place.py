"""From where a cluster takes jobs: the directory, the login node and its processor.

Pure: what this process sees of itself goes in, reasons come out. They are warnings of a dry run,
which may happen anywhere, and refuse a submission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import msgspec

from fsdpkit.config.linear_regex import matches
from fsdpkit.config.profile import NodeType, SiteProfile


class Here(msgspec.Struct, frozen=True):
    """Where somebody submits from."""

    directory: PurePosixPath
    """Absolute, without links."""
    environ: Mapping[str, str]
    hosts: tuple[str, ...]
    """Names of this machine, short and full."""
    arch: str
    """Of this machine, as uname says it."""


def reasons_against(
    profile: SiteProfile, node: NodeType, here: Here, *, own_python: bool
) -> Iterator[str]:
    """Why a job for such nodes is not to be submitted from `here`. own_python: the job activates
    the environment that fsdpkit itself runs in."""
    login = profile.login
    if login.submit_from:
        yield from _about_directory(profile.title, login.submit_from, here)
    if login.hosts and not any(matches(login.hosts, host) for host in here.hosts):
        yield (
            f"{profile.title} takes these jobs from login nodes that match {login.hosts}, and this "
            f"is {here.hosts[0]}"
        )
    if own_python and node.arch and node.arch != here.arch:
        yield (
            f"this Python is for {here.arch} and the nodes are {node.arch}, where it does not run: "
            "name an environment made there (environment.conda, venv or container of the job)"
        )


def _about_directory(title: str, patterns: list[str], here: Here) -> Iterator[str]:
    listed = " or ".join(patterns)
    known = [path for path in (_expanded(p, here.environ) for p in patterns) if path]
    if any(_below(here.directory, path) for path in known):
        return
    if not known:
        yield f"{title} takes jobs only from below {listed}, and no such variable is set here"
        return
    shown = " or ".join(known)
    yield (
        f"{title} takes jobs only from below {listed}"
        f"{f' ({shown})' if shown != listed else ''}, and this is {here.directory}: change there"
    )


def _expanded(pattern: str, environ: Mapping[str, str]) -> str | None:
    """With the variable's value, which is taken as it stands; None if it has none."""
    match = re.fullmatch(r"\$(\w+)(.*)", pattern)
    if match is None:
        return pattern
    value = environ.get(match[1], "")
    if not value.startswith("/"):
        return None
    return re.sub(r"([*?\[])", r"[\1]", value.rstrip("/")) + match[2]


def _below(directory: PurePosixPath, pattern: str) -> bool:
    wanted = PurePosixPath(pattern).parts
    return len(directory.parts) >= len(wanted) and all(
        fnmatchcase(part, one) for part, one in zip(directory.parts, wanted, strict=False)
    )
