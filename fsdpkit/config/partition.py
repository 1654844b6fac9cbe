"""Kinds of nodes and the ways to ask for them, with the limits that a centre sets: the part of a
site profile (`fsdpkit.config.profile`) that decides where a job fits. Which limit refuses a job
says `fsdpkit.config.limits`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import Count, Text, doc
from fsdpkit.config.loading import parsed
from fsdpkit.config.units import parse_time_s

DirectiveName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{1,40}$")]
GpuType = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")]

# What the job, [gpu_request] or the script itself decides, so a partition must not.
_OWNED_OPTIONS = frozenset(
    """account array chdir clusters comment cpus-per-gpu cpus-per-task dependency error export
    export-file gpus gpus-per-node gpus-per-socket gpus-per-task hold input job-name
    kill-on-invalid-dep mem mem-per-cpu mem-per-gpu no-requeue nodefile nodes ntasks
    ntasks-per-gpu ntasks-per-node open-mode output parsable requeue signal test-only time
    tres-per-task wait wrap""".split()  # noqa: SIM905 (a list of forty strings is unreadable)
)


def release(version: str) -> tuple[int, int]:
    """`24.11` as numbers that compare."""
    year, _, month = version.partition(".")
    return int(year), int(month)


class NodeType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of node."""

    gpus: Annotated[Annotated[int, Meta(ge=0, le=64)] | None, doc("GPUs a job can get of one.")] = (
        None
    )
    gpu: Annotated[str | None, doc("GPU model, for people.")] = None
    gpu_type: Annotated[
        GpuType | None,
        doc(
            "Slurm's name of the GPU, such as a100, where a request must say it; "
            "it wins over [gpu_request] type."
        ),
    ] = None
    gpu_memory_gb: Annotated[Annotated[float, Meta(gt=0)] | None, doc("Memory of one GPU.")] = None
    compute_capability: Annotated[
        Annotated[str, Meta(pattern=r"^\d{1,2}\.\d$")] | None,
        doc("NVIDIA's number of what a GPU can do, such as 8.0 of an A100."),
    ] = None
    vendor: Annotated[
        Literal["nvidia", "amd", "none"] | None, doc("Whose GPUs; `none`: ranks run on CPU cores.")
    ] = None
    arch: Annotated[
        Literal["x86_64", "aarch64", "ppc64le"] | None, doc("Processor architecture.")
    ] = None
    nodes: Annotated[Count | None, doc("How many of them the cluster has; no job gets more.")] = (
        None
    )
    cpus: Annotated[Count | None, doc("Cores a job can use of one.")] = None
    memory_mb: Annotated[
        Count | None,
        doc(
            "Memory a job can use of one; a job that leaves GPUs to others asks for "
            "its GPUs' share."
        ),
    ] = None
    network_gbit_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc(
            "Rate of one node's links to the others, all its adapters together, in "
            "10^9 bits a second, as documented."
        ),
    ] = None
    features: Annotated[
        list[Text], doc("All features by which a job's constraint can choose them.")
    ] = []


class MaxTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The longest time of jobs up to a number of nodes."""

    nodes: Annotated[Count, doc("Most nodes for which it holds.")]
    time: Annotated[str, doc("Longest time, in Slurm's forms.")]

    def __post_init__(self) -> None:
        parsed("time", parse_time_s, self.time)


class Partition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to ask for a node type, with its limits. Order in the file is order of choice."""

    node_type: Annotated[str | None, doc("One of [node_types].")] = None
    node_types: Annotated[
        list[str],
        doc(
            "Several of them in place of one: a job gets any that have enough of what "
            "it asks for, counted together."
        ),
    ] = []
    select: Annotated[
        dict[DirectiveName, Text] | None,
        doc(
            "Directives that ask for it. Not set: --partition with this table's name; "
            "empty, {}: none, so Slurm's default partition."
        ),
    ] = None
    qos: Annotated[Text | None, doc("QOS of jobs that name none; of their own, theirs.")] = None
    allowed_qos: Annotated[
        list[Text],
        doc(
            "All QOS that jobs may have there; a job that names none gets the person's "
            "own, if they have one of these."
        ),
    ] = []
    constraint: Annotated[
        Text | None, doc("Features that every job asks for there, as in sbatch.")
    ] = None
    memory: Annotated[
        Literal["share", "all", "never"] | None,
        doc(
            "What a job that names no memory asks for: `share`: its GPUs' share of the "
            "node's `memory_mb`; `all`: the whole node's; `never`: nothing. Unset: the whole "
            "node's with all of its GPUs, else the share."
        ),
    ] = None
    max_memory_per_cpu_mb: Annotated[
        Count | None, doc("Slurm's MaxMemPerCPU: for more memory it gives, and bills, more cores.")
    ] = None
    automatic: Annotated[bool, doc("May be chosen when no --partition is given.")] = True
    offered: Annotated[bool, doc("May be proposed for a request that does not fit elsewhere.")] = (
        True
    )
    interactive: Annotated[
        bool,
        doc(
            "Meant for trying things out, with somebody waiting: fsdpkit hold names it "
            "for what fits there."
        ),
    ] = False
    min_nodes: Annotated[Count | None, doc("Fewest nodes in one job.")] = None
    max_nodes: Annotated[Count | None, doc("Most nodes in one job.")] = None
    max_time: Annotated[str | None, doc("Longest time, in Slurm's forms.")] = None
    max_time_multinode: Annotated[
        str | None, doc("Longest time of a job with more than one node.")
    ] = None
    max_time_by_nodes: Annotated[
        list[MaxTime], doc("Longest time by number of nodes, the fewest nodes first.")
    ] = []
    max_node_hours: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("Most node-hours of one job: its nodes times its hours."),
    ] = None
    max_gpu_hours: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("Most GPU-hours of one job: all its GPUs times its hours."),
    ] = None
    default_time: Annotated[
        str | None, doc("Time of jobs that ask for none, for people: a script always asks.")
    ] = None
    min_gpus: Annotated[int, doc("Fewest GPUs per node.", ge=0)] = 0
    max_gpus_per_node: Annotated[
        Count | None, doc("Most GPUs per node, where a job may not have all.")
    ] = None
    min_gpus_per_job: Annotated[
        Count | None, doc("Fewest GPUs of one job, on all its nodes together.")
    ] = None
    max_gpus_per_job: Annotated[
        Count | None, doc("Most GPUs of one job, on all its nodes together.")
    ] = None
    max_gpus_per_user: Annotated[
        Count | None, doc("Most GPUs of one person's jobs that run at the same time.")
    ] = None
    max_gpus_per_account: Annotated[
        Count | None, doc("Most GPUs of one project's (or group's) jobs that run at the same time.")
    ] = None
    max_nodes_per_user: Annotated[
        Count | None, doc("Most nodes of one person's jobs that run at the same time.")
    ] = None
    max_jobs_per_user: Annotated[
        Count | None, doc("Most jobs that one person may have there, for people.")
    ] = None
    whole_nodes: Annotated[
        Literal["required", "required-multinode", "given"] | None,
        doc(
            "`required`: a job that does not use all GPUs of its nodes is refused; "
            "`required-multinode`: if it has several nodes; `given`: jobs get, and are charged "
            "for, whole nodes whatever they use."
        ),
    ] = None
    preempt: Annotated[
        Literal["none", "cancel", "requeue"] | None,
        doc("What happens to a job that must make way."),
    ] = None

    def __post_init__(self) -> None:
        for key in ("max_time", "max_time_multinode", "default_time"):
            parsed(key, parse_time_s, getattr(self, key))
        nodes = [bin.nodes for bin in self.max_time_by_nodes]
        if nodes != sorted(set(nodes)):
            raise ValueError("max_time_by_nodes: list each number of nodes once, the fewest first")
        for lower, upper in (("min_nodes", "max_nodes"), ("min_gpus_per_job", "max_gpus_per_job")):
            least, most = getattr(self, lower), getattr(self, upper)
            if least is not None and most is not None and least > most:
                raise ValueError(f"{lower}: is {least}, more than {upper}, which is {most}")
        if self.node_type is not None and self.node_types:
            raise ValueError("node_types: node_type is set as well; keep one of the two")
        select = self.select or {}
        for option in select:
            if option in _OWNED_OPTIONS:
                raise ValueError(f"select: {option} is not a partition's to decide")
        for option in ("qos", "constraint"):
            if option in select and getattr(self, option) is not None:
                raise ValueError(f"{option}: is also in select; keep one of the two")
        if "gpu" in (gres.partition(":")[0] for gres in select.get("gres", "").split(",")):
            raise ValueError("select: GPUs are asked for by [gpu_request], in one form only")

    @property
    def kinds(self) -> list[str]:
        """Names of the node types that it has."""
        return self.node_types if self.node_type is None else [self.node_type]

    def directives(self, name: str) -> dict[str, str]:
        """What asks for it, in a profile that calls it `name`."""
        chosen = {"partition": name} if self.select is None else dict(self.select)
        own = {"qos": self.qos, "constraint": self.constraint}
        return chosen | {option: value for option, value in own.items() if value is not None}

    def max_time_s(self, nodes: int, gpus: int = 0) -> int | None:
        """The longest time for a job of `nodes` nodes with `gpus` GPUs in all, where known."""
        limits = [self.max_time, self.max_time_multinode if nodes > 1 else None]
        limits += [bin.time for bin in self.max_time_by_nodes if nodes <= bin.nodes][:1]
        found = [parse_time_s(text) for text in limits if text is not None]
        found += [s for s in (self.node_hours_s(nodes), self.gpu_hours_s(gpus)) if s is not None]
        return min(found, default=None)

    def node_hours_s(self, nodes: int) -> int | None:
        """The longest time that the node-hours of a job leave `nodes` nodes."""
        return _shared_s(self.max_node_hours, nodes)

    def gpu_hours_s(self, gpus: int) -> int | None:
        """The longest time that the GPU-hours of a job leave `gpus` GPUs."""
        return _shared_s(self.max_gpu_hours, gpus) if gpus else None


def _shared_s(hours: float | None, sharers: int) -> int | None:
    """In whole minutes, for Slurm rounds a time up to the next minute (sbatch(1), --time)."""
    return None if hours is None else int(hours * 60 / sharers) * 60


def together(kinds: Sequence[NodeType]) -> NodeType:
    """What is true of all of these kinds of nodes, which a job gets without telling them apart; a
    share of a node's cores or memory is that of the one with least for a GPU. None of them: nothing
    is known."""
    if len(kinds) <= 1:
        return kinds[0] if kinds else NodeType()

    def same(key: str) -> Any:
        values = {getattr(kind, key) for kind in kinds}
        return values.pop() if len(values) == 1 else None

    def over(how: Callable[[list[Any]], Any], key: str) -> Any:
        values = [getattr(kind, key) for kind in kinds]
        return None if None in values else how(values)

    features = set.intersection(*(set(kind.features) for kind in kinds))
    return NodeType(
        gpus=over(max, "gpus"),
        gpu=" or ".join(dict.fromkeys(kind.gpu for kind in kinds if kind.gpu)) or None,
        gpu_type=same("gpu_type"),
        gpu_memory_gb=over(min, "gpu_memory_gb"),
        compute_capability=same("compute_capability"),
        vendor=same("vendor"),
        arch=same("arch"),
        nodes=over(sum, "nodes"),
        cpus=over(min, "cpus"),
        memory_mb=over(min, "memory_mb"),
        features=sorted(features),
    )
