"""The text that the cluster's programs read: options in, file contents out, no side effects.

What is set differs from a production cluster only where a test could not wait (scheduling and
requeue delays, time-outs) or the machine is not there (CPUs, memory and GPUs are claimed).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .releases import choice

CONTROLLER = "controller"
CONTROLLER_HOST_NUMBER = 250
MOST_NODES = 200
SLURMDBD_PORT = 6819


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    release: str = field(default_factory=choice)
    """Slurm's, e.g. 26.05, in a root of its own; empty: what is installed on this machine."""
    nodes: int = 3
    """How many: they are called node1, node2, …"""
    cpus: int = 8
    """CPUs each node claims, whatever the machine has."""
    memory_mb: int = 64_000
    """Memory each node claims; counted against --mem for size, never consumed."""
    gpus: int = 4
    """Fake GPUs a node: Slurm counts them and sets CUDA_VISIBLE_DEVICES, nothing computes."""
    gpu_type: str = ""
    """A type such as a100, for sites that ask for --gpus-per-node=a100:4."""
    accounting: bool = True
    """MariaDB and slurmdbd; without them sacct fails and any account is accepted."""
    accounts: Sequence[str] = ("pas1234",)
    """Accounts that root, `users` and `machine_users` may charge, the first by default."""
    users: Sequence[str] = ()
    """Names of ordinary users, known to the cluster alone; see `SlurmCluster.as_user`."""
    machine_users: Sequence[str] = ()
    """Users of this machine who may charge the accounts as well."""
    kill_wait_s: int = 5
    """From SIGTERM to SIGKILL, at time limits and scancel."""
    preempt_grace_s: int = 0
    """From the SIGTERM of preemption to the end of a `main` job."""
    requeue_delay_s: int = 5
    """How long a requeued job waits at least; also the lifetime of a step's credential."""
    node_timeout_s: int = 20
    """Silence after which the controller asks after a node; see `SlurmCluster.kill_node`."""
    extra_conf: str = ""
    """Lines for slurm.conf; one whose key has a default replaces that default."""
    loopback_hosts: bool = False
    """Every node's /etc/hosts gives its own name as 127.0.1.1, as Debian's installer does."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """A node's whole /etc/hosts, by node name, where the regular text should not be used."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise ValueError(f"nodes={self.nodes}: expected 1 to {MOST_NODES}")

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True)
class Places:
    """Where things are: `root` by its short name, and who has which address."""

    root: Path
    addresses: Mapping[str, str]

    @property
    def munge_socket(self) -> Path:
        return self.root / "run" / "munge.socket"

    @property
    def database_socket(self) -> Path:
        return self.root / "run" / "mariadb.socket"

    def pid_file(self, daemon: str) -> Path:
        return self.root / "run" / f"{daemon}.pid"

    def log_file(self, daemon: str) -> Path:
        return self.root / "log" / f"{daemon}.log"


def slurm_conf(options: ClusterOptions, places: Places) -> str:
    settings = _settings(options, places)
    lines = []
    for line in options.extra_conf.splitlines():
        key, is_setting, value = line.strip().partition("=")
        if is_setting and key in settings:
            settings[key] = value
        else:
            lines.append(line)
    text = [f"{key}={value}" for key, value in settings.items()]
    return "\n".join([*text, *_nodes(options, places), *_partitions(options), *lines]) + "\n"


def _settings(options: ClusterOptions, places: Places) -> dict[str, str]:
    root = places.root
    return {
        "ClusterName": "fsdpkit",
        "SlurmctldHost": f"{CONTROLLER}({places.addresses[CONTROLLER]})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={places.munge_socket},cred_expire={options.requeue_delay_s}",
        "StateSaveLocation": f"{root}/state",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        "SlurmctldPidFile": str(places.pid_file("slurmctld")),
        "SlurmdPidFile": str(places.pid_file("slurmd.%n")),
        "SlurmctldLogFile": str(places.log_file("slurmctld")),
        "SlurmdLogFile": str(places.log_file("slurmd.%n")),
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "PlugStackConfig": f"{root}/etc/plugstack.conf",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=5",
        "SlurmdParameters": "config_overrides",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "GresTypes": "gpu",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": "1",
        "ReturnToService": "2",
        "MaxArraySize": "10001",
        "MaxJobCount": "20000",
        "MinJobAge": "300",
        "KillWait": str(options.kill_wait_s),
        "InactiveLimit": "30",
        "SlurmdTimeout": str(options.node_timeout_s),
        "SlurmctldTimeout": "30",
        **_accounting_settings(options, places),
    }


def _accounting_settings(options: ClusterOptions, places: Places) -> dict[str, str]:
    if not options.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": places.addresses[CONTROLLER],
        "AccountingStoragePort": str(SLURMDBD_PORT),
        "AccountingStoragePass": str(places.munge_socket),
        "AccountingStorageEnforce": "associations,limits",
        "AccountingStorageTRES": "gres/gpu",
    }


def _nodes(options: ClusterOptions, places: Places) -> list[str]:
    gres = f" Gres={_gpu_request(options)}" if options.gpus else ""
    claimed = (
        f"CPUs={options.cpus} Sockets=1 CoresPerSocket={options.cpus} ThreadsPerCore=1"
        f" RealMemory={options.memory_mb}{gres} State=UNKNOWN"
    )
    return [
        f"NodeName={name} NodeAddr={places.addresses[name]} {claimed}"
        for name in options.node_names
    ]


def _gpu_request(options: ClusterOptions) -> str:
    return ":".join(filter(None, ["gpu", options.gpu_type, str(options.gpus)]))


def _partitions(options: ClusterOptions) -> list[str]:
    grace = f" GraceTime={options.preempt_grace_s}" if options.preempt_grace_s else ""
    return [
        f"PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 PriorityTier=1{grace}",
        "PartitionName=high Nodes=ALL MaxTime=1-00:00:00 PriorityTier=100 PreemptMode=OFF",
        "PartitionName=short Nodes=ALL MaxTime=00:10:00 PriorityTier=1",
    ]


def gres_conf(options: ClusterOptions) -> str:
    if not options.gpus:
        return ""
    kind = f" Type={options.gpu_type}" if options.gpu_type else ""
    devices = character_devices(options.gpus)
    if len(devices) < options.gpus:
        raise ValueError(f"gpus={options.gpus}: this machine has devices for {len(devices)} only")
    files = ",".join(devices)
    return f"AutoDetect=off\nName=gpu{kind} File={files}\n"


def character_devices(count: int) -> list[str]:
    """Devices that stand for GPUs: nobody opens them, but slurmd insists that they exist."""
    names = [f"tty{number}" for number in range(10, 64)]
    names += ["null", "zero", "full", "random", "urandom", "tty", "ptmx"]
    found = [f"/dev/{name}" for name in names if _is_character_device(f"/dev/{name}")]
    return found[:count]


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def cgroup_conf(release: str) -> str:
    """slurmd 22.05 loads a cgroup plugin even where nothing is constrained. Version 1's then
    touches no cgroup, so it also serves machines with version 2, whose plugin would look for
    systemd over D-Bus. Later releases can do without."""
    return f"CgroupPlugin={'cgroup/v1' if release < '23.11' else 'disabled'}\n"


def slurmdbd_conf(places: Places) -> str:
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={places.munge_socket}",
        "DbdHost": CONTROLLER,
        "DbdAddr": places.addresses[CONTROLLER],
        "DbdPort": str(SLURMDBD_PORT),
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
        "PidFile": str(places.pid_file("slurmdbd")),
        "LogFile": str(places.log_file("slurmdbd")),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def mariadb_conf(places: Places) -> str:
    """Small and careless: nothing in this database has to survive the machine.

    It needs its own tmpdir because temporary tables are named by process number, and in every
    cluster on this machine the server's number is the same.
    """
    return f"""[mariadbd]
datadir={places.root}/database
tmpdir={places.root}/database-tmp
socket={places.database_socket}
pid-file={places.pid_file("mariadbd")}
log-error={places.log_file("mariadbd")}
user=root
skip-networking
skip-grant-tables
skip-log-bin
skip-name-resolve
performance_schema=OFF
innodb_buffer_pool_size=32M
innodb_buffer_pool_dump_at_shutdown=OFF
innodb_buffer_pool_load_at_startup=OFF
innodb_log_file_size=8M
innodb_data_file_path=ibdata1:4M:autoextend
innodb_autoextend_increment=4
innodb_temp_data_file_path=ibtmp1:4M:autoextend
innodb_undo_tablespaces=0
innodb_flush_log_at_trx_commit=0
innodb_flush_method=nosync
innodb_doublewrite=OFF
innodb_lock_wait_timeout=900
"""


def hosts_text(machine: str, options: ClusterOptions, addresses: Mapping[str, str]) -> str:
    """The /etc/hosts of one machine: every machine by name, its own name included."""
    if machine in options.hosts:
        return options.hosts[machine]
    shown = dict(addresses)
    if options.loopback_hosts and machine in options.node_names:
        shown[machine] = "127.0.1.1"
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    lines += [f"{address}\t{name}" for name, address in shown.items()]
    return "\n".join(lines) + "\n"
