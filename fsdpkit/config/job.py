"""A job: what to run. `jobs/*.toml` and the command line become one immutable `JobSpec`."""

import json
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fsdpkit.bounded import PATTERN
from fsdpkit.config.fields import (
    A_SWEEP_EACH,
    PER_TASK,
    RENDERED_ONCE,
    Scalar,
    Text,
    VariableName,
    doc,
    once,
)
from fsdpkit.config.key_changes import OWN_TRAINER
from fsdpkit.config.launch import LaunchSettings
from fsdpkit.config.linear_regex import LinearRegex
from fsdpkit.config.loading import parsed
from fsdpkit.config.notify import Notify
from fsdpkit.config.retry import Retry
from fsdpkit.config.secrets import may_pass, why_not_passed
from fsdpkit.config.slurm_options import SlurmOptions
from fsdpkit.config.stage import Stage
from fsdpkit.config.steps import OwnSteps
from fsdpkit.config.track import Track
from fsdpkit.config.units import parse_memory_mb, parse_time_s

GROUPS = ("step", "total", "epoch", "loss", "rate")


class PrintedMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For a script that does not call fsdpkit.log and prints in no common format."""

    pattern: Annotated[
        Text,
        doc(
            "Regular expression for a line of the output, with at least one of the "
            "groups (?P<step>…), total, epoch, loss and rate; no lookaround, no references.",
            max_length=PATTERN,
        ),
    ]

    def __post_init__(self) -> None:
        try:
            groups = LinearRegex(self.pattern).groups
        except ValueError as error:
            raise ValueError(f"pattern: {error}") from None
        known = "(?P<step>…), total, epoch, loss, rate"
        if other := [name for name in groups if name not in GROUPS]:
            raise ValueError(f"pattern: the group {other[0]} has no meaning; there are {known}")
        if not groups:
            raise ValueError(f"pattern: it names no group; there are {known}")


JOB_SCHEMA = "fsdpkit.job/1"
MOST_NODES = 8192

# A job name also becomes a directory's name: no slash, no leading dot or dash.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]

_ASKED_ONCE = once(f"Slurm is asked once for all of them, which get the same: {A_SWEEP_EACH}")
_OF_THE_RUN = once(f"they are one run, which has it as a whole: {A_SWEEP_EACH}")

# Of one directory, and where the container sees it; commas and colons part them.
Mount = Annotated[str, Meta(pattern=r"^/[^,:\x00-\x1f]*(:/[^,:\x00-\x1f]*(:[a-z+]+)?)?\Z")]

ArrayTask = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,6})$")]


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to ask of Slurm. Unset means: the site's answer, or nothing is asked."""

    nodes: Annotated[
        int,
        doc("Nodes.", ge=1, le=MOST_NODES),
        once("fsdpkit scale tries numbers of nodes, as fsdpkit scale JOB --nodes 1,2,4"),
    ]
    gpus: Annotated[
        int,
        doc("GPUs per node, and so ranks per node.", ge=1, le=64),
        once(
            "for each number start a sweep of its own, with --gpus N; fsdpkit plan --try "
            "{key}=1,2,4 compares them without a queue"
        ),
    ]
    time: Annotated[Text, doc("Time limit, in any of Slurm's six forms.")]
    cpus_per_gpu: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        doc("CPU cores per GPU; unset: the node's share."),
    ] = None
    memory: Annotated[
        Text | Annotated[int, Meta(ge=0)] | None,
        doc("Memory per node, such as 480G; a bare number is megabytes, 0 all."),
    ] = None
    account: Annotated[Text | None, doc("Account (project) to charge.")] = None
    partition: Annotated[Text | None, doc("Partition; unset: one that fits.")] = None
    qos: Annotated[Text | None, doc("Quality of service.")] = None
    constraint: Annotated[Text | None, doc("Node features, as in sbatch.")] = None
    reservation: Annotated[Text | None, doc("Reservation.")] = None
    nodelist: Annotated[Text | None, doc("Nodes that must be in the job.")] = None
    exclude: Annotated[Text | None, doc("Nodes that must not be in the job.")] = None
    exclusive: Annotated[bool, doc("Share no node with other jobs.")] = False
    spare: Annotated[int, doc("Extra standby nodes that replace a failed one.", ge=0, le=1000)] = 0

    def __post_init__(self) -> None:
        parsed("time", parse_time_s, self.time)
        parsed("memory", parse_memory_mb, None if self.memory is None else str(self.memory))
        for key in ("nodelist", "exclude"):
            if "/" in (getattr(self, key) or ""):
                raise ValueError(f"{key}: a '/' makes Slurm read a file of that name; list nodes")

    @property
    def time_s(self) -> int:
        return parse_time_s(self.time)

    @property
    def memory_mb(self) -> int | None:
        """Of each node; 0: all that it has."""
        return None if self.memory is None else parse_memory_mb(str(self.memory))

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def nodes_asked(self) -> int:
        """What Slurm is asked for: the nodes that train, and those that wait."""
        return self.nodes + self.spare


_REFERENCE = re.compile(r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")


def _why_no_reference(name: str, value: str, found: re.Match[str]) -> str:
    before = value[: found.start()].removesuffix(":")
    way = "write the value itself"
    if found.group().strip("${}") == name and found.end() == len(value) and before:
        way = f"write environment.prepend = {{ {name} = {json.dumps(before, ensure_ascii=False)} }}"
    return (
        f"{name}: values are text, in which {found.group()} is not replaced: {way}; a value that "
        "is to have such text in it is passed on by environment.pass"
    )


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software the job finds. Unset keys take the site's; without any, the environment that
    `fsdpkit submit` itself runs in is activated in the job."""

    modules: Annotated[list[Text] | None, doc("Modules to load, instead of the site's.")] = None
    conda: Annotated[Text | None, doc("Conda environment: its name or path.")] = None
    venv: Annotated[Text | None, doc("Directory of a Python virtual environment.")] = None
    container: Annotated[
        Text | None, doc("Container image; the site says which engine runs it.")
    ] = None
    mounts: Annotated[
        list[Mount] | UnsetType,
        doc("Directories that the container sees besides: /data, /data:/mnt:ro."),
    ] = UNSET
    variables: Annotated[
        dict[VariableName, str], doc("Environment variables for every rank."), PER_TASK
    ] = {}
    prepend: Annotated[
        dict[VariableName, Text],
        doc(
            "Text put, with a colon, before what these variables have on the node, as "
            "for PATH and LD_LIBRARY_PATH; before `variables`, which replace it."
        ),
    ] = {}

    pass_: Annotated[
        list[str] | UnsetType,
        doc("Variables of the submitter's environment, passed on by name and written nowhere."),
    ] = msgspec.field(default=UNSET, name="pass")

    @property
    def mounted(self) -> list[str]:
        return [] if self.mounts is UNSET else self.mounts

    @property
    def passed(self) -> list[str]:
        return [] if self.pass_ is UNSET else self.pass_

    def __post_init__(self) -> None:
        if refused := [name for name in self.passed if not may_pass(name)]:
            raise ValueError(f"pass: {why_not_passed(refused[0])}")
        for key in ("variables", "prepend"):
            for name, value in getattr(self, key).items():
                if found := _REFERENCE.search(value):
                    raise ValueError(f"{key}: {_why_no_reference(name, value, found)}")
        if twice := sorted({*self.passed} & {*self.variables}):
            raise ValueError(f"pass: {twice[0]} is set in variables as well; keep one of the two")
        given = [key for key in ("conda", "venv", "container") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[1]}: {given[0]} is set as well; keep the one that has torch")


class Files(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the run writes, who may read it, what it needs. Only its owner ever writes to it."""

    group: Annotated[
        bool, doc("The group may read the run: its logs, metrics and checkpoints.")
    ] = False
    room_gb: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("GB (10^9 bytes) that must be free for the run at submission."),
    ] = None
    needs: Annotated[list[Text], doc("Files or directories that must be there at submission.")] = []


class WorkTreeSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run keeps of the work tree that it was submitted from."""

    snapshot: Annotated[bool, doc("Copy the work tree into the run, and run there.")] = False
    limit_mb: Annotated[
        int, doc("Megabytes that a snapshot may have at most.", ge=1, le=1_000_000)
    ] = 500


class Audit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who gets a record of the run: what it was made of and used, and how it ended."""

    share: Annotated[
        bool | UnsetType,
        doc(
            "Let the centre have one: no name, path or text of the run. Unset: if files.group "
            "opens the run, or the site's profile asks for it (audit.share there)."
        ),
    ] = UNSET
    folder: Annotated[
        Annotated[str, Meta(pattern=r"^/[^\x00-\x1f]*$")] | UnsetType,
        doc(
            "A project's own folder that gets one, for `fsdpkit usage --group`; with the account "
            "that is charged."
        ),
    ] = UNSET


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run, with which arguments and resources."""

    schema: Annotated[
        Literal["fsdpkit.job/1"],
        doc("Format of this file."),
        once("there is one, and nothing to try: leave it out"),
    ]
    name: Annotated[
        Name,
        doc("Name of the job, seen in squeue."),
        once("an array has one name, and a sweep's is that of its file: leave it out"),
    ]
    entry: Annotated[
        str,
        doc(
            "What each rank runs: a Python script, `-m package.module`, or a command of the "
            "job's environment, without its arguments.",
            min_length=1,
        ),
        once(
            "a run has one, with which its environment is checked and it is resumed: start a sweep "
            "for each script, or let one script choose by an option of its own, args.NAME"
        ),
    ]
    resources: Annotated[Resources, doc("What to ask of Slurm."), _ASKED_ONCE]
    slurm: Annotated[SlurmOptions, doc("Further options of sbatch."), RENDERED_ONCE] = (
        SlurmOptions()
    )
    steps: Annotated[
        OwnSteps, doc("Files that run before and after the training."), RENDERED_ONCE
    ] = OwnSteps()
    description: Annotated[
        str,
        doc("One sentence for `fsdpkit jobs`."),
        once("no training reads it, so nothing would differ: leave it out"),
    ] = ""
    template: Annotated[str, doc("Template that makes the script."), RENDERED_ONCE] = "torchrun"
    args: Annotated[
        list[str],
        Meta(
            description="Arguments of the script; {array_task} is replaced by the array task's "
            "number, {stage} by the directory that [stage] fills on each node."
        ),
        once("write args.NAME for the option --NAME of the script, such as args.lr"),
    ] = []
    array_args: Annotated[
        dict[ArrayTask, list[str]] | UnsetType,
        doc("Further arguments for single array tasks, by task number."),
        once("a sweep writes it: write args.NAME for the option --NAME of the script"),
    ] = UNSET
    array_settings: Annotated[
        dict[ArrayTask, dict[str, dict[str, Any]]] | UnsetType,
        doc(
            "Tables for single array tasks, by task number, that override the job's: "
            "environment.variables, launch and retry."
        ),
        once("a sweep writes it: name the key itself, such as retry.hang_s"),
    ] = UNSET
    environment: Annotated[Environment, doc("The software the job finds."), RENDERED_ONCE] = (
        Environment()
    )
    parameters: Annotated[
        dict[str, Scalar], doc("Parameters of the template, by name."), RENDERED_ONCE
    ] = {}
    launch: Annotated[LaunchSettings, doc("How ranks are started on each node."), PER_TASK] = (
        LaunchSettings()
    )
    retry: Annotated[Retry, doc("What to do when an attempt is cut short."), PER_TASK] = Retry()
    notify: Annotated[
        Notify,
        doc("Who hears of the end, by mail or a command."),
        once(
            "Slurm and the script are told once for all tasks of an array; a command of [notify] "
            "hears which task it is called for: leave it out"
        ),
    ] = Notify()
    files: Annotated[
        Files | UnsetType, doc("Who may read the run; unset: its owner alone."), _OF_THE_RUN
    ] = UNSET
    track: Annotated[
        Track | UnsetType, doc("Where `fsdpkit track` sends what the run logged."), _OF_THE_RUN
    ] = UNSET
    metrics: Annotated[
        PrintedMetrics | UnsetType,
        doc("How step and loss are read from the output; unset: the common formats."),
        _OF_THE_RUN,
    ] = UNSET
    source: Annotated[
        WorkTreeSource | UnsetType,
        Meta(description="What the run keeps of the work tree; unset: nothing."),
        _OF_THE_RUN,
    ] = UNSET
    stage: Annotated[
        Stage | UnsetType,
        Meta(description="What is copied to the nodes' own disks; unset: nothing."),
        RENDERED_ONCE,
    ] = UNSET
    audit: Annotated[Audit | UnsetType, Meta(description="Who may count the run."), _OF_THE_RUN] = (
        UNSET
    )
    trainer: Annotated[
        Name | UnsetType,
        doc(
            "Whose settings [training] has: the name under which an installed package "
            "offers its trainer; unset: fsdpkit's own."
        ),
        once("start a sweep for each trainer"),
    ] = UNSET
    training: Annotated[
        Any,  # of the trainer's own type: config/trainers.py
        Meta(description="Settings of the trainer, fsdpkit's own unless `trainer` names another."),
        PER_TASK,
    ] = UNSET

    def __post_init__(self) -> None:
        if (ranks := self.launch.ranks_per_node) and self.resources.gpus % ranks:
            raise ValueError(
                f"launch.ranks_per_node: {ranks} ranks cannot share {self.resources.gpus} GPUs per "
                f"node evenly: take a divisor of resources.gpus, such as 1"
            )
        if self.staged.environment and self.environment.container is not None:
            raise ValueError(
                "stage.environment: the environment is in environment.container, an image that is "
                "one file already; leave stage.environment out"
            )

    @property
    def staged(self) -> Stage:
        """`[stage]`, of which nothing may be asked."""
        return self.stage if isinstance(self.stage, Stage) else Stage()

    @property
    def trainer_name(self) -> str:
        """Under which name config/trainers.py knows the trainer."""
        return OWN_TRAINER if self.trainer is UNSET else self.trainer

    @property
    def ranks_per_node(self) -> int:
        return self.launch.ranks_per_node or self.resources.gpus
