"""Which login node commands go to, and what `hosts.toml` in the user's directory says of it.

    default = "pitzer"                      # without --host; --no-host stays here

    [hosts.pitzer]                          # what you would type after ssh
    command = "~/envs/fsdp/bin/fsdpkit"     # where fsdpkit is there
    runs = "/fs/scratch/PAS2136/alex/runs"  # the directory of runs there
    tree_mb = 100                           # the largest work tree that is sent

How to get there (user name, keys, jump hosts) is ssh's own configuration.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdpkit.config import assets
from fsdpkit.config.ownership import first_unsafe
from fsdpkit.config.spelling import nearest
from fsdpkit.errors import ConfigError, UsageError

# What ssh takes for a destination: alias, user@host, ssh://user@host:port. None begins with `-`.
_DESTINATION = re.compile(
    r"(ssh://)?([A-Za-z0-9_][\w.+-]{0,63}@)?[\w\[][\w.:%\]-]{0,252}", re.ASCII
)
# Read by the login shell there, whichever it is: nothing that any shell would take for more than a
# letter, but for `~/` in front.
_COMMAND = re.compile(r"(~/)?[\w/.][\w./+@:,-]{0,1000}", re.ASCII)


@dataclass(frozen=True)
class Host:
    """A login node."""

    name: str
    """ssh's destination."""
    command: str = "fsdpkit"
    """Of fsdpkit there: a name on PATH, or a path."""
    runs: str | None = None
    """Directory of runs there; None: $FSDPKIT_RUNS of the login node, else `runs` at home."""
    tree_mb: int = 100


def hosts_file() -> Path:
    return assets.user_dir() / "hosts.toml"


def chosen_host(given: str | None) -> Host | None:
    """The host of `--host`, else of $FSDPKIT_HOST, else the file's default; None: this machine. An
    empty FSDPKIT_HOST is this machine, too. Raises UsageError or ConfigError."""
    name = given if given is not None else os.environ.get("FSDPKIT_HOST")
    if name == "" and given is None:
        return None
    table = _read(hosts_file())
    if name is None:
        name = table.get("default")
    if name is None:
        return None
    if not isinstance(name, str) or not _DESTINATION.fullmatch(name):
        raise UsageError(
            f"--host {name!r} is no host that ssh could be given: write it as in ssh's "
            "configuration, as user@host, or as ssh://user@host:port"
        )
    host = Host(name, **table.get("hosts", {}).get(name, {}))
    if command := os.environ.get("FSDPKIT_REMOTE"):
        host = replace(host, command=command)
    if not _COMMAND.fullmatch(host.command):
        raise ConfigError(
            f"the path of fsdpkit on {name}, {host.command!r}, has characters that shells read "
            "differently: give one of letters, digits and ./_+@:,- (a link to it, say) in "
            f"FSDPKIT_REMOTE, or as `command` in {hosts_file()}"
        )
    return host


def _read(path: Path) -> dict[str, Any]:
    """The file's table, checked; empty where there is none, or no directory that could be read,
    of which commands speak themselves. Raises ConfigError."""
    if assets.why_not_read():
        return {}
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if (unsafe := first_unsafe(path)) is not None:
        raise ConfigError(
            f"{path} says where your work is sent, and others than you can change {unsafe}: "
            f"take that from them, such as by chmod go-w"
        )
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    for key in table.keys() - {"default", "hosts"}:
        raise ConfigError(
            f"{path}: {key}: unknown.{nearest(key, ['default', 'hosts'])} It may say "
            "default, and a table [hosts.NAME] for each login node"
        )
    hosts = table.get("hosts", {})
    if not isinstance(hosts, dict):
        raise ConfigError(f"{path}: hosts: write a table [hosts.NAME] for each login node")
    kinds = {"command": str, "runs": str, "tree_mb": int}
    for name, of_host in hosts.items():
        if not isinstance(of_host, dict):
            raise ConfigError(f"{path}: hosts.{name}: write it as a table [hosts.{name}]")
        for key, value in of_host.items():
            where = f"{path}: hosts.{name}.{key}"
            if key not in kinds:
                raise ConfigError(f"{where}: unknown.{nearest(key, kinds)}")
            if type(value) is not kinds[key] or value in ("", 0):
                kind = "a text" if kinds[key] is str else "a whole number of megabytes"
                raise ConfigError(f"{where}: {value!r} is not {kind}")
    return table
