"""How a job is put together: defaults, its file, `--set` and options become one `LoadedJob`.

What a job may say stands in job.py; how files are laid over one another in loading.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

import fsdpkit
from fsdpkit.config import assets
from fsdpkit.config.accelerate_file import check_accelerate_file
from fsdpkit.config.entry import Entry, find_entry, is_module_in, is_shell_script, nearby
from fsdpkit.config.job import JOB_SCHEMA, Audit, Environment, Files, JobSpec, WorkTreeSource
from fsdpkit.config.key_changes import other_release
from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.loading import FileTables, Layered, build, overrides, read_place, read_toml
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.script_source import read_source, reads_settings, syntax_of
from fsdpkit.config.secrets import form_of, found_secret, refuse_secrets, why_secret
from fsdpkit.config.steps import OwnSteps, command_of
from fsdpkit.config.trainer import Trainer
from fsdpkit.config.trainers import OWN, job_type, trainer_of
from fsdpkit.errors import NotFoundError, StorageError

DEFAULT_JOB = "t5"
_RECORDED = (
    "versions, what was used of GPUs, processors, memory and energy, how each attempt ended, "
    "nodes that failed"
)


@dataclass(frozen=True)
class LoadedJob:
    """A job with the origin of every value, and the files it was read from."""

    spec: JobSpec
    layered: Layered
    files: tuple[Path, ...]
    entry: Entry
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the key in `[steps]`, the command; its last word is the file's whole path."""
    accelerate_config: Path | None = None
    """That of `[launch]`, by its whole path."""

    def as_run(self, path: Path, work_dir: Path) -> FileTables:
        """What `path`, a run's job.json, is to say of it, for a run that begins in `work_dir`."""
        return FileTables({}, path, self.resolved.encode(), kind="run", bound=os.fsencode(work_dir))

    def origin(self, key: str) -> str:
        return self.layered.origin(key)

    @property
    def resolved(self) -> str:
        """The text of a run's job.json: the job as it was decided, its files by whole paths."""
        steps = {key: words[-1] for key, words in self.steps.items()}
        file = self.accelerate_config and str(self.accelerate_config)
        launch = msgspec.structs.replace(self.spec.launch, accelerate_config=file)
        changes = {"entry": str(self.entry), "steps": OwnSteps(**steps), "launch": launch}
        spec = msgspec.structs.replace(self.spec, **changes)
        return msgspec.json.format(msgspec.json.encode(spec), indent=2).decode() + "\n"

    @property
    def resolved_sha256(self) -> str:
        """Of that text; the script hands it to the nodes (runs/job_file.py)."""
        return hashlib.sha256(self.resolved.encode()).hexdigest()

    @property
    def trainer(self) -> Trainer:
        """That which knows what the job's `[training]` means."""
        return trainer_of(self.spec.trainer_name)

    @property
    def on_disk(self) -> Files:
        return self.spec.files if isinstance(self.spec.files, Files) else Files()

    @property
    def opens_to_group(self) -> bool:
        return self.on_disk.group

    @property
    def record_folder(self) -> str | None:
        """A project's folder that gets the run's record; see runs/shared_record.py."""
        folder = self._audit.folder
        return folder if isinstance(folder, str) else None

    def shared_by(self, profile: SiteProfile) -> str | None:
        """What gives the centre the run's record, by its key; None: it gets none."""
        if isinstance(own := self._audit.share, bool):
            return "job: audit.share" if own else None
        if self.opens_to_group:
            return "job: files.group"
        return "site: audit.share" if profile.audit.share else None

    def record_notes(self, profile: SiteProfile) -> list[str]:
        """What the run's owner is told of each record that it leaves: who reads it, what it says,
        how to have none."""
        why, readers, notes = self.shared_by(profile), profile.audit.readers or "the centre", []
        said = f"id, size, times, partition, {'account, ' * profile.audit.projects}{_RECORDED}"
        if why is not None:
            less = "; audit.share = false keeps it back" if why.startswith("site") else ""
            notes.append(f"audit: {readers} can read a record of the run ({why}): {said}{less}")
        if (folder := self.record_folder) is not None:
            said = f"id, size, times, partition, account, {_RECORDED}"
            who = f"whoever can read {folder} can read a record of the run (job: audit.folder)"
            notes.append(f"audit: {who}: {said}")
        return notes

    @property
    def _audit(self) -> Audit:
        return self.spec.audit if isinstance(self.spec.audit, Audit) else Audit()

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
    said_in: Sequence[FileTables] = (),
) -> LoadedJob:
    """The job that `job` names (default the T5 job): a TOML file, a job's name, or what to start,
    as `entry` says it.

    beneath: an origin and the values under all files, as sbatch's own environment gives them.
    options: dotted keys with typed values from command-line flags. sets: `KEY=VALUE` texts.
    args: appended to the script's arguments. said_in: files that some of `sets` and `args` come
    from. Raises NotFoundError or ConfigError.
    """
    job = os.path.expanduser(job or DEFAULT_JOB)
    layered = Layered()
    layered.say(beneath[1], beneath[0])
    files = _lay_files(layered, job)
    _lay_command_line(layered, options or {}, sets, said_in)
    if args:
        layered.say({"args": [*layered.values.get("args", []), *args]}, "command line")
    what = f"job {job}"
    _leave_out_defaults_of_others(layered)
    refuse_secrets(layered, what)
    spec = build(_type_in(layered), layered, what)
    entry = _find_entry(spec, layered, files, what, Path.cwd())
    if entry.kind == "command" and entry.file is None and layered.origin("entry") == "built in":
        raise _no_such_job(entry.name, spec)
    if spec.training is not UNSET and _is_for_other_scripts(layered, entry):
        del layered.values["training"]
        spec = msgspec.structs.replace(spec, training=UNSET)
    return _with_files(LoadedJob(spec, layered, tuple(files), entry), files, what)


def _leave_out_defaults_of_others(layered: Layered) -> None:
    """`[training]` in defaults is for fsdpkit's own trainer: leave it out under another one."""
    if layered.values.get("trainer", OWN) == OWN:
        return
    for key, origin in [*layered.origins.items()]:
        *tables, leaf = key.split(".")
        if tables[:1] == ["training"] and origin.endswith(" defaults.toml"):
            table = layered.values
            for name in tables:
                table = table[name]
            table.pop(leaf, None)
            del layered.origins[key]


def _is_for_other_scripts(layered: Layered, entry: Entry) -> bool:
    """Whether `[training]` stands in defaults alone, and this script does not read it."""
    of_training = [o for k, o in layered.origins.items() if k.partition(".")[0] == "training"]
    if not all(origin.endswith(" defaults.toml") for origin in of_training):
        return False
    if entry.file is None or entry.kind == "command":
        return True
    try:
        source = read_source(entry.file)
        tree = None if source is None else syntax_of(source)
        return tree is not None and not reads_settings(tree, *entry.source_dirs)
    except OSError:
        return False


def reload_job(
    path: Path,
    origin: str,
    *,
    work_dir: Path,
    options: dict[str, Any] | None = None,
    sets: Sequence[str] = (),
    said_in: Sequence[FileTables] = (),
    written_by: str | None = None,
    read: Callable[[Path], bytes] = Path.read_bytes,
) -> LoadedJob:
    """The resolved job in `path` (a run's job.json) with changes; `origin` names it in messages.

    written_by: the release that wrote it, for the warning of keys that this one does not know.
    read: how to get at the file's bytes; raises OSError.
    No defaults are laid beneath it: a run goes on as what it was, whatever changed since. Raises
    NotFoundError, StorageError or ConfigError.
    """
    try:
        content = read(path)
        values = msgspec.json.decode(content, type=dict[str, Any])
    except FileNotFoundError as error:
        raise NotFoundError(f"{origin} has no {path.name}, so its job is not known") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is corrupt: {error}") from error
    layered = Layered()
    bound = os.fsencode(work_dir)
    layered.overlay(FileTables(values, path, content, kind="run", bound=bound), origin)
    if unknown := layered.leave_out_unknown(_type_in(layered)):
        layered.warnings.append(
            other_release(f"job.json of {origin}", written_by, fsdpkit.__version__, unknown)
        )
    _lay_command_line(layered, options or {}, sets, said_in)
    refuse_secrets(layered, f"job of {origin}")
    spec = build(_type_in(layered), layered, f"job of {origin}")
    beside = (work_dir / "job.json",)
    entry = _find_entry(spec, layered, beside, f"job of {origin}", work_dir)
    return _with_files(LoadedJob(spec, layered, (path,), entry), beside, f"job of {origin}")


def _type_in(layered: Layered, sets: Sequence[str] = ()) -> type[JobSpec]:
    """A job with the settings of the trainer that `sets`, or else the files, name. Values of
    `[training]` that stand in defaults alone are for fsdpkit's own."""
    said = [text.partition("=")[2] for text in sets if text.partition("=")[0].strip() == "trainer"]
    name = said[-1] if said else layered.values.get("trainer") or OWN
    return job_type(name if isinstance(name, str) else OWN)


def _lay_command_line(
    layered: Layered, options: dict[str, Any], sets: Sequence[str], said_in: Sequence[FileTables]
) -> None:
    for tables in said_in:
        layered.files[tables.path] = tables
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
    layered.say(overrides(_type_in(layered, sets), sets), "--set")
    layered.say(command_line, "command line")


_ITS_OWNERS = (("audit", "share"), ("audit", "folder"), ("files", "group"))
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
        layered.warnings.append(
            f"{dotted} of {origin} is not read: who sees your runs is yours to say, by --set "
            f"{dotted}={str(said).lower() if isinstance(said, bool) else said}"
        )


def _layer_of(path: Path) -> AssetLayer:
    """The centre's if a job's file is named by its path in there, else the user's."""
    own = AssetLayer("user", path.parent)
    real = path.resolve()  # either may be named by a link
    centres = assets.centre_layers()
    return next((each for each in centres if real.is_relative_to(each.dir.resolve())), own)


def _lay_files(layered: Layered, job: str) -> list[Path]:
    bare = _bare_job(job)
    if bare is not None:
        layered.say(bare, "built in")
    layered.warnings += [
        f"{path} is not read: it is not signed, and FSDPKIT_ALLOWED_SIGNERS is not its owner's"
        for path in assets.defaults_not_taken()
    ]
    defaults = assets.defaults_files()
    for layer, file in defaults:
        _lay_of(layer, layered, read_toml(file), f"{layer.name} {file.name}")
    if bare is not None:
        return [file for _, file in defaults]
    path = Path(job)
    if path.suffix == ".toml" or "/" in job:
        if not path.is_file():
            raise NotFoundError(f"there is no job file {job}.{nearby(path)}")
        assets.refuse_behind_the_index(path)
        _lay_of(_layer_of(path), layered, read_toml(path), str(path))
        return [*(file for _, file in defaults), path.resolve()]
    found = assets.find("job", job)
    for layer, file in found:
        version = f" version {layer.release.version}" if layer.release else ""
        tables = read_place(layer, file)
        _lay_of(layer, layered, tables, f"{layer.name} jobs/{file.name}{version}")
    return [file for _, file in [*defaults, *found]]


def _bare_job(job: str) -> dict[str, Any] | None:
    """The job that only starts something: one node, one GPU, an hour, unless told otherwise. None
    for the name or the file of a job. Raises NotFoundError, UsageError."""
    path = Path(job)
    if not job.startswith("-m"):
        if path.suffix == ".toml" or job.partition("@")[0] in assets.available("job"):
            return None
        if path.suffix == ".py" and not path.is_file() and " " not in job:
            raise NotFoundError(f"there is no script {job}.{nearby(path)}")
        if is_shell_script(path):
            return None
    entry = find_entry(job, [Path.cwd()], Environment(), f"job {job}", here=Path.cwd())
    if entry is None:
        return None
    return {
        "schema": JOB_SCHEMA,
        "name": _as_name(entry.title),
        "entry": str(entry),
        "resources": {"nodes": 1, "gpus": 1, "time": "01:00:00"},
    }


def name_after(script: Path) -> str:
    """A job's name after that of its script."""
    return _as_name(script.stem)


def _as_name(text: str) -> str:
    letters = (c if (c.isascii() and c.isalnum()) or c in "._+-" else "-" for c in text)
    return "".join(letters).lstrip("._+-")[:64] or "job"


def _no_such_job(name: str, spec: JobSpec) -> NotFoundError:
    """For a name that is neither a job's nor that of a command which is here."""
    where = (
        "What a container has is not known here: name its command in a job file, as entry."
        if spec.environment.container
        else "Nor is it a command of its environment or on PATH; a shell's aliases and functions "
        "are none."
    )
    if is_module_in(name, Path.cwd()):
        where = f"A module is started by -m {name}."
    try:
        assets.find("job", name)
    except NotFoundError as error:
        return NotFoundError(f"{error}{nearby(Path(name)) or f' {where}'}")
    raise AssertionError(f"{name} is a job")


def _with_files(job: LoadedJob, files: Sequence[Path], what: str) -> LoadedJob:
    """The job with its other files, found as its script is. Raises NotFoundError, ConfigError."""

    def found(key: str, file: str) -> Path:
        places = _places(job.layered, files, key)
        for place in places:
            if (path := (place / file).resolve()).is_file():
                return path
        raise _not_found(f"{what}: {key} ({job.origin(key)}): there is no file {file!r}", places)

    steps = {
        key: command_of(found(f"steps.{key}", file), f"{what}: steps.{key}")
        for key, file in job.spec.steps.given.items()
    }
    path, key = None, "launch.accelerate_config"
    if file := job.spec.launch.accelerate_config:
        check_accelerate_file(path := found(key, file), f"{what}: {key}")
    return replace(job, steps=steps, accelerate_config=path)


def _find_entry(
    spec: JobSpec, layered: Layered, files: Sequence[Path], what: str, here: Path
) -> Entry:
    """What the job starts."""
    places, where = _places(layered, files, "entry"), f"{what}: entry ({layered.origin('entry')})"
    found = find_entry(spec.entry, places, spec.environment, where, here=here)
    if found is None:
        raise _not_found(f"{where}: there is no script {spec.entry!r}", places)
    return found


def _not_found(what: str, places: Sequence[Path]) -> NotFoundError:
    return NotFoundError(f"{what}; looked in {', '.join(dict.fromkeys(map(str, places)))}")


def _places(layered: Layered, files: Sequence[Path], key: str) -> list[Path]:
    """Where a file that `key` names is looked for: beside the job file, in the current directory,
    in the package; that of a packaged job in the package alone."""
    origin = layered.origin(key)
    bases = [Path.cwd(), *(f.parent for f in files), assets.packaged_dir()]
    if origin not in ("command line", "--set"):
        bases = [*reversed(bases[1:-1]), bases[0], bases[-1]]
    if origin.startswith("packaged "):  # whatever has the same name where this is typed
        bases = [base for base in bases[:-2] if base.is_relative_to(bases[-1])] + bases[-1:]
    return bases
