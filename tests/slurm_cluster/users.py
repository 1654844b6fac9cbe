"""Ordinary users of a cluster: who they are, what they see, and commands that run as them.

They stand in copies of /etc/passwd and /etc/group that only the cluster's machines and their own
commands see, through mounts in private namespaces. So do the directories that lead to this Python,
the checkout and the cluster, where others may not enter them on this machine (/root, pytest's
temporary directory): over each lies an empty file system that anybody may enter, which holds what
is needed and nothing else. No file of this machine changes its mode.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .machines import SYSTEM_ENVIRONMENT, ClusterError, Completed, run

FIRST_ID = 61001
"""User and group of the first; those after it count on."""
CHECKOUT = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")


@dataclass(frozen=True)
class User:
    name: str
    id: int
    """The user's and their only group's."""
    home: Path
    """Others may look into it, so that what protects a run is the run's own mode."""


def users_of(names: Sequence[str], homes: Path) -> dict[str, User]:
    """Raises ValueError for a name that is none, or is this machine's."""
    taken = {line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
    for name in names:
        if not _NAME.fullmatch(name) or name in taken or names.count(name) > 1:
            raise ValueError(f"users: {name!r} is no name, or somebody has it already")
    return {name: User(name, FIRST_ID + n, homes / name) for n, name in enumerate(names)}


def lay_out(cluster_root: Path, users: Iterable[User], mounts: Mapping[str, Path]) -> None:
    """Write what the machines and the users' commands need, and make the homes.

    mounts: what to see where on the login node.
    """
    etc, stage = cluster_root / "etc", cluster_root / "stage"
    users = list(users)
    # `*`, not `x`, which sends PAM to /etc/shadow: there `su` would find nobody, and slurmd starts
    # `su` for a user's environment.
    passwd = [f"{u.name}:*:{u.id}:{u.id}::{u.home}:/bin/bash\n" for u in users]
    group = [f"{u.name}:x:{u.id}:\n" for u in users]
    (etc / "passwd").write_text("".join([Path("/etc/passwd").read_text(), *passwd]))
    (etc / "group").write_text("".join([Path("/etc/group").read_text(), *group]))
    opening = opening_script(cluster_root, stage)
    binds = [_command("mount", "--rbind", source, place) for place, source in mounts.items()]
    (etc / "opening").write_text(opening)
    (etc / "entering").write_text("".join(["set -e\n", *binds, opening, 'exec "$@"\n']))
    stage.mkdir(exist_ok=True)
    cluster_root.chmod(0o755)
    for user in users:
        user.home.mkdir(parents=True)
        os.chown(user.home, user.id, user.id)


def opening_script(cluster_root: Path, stage: Path) -> str:
    """Shell lines after which, in this mount namespace, anybody can enter the cluster's root (to
    write where its modes let them), this Python and the checkout (to read).

    stage: an empty directory in which the file systems are put together.
    """
    python = [Path(each) for each in (sys.prefix, sys.base_prefix)]
    wanted = dict.fromkeys((cluster_root, cluster_root.resolve()), True)
    for path in (*python, CHECKOUT, *(each.resolve() for each in python)):
        wanted.setdefault(path, False)
    covered: dict[Path, list[Path]] = {}
    for path in sorted(wanted, key=lambda path: (len(path.parts), path)):
        if (top := first_closed(path)) is not None:
            covered.setdefault(top, []).append(path)
    lines = ["umask 022\n"]
    for top, paths in covered.items():
        lines.append(_command("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", stage))
        for path in paths:
            place = stage / path.relative_to(top)
            lines += [_command("mkdir", "-p", place), _command("mount", "--bind", path, place)]
            if not wanted[path]:
                lines.append(_command("mount", "-o", "remount,bind,ro", place))
        lines.append(_command("mount", "--move", stage, top))
    return "".join(lines)


def first_closed(path: Path) -> Path | None:
    """The outermost directory on the way to `path` that others cannot enter."""
    on_the_way: Iterator[Path] = (each for each in reversed(path.parents))
    return next((each for each in on_the_way if not each.stat().st_mode & stat.S_IXOTH), None)


def _command(*words: str | Path) -> str:
    return shlex.join(map(str, words)) + "\n"


@dataclass(frozen=True)
class Session:
    """Somebody's commands in one place: the login node, a node, or a host of their own.

    They run with the user's id and groups, without capabilities, from the user's home, and see
    nothing of this process's environment.
    """

    user: User
    entering: tuple[str, ...]
    """The words that lead to the place, as root."""
    conf: Path

    def env(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{SYSTEM_ENVIRONMENT['PATH']}"
        return {
            **SYSTEM_ENVIRONMENT,
            "PATH": path,
            "HOME": str(self.user.home),
            "USER": self.user.name,
            "LOGNAME": self.user.name,
            "SHELL": "/bin/bash",
            "SLURM_CONF": str(self.conf),
        }

    def words(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """The command as root starts it."""
        ids = [f"--reuid={self.user.id}", f"--regid={self.user.id}", "--init-groups"]
        become = ["setpriv", *ids, "--inh-caps=-all", "--bounding-set=-all", "--"]
        there = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh"]
        return [*self.entering, *become, *there, str(cwd or self.user.home), *argv]

    def run(self, argv: Sequence[str], *, cwd: Path | None = None, **options: Any) -> Completed:
        """`subprocess.run` as the user, with text captured unless the options say else."""
        return run(self.words(argv, cwd), **{"env": self.env(), **options})

    def start(self, argv: Sequence[str], *, cwd: Path | None = None, **options: Any) -> Any:
        """`subprocess.Popen` as the user, which reads nothing and is heard by nobody."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        return subprocess.Popen(self.words(argv, cwd), **{"env": self.env(), **streams, **options})


def check(session: Session) -> None:
    """Raise ClusterError unless this user can run this Python and read the checkout."""
    program = "import sys; open(sys.argv[1]).close()"
    done = session.run([sys.executable, "-c", program, str(CHECKOUT / "pyproject.toml")])
    if done.returncode != 0:
        raise ClusterError(
            f"{session.user.name} cannot use {sys.executable} and {CHECKOUT}: {done.stderr.strip()}"
            "; the directories themselves must let others read them, only their parents may not"
        )
