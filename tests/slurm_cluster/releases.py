"""Other releases of Slurm than this machine's own: for each a Debian root, and the way into it.

A root is made once by mmdebstrap from the machine's own Debian mirror and kept outside the
checkout. Daemons and clients of one release run in a mount namespace in which the root's /usr lies
over the machine's, with its linker cache; all other directories stay the machine's own. So
checkout, environment, home and /tmp need no mounts, and nothing is mounted on /run, where
unmounting would take the names of other people's network namespaces away. A Python that lies in
/usr itself is put back. MariaDB and `ip` outside the nodes are the machine's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .machines import SYSTEM_ENVIRONMENT, ClusterError

SUITES: Mapping[str, tuple[str, ...]] = {
    "22.05": ("bookworm",),
    "24.11": ("trixie",),
    "26.05": ("forky", "sid"),
}
"""Debian's suites with each release, the first choice first."""

NEWEST = max(SUITES)
CHOICE = "FSDPKIT_TEST_SLURM"
"""The variable that chooses the release for a cluster whose options name none."""
ROOTS = "FSDPKIT_SLURM_ROOTS"
"""The variable that names the directory of all roots."""
LIMIT_S = 300
"""For making one root."""
ROOM_MB = 1000

# python3 and libstdc++6 for their libraries, which a Python from outside wants, too: their names
# differ from suite to suite. `mount` is a package of its own in newer ones. fsdpkit, which
# runs inside, too, signs with ssh-keygen.
PACKAGES = """
    slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins slurm-wlm-mysql-plugin munge
    iproute2 mount procps python3 libstdc++6 ca-certificates openssh-client
"""

CLIENTS = """
    sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol sdiag sinfo sprio squeue sreport
    srun sshare sstat strigger
"""

CLIENT_SCRIPT = """\
#!/bin/sh
# {client} of Slurm {name}, in a mount namespace in which that release's /usr lies over this one's.
[ /usr -ef {usr} ] && exec /usr/bin/{client} "$@"
exec unshare --mount --propagation slave /bin/sh {enter} /usr/bin/{client} "$@"
"""


@dataclass(frozen=True)
class Release:
    """One release with a root of its own, made or not."""

    name: str
    """As people say it: 26.05."""

    @property
    def root(self) -> Path:
        """Named for its packages, too: another list makes another root, and a cluster of another
        checkout keeps the one it runs on."""
        digest = hashlib.sha256(" ".join(PACKAGES.split()).encode()).hexdigest()
        return roots() / f"{self.name}-{digest[:8]}"

    @property
    def clients(self) -> Path:
        """A directory for PATH: this release's commands, to be called from outside."""
        return self.root / "clients"

    def mounts(self) -> dict[str, Path]:
        """What to mount where, in this order, for a process to see this release."""
        kept = {f"{self.root}{place}": place for place in _kept_of_usr()}
        system = ["/etc/ld.so.cache", "/etc/alternatives", "/usr"]
        return kept | {place: Path(f"{self.root}{place}") for place in system}

    def reason_against(self) -> str | None:
        """Why no cluster of this release can run here although its root is made, or None."""
        self._write_entrance()
        libraries = "import bz2, ctypes, hashlib, lzma, sqlite3, ssl, zlib"
        argv = [*self.entering(), sys.executable, "-c", libraries]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            return f"{sys.executable} does not run in the root of Slurm {self.name}: {said}"
        return None

    def entering(self) -> list[str]:
        """The words to put before a command so that it sees this release."""
        enter = str(self.root / "enter")
        return ["unshare", "--mount", "--propagation", "slave", "/bin/sh", enter]

    def _write_entrance(self) -> None:
        """The script that enters, the clients, and the places in the root for what is kept."""
        for place, source in self.mounts().items():
            if source.is_dir():
                Path(place).mkdir(parents=True, exist_ok=True)
            elif not Path(place).exists():
                Path(place).touch()
        mounts = [
            f"mount --rbind {shlex.quote(str(source))} {shlex.quote(place)}\n"
            for place, source in self.mounts().items()
        ]
        _write(self.root / "enter", "".join(["set -e\n", *mounts, 'exec "$@"\n']))
        self.clients.mkdir(exist_ok=True)
        usr, enter = (shlex.quote(f"{self.root}/{name}") for name in ("usr", "enter"))
        for client in CLIENTS.split():
            text = CLIENT_SCRIPT.format(client=client, name=self.name, usr=usr, enter=enter)
            _write(self.clients / client, text, mode=0o755)


def roots() -> Path:
    """Where the roots are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(ROOTS) or Path(cache) / "fsdpkit-slurm").absolute()


def point_at_roots() -> None:
    """From here on the roots are where they are now, whatever becomes of XDG_CACHE_HOME."""
    os.environ[ROOTS] = str(roots())


def release_clients() -> Path | None:
    """The commands of the release that the environment asks for; None: those on PATH."""
    release = chosen(choice())
    return release.clients if release else None


def choice() -> str:
    """The release that the environment asks for; empty: this machine's own."""
    return os.environ.get(CHOICE, "")


def chosen(name: str) -> Release | None:
    """The release of this name; None for this machine's own. Raises ClusterError."""
    if not name or name == own_release():
        return None
    if name not in SUITES:
        raise ClusterError(f"Slurm {name}: known are {', '.join(SUITES)}")
    return Release(name)


def is_made(name: str) -> bool:
    """Whether nothing has to be made before a cluster of this release can be tried."""
    release = chosen(name)
    return release is None or release.root.is_dir()


def own_release() -> str | None:
    """The release of this machine's own packages, e.g. 22.05; None without any."""
    return ".".join(installed_version().split(".")[:2]) or None


def installed_version(name: str = "") -> str:
    """A release to the last digit, e.g. 26.05.5, as far as it is installed; else empty."""
    slurmctld = shutil.which("slurmctld", path=SYSTEM_ENVIRONMENT["PATH"])
    argv = [slurmctld, "-V"] if slurmctld else []
    release = chosen(name)
    if release:
        argv = [*release.entering(), "/usr/sbin/slurmctld", "-V"]
    words = subprocess.run(argv, capture_output=True, text=True).stdout.split() if argv else []
    return words[-1] if words else ""


def path_with(release: Release | None, path: str) -> str:
    """PATH with this release's commands first, and with those of no other root."""
    own = [word for word in path.split(":") if not Path(word).is_relative_to(roots())]
    return ":".join([*([str(release.clients)] if release else []), *own])


def make(release: Release) -> None:
    """Make the root unless it is there. It appears complete or not at all; raises ClusterError."""
    if release.root.is_dir():
        return
    if reason := reason_against_making(release):
        raise ClusterError(reason)
    with locked(roots() / f".{release.name}.lock"):
        if release.root.is_dir():
            return
        for remains in roots().glob(f".{release.name}.new-*"):
            shutil.rmtree(remains)
        said = ""
        for suite in SUITES[release.name]:
            said = _bootstrap(release, suite)
            if not said:
                return
        raise ClusterError(f"the root of Slurm {release.name} cannot be made: {said}")


def reason_against_making(release: Release) -> str | None:
    """What this machine lacks to make the root, in one sentence; None: it can be tried."""
    what = f"a root of Slurm {release.name}"
    if os.geteuid() != 0:
        return f"{what} needs root to be made, and this is not root"
    if not shutil.which("mmdebstrap"):
        return f"{what} needs a package not installed here: mmdebstrap"
    if debian_mirror() is None:
        return f"{what} comes from a Debian mirror, and apt on this machine knows none"
    try:
        roots().mkdir(parents=True, exist_ok=True)
        free_mb = shutil.disk_usage(roots()).free // 2**20
    except OSError as error:
        return f"{what} would be kept in {roots()}, which cannot be made: {error.strerror}"
    if free_mb < ROOM_MB:
        return f"{what} needs {ROOM_MB} MB, and {roots()} has room for {free_mb}"
    return None


def debian_mirror() -> str | None:
    """Where this machine gets its own Debian packages from, by apt's own reading of /etc/apt."""
    system = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    suite = system.get("VERSION_CODENAME", "").strip('"')
    if system.get("ID") != "debian" or not shutil.which("apt-get"):
        return None
    line = "$(CODENAME) $(COMPONENT) $(REPO_URI)"
    argv = ["apt-get", "indextargets", f"--format={line}", "Created-By: Packages"]
    for found in subprocess.run(argv, capture_output=True, text=True).stdout.splitlines():
        codename, component, address = found.split(" ", 2)
        if (codename, component) == (suite, "main"):
            return address
    return None


def _bootstrap(release: Release, suite: str) -> str:
    """One try with one suite; what went wrong, or nothing."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{release.name}.new-", dir=roots()))
    fresh.chmod(0o755)
    try:
        argv = ["timeout", "--kill-after=20", str(LIMIT_S), "mmdebstrap", "--variant=apt"]
        argv += [f"--include={','.join(PACKAGES.split())}"]
        argv += ['--aptopt=Acquire::Check-Valid-Until "false"']  # a mirror may be a snapshot
        argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale")]
        argv += ["--quiet", suite, str(fresh), debian_mirror() or ""]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == 124:
            return f"not within {LIMIT_S} s"
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            return (errors or done.stderr.strip().splitlines() or ["mmdebstrap failed"])[-1]
        if _release_in(fresh) != release.name:
            return f"Debian {suite} has Slurm {_release_in(fresh) or 'of no release'}"
        fresh.rename(release.root)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return ""


def _release_in(root: Path) -> str:
    argv = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f=${Version}", "slurmctld"]
    version = subprocess.run(argv, capture_output=True, text=True).stdout
    return ".".join(version.split(".")[:2])


def _kept_of_usr() -> Iterator[Path]:
    """What a process in a release still sees of this machine's /usr: local, and this Python."""
    yield Path("/usr/local")
    if sys.base_prefix == "/usr":
        yield Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
        yield Path(sysconfig.get_path("stdlib"))


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write unless it says so already; another cluster may be reading it."""
    if path.exists() and path.read_text() == text:
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
