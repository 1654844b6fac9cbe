"""A job: what to run. `jobs/*.toml` and the command line become one immutable `JobSpec`."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fsdpkit.config import assets
from fsdpkit.config.fields import (
    A_SWEEP_EACH,
    PER_TASK,
    RENDERED_ONCE,
    Scalar,
    Text,
    VariableName,
    once,
)
from fsdpkit.config.launch import LaunchSettings
from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.loading import (
    FileTables,
    Layered,
    build,
    overrides,
    parsed,
    read_place,
    read_toml,
)
from fsdpkit.config.notify import Notify
from fsdpkit.config.retry import Retry
from fsdpkit.config.script_source import read_source, reads_settings, syntax_of
from fsdpkit.config.secrets import (
    form_of,
    found_secret,
    may_pass,
    refuse_secrets,
    why_not_passed,
    why_secret,
)
from fsdpkit.config.track import Track
from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.units import parse_memory_mb, parse_time_s
from fsdpkit.errors import NotFoundError, StorageError, UsageError

JOB_SCHEMA = "fsdpkit.job/1"
DEFAULT_JOB = "t5"
MOST_NODES = 10_000

# A job name also becomes a directory's name: no slash, no leading dot or dash.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]

_ASKED_ONCE = once(f"Slurm is asked once for all of them, which get the same: {A_SWEEP_EACH}")
_OF_THE_RUN = once(f"they are one run, which has it as a whole: {A_SWEEP_EACH}")

ArrayTask = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,6})$")]


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to ask of Slurm. Unset means: the site's answer, or nothing is asked."""

    nodes: Annotated[
        int,
        Meta(ge=1, le=MOST_NODES, description="Nodes."),
        once("fsdpkit scale tries numbers of nodes, as fsdpkit scale JOB --nodes 1,2,4"),
    ]
    gpus: Annotated[
        int,
        Meta(ge=1, le=64, description="GPUs per node, and so ranks per node."),
        once(
            "for each number start a sweep of its own, with --gpus N; fsdpkit plan --try "
            "{key}=1,2,4 compares them without a queue"
        ),
    ]
    time: Annotated[Text, Meta(description="Time limit, in any of Slurm's six forms.")]
    cpus_per_gpu: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="CPU cores per GPU; unset: the node's share."),
    ] = None
    memory: Annotated[Text | None, Meta(description="Memory per node, such as 480G.")] = None
    account: Annotated[Text | None, Meta(description="Account (project) to charge.")] = None
    partition: Annotated[Text | None, Meta(description="Partition; unset: one that fits.")] = None
    qos: Annotated[Text | None, Meta(description="Quality of service.")] = None
    constraint: Annotated[Text | None, Meta(description="Node features, as in sbatch.")] = None
    reservation: Annotated[Text | None, Meta(description="Reservation.")] = None
    nodelist: Annotated[Text | None, Meta(description="Nodes that must be in the job.")] = None
    exclude: Annotated[Text | None, Meta(description="Nodes that must not be in the job.")] = None
    exclusive: Annotated[bool, Meta(description="Share no node with other jobs.")] = False
    spare: Annotated[
        int, Meta(ge=0, le=1000, description="Extra standby nodes that replace a failed one.")
    ] = 0

    def __post_init__(self) -> None:
        parsed("time", parse_time_s, self.time)
        parsed("memory", parse_memory_mb, self.memory)
        for key in ("nodelist", "exclude"):
            if "/" in (getattr(self, key) or ""):
                raise ValueError(f"{key}: a '/' makes Slurm read a file of that name; list nodes")

    @property
    def time_s(self) -> int:
        return parse_time_s(self.time)

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def nodes_asked(self) -> int:
        """What Slurm is asked for: the nodes that train, and those that wait."""
        return self.nodes + self.spare


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software the job finds. Unset keys take the site's; without any, the environment that
    `fsdpkit submit` itself runs in is activated in the job."""

    modules: Annotated[
        list[Text] | None, Meta(description="Modules to load, instead of the site's.")
    ] = None
    conda: Annotated[Text | None, Meta(description="Conda environment: its name or path.")] = None
    venv: Annotated[Text | None, Meta(description="Directory of a Python virtual environment.")] = (
        None
    )
    container: Annotated[
        Text | None, Meta(description="Container image; the site says which engine runs it.")
    ] = None
    variables: Annotated[
        dict[VariableName, str],
        Meta(description="Environment variables for every rank."),
        PER_TASK,
    ] = {}

    pass_: Annotated[
        list[str] | UnsetType,
        Meta(
            description="Variables of the submitter's environment, passed on by name and written "
            "nowhere."
        ),
    ] = msgspec.field(default=UNSET, name="pass")

    @property
    def passed(self) -> list[str]:
        return [] if self.pass_ is UNSET else self.pass_

    def __post_init__(self) -> None:
        if refused := [name for name in self.passed if not may_pass(name)]:
            raise ValueError(f"pass: {why_not_passed(refused[0])}")
        if twice := sorted({*self.passed} & {*self.variables}):
            raise ValueError(f"pass: {twice[0]} is set in variables as well; keep one of the two")
        given = [key for key in ("conda", "venv", "container") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[1]}: {given[0]} is set as well; keep the one that has torch")


class Files(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the run writes and who may read it, and what it needs to read. Nobody but its owner ever
    writes to it."""

    group: Annotated[
        bool, Meta(description="The group may read the run: its logs, metrics and checkpoints.")
    ] = False
    room_gb: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="GB (10^9 bytes) that must be free for the run at submission."),
    ] = None
    needs: Annotated[
        list[Text], Meta(description="Files or directories that must be there at submission.")
    ] = []


class WorkTreeSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run keeps of the work tree that it was submitted from."""

    snapshot: Annotated[
        bool, Meta(description="Copy the work tree into the run, and run there.")
    ] = False
    limit_mb: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Megabytes that a snapshot may have at most.")
    ] = 500


class Audit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run tells the centre that publishes its template or profile."""

    share: Annotated[
        bool,
        Meta(
            description="Let the centre count the run: the versions it used and how it ended; no "
            "name, path or text. Unset: only if files.group opens the run."
        ),
    ]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run, with which arguments and resources."""

    schema: Annotated[
        Literal["fsdpkit.job/1"],
        Meta(description="Format of this file."),
        once("there is one, and nothing to try: leave it out"),
    ]
    name: Annotated[
        Name,
        Meta(description="Name of the job, seen in squeue."),
        once("an array has one name, and a sweep's is that of its file: leave it out"),
    ]
    entry: Annotated[
        str,
        Meta(min_length=1, description="The training script, a Python file."),
        once(
            "a run has one, with which its environment is checked and it is resumed: start a sweep "
            "for each script, or let one script choose by an option of its own, args.NAME"
        ),
    ]
    resources: Annotated[Resources, Meta(description="What to ask of Slurm."), _ASKED_ONCE]
    description: Annotated[
        str,
        Meta(description="One sentence for `fsdpkit jobs`."),
        once("no training reads it, so nothing would differ: leave it out"),
    ] = ""
    template: Annotated[str, Meta(description="Template that makes the script."), RENDERED_ONCE] = (
        "torchrun"
    )
    args: Annotated[
        list[str],
        Meta(
            description="Arguments of the script; {array_task} is replaced by the array task's "
            "number."
        ),
        once("write args.NAME for the option --NAME of the script, such as args.lr"),
    ] = []
    array_args: Annotated[
        dict[ArrayTask, list[str]] | UnsetType,
        Meta(description="Further arguments for single array tasks, by task number."),
        once("a sweep writes it: write args.NAME for the option --NAME of the script"),
    ] = UNSET
    array_settings: Annotated[
        dict[ArrayTask, dict[str, dict[str, Any]]] | UnsetType,
        Meta(
            description="Tables for single array tasks, by task number, that override the job's: "
            "environment.variables, launch and retry."
        ),
        once("a sweep writes it: name the key itself, such as retry.hang_s"),
    ] = UNSET
    environment: Annotated[
        Environment, Meta(description="The software the job finds."), RENDERED_ONCE
    ] = Environment()
    parameters: Annotated[
        dict[str, Scalar], Meta(description="Parameters of the template, by name."), RENDERED_ONCE
    ] = {}
    launch: Annotated[
        LaunchSettings, Meta(description="How ranks are started on each node."), PER_TASK
    ] = LaunchSettings()
    retry: Annotated[
        Retry, Meta(description="What to do when an attempt is cut short."), PER_TASK
    ] = Retry()
    notify: Annotated[
        Notify,
        Meta(description="Who hears of the end, by mail or a command."),
        once(
            "Slurm and the script are told once for all tasks of an array; a command of [notify] "
            "hears which task it is called for: leave it out"
        ),
    ] = Notify()
    files: Annotated[
        Files | UnsetType,
        Meta(description="Who may read the run; unset: its owner alone."),
        _OF_THE_RUN,
    ] = UNSET
    track: Annotated[
        Track | UnsetType,
        Meta(description="Where `fsdpkit track` sends what the run logged."),
        _OF_THE_RUN,
    ] = UNSET
    source: Annotated[
        WorkTreeSource | UnsetType,
        Meta(description="What the run keeps of the work tree; unset: nothing."),
        _OF_THE_RUN,
    ] = UNSET
    audit: Annotated[
        Audit | UnsetType, Meta(description="Whether the centre may count the run."), _OF_THE_RUN
    ] = UNSET
    training: Annotated[
        TrainingSettings | UnsetType,
        Meta(description="Settings of the fsdpkit trainer."),
        PER_TASK,
    ] = UNSET


@dataclass(frozen=True)
class LoadedJob:
    """A job with the origin of every value, and the files it was read from."""

    spec: JobSpec
    layered: Layered
    files: tuple[Path, ...]
    entry: Path

    def origin(self, key: str) -> str:
        return self.layered.origin(key)

    @property
    def resolved(self) -> str:
        """The text of a run's job.json: the job as it was decided, its script by the whole path."""
        spec = msgspec.structs.replace(self.spec, entry=str(self.entry))
        return msgspec.json.format(msgspec.json.encode(spec), indent=2).decode() + "\n"

    @property
    def resolved_sha256(self) -> str:
        """Of that text; the script hands it to the nodes (runs/job_file.py)."""
        return hashlib.sha256(self.resolved.encode()).hexdigest()

    @property
    def on_disk(self) -> Files:
        return self.spec.files if isinstance(self.spec.files, Files) else Files()

    @property
    def opens_to_group(self) -> bool:
        return self.on_disk.group

    @property
    def is_shared(self) -> bool:
        """Whether the centre is told of the run; see runs/shared_record.py."""
        audit = self.spec.audit
        return audit.share if isinstance(audit, Audit) else self.opens_to_group

    @property
    def source(self) -> WorkTreeSource:
        return (
            self.spec.source if isinstance(self.spec.source, WorkTreeSource) else WorkTreeSource()
        )

    @property
    def array_args(self) -> dict[int, list[str]]:
        """What single array tasks are told behind `args`."""
        given = self.spec.array_args
        return {} if given is UNSET else {int(task): words for task, words in given.items()}

    @property
    def array_settings(self) -> dict[int, dict[str, dict[str, Any]]]:
        """What single array tasks have otherwise, as tables of a job file."""
        given = self.spec.array_settings
        return {} if given is UNSET else {int(task): tables for task, tables in given.items()}

    @property
    def may_requeue(self) -> bool:
        """Whether anything in `[retry]`, of all or of a single task, wants the job queued again."""
        whole = msgspec.to_builtins(self.spec.retry)
        own = [tables.get("retry", {}) for tables in self.array_settings.values()]
        return any(self._wants_return({**whole, **each}) for each in ({}, *own))

    @staticmethod
    def _wants_return(retry: dict[str, Any]) -> bool:
        choices = [value for key, value in retry.items() if key.startswith("on_")]
        # Without a spare node left, `restart` after the loss of a node is a requeue.
        return "requeue" in choices or retry["on_node_failure"] == "restart"


def load_job(
    job: str | None = None,
    *,
    beneath: tuple[str, dict[str, Any]] = ("", {}),
    options: dict[str, Any] | None = None,
    sets: Sequence[str] = (),
    args: Sequence[str] = (),
) -> LoadedJob:
    """The job named `job` (a TOML file, a Python script, or a name; default the T5 job).

    beneath: an origin and the values under all files, as sbatch's own environment gives them.
    options: dotted keys with typed values from command-line flags. sets: `KEY=VALUE` texts.
    args: appended to the script's arguments. Raises NotFoundError or ConfigError.
    """
    layered = Layered()
    layered.overlay(beneath[1], beneath[0])
    files = _lay_files(layered, job or DEFAULT_JOB)
    _lay_command_line(layered, options or {}, sets)
    if args:
        layered.overlay({"args": [*layered.values.get("args", []), *args]}, "command line")
    what = f"job {job or DEFAULT_JOB}"
    refuse_secrets(layered, what)
    spec = build(JobSpec, layered, what)
    entry = _find_entry(spec.entry, layered, files, what)
    if spec.training is not UNSET and _is_for_other_scripts(layered, entry):
        del layered.values["training"]
        spec = msgspec.structs.replace(spec, training=UNSET)
    return LoadedJob(spec, layered, tuple(files), entry)


def _is_for_other_scripts(layered: Layered, entry: Path) -> bool:
    """Whether `[training]` stands in defaults alone, and this script does not read it."""
    of_training = [o for k, o in layered.origins.items() if k.partition(".")[0] == "training"]
    if not all(origin.endswith(" defaults.toml") for origin in of_training):
        return False
    try:
        source = read_source(entry)
        tree = None if source is None else syntax_of(source)
        return tree is not None and not reads_settings(tree, entry.parent)
    except OSError:
        return False


def reload_job(
    path: Path,
    origin: str,
    *,
    work_dir: Path,
    options: dict[str, Any] | None = None,
    sets: Sequence[str] = (),
    read: Callable[[Path], bytes] = Path.read_bytes,
) -> LoadedJob:
    """The resolved job in `path` (a run's job.json) with changes; `origin` names it in messages.

    read: how to get at the file's bytes; raises OSError.
    No defaults are laid beneath it: a run goes on as what it was, whatever changed since. Raises
    NotFoundError, StorageError or ConfigError.
    """
    try:
        values = msgspec.json.decode(read(path), type=dict[str, Any])
    except FileNotFoundError as error:
        raise NotFoundError(f"{origin} has no {path.name}, so its job is not known") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is corrupt: {error}") from error
    layered = Layered()
    layered.overlay(values, origin)
    _lay_command_line(layered, options or {}, sets)
    refuse_secrets(layered, f"job of {origin}")
    spec = build(JobSpec, layered, f"job of {origin}")
    beside = (work_dir / "job.json",)
    entry = _find_entry(spec.entry, layered, beside, f"job of {origin}")
    return LoadedJob(spec, layered, (path,), entry)


def _lay_command_line(layered: Layered, options: dict[str, Any], sets: Sequence[str]) -> None:
    for text in sets:
        key = text.partition("=")[0].strip()
        if why := why_secret(key, text.partition("=")[2]):
            raise found_secret("--set" if form_of(key) else f"--set {key}", key, why)
    command_line: dict[str, Any] = {}
    for key, value in options.items():
        table = command_line
        *parents, leaf = key.split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
        table[leaf] = value
    layered.overlay(overrides(JobSpec, sets), "--set")
    layered.overlay(command_line, "command line")


_ITS_OWNERS = (("audit", "share"), ("files", "group"))
"""Keys that let others see a run: its owner alone says so, whoever wrote the job."""


def _lay_of(layer: AssetLayer, layered: Layered, tables: FileTables, origin: str) -> None:
    """Lay a file of a layer over what is there, but for what only a run's owner can say."""
    before = {table: dict(layered.values.get(table, {})) for table, _ in _ITS_OWNERS}
    origins = dict(layered.origins)
    layered.overlay(tables, origin)
    if layer.name == "user":
        return
    for table, key in _ITS_OWNERS:
        dotted, values = f"{table}.{key}", layered.values.get(table)
        if layered.origins.get(dotted) != origin or not isinstance(values, dict):
            continue
        said = values.pop(key)
        del layered.origins[dotted]
        if key in before[table]:
            values[key], layered.origins[dotted] = before[table][key], origins[dotted]
        if not values:
            del layered.values[table]
        layered.left_out.append(
            f"{dotted} of {origin} is not read: who sees your runs is yours to say, by --set "
            f"{dotted}={'true' if said is True else 'false'}"
        )


def _layer_of(path: Path) -> AssetLayer:
    """The centre's if a job's file is named by its path in there, else the user's."""
    own = AssetLayer("user", path.parent)
    real = path.resolve()  # either may be named by a link
    centres = assets.centre_layers()
    return next((each for each in centres if real.is_relative_to(each.dir.resolve())), own)


def _lay_files(layered: Layered, job: str) -> list[Path]:
    path = Path(job)
    if path.suffix == ".py":
        layered.overlay(_for_script(path), "built in")
    defaults = assets.defaults_files()
    for layer, file in defaults:
        _lay_of(layer, layered, read_toml(file), f"{layer.name} {file.name}")
    if path.suffix == ".py":
        return [file for _, file in defaults]
    if path.suffix == ".toml" or "/" in job:
        if not path.is_file():
            raise NotFoundError(f"there is no job file {job}")
        assets.refuse_behind_the_index(path)
        _lay_of(_layer_of(path), layered, read_toml(path), str(path))
        return [*(file for _, file in defaults), path.resolve()]
    found = assets.find("job", job)
    for layer, file in found:
        version = f" version {layer.release.version}" if layer.release else ""
        tables = read_place(layer, file)
        _lay_of(layer, layered, tables, f"{layer.name} jobs/{file.name}{version}")
    return [file for _, file in [*defaults, *found]]


def _for_script(path: Path) -> dict[str, Any]:
    """The job of a bare training script: one node, one GPU, an hour, unless told otherwise."""
    if not path.is_file():
        raise NotFoundError(f"there is no script {path}")
    return {
        "schema": JOB_SCHEMA,
        "name": name_after(path),
        "entry": str(path.resolve()),
        "resources": {"nodes": 1, "gpus": 1, "time": "01:00:00"},
    }


def name_after(script: Path) -> str:
    """A job's name after that of its script."""
    letters = (c if (c.isascii() and c.isalnum()) or c in "._+-" else "-" for c in script.stem)
    return "".join(letters).lstrip("._+-")[:64] or "job"


def _find_entry(entry: str, layered: Layered, files: Sequence[Path], what: str) -> Path:
    """The script as an absolute path: beside the job file, in the current directory, packaged; that
    of a packaged job in the package alone."""
    origin = layered.origin("entry")
    bases = [Path.cwd(), *(f.parent for f in files), assets.packaged_dir()]
    if origin not in ("command line", "--set"):
        bases = [*reversed(bases[1:-1]), bases[0], bases[-1]]
    if origin.startswith("packaged "):  # whatever has the same name where this is typed
        bases = [base for base in bases[:-2] if base.is_relative_to(bases[-1])] + bases[-1:]
    for base in bases:
        candidate = (base / entry).resolve()
        if candidate.is_file():
            return candidate
    raise NotFoundError(
        f"{what}: entry ({origin}): there is no script {entry!r}; "
        f"looked in {', '.join(dict.fromkeys(str(b) for b in bases))}"
    )


def parse_array(text: str, *, largest_task: int = 1_000_000) -> tuple[list[int], int | None]:
    """The tasks of a Slurm array specification such as `0-15:5%2`, and how many run at once.

    Raises UsageError for anything else, duplicates, or more than `largest_task`.
    """
    body, percent, at_once = text.partition("%")
    tasks: list[int] = []
    try:
        if percent and int(at_once) < 1:
            raise ValueError
        for part in body.split(","):
            span, _, step = part.partition(":")
            first, dash, last = span.partition("-")
            numbers = [first, *([last] if dash else []), *([step] if step else [])]
            if not all(n.isascii() and n.isdigit() for n in numbers) or (step and not dash):
                raise ValueError
            low, high, by = int(first), int(last or first), int(step or 1)
            if high < low or by < 1 or high > largest_task:
                raise ValueError
            tasks.extend(range(low, high + 1, by))
    except ValueError:
        raise UsageError(
            f"--array {text!r}: write tasks as in sbatch, e.g. 0-15, 1,3,5, 0-15:5 or 0-99%10; "
            f"no task may be above {largest_task}"
        ) from None
    if len(set(tasks)) != len(tasks):
        raise UsageError(f"--array {text!r}: a task is named twice")
    return tasks, int(at_once) if percent else None
