"""The cluster from a shell: ``python -m tests.slurm_cluster up --root /tmp/slurm`` and then sbatch.

What it brings up stays until ``down``, also after a crash or a lost connection.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
import sys
import time
from pathlib import Path

from .cluster import SlurmCluster
from .machines import SWITCH, ClusterError
from .releases import choice


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return int(arguments.action(arguments))
    except (ClusterError, ValueError) as error:
        print(f"slurm_cluster: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm_cluster", description=__doc__)
    actions = parser.add_subparsers(required=True)
    up = actions.add_parser("up", help="bring a cluster up and leave it running")
    up.set_defaults(action=_up)
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--cpus", type=int, default=8, help="that each node claims")
    up.add_argument("--gpus", type=int, default=4, help="fake ones, that each node claims")
    up.add_argument("--no-accounting", action="store_true", help="no slurmdbd: sacct fails")
    up.add_argument(
        "--release", default=choice(), metavar="26.05", help="this machine's own if not given"
    )
    up.add_argument("--extra-conf", type=Path, metavar="FILE", help="lines for slurm.conf")
    up.add_argument(
        "--users", nargs="+", default=(), metavar="NAME", help="ordinary users that it has besides"
    )
    down = actions.add_parser("down", help="take it down, or clean up after a crash")
    down.set_defaults(action=_down)
    status = actions.add_parser("status", help="say what runs; exit status 1 when it is down")
    status.set_defaults(action=_status)
    shell = actions.add_parser("shell", help="be one of its own users on the login node")
    shell.set_defaults(action=_shell)
    shell.add_argument("user", metavar="NAME", help="one that `up --users` made")
    shell.add_argument("command", nargs=argparse.REMAINDER, help="instead of a shell")
    for action in (up, down, status, shell):
        action.add_argument("--root", type=Path, required=True, help="directory for all its files")
    return parser


def _up(arguments: argparse.Namespace) -> int:
    extra_conf = arguments.extra_conf.read_text() if arguments.extra_conf else ""
    started = time.monotonic()
    cluster = SlurmCluster(
        arguments.root,
        nodes=arguments.nodes,
        cpus=arguments.cpus,
        gpus=arguments.gpus,
        release=arguments.release,
        accounting=not arguments.no_accounting,
        extra_conf=extra_conf,
        users=tuple(arguments.users),
        machine_users=tuple(_machine_users()),
    ).up()
    print(f"# {arguments.nodes} nodes up in {time.monotonic() - started:.1f} s; down again with:")
    print(f"#   {_command('down', cluster)}")
    _print_way_in(cluster)
    return 0


def _machine_users() -> list[str]:
    """People, by Debian's range of numbers for them."""
    return [entry.pw_name for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 60000]


def _print_way_in(cluster: SlurmCluster) -> None:
    print(_export(cluster))
    for user in cluster.users:
        print(f"as {user}: {_command('shell', cluster)} {user}")
    if cluster.options.accounting:
        account = cluster.options.accounts[0]
        print(
            "somebody whose account on this machine is newer, once root has typed:\n"
            f"  sacctmgr -i add user NAME account={account}"
        )


def _command(verb: str, cluster: SlurmCluster) -> str:
    return shlex.join(
        [sys.executable, "-m", "tests.slurm_cluster", verb, "--root", str(cluster.root)]
    )


def _export(cluster: SlurmCluster) -> str:
    """The line that points a shell at the cluster."""
    words = f"export SLURM_CONF={shlex.quote(str(cluster.conf))}"
    if cluster.release:
        words += f" PATH={shlex.quote(str(cluster.release.clients))}:$PATH"
    return words


def _down(arguments: argparse.Namespace) -> int:
    SlurmCluster.attach(arguments.root).down()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    cluster = SlurmCluster.attach(arguments.root)
    if not cluster.network.running(SWITCH):
        print(f"no cluster runs in {arguments.root}")
        return 1
    for node, state in cluster.nodes().items():
        power = "" if cluster.network.running(node) else "  (powered off)"
        print(f"{node}  {state}{power}")
    _print_way_in(cluster)
    return 0


def _shell(arguments: argparse.Namespace) -> int:
    """Become the user, in their home: this process ends here."""
    cluster = SlurmCluster.attach(arguments.root)
    if arguments.user not in cluster.users:
        known = ", ".join(cluster.users) or "none; up --users NAME makes them"
        raise ValueError(f"the cluster has no user {arguments.user!r}; it has: {known}")
    session = cluster.as_user(arguments.user)
    words = session.words(arguments.command or ["/bin/bash", "--norc", "-i"])
    kept = {key: os.environ[key] for key in ("TERM", "LANG", "COLUMNS") if key in os.environ}
    os.execvpe(words[0], words, {**session.env(), **kept, "PS1": r"\u@login:\w\$ "})


if __name__ == "__main__":
    sys.exit(main())
