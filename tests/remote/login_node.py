"""A login node on this machine: sshd of the tests' own, on loopback, and a laptop to reach it from.

The laptop has Python's standard library, click and ssh. The login node's home is a directory of the
test; its shells are real ones, each behind a port. `behind` can be reached through a second sshd
only (ProxyJump).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from tests.packaging.installation import ROOT
from tests.programs import ran, until

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
SHELLS = ("bash", "dash", "tcsh")


def why_not() -> str | None:
    """Why no sshd can run here; None if one can."""
    if SSHD is None or shutil.which("ssh") is None:
        return "there is no OpenSSH server (Debian: openssh-server)"
    if missing := [shell for shell in SHELLS if shutil.which(shell) is None]:
        return f"there is no {missing[0]}"
    return None


@dataclass
class Sshd:
    """One daemon with its keys, and a port for each kind of login."""

    dir: Path
    ports: Mapping[str, int]
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def log(self) -> str:
        return (self.dir / "log").read_text()

    def logins(self) -> int:
        return self.log.count("Accepted publickey")

    def cut(self) -> None:
        """End every connection, as a login node that goes down does; the daemon stays."""
        found = ran(["ps", "-o", "pid=", "--ppid", str(self.process.pid)])
        for pid in map(int, found.stdout.split()):
            with contextlib.suppress(ProcessLookupError):  # it ends by itself
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class LoginNode:
    """The login node, and the laptop that has its key."""

    dir: Path
    home: Path
    laptop: Path
    sshd: Sshd
    jump: Sshd

    @property
    def laptop_command(self) -> str:
        return str(self.laptop / "fsdpkit")

    def environ(self, **more: str) -> dict[str, str]:
        """What a command on the laptop sees."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FSDPKIT", "SLURM"))}
        return kept | {
            "PATH": f"{self.laptop / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.laptop),
            "XDG_RUNTIME_DIR": str(self.dir / "run"),
            "FSDPKIT_REMOTE": str(self.dir / "there"),
            "FSDPKIT_CONFIG_DIR": str(self.laptop / "config"),
            **more,
        }

    def fsdpkit(
        self, *words: str | bytes, cwd: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """`fsdpkit WORDS…` on the laptop."""
        return subprocess.run(
            [self.laptop_command, *words],
            cwd=cwd or self.laptop,
            env=self.environ(**environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=240,
            check=False,
        )

    def hang_up(self) -> None:
        """End the laptop's shared connections."""
        for place in (self.dir / "run").glob("fsdpkit/*"):
            argv = ["ssh", "-o", f"ControlPath={place}", "-O", "exit", "any"]
            subprocess.run(argv, capture_output=True, check=False)


@contextmanager
def login_node(environ: Mapping[str, str], there: str | None = None) -> Iterator[LoginNode]:
    """environ: of everybody who logs in. there: what `fsdpkit` is on the login node."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-ssh-", dir="/tmp") as directory:
        root = Path(directory)
        home, laptop = root / "home", root / "laptop"
        for place in (home, laptop / "bin", root / "run"):
            place.mkdir(mode=0o700, parents=True)
        _key(root / "id")
        _write(root / "there", there or f'#!/bin/sh\nexec {sys.executable} -m fsdpkit "$@"\n')
        _lay_laptop(laptop)
        environ = {
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            **environ,
        }
        sshd = _start(root / "sshd", root / "id.pub", SHELLS, environ)
        try:
            jump = _start(root / "jump", root / "id.pub", ("jump",), {})
            try:
                node = LoginNode(root, home, laptop, sshd, jump)
                _configure(node)
                yield node
            finally:
                _stop(jump)
        finally:
            node.hang_up()
            _stop(sshd)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _key(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def _lay_laptop(laptop: Path) -> None:
    """Python without any package but click."""
    (laptop / "packages").mkdir()
    (laptop / "packages" / "click").symlink_to(Path(click.__file__).parent)
    (laptop / "packages" / "fsdpkit").symlink_to(ROOT / "fsdpkit")
    _write(
        laptop / "fsdpkit",
        f"#!{sys.executable} -IS\nimport sys\nsys.path.append({str(laptop / 'packages')!r})\n"
        "from fsdpkit.cli.main import main\nmain()\n",
    )


def _start(place: Path, key: Path, kinds: tuple[str, ...], environ: Mapping[str, str]) -> Sshd:
    place.mkdir()
    _key(place / "host_key")
    (place / "authorized_keys").write_text(key.read_text())
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where privileges are separated
    ports = dict(zip(kinds, _free_ports(len(kinds)), strict=True))
    lines = [
        f"HostKey {place}/host_key",
        f"AuthorizedKeysFile {place}/authorized_keys",
        f"PidFile {place}/pid",
        "ListenAddress 127.0.0.1",
        *(f"Port {port}" for port in ports.values()),
        *("StrictModes no", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin yes"),
        *("KbdInteractiveAuthentication no", "LogLevel VERBOSE", "UseDNS no", "PrintMotd no"),
        "SetEnv " + " ".join(f'"{name}={value}"' for name, value in environ.items()),
    ]
    for shell in set(kinds) & {*SHELLS}:
        lines += [f"Match LocalPort {ports[shell]}"]
        lines += [f'  ForceCommand exec {shutil.which(shell)} -c "$SSH_ORIGINAL_COMMAND"']
    if not environ:
        lines.remove("SetEnv ")
    (place / "config").write_text("\n".join(lines) + "\n")
    assert SSHD is not None
    argv = [SSHD, "-D", "-f", str(place / "config"), "-E", str(place / "log")]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def listens() -> bool:
        assert process.poll() is None, (place / "log").read_text()
        return all(_listens(port) for port in ports.values())

    until(listens, "sshd listening")
    return Sshd(place, ports, process)


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in taken]
    for server in taken:
        server.close()
    return ports


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def _stop(sshd: Sshd) -> None:
    sshd.cut()
    sshd.process.terminate()
    sshd.process.wait()


def _configure(node: LoginNode) -> None:
    """ssh's configuration on the laptop, which its `ssh` reads instead of the machine's."""
    known = node.dir / "known_hosts"
    keys = [(sshd, (sshd.dir / "host_key.pub").read_text()) for sshd in (node.sshd, node.jump)]
    known.write_text(
        "".join(f"[127.0.0.1]:{p} {key}" for sshd, key in keys for p in sshd.ports.values())
    )
    ports = {**node.sshd.ports, **node.jump.ports, "behind": node.sshd.ports["bash"]}
    lines = []
    for host, port in ports.items():
        lines += [f"Host {host}", "  HostName 127.0.0.1", f"  Port {port}"]
        lines += ["  ProxyJump jump"] if host == "behind" else []
    lines += [
        "Host *",
        f"  IdentityFile {node.dir}/id",
        "  IdentitiesOnly yes",
        f"  UserKnownHostsFile {known}",
        "  StrictHostKeyChecking yes",
        "  LogLevel ERROR",
    ]
    config = node.laptop / "ssh_config"
    config.write_text("\n".join(lines) + "\n")
    ssh = shutil.which("ssh")
    _write(node.laptop / "bin" / "ssh", f'#!/bin/sh\nexec {ssh} -F {config} "$@"\n')
