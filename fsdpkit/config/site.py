"""A site: what one cluster is. Every fact may be unknown (absent), and an unknown is never guessed.

`site/profiles/<centre>/<cluster>.toml`, laid over one another: packaged, the centre's, the user's.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config import assets
from fsdpkit.config.loading import Layered, build, parsed, read_toml
from fsdpkit.config.units import parse_time_s
from fsdpkit.errors import UsageError

EnvName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
DirectiveName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{1,40}$")]
Port = Annotated[int, Meta(ge=1024, le=65535)]


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where facts of this profile come from."""

    what: Annotated[str, Meta(description="Document, or the file in a public repository.")]
    checked: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", description="Date of the check.")]
    level: Annotated[
        Literal["centre-config", "centre-docs", "user-notes", "measured"],
        Meta(description="How far the source can be trusted."),
    ]


class Identify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a login node of this cluster is recognised: any variable, then the host name."""

    env: Annotated[dict[EnvName, str], Meta(description="Variables with these exact values.")] = {}
    hostname: Annotated[str | None, Meta(description="Regular expression, whole host name.")] = None

    def __post_init__(self) -> None:
        parsed("hostname", re.compile, self.hostname)


class Account(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of the cluster's account strings."""

    required: bool = False
    pattern: Annotated[str | None, Meta(description="Regular expression, whole account.")] = None
    example: str | None = None
    find: Annotated[str | None, Meta(description="Command that lists a person's accounts.")] = None


class NodeType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of node."""

    gpus: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None, Meta(description="GPUs a job can get of one.")
    ] = None
    gpu: Annotated[str | None, Meta(description="GPU model, for people.")] = None
    gpu_memory_gb: Annotated[float, Meta(gt=0)] | None = None
    vendor: Annotated[
        Literal["nvidia", "amd", "none"] | None,
        Meta(description="Whose GPUs; `none`: ranks run on CPU cores."),
    ] = None
    cpus: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Cores a job can use of one.")
    ] = None
    memory_mb: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Memory a job can use of one.")
    ] = None


class Partition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to ask for a node type, with its limits. Order in the file is order of choice."""

    node_type: str | None = None
    select: Annotated[
        dict[DirectiveName, str],
        Meta(description="Directives that ask for it; empty: Slurm's default partition."),
    ] = {}
    automatic: Annotated[bool, Meta(description="May be chosen when no --partition is given.")] = (
        True
    )
    max_nodes: Annotated[int, Meta(ge=1)] | None = None
    max_time: str | None = None
    max_time_multinode: str | None = None
    min_gpus: Annotated[int, Meta(ge=0, description="Fewest GPUs per node.")] = 0
    preempt: Annotated[
        Literal["none", "cancel", "requeue"] | None,
        Meta(description="What happens to a job that must make way."),
    ] = None

    def __post_init__(self) -> None:
        parsed("max_time", parse_time_s, self.max_time)
        parsed("max_time_multinode", parse_time_s, self.max_time_multinode)

    def max_time_s(self, nodes: int) -> int | None:
        """The longest time for a job of `nodes` nodes, where known."""
        limits = [self.max_time, self.max_time_multinode if nodes > 1 else None]
        return min((parse_time_s(t) for t in limits if t is not None), default=None)


class GpuRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one form in which GPUs are asked for, always per node."""

    form: Annotated[
        Literal["gpus-per-node", "gres", "none"],
        Meta(description="`none`: nodes come whole, or ranks run on CPU cores."),
    ] = "gpus-per-node"
    type: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")] | None,
        Meta(description="Typed request, such as a100."),
    ] = None


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the nodes of a job find the head node."""

    address: Annotated[
        Literal["ip", "hostname"],
        Meta(description="Resolve the head node's IPv4 address, or use its (decorated) name."),
    ] = "ip"
    interface: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,15}$")] | None,
        Meta(description="Interface that carries the address."),
    ] = None
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]*$")] = ""
    suffix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]*$")] = ""
    allow_loopback: Annotated[
        bool, Meta(description="Only for the local cluster, whose nodes are loopback addresses.")
    ] = False
    port_base: Annotated[Port, Meta(description="First port that may be used.")] = 10000
    port_span: Annotated[int, Meta(ge=16, le=60000, description="How many ports from there.")] = (
        20000
    )
    read_timeout_s: Annotated[int, Meta(ge=1, le=86400)] = 300
    join_timeout_s: Annotated[int, Meta(ge=1, le=86400)] = 600

    def __post_init__(self) -> None:
        if self.port_base + self.port_span > 65536:
            raise ValueError("port_base + port_span goes beyond port 65535")


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What NCCL and gloo are told about the network."""

    fabric: Literal["infiniband", "slingshot", "ethernet", "omnipath", "loopback"] | None = None
    socket_ifname: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.,:-]+$")] | None,
        Meta(description="`auto`: the first ib*/hsn* with an address, else the rendezvous's own."),
    ] = "auto"
    env: Annotated[dict[EnvName, str], Meta(description="Variables the fabric needs.")] = {}


class SiteEnvironment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a batch shell must do before Python is there."""

    purge_modules: bool = False
    use_modules: list[str] = []
    modules: list[str] = []
    variables: dict[EnvName, str] = {}
    unset: list[EnvName] = []


class Container(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The container engine, where there is one."""

    engine: Literal["apptainer", "singularity"] | None = None
    arguments: Annotated[list[str], Meta(description="Such as --nv, or --bind=/scratch.")] = []


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where runs go. `{account}` and `{user}` stand for the job's."""

    runs: Annotated[str | None, Meta(description="Default directory of runs, shared by nodes.")] = (
        None
    )
    notes: str | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the cluster does to jobs."""

    requeue: Annotated[
        bool | None,
        Meta(description="May Slurm start the job again? Unset: the cluster's default."),
    ] = None
    warning_s: Annotated[
        int, Meta(ge=10, le=65535, description="Seconds before the end that the job is warned.")
    ] = 120


class SiteProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one cluster is. An absent fact is unknown and is never rendered."""

    schema: Literal["fsdpkit.site/1"]
    title: str
    kind: Literal["slurm", "local"] = "slurm"
    docs: str | None = None
    contact: str | None = None
    verified: Annotated[
        str | None, Meta(description="Date and Slurm version of the last real run; unset: none.")
    ] = None
    sources: list[Source] = []
    unknown: Annotated[list[str], Meta(description="What nobody could verify, in words.")] = []
    identify: Identify = Identify()
    slurm_clusters: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")] | None,
        Meta(description="Cluster name for sbatch -M."),
    ] = None
    shebang: Annotated[str, Meta(pattern=r"^#!/[ -~]{1,100}$")] = "#!/bin/bash"
    account: Account = Account()
    node_types: dict[str, NodeType] = {}
    partitions: dict[str, Partition] = {}
    gpu_request: GpuRequest = GpuRequest()
    rendezvous: Rendezvous = Rendezvous()
    network: Network = Network()
    environment: SiteEnvironment = SiteEnvironment()
    container: Container = Container()
    storage: Storage = Storage()
    policy: Policy = Policy()
    parameters: Annotated[
        dict[str, bool | int | float | str], Meta(description="Template parameters, by name.")
    ] = {}

    def __post_init__(self) -> None:
        for name, partition in self.partitions.items():
            if partition.node_type is not None and partition.node_type not in self.node_types:
                known = ", ".join(self.node_types) or "none"
                raise ValueError(
                    f"partition {name!r}: there is no node type {partition.node_type!r} "
                    f"among {known}"
                )


@dataclass(frozen=True)
class LoadedSite:
    """A profile under its id, with the files it was read from."""

    id: str
    profile: SiteProfile
    files: tuple[Path, ...]


def load_site(name: str) -> LoadedSite:
    """The profile with this id, its layers merged. Raises NotFoundError or ConfigError."""
    layered = Layered()
    found = assets.find("site", name)
    for layer, path in found:
        layered.overlay(read_toml(path), f"{layer.name} {path.name}")
    profile = build(SiteProfile, layered, f"site {name}")
    return LoadedSite(name, profile, tuple(path for _, path in found))


def choose_site(name: str | None) -> tuple[LoadedSite, str]:
    """The site to use and why, in a few words.

    `name` wins; then `FSDPKIT_CLUSTER`; then the profile whose variable, else whose host name, is
    this machine's; then `generic` where sbatch is on PATH, else `local`.
    """
    if name or (name := os.environ.get("FSDPKIT_CLUSTER")):
        return load_site(name), "as asked"
    if shutil.which("sbatch") is None:
        return load_site("local"), "no sbatch on this machine"
    profiles = [load_site(n) for n in assets.available("site")]
    if by_env := [s for s in profiles if _env_matches(s.profile.identify)]:
        return _only(by_env, "variables"), "recognised by its environment variables"
    host = socket.getfqdn()
    if by_host := [s for s in profiles if _host_matches(s.profile.identify, host)]:
        return _only(by_host, f"host name {host}"), "recognised by its host name"
    return load_site("generic"), "no profile matches this machine"


def _env_matches(identify: Identify) -> bool:
    return any(os.environ.get(k) == v for k, v in identify.env.items())


def _host_matches(identify: Identify, host: str) -> bool:
    return identify.hostname is not None and re.fullmatch(identify.hostname, host) is not None


def _only(found: list[LoadedSite], what: str) -> LoadedSite:
    if len(found) > 1:
        names = ", ".join(s.id for s in found)
        raise UsageError(f"the {what} of this machine match several sites ({names}); use --cluster")
    return found[0]
