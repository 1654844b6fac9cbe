"""Debian packages that this machine does not have, laid over the nodes of a cluster.

Two module systems exclude one another, and Apptainer is in Debian's newest suite only, so neither
is installed: a package and what it needs are unpacked into a directory, kept beside the roots of
Slurm's releases, and an overlay shows them in a node's /usr, /etc and /var/lib beneath the node's
own files. Only the node sees them, until it is told otherwise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cluster import SlurmCluster
from .machines import ClusterError
from .releases import LIMIT_S, debian_mirror, locked, roots

ROOM_MB = 600
PLACES = ("usr", "etc", "var/lib")

LAY_OVER = """
    set -e
    place=$1 root=$2
    kept=$(mktemp -d)
    mount --rbind "/$place" "$kept"
    mount -t overlay overlay -o "lowerdir=/$place:$root/$place" "/$place"
    # An overlay shows nothing of what is mounted below its layers, such as a node's /etc/hosts.
    while read -r _ below _; do
        case $below in "$kept"/*) mount --bind "$below" "/$place/${below#"$kept"/}" ;; esac
    done </proc/self/mounts
    umount --lazy "$kept"
    rmdir "$kept"
"""


@dataclass(frozen=True)
class Unpacked:
    """Packages of one suite, with all that they depend on, unpacked and not configured."""

    name: str
    suite: str
    packages: tuple[str, ...]

    @property
    def root(self) -> Path:
        return roots() / "packages" / f"{self.name}-{self.suite}"


UNPACKED: Mapping[str, Unpacked] = {
    one.name: one
    for one in (
        Unpacked("lmod", "bookworm", ("lmod",)),
        Unpacked("environment-modules", "bookworm", ("environment-modules",)),
        # With what mounts an image file for a person who is not root.
        Unpacked("apptainer-squashfuse", "sid", ("apptainer", "squashfuse")),
        # What the project's own Python needs, and a shell: a container image without a network.
        Unpacked(
            "image",
            "bookworm",
            ("base-files", "bash", "coreutils", "libc-bin", "python3", "libstdc++6"),
        ),
    )
}


def unpack(name: str) -> Path:
    """The directory, made unless it is there: complete or not at all. Raises ClusterError."""
    wanted = UNPACKED[name]
    if wanted.root.is_dir():
        return wanted.root
    if reason := _reason_against(wanted):
        raise ClusterError(reason)
    with locked(wanted.root.with_name(f".{wanted.root.name}.lock")):
        if not wanted.root.is_dir():
            _extract(wanted)
    return wanted.root


def _reason_against(wanted: Unpacked) -> str | None:
    what = f"Debian's {', '.join(wanted.packages)}"
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        return f"{what} cannot be unpacked without root and mmdebstrap"
    if debian_mirror() is None:
        return f"{what} comes from a Debian mirror, and apt on this machine knows none"
    try:
        wanted.root.parent.mkdir(parents=True, exist_ok=True)
        free_mb = shutil.disk_usage(wanted.root.parent).free // 2**20
    except OSError as error:
        return f"{what} would be kept in {wanted.root.parent}: {error.strerror}"
    return f"{what} needs {ROOM_MB} MB, and {free_mb} are free" if free_mb < ROOM_MB else None


def _extract(wanted: Unpacked) -> None:
    for remains in wanted.root.parent.glob(f".{wanted.root.name}.new-*"):
        shutil.rmtree(remains)
    fresh = Path(tempfile.mkdtemp(prefix=f".{wanted.root.name}.new-", dir=wanted.root.parent))
    fresh.chmod(0o755)
    try:
        argv = ["timeout", "--kill-after=20", str(LIMIT_S), "mmdebstrap", "--variant=extract"]
        argv += [f"--include={','.join(wanted.packages)}", "--quiet"]
        argv += ['--aptopt=Acquire::Check-Valid-Until "false"']  # a mirror may be a snapshot
        argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
        argv += [wanted.suite, str(fresh), debian_mirror() or ""]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"not within {LIMIT_S} s"])[-1]
            raise ClusterError(f"{wanted.name} of Debian {wanted.suite}: {said}")
        fresh.rename(wanted.root)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextlib.contextmanager
def laid_over(cluster: SlurmCluster, nodes: Sequence[str], root: Path) -> Iterator[None]:
    """The nodes with the packages in `root`, and afterwards without them. Raises ClusterError."""
    done: list[tuple[str, str]] = []
    try:
        for node in nodes:
            for place in PLACES:
                if (root / place).is_dir():
                    argv = ["bash", "-c", LAY_OVER, "-", place, str(root)]
                    if (said := cluster.node_exec(node, argv)).returncode != 0:
                        raise ClusterError(f"nothing can be laid over /{place}: {said.stderr}")
                    done.append((node, place))
        yield
    finally:
        for node, place in reversed(done):
            cluster.node_exec(node, ["umount", "--lazy", f"/{place}"])
