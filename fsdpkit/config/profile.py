"""A site profile: what one cluster is. Every fact may be unknown (absent), and an unknown is never
guessed or rendered. `fsdpkit.config.site` finds the profile of a machine.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.billing import Billing
from fsdpkit.config.fields import Scalar, Text, VariableName, doc
from fsdpkit.config.linear_regex import LinearRegex, matches
from fsdpkit.config.loading import parsed
from fsdpkit.config.partition import MaxTime, NodeType, Partition
from fsdpkit.config.spelling import nearest

__all__ = [
    "AccountRules",
    "GpuRequest",
    "Identify",
    "Login",
    "MaxTime",
    "NodeType",
    "Partition",
    "ProfileSource",
    "SiteProfile",
    "SlurmFacts",
]

Port = Annotated[int, Meta(ge=1024, le=65535)]
_VARIABLE = r"\$[A-Za-z_]|\$\{[A-Za-z_][A-Za-z0-9_]*\}"


class ProfileSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where facts of this profile come from."""

    what: Annotated[str, doc("Document, or the file in a public repository.")]
    checked: Annotated[str, doc("Date of the check.", pattern=r"^\d{4}-\d{2}-\d{2}$")]
    dated: Annotated[
        Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None,
        doc("Date of the document's own last change."),
    ] = None
    level: Annotated[
        Literal[
            "measured", "centre-config", "centre-docs", "vendor-docs", "third-party", "user-notes"
        ],
        doc("How far the source can be trusted."),
    ]


class Identify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a login node of this cluster is recognised: any variable, then the host name."""

    env: Annotated[dict[VariableName, str], doc("Variables with these exact values.")] = {}
    hostname: Annotated[str | None, doc("Regular expression, whole host name.")] = None
    examples: Annotated[
        list[Text], doc("Host names of login nodes, which `hostname` must match.")
    ] = []

    def __post_init__(self) -> None:
        parsed("hostname", LinearRegex, self.hostname)
        for example in self.examples:
            if self.hostname is None or not matches(self.hostname, example):
                raise ValueError(f"examples: {example!r} is not matched by hostname")


class SlurmFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which Slurm the cluster runs."""

    flavour: Annotated[
        Literal["slurmd", "psslurm"] | None,
        doc(
            "What starts tasks on the nodes: Slurm's own daemon, or ParaStation's "
            "plugin in its place, with which spare nodes and expedited requeueing are not used."
        ),
    ] = None
    version: Annotated[
        Annotated[str, Meta(pattern=r"^\d{2}\.\d{2}$")] | None,
        doc("Oldest release of Slurm that the cluster may run, such as 24.11."),
    ] = None
    default_partition: Annotated[
        Text | None, doc("Partition that Slurm takes where a job names none.")
    ] = None
    ntasks: Annotated[
        bool, doc("Jobs must say --ntasks besides --nodes; here one task a node.")
    ] = False
    launcher: Annotated[
        Literal["srun", "ibrun"] | None,
        doc(
            "Command by which the centre wants tasks started. The template torchrun "
            "always uses srun; where another is asked for, submit says so."
        ),
    ] = None


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From where jobs are submitted."""

    arch: Annotated[
        Literal["x86_64", "aarch64", "ppc64le"] | None,
        doc("Processor architecture of the login nodes."),
    ] = None
    hosts: Annotated[
        str | None,
        doc("Regular expression of the host names from which GPU jobs may be submitted."),
    ] = None
    submit_from: Annotated[
        list[Text],
        doc(
            "Directories below which one must submit; they may begin with a variable, "
            "as in $SCRATCH, and hold the wildcards * and ?."
        ),
    ] = []

    def __post_init__(self) -> None:
        parsed("hosts", LinearRegex, self.hosts)
        for directory in self.submit_from:
            if not re.match(r"/|\$[A-Za-z_][A-Za-z0-9_]*(/|$)", directory):
                raise ValueError(
                    f"submit_from: {directory!r} must begin with / or with a variable, as in "
                    "$SCRATCH/projects"
                )


class AccountRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of the cluster's account strings."""

    required: Annotated[bool, doc("Jobs without one are refused.")] = False
    pattern: Annotated[str | None, doc("Regular expression, whole account.")] = None
    example: Annotated[str | None, doc("One of the right form, for messages.")] = None
    find: Annotated[str | None, doc("Command that lists a person's accounts.")] = None

    def __post_init__(self) -> None:
        parsed("pattern", LinearRegex, self.pattern)


class GpuRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one form in which GPUs are asked for, always per node."""

    form: Annotated[
        Literal["gpus-per-node", "gres", "none"] | None,
        doc(
            "`none`: nodes come whole, or ranks run on CPU cores. Unset: as Slurm's "
            "SelectType has it, where Slurm is asked, else gpus-per-node."
        ),
    ] = None
    type: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")] | None,
        doc("Typed request, such as a100."),
    ] = None


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the nodes of a job find the head node."""

    address: Annotated[
        Literal["ip", "hostname"],
        doc("Resolve the head node's IPv4 address, or use its (decorated) name."),
    ] = "ip"
    interface: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,15}$")] | None,
        doc("Interface that carries the address."),
    ] = None
    prefix: Annotated[str, doc("Put before a node's name.", pattern=r"^[A-Za-z0-9.-]*$")] = ""
    suffix: Annotated[str, doc("Put after a node's name.", pattern=r"^[A-Za-z0-9.-]*$")] = ""
    allow_loopback: Annotated[
        bool, doc("Only for the local cluster, whose nodes are loopback addresses.")
    ] = False
    port_base: Annotated[Port, doc("First port that may be used.")] = 10000
    port_span: Annotated[int, doc("How many ports from there.", ge=16, le=60000)] = 20000
    read_timeout_s: Annotated[
        int,
        doc(
            "How long a node waits for the head's store, where plain torchrun runs "
            "in the agents' place.",
            ge=1,
            le=86400,
        ),
    ] = 300
    join_timeout_s: Annotated[
        int, doc("How long all nodes may take to arrive.", ge=1, le=86400)
    ] = 600

    def __post_init__(self) -> None:
        if self.port_base + self.port_span > 65536:
            raise ValueError("port_span: port_base + port_span goes beyond port 65535")
        if self.address == "ip" and (self.prefix or self.suffix):
            key = "prefix" if self.prefix else "suffix"
            raise ValueError(f'{key}: only a name has one; set address = "hostname"')
        if self.address == "hostname" and self.interface is not None:
            raise ValueError('interface: only an IP address has one; set address = "ip"')


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What NCCL and gloo are told about the network."""

    fabric: Annotated[
        Literal["infiniband", "slingshot", "ethernet", "omnipath", "loopback"] | None,
        doc("What joins the nodes, for people."),
    ] = None
    socket_ifname: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.,:-]+$")] | None,
        doc("`auto`: the first ib*/hsn* with an address, else the rendezvous's own."),
    ] = "auto"
    env: Annotated[dict[VariableName, str], doc("Variables the fabric needs.")] = {}
    all_reduce_gb_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc(
            "Bus bandwidth of an all-reduce between two good nodes, in 10^9 bytes a "
            "second, as `fsdpkit check --nodes` measures it."
        ),
    ] = None


class SiteEnvironment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a batch shell must do before Python is there."""

    purge_modules: Annotated[bool, doc("Run `module purge` first.")] = False
    use_modules: Annotated[list[Text], doc("Directories for `module use`.")] = []
    modules: Annotated[list[Text], doc("Modules to load.")] = []
    variables: Annotated[dict[VariableName, str], doc("Variables to export.")] = {}
    unset: Annotated[list[VariableName], doc("Variables to remove.")] = []


class Container(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The container engine, where there is one."""

    engine: Annotated[
        Literal["apptainer", "singularity", "pyxis"] | None,
        doc("The command that runs one, or srun's plugin pyxis."),
    ] = None
    arguments: Annotated[
        list[str], doc("Such as --nv, --bind=/scratch, --container-mounts=/scratch:/scratch.")
    ] = []


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file systems: where runs live is the person's choice (--runs)."""

    read_gb_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc(
            "Rate at which one job can read from the file system of its data, all its "
            "nodes together, in 10^9 bytes a second."
        ),
    ] = None
    write_gb_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="The same for writing checkpoints where runs live."),
    ] = None
    local: Annotated[
        Annotated[str, Meta(pattern=rf"^(?:/|{_VARIABLE})(?:[A-Za-z0-9_./-]|{_VARIABLE})*$")]
        | None,
        Meta(
            description="Directory on each node's own disk for a job's copies ([stage]); it may "
            "hold variables of the node, as $TMPDIR."
        ),
    ] = None
    local_gb: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="GB (10^9 bytes) that a job can have there."),
    ] = None
    local_kept_h: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="Hours that files stay there after a job, for the next one; 0: they go "
            "with it. Unset: unknown, and the job removes its own."
        ),
    ] = None
    notes: Annotated[str | None, Meta(description="What a person should know of it.")] = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the cluster does to jobs."""

    requeue: Annotated[
        bool | None, doc("May Slurm start the job again? Unset: the cluster's default.")
    ] = None
    warning_s: Annotated[
        int, doc("Seconds before the end that the job is warned.", ge=10, le=65535)
    ] = 120
    hold_idle_s: Annotated[
        Annotated[int, Meta(ge=0, le=86400)] | None,
        doc(
            "The longest that nodes of fsdpkit hold may be without a run, in seconds; "
            "0: nobody may hold nodes."
        ),
    ] = None


class SiteAudit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether runs leave a record in the centre's folder audit/, which `fsdpkit audit` counts."""

    share: Annotated[
        bool, doc("Every run does, unless its owner says audit.share = false in the job.")
    ] = False
    readers: Annotated[
        Text | None, doc("Who reads the records, as users are told: such as the support team.")
    ] = None
    projects: Annotated[
        bool, doc("Records name the account (project) that Slurm charges, too.")
    ] = False

    def __post_init__(self) -> None:
        if self.share and self.readers is None:
            raise ValueError("readers: users are told who reads the records; say it")


class SiteProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one cluster is. An absent fact is unknown and is never rendered."""

    schema: Annotated[Literal["fsdpkit.site/1"], doc("Format of this file.")]
    requires: Annotated[
        Annotated[str, Meta(pattern=r"^\d+(\.\d+){0,2}$")] | None,
        doc(
            "Release of fsdpkit that knows all keys of this profile, such as 0.2; an "
            "older one says which it does not know, and goes on without them."
        ),
    ] = None
    title: Annotated[Text, doc("The cluster's name, for people.")]
    kind: Annotated[Literal["slurm", "local"], doc("`local`: this machine plays the nodes.")] = (
        "slurm"
    )
    docs: Annotated[str | None, doc("Where its manual is.")] = None
    contact: Annotated[str | None, doc("Whom to ask.")] = None
    verified: Annotated[
        str | None, doc("Date and Slurm version of the last real run; unset: none.")
    ] = None
    sources: Annotated[list[ProfileSource], doc("Where its facts come from.")] = []
    unknown: Annotated[list[str], doc("What nobody could verify, in words.")] = []
    identify: Annotated[Identify, doc("How it is recognised.")] = Identify()
    slurm: Annotated[SlurmFacts, doc("Its Slurm.")] = SlurmFacts()
    login: Annotated[Login, doc("Its login nodes.")] = Login()
    slurm_clusters: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")] | None,
        doc("Cluster name for sbatch -M."),
    ] = None
    shebang: Annotated[
        str,
        doc(
            "First line of the script, which is written for bash; with -p, nothing "
            "of the submitting shell runs before it.",
            pattern=r"^#!/([!-~]{0,80}/)?(env )?bash( [!-~]{1,20})?$",
        ),
    ] = "#!/bin/bash -p"
    account: Annotated[AccountRules, doc("Its accounts.")] = AccountRules()
    node_types: Annotated[dict[str, NodeType], doc("Its kinds of nodes.")] = {}
    partitions: Annotated[
        dict[str, Partition], doc("Ways to ask for them, the first choice first.")
    ] = {}
    gpu_request: Annotated[GpuRequest, doc("How GPUs are asked for.")] = GpuRequest()
    rendezvous: Annotated[Rendezvous, doc("How its nodes meet.")] = Rendezvous()
    network: Annotated[Network, doc("What carries the traffic.")] = Network()
    environment: Annotated[SiteEnvironment, doc("Before Python starts.")] = SiteEnvironment()
    container: Annotated[Container, doc("Its container engine.")] = Container()
    storage: Annotated[Storage, doc("Its file systems.")] = Storage()
    billing: Annotated[Billing, doc("What it charges.")] = Billing()
    policy: Annotated[Policy, doc("Its rules.")] = Policy()
    audit: Annotated[SiteAudit, doc("What runs tell the centre.")] = SiteAudit()
    parameters: Annotated[dict[str, Scalar], doc("Template parameters, by name.")] = {}

    def __post_init__(self) -> None:
        for name, partition in self.partitions.items():
            for kind in partition.kinds:
                if kind not in self.node_types:
                    known = ", ".join(self.node_types) or "none"
                    raise ValueError(
                        f"partitions: {name} has node_type {kind!r}."
                        f"{nearest(kind, self.node_types)} Known: {known}."
                    )
