"""ssh to a login node: one connection for many commands, and what its end means.

The person's own configuration decides how to get there; where it shares no connections
(ControlPath), the first command opens one in a private directory and it stays ten minutes. Every
command of ssh is a list of words, and the command of the other side is two: fsdpkit's path, which
was checked, and a request in letters and digits.

Exit status 255 is ssh's own, and may be a job's: whether the connection still stands tells them
apart.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsdpkit
from fsdpkit.errors import RemoteError
from fsdpkit.remote.hosts import Host, hosts_file
from fsdpkit.remote.protocol import PROTOCOL, RemoteRequest, answer_in

_SSH_FAILED = 255
_KEPT_S = 600
_PATIENT_INTERRUPTS = 2
"""How often Ctrl-C is passed on before it ends ssh itself, as where the network hangs."""
_LONGEST_DIR = 45
"""Of the sockets' directory: with ssh's name for a socket, a path of 104 characters at most."""


@dataclass(frozen=True)
class LoginConnection:
    """A login node that answered, and ssh's options to reach it again."""

    host: Host
    options: tuple[str, ...]

    def argv(self, request: RemoteRequest, *, terminal: bool = False) -> list[str]:
        return [
            "ssh",
            *self.options,
            "-t" if terminal else "-T",
            "--",
            self.host.name,
            f"{self.host.command} _remote {request.encode()}",
        ]

    def ask(self, request: RemoteRequest, send: Callable[[IO[bytes]], None] | None = None) -> Any:
        """The login node's answer; `send` writes to it. Raises RemoteError, and as `send`."""
        with (
            tempfile.TemporaryFile() as output,
            subprocess.Popen(
                self.argv(request),
                stdin=subprocess.PIPE if send else subprocess.DEVNULL,
                stdout=output,
            ) as process,
        ):
            try:
                if send and process.stdin:
                    _send_all(send, process.stdin)
            except BaseException:
                process.kill()
                raise
            status = process.wait()
            output.seek(0)
            said = answer_in(output.read().decode("utf-8", errors="replace"))
        if said is None:
            raise self._no_answer(status, request)
        if error := said.get("error"):
            raise RemoteError(f"{self.host.name}: {error}")
        return said

    def _no_answer(self, status: int, request: RemoteRequest) -> RemoteError:
        name = self.host.name
        if status == _SSH_FAILED and request.do == "hello":
            return RemoteError(
                f"{name} cannot be reached; what ssh said is above. Try: ssh {name} true"
            )
        if status == _SSH_FAILED:
            return RemoteError(f"the connection to {name} was lost; run the command again")
        return RemoteError(
            f"on {name} the command {self.host.command!r} is no fsdpkit that can be asked from "
            f"elsewhere (exit status {status}; what the shell said is above): name the path of one "
            f"of version {fsdpkit.__version__} in FSDPKIT_REMOTE, or as `command` under "
            f"[hosts.{name}] in {hosts_file()}"
        )

    def is_alive(self) -> bool:
        """Whether a shared connection stands."""
        done = subprocess.run(
            ["ssh", *self.options, "-O", "check", "--", self.host.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def run(self, request: RemoteRequest, stdout: IO[bytes] | None = None) -> int:
        """Run the command there, its output going where this process's does; its exit status.

        On a terminal it has one there, too. Otherwise Ctrl-C is passed on, and it hears when this
        process is gone. Raises RemoteError if the connection was lost.
        """
        if request.terminal:
            status = subprocess.run(self.argv(request, terminal=True), check=False).returncode
        else:
            status = self._run_without_terminal(request, stdout)
        if status == _SSH_FAILED and not self.is_alive():
            raise self._lost(request)
        return status if status >= 0 else 128 - status

    def _run_without_terminal(self, request: RemoteRequest, stdout: IO[bytes] | None) -> int:
        # In a group of its own Ctrl-C would not end ssh before the command there has heard of it.
        apart = os.setpgrp if self.is_alive() else None
        with subprocess.Popen(
            self.argv(request), stdin=subprocess.PIPE, stdout=stdout, preexec_fn=apart
        ) as process:
            interrupts = 0
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:
                    interrupts += 1
                    if apart is None or interrupts > _PATIENT_INTERRUPTS:
                        process.terminate()
                        raise
                    _interrupt(process)

    def _lost(self, request: RemoteRequest) -> RemoteError:
        name, command = self.host.name, request.words[0]
        words = f"the connection to {name} was lost while `fsdpkit {command}` ran there"
        if command in ("submit", "resume"):
            words += (
                ". What was submitted by then goes on, and whether anything was, is not known: "
                f"fsdpkit --host {name} status shows it"
            )
        else:
            words += "; runs are not affected. Run the command again"
        return RemoteError(words)


def _send_all(send: Callable[[IO[bytes]], None], to: IO[bytes]) -> None:
    try:
        send(to)
        to.close()
    except BrokenPipeError:  # the other side says why, or ssh does
        with suppress(BrokenPipeError):
            to.close()


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(b"i")
        process.stdin.flush()


def connect(host: Host) -> LoginConnection:
    """Reach the login node, for which ssh may ask the person for what it needs. Raises RemoteError
    if it cannot be reached, or has no fsdpkit that understands this one."""
    connection = LoginConnection(host, (*_options(host),))
    said = connection.ask(RemoteRequest("hello"))
    theirs = str(said.get("version"))
    if said.get("protocol") != PROTOCOL or _release(theirs) != _release(fsdpkit.__version__):
        raise RemoteError(
            f"{host.name} has fsdpkit {theirs[:40]}, this machine {fsdpkit.__version__}: install "
            "the same release on both, or name another one there in FSDPKIT_REMOTE"
        )
    return connection


def _release(version: str) -> list[str]:
    """The part of a version that must be the same on both sides."""
    return version.split(".")[:2]


def _options(host: Host) -> Iterator[str]:
    """Of ssh: one connection for all commands, and a dead one is noticed within a minute."""
    theirs = _configuration(host)
    if theirs.get("serveraliveinterval", "0") == "0":
        yield from ("-o", "ServerAliveInterval=15")
    if theirs.get("controlpath", "none") != "none":
        return
    if (directory := _socket_dir()) is not None:
        yield from ("-o", "ControlMaster=auto", "-o", f"ControlPersist={_KEPT_S}")
        # Not ssh's %C, which takes hosts behind two jump hosts for one where their names are equal.
        known = repr((host.name, sorted(theirs.items()))).encode()
        yield from ("-o", f"ControlPath={directory}/{hashlib.sha256(known).hexdigest()[:32]}")


def _configuration(host: Host) -> dict[str, str]:
    """What ssh would do for this host. Raises RemoteError."""
    try:
        done = subprocess.run(
            ["ssh", "-G", "-T", "--", host.name],  # without -T ssh complains of stdin
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise RemoteError(
            "there is no ssh on this machine: install OpenSSH's client (openssh-client)"
        ) from None
    if done.returncode != 0:
        raise RemoteError(f"ssh cannot use its configuration for {host.name}; it said why above")
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {key.lower(): value for key, _, value in pairs}


def _socket_dir() -> Path | None:
    """A directory that is this user's alone, with a name short enough for sockets in it."""
    home, runtime = os.path.expanduser("~"), os.environ.get("XDG_RUNTIME_DIR")
    places = [f"{runtime}/fsdpkit"] if runtime else []
    places += [f"{home}/.fsdpkit/ssh", f"/tmp/fsdpkit-{os.geteuid()}"]
    for place in map(Path, places):
        if len(os.fsencode(place)) <= _LONGEST_DIR and "%" not in str(place) and _is_private(place):
            return place
    return None


def _is_private(place: Path) -> bool:
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError:
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return own and not found.st_mode & 0o077
