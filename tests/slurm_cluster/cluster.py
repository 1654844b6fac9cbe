"""One Slurm cluster: bring it up, ask it, wait for it, break it, take it down."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from .configuration import (
    CONTROLLER,
    CONTROLLER_HOST_NUMBER,
    SLURMDBD_PORT,
    ClusterOptions,
    Places,
    cgroup_conf,
    gres_conf,
    hosts_text,
    mariadb_conf,
    slurm_conf,
    slurmdbd_conf,
)
from .machines import (
    LOGIN_HOST_NUMBER,
    SYSTEM_ENVIRONMENT,
    ClusterError,
    Completed,
    Network,
    poll,
    run,
    run_checked,
)
from .releases import Release, chosen, own_release, path_with
from .requirements import system_tables_sql, unavailable_reason
from .users import Session, User, check, lay_out, users_of

JobInfo = dict[str, str]
"""One line of `scontrol show job -o`, by Slurm's own names: JobState, ExitCode, Restarts, …"""

FINISHED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
"""The job states that last."""

DIRECTORIES = ("etc", "run", "log", "spool", "state", "hosts")
FIRST_OUTSIDER = 210
"""The host number of the first machine that is none of the cluster's."""

_SLURM_VARIABLE = re.compile(
    r"(SLURM|SLURMD|SLURMCTLD|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|SCANCEL|SCONTROL|SPRIO|PMI)_"
)
_FIELD = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=")


class SlurmCluster:
    """A cluster whose every file lies below `root`; the keywords are those of ClusterOptions.

    As a context manager it is up inside the block and gone after it. Without one, `up` leaves
    daemons that outlive this program; `SlurmCluster.attach(root).down()` ends them from another.
    """

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root.resolve()
        self.options = ClusterOptions(**options)
        self.network = Network(self.root)

    @classmethod
    def attach(cls, root: Path) -> SlurmCluster:
        """The cluster that `up` left in this directory."""
        file = root / "options.json"
        return cls(root, **(json.loads(file.read_text()) if file.exists() else {}))

    def __enter__(self) -> SlurmCluster:
        return self.up()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    # Up and down

    def up(self) -> SlurmCluster:
        if reason := unavailable_reason(self.options.release):
            raise ClusterError(reason)
        self.root.mkdir(parents=True, exist_ok=True)
        self.network.create()
        try:
            self._lay_out()
            self._start_machines()
            self._start_daemons()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        self.network.destroy()

    def _lay_out(self) -> None:
        """Write every file and directory the daemons look for."""
        for name in ("database", "database-tmp", "home", *DIRECTORIES):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name in DIRECTORIES:
            (self.root / name).mkdir()
        (self.root / "options.json").write_text(json.dumps(asdict(self.options)))
        etc, options, places = self.root / "etc", self.options, self.places
        _write_secret(etc / "munge.key", os.urandom(128))
        _write_secret(etc / "slurmdbd.conf", slurmdbd_conf(places).encode())
        (etc / "slurm.conf").write_text(slurm_conf(options, places))
        (etc / "gres.conf").write_text(gres_conf(options))
        (etc / "cgroup.conf").write_text(cgroup_conf(self.options.release or own_release() or ""))
        (etc / "mariadb.cnf").write_text(mariadb_conf(places))
        for name in [CONTROLLER, *options.node_names]:
            text = hosts_text(name, options, places.addresses)
            (self.root / "hosts" / name).write_text(text)
        if options.users:
            lay_out(self.root, self.users.values(), self._mounts())

    def _start_machines(self) -> None:
        names = [CONTROLLER, *self.options.node_names]
        for name in names:
            self._boot(name)
        self.network.plug_in({name: self.places.addresses[name] for name in names})

    def _boot(self, name: str) -> None:
        mounts = {**self._mounts(), "/etc/hosts": self.root / "hosts" / name}
        # Where Slurm looks when a job has lost SLURM_CONF from its environment.
        if Path("/etc/slurm").is_dir():
            mounts["/etc/slurm"] = self.root / "etc"
        opened = self.users and name != CONTROLLER
        self.network.boot(name, mounts, self.root / "etc" / "opening" if opened else None)

    def _mounts(self) -> dict[str, Path]:
        """What makes a machine see the cluster's release of Slurm and the cluster's users."""
        mounts = self.release.mounts() if self.release else {}
        for name in ("passwd", "group") if self.users else ():
            mounts[f"/etc/{name}"] = self.root / "etc" / name
        return mounts

    def _start_daemons(self) -> None:
        munge = [f"--{key}={value}" for key, value in self._munge_options().items()]
        self._daemon(CONTROLLER, ["munged", "--force", *munge])
        if self.options.accounting:
            self._start_accounting()
        self.start_controller()
        for name in self.options.node_names:
            self._daemon(name, ["slurmd"])
        self.wait_idle()
        for user in self.users:
            check(self.as_user(user))

    def _munge_options(self) -> Mapping[str, object]:
        return {
            "key-file": self.root / "etc" / "munge.key",
            "socket": self.places.munge_socket,
            "pid-file": self.places.pid_file("munged"),
            "origin": self.places.addresses["login"],
            "log-file": self.places.log_file("munged"),
            "seed-file": self.root / "run" / "munge.seed",
        }

    def _start_accounting(self) -> None:
        """MariaDB, slurmdbd, and the associations without which slurmctld would refuse jobs."""
        places = self.places
        mariadbd = ["mariadbd", f"--defaults-file={places.root}/etc/mariadb.cnf"]
        self._fill_database(mariadbd)
        self._daemon(CONTROLLER, ["setsid", "--fork", *mariadbd], mounts=False)
        poll(lambda: _accepts(str(places.database_socket)), 240, "MariaDB answering")
        self._daemon(CONTROLLER, ["slurmdbd"])
        address = (places.addresses[CONTROLLER], SLURMDBD_PORT)
        poll(lambda: _accepts(address), 240, "slurmdbd answering")
        self._sacctmgr(["add", "cluster", "fsdpkit"])
        default = self.options.accounts[0]
        for account in self.options.accounts:
            self._sacctmgr(["add", "account", account, "cluster=fsdpkit"])
            for user in ("root", *self.users, *self.options.machine_users):
                charging = [f"account={account}", f"defaultaccount={default}"]
                self._sacctmgr(["add", "user", user, *charging])

    def _fill_database(self, mariadbd: Sequence[str]) -> None:
        """The one step of mariadb-install-db that slurmdbd needs, in a third of its time."""
        for name in ("database", "database/mysql", "database-tmp"):
            (self.root / name).mkdir()
        sql = "USE mysql;\n" + system_tables_sql().read_text()
        enter = self.network.machine(CONTROLLER).enter(mounts=False)
        run_checked([*enter, *mariadbd, "--bootstrap"], input=sql)

    def _sacctmgr(self, words: Sequence[str]) -> None:
        enter = self.network.machine(CONTROLLER).enter()
        argv = [*enter, "sacctmgr", "--immediate", *words]
        run_checked(argv, env=self._daemon_environment())

    # Asking

    @property
    def release(self) -> Release | None:
        """The release with a root of its own that the cluster runs; None: this machine's."""
        return chosen(self.options.release)

    @property
    def places(self) -> Places:
        network = self.network
        addresses = {
            name: network.address(number)
            for number, name in enumerate(self.options.node_names, start=1)
        }
        addresses[CONTROLLER] = network.address(CONTROLLER_HOST_NUMBER)
        addresses["login"] = network.address(LOGIN_HOST_NUMBER)
        return Places(network.short_path, addresses)

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    def env(self) -> dict[str, str]:
        """This process's environment for a login-node command: this cluster's, no other Slurm's."""
        kept = {k: v for k, v in os.environ.items() if not _SLURM_VARIABLE.match(k)}
        kept["PATH"] = path_with(self.release, kept.get("PATH", SYSTEM_ENVIRONMENT["PATH"]))
        return {**kept, "SLURM_CONF": str(self.conf)}

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        """`subprocess.run` on the login node, with text captured unless the options say else."""
        return run(argv, **{"env": self.env(), **options})

    @property
    def users(self) -> dict[str, User]:
        return users_of(self.options.users, self.root / "home")

    def as_user(self, name: str, *, on: str | None = None) -> Session:
        """What this user does on the login node, or inside a node, in no job."""
        if on is None:
            unshare = ["unshare", "--mount", "--propagation", "slave", "/bin/sh"]
            entering = [*unshare, str(self.root / "etc" / "entering")]
        else:
            entering = self.network.machine(on).enter()
        return Session(self.users[name], tuple(entering), self.conf)

    @contextmanager
    def outsider(self, name: str) -> Iterator[Session]:
        """This user on a machine that is not of the cluster, but on its network."""
        numbers = range(FIRST_OUTSIDER, CONTROLLER_HOST_NUMBER)
        number = next(n for n in numbers if not self.network.running(f"outsider{n}"))
        machine = f"outsider{number}"
        text = hosts_text(machine, self.options, self.places.addresses)
        (self.root / "hosts" / machine).write_text(text)
        self._boot(machine)
        try:
            self.network.plug_in({machine: self.network.address(number)})
            yield self.as_user(name, on=machine)
        finally:
            self.network.power_off(machine)

    def node_exec(self, node: str, argv: Sequence[str], **options: Any) -> Completed:
        """Run a command inside a node as root, from its `/`; the options are subprocess.run's."""
        entered = [*self.network.machine(node).enter(), *argv]
        return run(entered, **{"env": self._daemon_environment(), **options})

    def submit(self, *words: str, **options: Any) -> str:
        """`sbatch --parsable` with these words, by default in the root; the job's number."""
        argv = ["sbatch", "--parsable", *words]
        return run_checked(argv, **{"env": self.env(), "cwd": self.root, **options}).stdout.strip()

    def jobs(self, job_id: str | int) -> list[JobInfo]:
        """The job, or every task of an array, as the controller sees it now."""
        argv = ["scontrol", "--oneliner", "show", "job", str(job_id)]
        return [_parse_fields(line) for line in self._text(argv).splitlines() if line.strip()]

    def nodes(self) -> dict[str, str]:
        """Each node's state: IDLE, MIXED, DOWN+NOT_RESPONDING, …"""
        lines = self._text(["scontrol", "--oneliner", "show", "node"]).splitlines()
        fields = [_parse_fields(line) for line in lines]
        return {node["NodeName"]: node["State"] for node in fields}

    def wait_job(
        self,
        job_id: str | int,
        timeout_s: float = 240,
        states: Collection[str] = FINISHED,
    ) -> JobInfo:
        """Wait until the job (each task, of an array) is in one of the states; the last answer."""
        seen: list[JobInfo] = []

        def arrived() -> JobInfo | None:
            seen[:] = self.jobs(job_id)
            return seen[0] if all(job["JobState"] in states for job in seen) else None

        try:
            return poll(arrived, timeout_s, f"job {job_id} in one of {', '.join(sorted(states))}")
        except ClusterError as error:
            raise ClusterError(f"{error}; last seen: {seen}; nodes: {self.nodes()}") from None

    def wait_idle(self, timeout_s: float = 240) -> None:
        """Wait until every node of the cluster is up and without a job."""

        def idle() -> bool:
            try:
                return set(self.nodes().values()) == {"IDLE"}
            except ClusterError:
                return False

        try:
            poll(idle, timeout_s, "all nodes idle")
        except ClusterError as error:
            raise ClusterError(f"{error}; logs are in {self.root}/log\n{self._errors()}") from None

    def set_time_left(self, job_id: str | int, minutes: int) -> None:
        """Of a job that runs, and a part of a minute more; slurmctld looks only every 30 s."""
        hours, past, _ = self.jobs(job_id)[0]["RunTime"].split(":")
        limit = 60 * int(hours) + int(past) + 1 + minutes
        self._text(["scontrol", "update", f"JobId={job_id}", f"TimeLimit={limit}"])

    # Breaking

    def cut(self, node: str, *, carrier: bool = False) -> None:
        """Pull the network cable of a node (or of `controller`), or leave the cable in and pass
        nothing on (`carrier`); its processes go on."""
        self.network.cut(node, carrier=carrier)

    def join(self, node: str) -> None:
        """Put the cable back."""
        self.network.join(node)

    def kill_node(self, node: str) -> None:
        """Pull the plug: everything on the node dies at once and nobody is told.

        The controller notices after about `node_timeout_s` and twice MessageTimeout (10 s).
        """
        self.network.power_off(node)

    def start_node(self, node: str) -> None:
        """Power on, or start slurmd where only that is dead; does not wait for the controller.

        After a power cut shorter than the controller's patience Slurm itself goes on showing the
        node's job as running, for minutes; to see it fail, wait for the node to be DOWN first.
        """
        if not self.network.running(node):
            self._boot(node)
            self.network.plug_in({node: self.places.addresses[node]})
        elif self._daemon_pid(node, f"slurmd.{node}"):
            return
        self._daemon(node, ["slurmd"])

    def start_controller(self) -> None:
        if self._daemon_pid(CONTROLLER, "slurmctld"):
            return
        self._daemon(CONTROLLER, ["slurmctld"])
        poll(self._controller_answers, 240, f"slurmctld answering; see {self.root}/log")

    def stop_controller(self) -> None:
        """End slurmctld in an orderly way; jobs go on running."""
        pid = self._daemon_pid(CONTROLLER, "slurmctld")
        if pid:
            self.node_exec(CONTROLLER, ["kill", pid])
            poll(lambda: not self._daemon_pid(CONTROLLER, "slurmctld"), 240, "end of slurmctld")

    def restart_controller(self) -> None:
        self.stop_controller()
        self.start_controller()

    # Plumbing

    def _daemon_environment(self) -> dict[str, str]:
        conf = self.places.root / "etc" / "slurm.conf"
        socket_path = str(self.places.database_socket)
        return {**SYSTEM_ENVIRONMENT, "SLURM_CONF": str(conf), "MYSQL_UNIX_PORT": socket_path}

    def _daemon(self, machine: str, argv: Sequence[str], *, mounts: bool = True) -> None:
        """Start a program that puts itself in the background; its complaints go to a log.
        `mounts=False`: one of this machine's own, whatever release the cluster runs."""
        log = self.root / "log" / f"{machine}.{argv[0]}.out"
        entered = [*self.network.machine(machine).enter(mounts=mounts), *argv]
        with log.open("w") as out:
            done = run(entered, env=self._daemon_environment(), stdout=out, stderr=out)
        if done.returncode != 0:
            raise ClusterError(f"{argv[0]} on {machine} did not start: {log.read_text().strip()}")

    def _daemon_pid(self, machine: str, daemon: str) -> str | None:
        """Its process number as seen inside the machine, if it runs."""
        file = self.places.pid_file(daemon)
        pid = file.read_text().strip() if file.exists() else ""
        alive = pid and self.node_exec(machine, ["kill", "-0", pid]).returncode == 0
        return pid if alive else None

    def _controller_answers(self) -> bool:
        return self.run(["scontrol", "ping"]).returncode == 0

    def _text(self, argv: Sequence[str]) -> str:
        return run_checked(argv, env=self.env()).stdout

    def _errors(self) -> str:
        lines: list[str] = []
        for log in sorted((self.root / "log").iterdir()):
            bad = [s for s in log.read_text(errors="replace").splitlines() if "error" in s.lower()]
            lines += [f"{log.name}: {line}" for line in bad[-3:]]
        return "\n".join(lines)


def _write_secret(path: Path, content: bytes) -> None:
    """munged and slurmdbd refuse files that others can read."""
    path.touch(mode=0o600)
    path.write_bytes(content)


def _accepts(address: str | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(120)
        return client.connect_ex(address) == 0


def _parse_fields(line: str) -> JobInfo:
    """`Key=value Key=value …`; a value may hold spaces, so a key is what starts with a capital."""
    keys = list(_FIELD.finditer(line))
    ends = [key.start() for key in keys[1:]] + [len(line)]
    return {key[1]: line[key.end() : end].strip() for key, end in zip(keys, ends, strict=True)}
