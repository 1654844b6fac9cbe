"""What becomes of each line of a batch script: taken, not needed any more, or without a home."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import msgspec

from fsdpkit.config.fields import VariableName
from fsdpkit.config.secrets import why_secret
from fsdpkit.scheduling.batch_file.launch import StartedProgram
from fsdpkit.scheduling.batch_file.resources import LineOutcome, RankShape, Tables
from fsdpkit.scheduling.batch_file.walking import Step, Walk

OF_RANKS = frozenset(
    "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK "  # noqa: SIM905
    "ROLE_RANK RANK_ID".split()
)
OF_SLURM = re.compile(r"(SLURM|SRUN|SBATCH|SALLOC|RDZV|FSDPKIT|SUBMITIT|PMI|OMPI)_")
_OF_ADDRESSES = re.compile(
    r"scontrol\s+show\s+host|\bhostname\b|NODELIST|SLURMD_NODENAME|free_port|\bshuf\b|\$RANDOM"
    r"|import socket|SLURM_(PROCID|NODEID|LOCALID)|nslookup|getent\s+hosts|SLURM_JOB_?ID.*tail"
)
_PRINTS = frozenset(
    "echo printf date hostname nvidia-smi rocm-smi env printenv pwd which whoami id ls cat free "  # noqa: SIM905
    "lscpu df du uptime uname ulimit-a squeue scontrol sacct sinfo sstat seff head tail ps top "
    "lspci ibstat ibv_devinfo nvcc type ifconfig ip".split()
)
_OF_SHELL = frozenset("set shopt clear wait exit sleep return true : exec sync".split())  # noqa: SIM905
_INITS = re.compile(
    r"(\.bashrc|\.bash_profile|\.profile|/etc/profile\S*|profile\.d/\S+|conda\.sh|lmod\S*"
    r"|modules?(\.sh|/init/\w+)|/init/(ba)?sh)$"
)
_LOGS = re.compile(r"log|out|err|slurm|report", re.IGNORECASE)
_FINDS_ADDRESSES = "fsdpkit finds addresses and ports, and gives each rank its own"
_KEEPS_OUTPUT = "fsdpkit keeps the output of every rank: fsdpkit logs"
_OF_TASK = dict.fromkeys(("$SLURM_ARRAY_TASK_ID", "${SLURM_ARRAY_TASK_ID}"), "{array_task}")
"""How the arguments of a job name the number of an array task."""
_UNUSED = "no line that is taken uses it"
_ON_NODE = "its value is known only where the script runs"


@dataclass(frozen=True)
class BatchFile:
    """What a batch script becomes. `entry` is a path as written, `-m MODULE`, or a command."""

    kind: str
    line: int
    """Of the launch, and its text."""
    launch: str
    entry: str
    args: tuple[str, ...]
    directory: str
    """In which the launch stands after `cd`."""
    shape: RankShape
    name: str | None
    array: str | None
    """What --array of `fsdpkit submit` says."""
    tables: Mapping[str, Mapping[str, Any]]
    """resources, environment, launch, slurm, notify; without empty ones."""
    findings: tuple[LineOutcome, ...]

    @property
    def unknown(self) -> list[LineOutcome]:
        """What stands in the arguments as it was written, and is not expanded any more."""
        return [each for each in self.findings if each.note.startswith(_VERBATIM)]


_VERBATIM = "stands in args as written"


class BatchLines:
    """Decides for each command what becomes of it, and collects the tables."""

    def __init__(
        self,
        walk: Walk,
        step: Step,
        launch: StartedProgram,
        shape: RankShape,
        tables: Tables,
        environ: Mapping[str, str],
    ) -> None:
        self.walk, self.step, self.launch, self.shape = walk, step, launch, shape
        self.tables, self.environ = tables, environ
        self.findings: list[LineOutcome] = []
        self.environment: dict[str, Any] = {}
        self.variables: dict[str, str] = dict(tables.variables)
        self.of_task = _OF_TASK if tables.array is not None else {}
        self.prepended: dict[str, str] = {}
        self.modules: list[str] = []
        self.conda_base: str | None = None
        self.in_launch = step.names
        self.used = set(step.names)

    def read(self, kind: str, directory: str, options_chdir: str | None) -> BatchFile:
        walk, launch = self.walk, self.launch
        line = self.step.command.line
        others = [step for step in walk.steps if step is not self.step]
        inner = [replace(step, command=replace(step.command, line=line)) for step in launch.steps]
        # Last, what only sets variables: whether these are used is known by then.
        for step in sorted([*others, *inner], key=_only_sets):
            self._read_step(step)
        for block, _ in walk.skipped:
            self._find(block.line, block.text, "not needed", "does not hold in a batch job")
        self._launch_line(line)
        self._from_environ(line)
        here = launch.steps[-1].directory if launch.steps else self.step.directory
        if options_chdir is not None or here != directory:
            text = f"--chdir={options_chdir}" if options_chdir is not None else f"cd {here}"
            note = "a job runs where it is submitted from: submit it from there"
            self._find(0, text, "no home", note)
        tables = {
            "resources": self.tables.resources,
            "environment": self._environment(),
            "launch": self._launch_table(line),
            "slurm": {"options": self.tables.options} if self.tables.options else {},
            "notify": self._notify(),
        }
        return BatchFile(
            kind,
            line,
            short(self.step.command.text, 160),
            walk.shown(launch.entry),
            tuple(walk.shown(word, self.of_task) for word in launch.args),
            here,
            self.shape,
            self.tables.name,
            self.tables.array,
            {name: table for name, table in tables.items() if table},
            tuple(sorted(dict.fromkeys(map(_plain, self.findings)), key=lambda each: each.line)),
        )

    def _find(self, line: int, text: str, fate: Any, note: str) -> None:
        self.findings.append(LineOutcome(line, self.walk.shown(text), fate, note))

    # ---- The launch ---------------------------------------------------------------------------

    def _launch_line(self, line: int) -> None:
        walk, launch = self.walk, self.launch
        words = (walk.shown(word, self.of_task) for word in launch.args)
        command = " ".join([launch.entry, *words])
        self._find(line, command, "taken", "entry and args")
        for said, why in launch.dropped:
            self._find(line, said, "not needed", why)
        for said in launch.homeless:
            self._find(line, said, "no home", "fsdpkit starts the program without it")
        for word in launch.args:
            if raw := [each for each in walk.unknowns(word) if each not in self.of_task]:
                self._find(line, word, "no home", f"{_VERBATIM}: {raw[0]} is not expanded there")
        if "@" in self.used:
            note = "give them to fsdpkit submit behind --"
            self._find(line, "$@", "no home", f"arguments of the script: {note}")
        for redirection in self.step.command.redirections:
            self._find(line, redirection, "not needed", _KEEPS_OUTPUT)
        for block in self.step.within:
            note = "fsdpkit starts the program without asking it"
            self._find(block.line, block.text, "no home", note)
        if self.shape.note:
            self._find(line, self.step.command.text, "not needed", self.shape.note)
        for name, value in launch.variables.items():
            for fate, note in self._variable(name, value):
                self._find(line, f"{name}={value}", fate, note)
        image = launch.container if self.tables.container is None else None
        if image and self._known(line, image, image, "environment.container"):
            self.tables.container = image

    def _known(self, line: int, text: str, value: str, key: str) -> bool:
        known = not self.walk.unknowns(value)
        self._find(line, text, *(("taken", key) if known else ("no home", _ON_NODE)))
        return known

    def _launch_table(self, line: int) -> dict[str, Any]:
        table: dict[str, Any] = {}
        config, key = self.launch.accelerate_config, "launch.accelerate_config"
        if config is not None and self._known(line, f"--config_file {config}", config, key):
            table["accelerate_config"] = config
        if self.shape.ranks != self.shape.gpus:
            ranks = self.shape.ranks
            said = f"{ranks} of {self.shape.gpus} GPUs"
            table["ranks_per_node"] = ranks
            self._find(line, said, "taken", f"launch.ranks_per_node = {ranks}")
        return table

    def _from_environ(self, line: int) -> None:
        for name in sorted(self.used):
            own = any(name == n for s in self.walk.steps for n, _ in s.assigned)
            if not own and name not in self.walk.slurm and name in self.walk.environ:
                text = f"{name}={self.walk.environ[name]}"
                self._find(line, text, "taken", "in the command, from your environment")

    # ---- Tables -------------------------------------------------------------------------------

    def _environment(self) -> dict[str, Any]:
        table: dict[str, Any] = {}
        if self.modules:
            table["modules"] = self.modules
        table |= self.environment
        if "/" not in table.get("conda", "/") and self.conda_base is not None:
            table["conda_base"] = self.conda_base
        if self.tables.container is not None:
            table.pop("conda_base", None)
            for key in ("conda", "venv"):
                if key in table:
                    note = "the program is in a container"
                    self._find(0, f"{key} {table.pop(key)}", "not needed", note)
            table["container"] = self.tables.container
        if self.variables:
            table["variables"] = self.variables
        if self.prepended:
            table["prepend"] = self.prepended
        return table

    def _notify(self) -> dict[str, Any]:
        notify = self.tables.notify
        if "on" not in notify or "mail" in notify:
            return notify
        self.findings = [
            replace(each, fate="no home", note="notify.mail says to whom")
            if each.note == "notify.on"
            else each
            for each in self.findings
        ]
        return {}

    # ---- Commands -----------------------------------------------------------------------------

    def _read_step(self, step: Step) -> None:
        kept = dict(self.environment), dict(self.variables), dict(self.prepended), [*self.modules]
        self._read_one(step)
        if step.within:  # what a condition decides is told, and not taken
            self.environment, self.variables, self.prepended, self.modules = kept

    def _read_one(self, step: Step) -> None:
        line, text = step.command.line, step.command.text
        if step.words:
            for fate, note in self._fate(step):
                self._find_of(step, line, text, fate, note)
            return
        for name, value in step.assigned:
            said = text if len(step.assigned) == 1 else f"{name}={value.text}"
            for fate, note in self._assignment(step, name, value.text):
                self._find_of(step, line, said, fate, note)

    def _find_of(self, step: Step, line: int, text: str, fate: str, note: str) -> None:
        if fate == "taken" and step.within and note != "in the command":
            block = step.within[-1]
            fate, note = "no home", f"depends on line {block.line}: {short(block.text, 60)}"
        elif fate == "taken":
            self.used |= step.names.union(*(value.names for _, value in step.assigned))
        self._find(line, text, fate, note)

    def _fate(self, step: Step) -> Iterator[tuple[str, str]]:
        words = [PurePosixPath(step.words[0]).name or step.words[0], *step.words[1:]]
        name = words[0]
        if step.command.here_document:
            yield "no home", "a here-document is not read"
        elif step.piped and name in ("tee", "grep", "sed", "awk", "head", "tail", "sort", "ts"):
            yield "not needed", _KEEPS_OUTPUT
        elif name in ("module", "ml"):
            yield from self._module(step, words)
        elif name in ("conda", "mamba", "micromamba") and words[1:2] == ["activate"]:
            yield from self._conda(step, words[2] if len(words) > 2 else "base")
        elif name in ("source", "."):
            yield from self._source(step, list(words))
        elif name == "deactivate" or words[1:2] == ["deactivate"]:
            yield "not needed", "the job's environment is in [environment]"
        elif name == "cd":
            if step.directory == self.walk.slurm["SLURM_SUBMIT_DIR"]:
                yield "not needed", "a job runs where it is submitted from"
            elif self.walk.unknowns(" ".join(words)):
                yield "no home", _ON_NODE
        elif name == "eval" and sets_conda_up(self.walk, step):
            yield "not needed", "fsdpkit sets conda up itself"
        elif name == ":" and step.names:
            used = bool(step.names & self.used)
            yield ("taken", "in the command") if used else ("not needed", _UNUSED)
        elif name in _PRINTS or (name == "ulimit" and words[1:] in (["-a"], [])):
            yield "not needed", "it prints"
        elif name in _OF_SHELL:
            yield "not needed", "it is about this shell"
        elif name == "mkdir" and all(_LOGS.search(w) for w in words[1:] if not w.startswith("-")):
            yield "not needed", _KEEPS_OUTPUT
        elif name not in self.walk.functions:
            yield "no home", "fsdpkit runs no other command"

    def _assignment(self, step: Step, name: str, value: str) -> Iterator[tuple[str, str]]:
        pasted = name in self.in_launch and re.search(r"\s", value.strip())
        of_ranks = name in OF_RANKS or _OF_ADDRESSES.search(self.walk.shown(value))
        if step.exports and not pasted:
            yield from self._variable(name, value)
        elif of_ranks and not self._in_args(value):
            yield "not needed", _FINDS_ADDRESSES
        elif name in self.used:
            yield "taken", "in the command"
        else:
            yield "not needed", _UNUSED

    def _in_args(self, value: str) -> bool:
        """Whether an unknown part of a value stands in the arguments."""
        return any(mark in word for word in self.launch.args for mark in self.walk.marks(value))

    def _variable(self, name: str, value: str) -> Iterator[tuple[str, str]]:
        """What every rank would have in its environment."""
        shown, raw = self.walk.shown(value), self.walk.unknowns(value)
        if name in OF_RANKS or OF_SLURM.match(name):
            yield "not needed", _FINDS_ADDRESSES if name in OF_RANKS else "fsdpkit sets it itself"
        elif raw and (added := self._added_to(name, value)) is not None:
            self.prepended[name] = added
            behind = value[0] in self.walk.marks(value)
            yield "taken", f"environment.prepend.{name}" + ", so before the rest" * behind
        elif raw and _OF_ADDRESSES.search(shown):
            yield "not needed", _FINDS_ADDRESSES
        elif raw:
            yield "no home", _ON_NODE
        elif why := why_secret(name, value):
            yield "no home", f"{why}: environment.pass hands it on by name"
        elif name == "CUDA_VISIBLE_DEVICES" and value == ",".join(map(str, range(self.shape.gpus))):
            yield "not needed", "a node's ranks have its GPUs in this order"
        elif not _is_name(name) or any(ord(c) < 32 for c in value):
            yield "no home", "no variable of a job"
        else:
            self.variables[name] = value
            yield "taken", f"environment.variables.{name}"

    def _added_to(self, name: str, value: str) -> str | None:
        """The directories around the variable's own value, as in `PATH=/x:$PATH`; None: another."""
        raw, own = self.walk.unknowns(value), rf"\$\{{?{name}(:?[-+]:?(\$\{{?{name}\}}?:?)?)?\}}?"
        if len(raw) != 1 or not re.fullmatch(own, raw[0]):
            return None
        before, after = value.split(self.walk.marks(value)[0])
        bounded = not before or before.endswith(":") or ":$" in raw[0]
        if not bounded or (after and not after.startswith(":") and not raw[0].endswith(":}")):
            return None
        return ":".join(filter(None, (before.removesuffix(":"), after.removeprefix(":")))) or None

    def _module(self, step: Step, words: list[str]) -> Iterator[tuple[str, str]]:
        verbs = ("load", "add", "purge", "use", "unload", "swap", "list", "avail", "restore", "rm")
        if words[0] == "ml" and words[1:] and words[1] not in verbs:
            words = ["module", "load", *words[1:]]
        verb, names = (words[1], words[2:]) if len(words) > 1 else ("list", [])
        names = [name for name in names if name not in ("-q", "-s", "--quiet")]
        if verb in ("load", "add") and names and not any(n.startswith("-") for n in names):
            if self.walk.unknowns(" ".join(names)):
                yield "no home", _ON_NODE
                return
            self.modules += [name for name in names if name not in self.modules]
            yield "taken", "environment.modules"
        elif verb in ("list", "avail", "reset"):
            yield "not needed", "it prints" if verb != "reset" else "the profile says it"
        elif verb == "purge":
            yield "not needed", "environment.purge_modules of the profile says whether it is done"
        elif verb == "use":
            yield "no home", "environment.use_modules of the profile lists such directories"
        else:
            yield "no home", "a job loads modules, and does nothing else with them"

    def _conda(self, step: Step, name: str) -> Iterator[tuple[str, str]]:
        if self.walk.unknowns(name):
            yield "no home", _ON_NODE
            return
        self.environment = {"conda": name}
        yield "taken", "environment.conda"

    def _source(self, step: Step, words: list[str]) -> Iterator[tuple[str, str]]:
        path = words[1] if len(words) > 1 else ""
        if path == "activate" or path.endswith("/activate"):
            if self.walk.unknowns(" ".join(words[1:3])):
                yield "no home", _ON_NODE
                return
            prefix = str(PurePosixPath(step.directory) / PurePosixPath(path).parent.parent)
            prefix = os.path.normpath(prefix)
            if len(words) > 2:
                self.conda_base = prefix if "/" in path else self.conda_base
                yield from self._conda(step, words[2])
                return
            key = "conda" if re.search(r"conda|mamba|miniforge", prefix) else "venv"
            if key == "conda":
                self.conda_base = prefix
            if path == "activate" or (key == "conda" and self._activates_later(step)):
                yield "not needed", "fsdpkit sets conda up itself"
                return
            self.environment = {key: prefix}
            yield "taken", f"environment.{key}"
        elif _INITS.search(path):
            yield "not needed", "fsdpkit sets modules and conda up itself"
        else:
            yield "no home", "what it does to the environment is not read"

    def _activates_later(self, step: Step) -> bool:
        later = self.walk.steps[self.walk.steps.index(step) + 1 :]
        return any(each.words[1:2] == ("activate",) for each in later)


def _plain(outcome: LineOutcome) -> LineOutcome:
    """As it is printed, and as a comment of the job file has it."""
    return replace(outcome, text=short(outcome.text, 400), note=short(outcome.note, 200))


def _only_sets(step: Step) -> int:
    """First what may take variables, then exports, then what only this script uses."""
    if step.words:
        return 2 if step.words[0] == ":" else 0
    return 1 if step.exports else 2


def _is_name(name: str) -> bool:
    try:
        msgspec.convert(name, VariableName)
    except msgspec.ValidationError:
        return False
    return True


def sets_conda_up(walk: Walk, step: Step) -> bool:
    said = walk.shown(" ".join(step.words))
    return "hook" in said and ("conda" in said or "mamba" in said)


def short(text: str, most: int = 100) -> str:
    """On one line, without anything that a terminal or a comment would obey."""
    line = " ".join(text.replace("\\\n", " ").split())
    line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"
