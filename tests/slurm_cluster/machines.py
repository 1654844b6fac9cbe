"""Machines made of Linux namespaces, and the switch that joins them.

A machine is one process tree with its own network, host name, mounts and process numbers. Its first
process does nothing but hold the namespaces and reap; killing it makes the kernel kill everything
inside, which is what a power cut looks like. The switch is a machine as well: the bridge lives
there and not in the root namespace, so that a host's firewall rules for bridged packets (Docker
sets some) cannot touch the cluster, and so that no bridge is left behind when the switch dies.

The state file names every process started here with its start time, so that a later process can
clean up after a crash and never kills a stranger that got the same number.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")
Completed = subprocess.CompletedProcess[str]

SWITCH = "switch"
LOGIN_HOST_NUMBER = 254
"""The last byte of the address that the root namespace has on the cluster's network."""

SYSTEM_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
}
"""What daemons start with, so that nothing of the caller's environment leaks into jobs."""

# /proc is still the outer one when `read` looks, so the number is the one outsiders know.
# A fresh /sys shows the machine's own network cards; it comes without cgroups, which nobody needs.
# `wait` as process 1 also reaps the orphans that daemons leave.
INIT_SCRIPT = """
set -e
read -r pid rest < /proc/self/stat
hostname "$1"
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t sysfs sysfs /sys
opening=$2
shift 2
while [ $# -gt 0 ]; do
    mount --rbind "$2" "$1"
    shift 2
done
[ -z "$opening" ] || . "$opening"
echo "$pid"
exec > /dev/null
sleep infinity &
wait
"""


class ClusterError(RuntimeError):
    """The harness could not do what was asked; the message says what and shows the evidence."""


def poll(question: Callable[[], Answer | None], timeout_s: float, what: str) -> Answer:
    """Ask until the answer is true; `what` names the thing waited for in the error."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.01
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout_s:g} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.25)
    return answer


def run(argv: Sequence[str], **options: Any) -> Completed:
    """`subprocess.run` that by default reads nothing and captures all, as text."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if "input" not in options:
        streams["stdin"] = subprocess.DEVNULL
    if options.get("capture_output"):
        streams = {}
    done: Completed = subprocess.run(list(argv), **{"text": True, **streams, **options})
    return done


def run_checked(argv: Sequence[str], **options: Any) -> Completed:
    """The same in the daemons' environment; a failure raises and shows what the command said."""
    done = run(argv, **{"env": SYSTEM_ENVIRONMENT, **options})
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ClusterError(f"{' '.join(argv)}: exit status {done.returncode}: {said}")
    return done


@dataclass(frozen=True)
class Process:
    """One process, told apart from a later one with the same number by its start time."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        return cls(pid, _stat_fields(pid)[19])

    def alive(self) -> bool:
        try:
            fields = _stat_fields(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return fields[19] == self.started and fields[0] not in "ZX"

    def kill(self) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):  # it ends by itself
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Return when it is gone; reaps it when it is our child."""
        poll(lambda: not self.alive(), 240, f"death of process {self.pid}")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: the command before it may hold spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


@dataclass(frozen=True)
class Machine:
    """`holder` is the unshare command outside, `init` is process 1 of the machine inside."""

    holder: Process
    init: Process

    def alive(self) -> bool:
        return self.init.alive()

    def kill(self) -> None:
        self.init.kill()
        self.holder.kill()

    def wait(self) -> None:
        """Return when everything inside is gone: the kernel ends process 1 last."""
        self.init.wait()
        self.holder.wait()

    def enter(self, *, only_network: bool = False, mounts: bool = True) -> list[str]:
        """The words to put before a command so that it runs inside; `mounts=False`: seeing the
        files that the root namespace sees."""
        kinds = ["--net", "--uts", "--pid", *(["--mount"] if mounts else [])]
        if only_network:
            kinds = ["--net"]
        return ["nsenter", f"--target={self.init.pid}", *kinds, "--"]


@dataclass
class State:
    """What exists outside the root directory, hence what tear-down has to undo."""

    link: str = ""
    subnet: str = ""
    short_path: str = ""
    machines: dict[str, Machine] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=2) + "\n")
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path) -> State:
        raw = json.loads(path.read_text())
        raw["machines"] = {
            name: Machine(Process(**machine["holder"]), Process(**machine["init"]))
            for name, machine in raw["machines"].items()
        }
        return cls(**raw)


class Network:
    """The machines of one cluster on one private subnet, with the root namespace as login node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._state_file = root / "state.json"
        self.state = State.load(self._state_file) if self._state_file.exists() else State()

    @property
    def short_path(self) -> Path:
        """A short name for the root: Unix socket paths end at 107 bytes, test roots do not."""
        return Path(self.state.short_path)

    def address(self, host_number: int) -> str:
        return str(ipaddress.ip_network(self.state.subnet)[host_number])

    def create(self) -> None:
        """The switch, the root namespace's link to it, and the short path."""
        if self.running(SWITCH):
            raise ClusterError(f"{self.root} already holds a cluster; take it down first")
        self.destroy()
        self.state.short_path = _short_link(self.root)
        self._save()
        self.boot(SWITCH)
        self._switch(["link add bridge type bridge", "link set bridge up"])
        self._plug_in_login()

    def boot(
        self, name: str, mounts: Mapping[str, Path] | None = None, opening: Path | None = None
    ) -> None:
        """Start a machine without a network cable; `mounts` says what it sees in which place, and
        `opening` is a shell script for mounts that come after these."""
        log = self.root / "machines" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        words = [name, str(opening or "")]
        for place, source in (mounts or {}).items():
            words += [place, str(source)]
        holder, ready = _spawn_unshared(INIT_SCRIPT, words, log)
        # Until its process 1 is known, killing the holder is what ends the machine.
        self.state.machines[name] = Machine(holder, holder)
        self._save()
        with os.fdopen(ready) as answer:
            pid = answer.readline().strip()
        if not pid:
            raise ClusterError(f"machine {name} did not start: {log.read_text().strip()}")
        self.state.machines[name] = Machine(holder, Process.of(int(pid)))
        self._save()

    def plug_in(self, addresses: dict[str, str]) -> None:
        """A cable from each named machine to the switch, and the address at its end."""
        cables: list[str] = []
        for name, address in addresses.items():
            pid = self.state.machines[name].init.pid
            # A fixed hardware address keeps the neighbours' ARP tables right over a reboot.
            mac = "02:00:" + ":".join(f"{int(byte):02x}" for byte in address.split("."))
            cables += [
                f"link add {name} type veth peer name eth0 address {mac} netns {pid}",
                f"link set {name} master bridge up",
            ]
        self._switch(cables)
        for name, address in addresses.items():
            self._ip(
                self.state.machines[name],
                ["link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"],
            )

    def cut(self, name: str, *, carrier: bool = False) -> None:
        """carrier: the cable stays in, and the switch passes nothing on."""
        self._switch([f"link set {name} " + ("nomaster" if carrier else "down")])

    def join(self, name: str) -> None:
        self._switch([f"link set {name} master bridge up"])

    def power_off(self, name: str) -> None:
        """Cable first, so that no peer is told: a lost machine does not close its connections."""
        machine = self.machine(name)
        self._switch([f"link del {name}"])
        machine.kill()
        machine.wait()
        del self.state.machines[name]
        self._save()

    def machine(self, name: str) -> Machine:
        if not self.running(name):
            raise ClusterError(f"machine {name} is powered off")
        return self.state.machines[name]

    def running(self, name: str) -> bool:
        machine = self.state.machines.get(name)
        return machine is not None and machine.alive()

    def destroy(self) -> None:
        """Undo everything in the state file; safe to repeat and safe on half-made networks."""
        machines = list(self.state.machines.values())
        for machine in machines:
            machine.kill()
        for machine in machines:
            machine.wait()
        if self.state.link:
            # The kernel removes it with the switch, but only when it finds the time.
            subprocess.run(["ip", "link", "del", self.state.link], capture_output=True)
        if self.state.short_path:
            Path(self.state.short_path).unlink(missing_ok=True)
        self.state = State()
        self._state_file.unlink(missing_ok=True)

    def _save(self) -> None:
        self.state.save(self._state_file)

    def _switch(self, commands: Sequence[str]) -> None:
        self._ip(self.state.machines[SWITCH], commands)

    def _ip(self, machine: Machine, commands: Sequence[str]) -> None:
        argv = [*machine.enter(only_network=True), "ip", "-batch", "-"]
        run_checked(argv, input="\n".join(commands) + "\n")

    def _plug_in_login(self) -> None:
        """Creating the link under a name that carries the subnet's number is what claims it."""
        switch = self.state.machines[SWITCH]
        for number in _free_subnet_numbers():
            link = f"slurm{number}"
            argv = ["ip", "link", "add", link, "type", "veth", "peer", "name", "login"]
            argv += ["netns", str(switch.init.pid)]
            if subprocess.run(argv, capture_output=True).returncode == 0:
                break
        else:
            raise ClusterError("no free subnet in 10.99.0.0/16, or this kernel has no veth")
        self.state.link, self.state.subnet = link, f"10.99.{number}.0/24"
        self._save()
        address = self.address(LOGIN_HOST_NUMBER)
        run_checked(["ip", "addr", "add", f"{address}/24", "dev", link])
        run_checked(["ip", "link", "set", link, "up"])
        self._switch(["link set login master bridge up"])


def _spawn_unshared(script: str, words: Sequence[str], log: Path) -> tuple[Process, int]:
    """Start a machine's first process; the descriptor gives its number once it is set up."""
    reading, writing = os.pipe()
    argv = ["unshare", "--net", "--uts", "--mount", "--propagation=slave", "--pid"]
    argv += ["--fork", "--kill-child", "/bin/sh", "-c", script, "init", *words]
    create = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    # posix_spawn and not Popen: the machine outlives this object and often this program.
    pid = os.posix_spawnp(
        argv[0],
        argv,
        SYSTEM_ENVIRONMENT,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writing, 1),
            (os.POSIX_SPAWN_OPEN, 2, str(log), create, 0o644),
        ],
        setsid=True,
    )
    os.close(writing)
    return Process.of(pid), reading


def _short_link(root: Path) -> str:
    """A fresh symbolic link to the root; always in /tmp because TMPDIR may be long."""
    holder = tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
    os.rmdir(holder)
    os.symlink(root, holder)
    return holder


def _free_subnet_numbers() -> list[int]:
    """Values of x for which this machine has no route into 10.99.x.0/24, in random order."""
    routes = json.loads(run_checked(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout)
    taken = [
        ipaddress.ip_network(route["dst"])
        for route in routes
        if route["dst"] not in ("default", "0.0.0.0/0")
    ]
    free = [
        number
        for number in range(256)
        if not any(ipaddress.ip_network(f"10.99.{number}.0/24").overlaps(net) for net in taken)
    ]
    return random.sample(free, len(free))
