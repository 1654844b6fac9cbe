"""What becomes of each line of a batch script: taken, not needed any more, or without a home."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import msgspec

from fsdpkit.config.job import Environment
from fsdpkit.config.secrets import why_secret
from fsdpkit.scheduling.batch_file.launch import StartedProgram
from fsdpkit.scheduling.batch_file.resources import LineOutcome, Outcome, Tables
from fsdpkit.scheduling.batch_file.shape import RankShape
from fsdpkit.scheduling.batch_file.staging import Staging
from fsdpkit.scheduling.batch_file.walking import Step, Walk

OF_RANKS = frozenset(
    "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK "  # noqa: SIM905
    "ROLE_RANK RANK_ID".split()
)
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*|[@*])")
OF_SLURM = re.compile(r"(SLURM|SRUN|SBATCH|SALLOC|RDZV|FSDPKIT|SUBMITIT|PMI|OMPI)_")
_OF_ADDRESSES = re.compile(
    r"scontrol\s+show\s+host|\bhostname\b|NODELIST|SLURMD_NODENAME|free_port|\bshuf\b|\$RANDOM"
    r"|import socket|SLURM_(PROCID|NODEID|LOCALID)|nslookup|getent\s+hosts|SLURM_JOB_?ID.*tail"
)
_INITS = re.compile(
    r"(\.bashrc|\.bash_profile|\.profile|/etc/profile\S*|profile\.d/\S+|conda\.sh|lmod\S*"
    r"|modules?(\.sh|/init/\w+)|/init/(ba)?sh)$"
)
_LOGS = re.compile(r"log|out|err|slurm|report", re.IGNORECASE)
_FINDS_ADDRESSES = "fsdpkit finds addresses and ports, and gives each rank its own"
_KEEPS_OUTPUT = "fsdpkit keeps the output of every rank: fsdpkit logs"
_SETS_UP = "fsdpkit sets modules and conda up itself"
_OF_TASK = dict.fromkeys(("$SLURM_ARRAY_TASK_ID", "${SLURM_ARRAY_TASK_ID}"), "{array_task}")
"""How the arguments of a job name the number of an array task."""
_VERBATIM = "stands in args as written"
_IN_COMMAND: Outcome = ("taken", "its value stands where it is used")
_ON_NODE: Outcome = ("no home", "its value is known only where the script runs")
_RETRY = "[retry] says when a job is queued again, steps.after what is done at its end"
_WRITES = re.compile(r"(?!.*(?:>&|/dev/|\.(?:log|out|err)\b))[1&]?>", re.DOTALL)
_FILTERS = frozenset("tee grep sed awk head tail sort ts".split())  # noqa: SIM905
_COMMANDS = {
    **dict.fromkeys(
        "echo printf date hostname env printenv pwd which whoami id ls cat free lscpu df du "  # noqa: SIM905
        "uptime uname squeue scontrol sacct sinfo sstat head tail ps top "
        "lspci ibstat ibv_devinfo nvcc type ifconfig ip".split(),
        "it prints",
    ),
    **dict.fromkeys(
        "nvidia-smi rocm-smi gpustat nvitop dcgmi seff reportseff jobstats".split(),  # noqa: SIM905
        "each node is sampled: fsdpkit usage, fsdpkit report",
    ),
    **dict.fromkeys(
        "set shopt clear wait exit sleep return read getopts shift true : exec sync".split(),  # noqa: SIM905
        "it is about this shell",
    ),
}
"""Commands that are not needed, whatever their arguments, and why."""
_MODULE: dict[str, Outcome] = {
    "list": ("not needed", "it prints"),
    "avail": ("not needed", "it prints"),
    "reset": ("not needed", "the profile says it"),
    "purge": ("not needed", "environment.purge_modules of the profile says whether it is done"),
    "use": ("no home", "environment.use_modules of the profile lists such directories"),
}
_MODULE_VERBS = (*_MODULE, "load", "add", "unload", "swap", "restore", "rm")


@dataclass(frozen=True)
class BatchFile:
    """What a batch script becomes. `entry` is a path as written, `-m MODULE`, or a command."""

    kind: str
    line: int
    """Of the launch."""
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
    each_node: tuple[str, ...]
    """What every node runs before its ranks: lines of a shell script."""
    findings: tuple[LineOutcome, ...]

    @property
    def unknown(self) -> list[LineOutcome]:
        """What stands in the arguments as it was written, and is not expanded any more."""
        return [each for each in self.findings if each.note.startswith(_VERBATIM)]


class BatchLines:
    """Decides for each command what becomes of it, and collects the tables."""

    def __init__(
        self,
        walk: Walk,
        step: Step,
        launch: StartedProgram,
        shape: RankShape,
        tables: Tables,
        staging: Staging,
    ) -> None:
        self.staging = staging
        self.walk, self.step, self.launch, self.shape = walk, step, launch, shape
        self.tables = tables
        self.findings: list[LineOutcome] = []
        self.steps: list[Step] = []
        """All but the launch."""
        self.later = {id(each) for each in walk.steps[walk.steps.index(step) :]}
        """Those behind it, by their id."""
        self.environment = tables.environment
        self.of_task = _OF_TASK if tables.array is not None else {}
        self.pasted = {*_NAME.findall(step.command.text)}
        self.used = {*self.pasted}
        self.command = " ".join(" ".join([*step.words, *launch.args]).split())

    def read(self, kind: str, directory: str, options_chdir: str | None) -> BatchFile:
        walk, launch, line = self.walk, self.launch, self.step.command.line
        staging = self.staging
        others = [step for step in walk.steps if step is not self.step]
        self.steps = [*others, *launch.steps]
        for step in self.steps:
            self._read_step(step)
        for block in walk.skipped:
            self._find(block.line, block.text, ("not needed", "does not hold in a batch job"))
        self._launch_line(line)
        self._from_environ(line)
        here = launch.steps[-1].directory if launch.steps else self.step.directory
        if options_chdir is not None or here != directory:
            text = f"--chdir={options_chdir}" if options_chdir is not None else f"cd {here}"
            note = "a job runs where it is submitted from: submit it from there"
            self._find(0, text, ("no home", note))
        tables = {
            "resources": self.tables.resources,
            "environment": self._environment(),
            "launch": self._launch_table(line),
            "stage": {key: paths for key in ("data", "back") if (paths := getattr(staging, key))},
            "slurm": {"options": self.tables.options} if self.tables.options else {},
            "notify": self.tables.notify,
        }
        return BatchFile(
            kind,
            line,
            walk.shown(launch.entry),
            tuple(walk.shown(word, self.of_task) for word in launch.args),
            here,
            self.shape,
            self.tables.name,
            self.tables.array,
            {name: table for name, table in tables.items() if table},
            tuple(staging.lines),
            tuple(sorted(dict.fromkeys(map(_plain, self.findings)), key=lambda each: each.line)),
        )

    def _find(self, line: int, text: str, outcome: Outcome) -> None:
        self.findings.append(LineOutcome(line, self.walk.shown(text), *outcome))

    # ---- The launch ---------------------------------------------------------------------------

    def _launch_line(self, line: int) -> None:
        walk, launch = self.walk, self.launch
        words = (walk.shown(word, self.of_task) for word in launch.args)
        self._find(line, " ".join([launch.entry, *words]), ("taken", "entry and args"))
        for said, why in launch.dropped:
            self._find(line, said, ("not needed", why))
        for said in launch.homeless:
            self._find(line, said, ("no home", "fsdpkit starts the program without it"))
        for word in launch.args:
            if raw := [each for each in walk.unknowns(word) if each not in self.of_task]:
                note = f"{_VERBATIM}: {raw[0]} is not expanded there"
                self._find(line, word, ("no home", note))
        if self.used & {"@", "*"}:
            note = "arguments of the script: give them to fsdpkit submit behind --"
            self._find(line, "$@", ("no home", note))
        for redirection in self.step.command.redirections:
            fed = re.match(r"0?<(?!\s*/dev/null)", redirection)
            fate: Outcome = ("no home", "ranks read no standard input")
            self._find(line, redirection, fate if fed else ("not needed", _KEEPS_OUTPUT))
        for block in self.step.within:
            note = "fsdpkit starts the program without asking it"
            self._find(block.line, block.text, ("no home", note))
        if self.shape.note:
            self._find(line, self.step.command.text, ("not needed", self.shape.note))
        for name, value in launch.variables.items():
            self._find(line, f"{name}={value}", self._variable(name, value))
        image = launch.container if "container" not in self.environment else None
        if image and self._known(line, image, image, "environment.container"):
            self.environment["container"] = image

    def _known(self, line: int, text: str, value: str, key: str) -> bool:
        known = not self.walk.unknowns(value)
        self._find(line, text, ("taken", key) if known else _ON_NODE)
        return known

    def _launch_table(self, line: int) -> dict[str, Any]:
        table: dict[str, Any] = {}
        config, key = self.launch.accelerate_config, "launch.accelerate_config"
        if config is not None and self._known(line, f"--config_file {config}", config, key):
            table["accelerate_config"] = config
        said = " ".join(self.launch.accelerate_args)
        if said and self._known(line, said, said, "launch.accelerate_args"):
            table["accelerate_args"] = self.launch.accelerate_args
        if self.shape.ranks != self.shape.gpus:
            table["ranks_per_node"] = ranks = self.shape.ranks
            said = f"{ranks} of {self.shape.gpus} GPUs"
            self._find(line, said, ("taken", f"launch.ranks_per_node = {ranks}"))
        return table

    def _from_environ(self, line: int) -> None:
        own = {name for step in self.walk.steps for name, _ in step.assigned} | {*self.walk.slurm}
        for name in sorted((self.used - own) & self.walk.environ.keys()):
            text = f"{name}={self.walk.environ[name]}"
            self._find(line, text, ("taken", "from your environment"))

    # ---- Tables -------------------------------------------------------------------------------

    def _environment(self) -> dict[str, Any]:
        table = self.environment
        if "container" in table:
            for key in {"conda", "venv"} & table.keys():
                note = "the program is in a container"
                self._find(0, f"{key} {table.pop(key)}", ("not needed", note))
        return {key: value for key, value in table.items() if value}

    # ---- Commands -----------------------------------------------------------------------------

    def _read_step(self, step: Step) -> None:
        kept = copy.deepcopy(self.environment)
        text = step.command.text
        if step.words:
            self._find_of(step, text, self._fate(step))
        else:
            for name, value in step.assigned:
                said = text if len(step.assigned) == 1 else f"{name}={value}"
                self._find_of(step, said, self._assignment(step, name, value))
        if step.within or self._apart(step):  # what a condition decides is reported, and not taken
            self.environment = kept

    def _find_of(self, step: Step, text: str, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        if outcome[0] == "taken" and step.within and outcome != _IN_COMMAND:
            block = step.within[-1]
            outcome = ("no home", f"depends on line {block.line}: {short(block.text, 60)}")
        elif outcome[0] == "taken" and (apart := self._apart(step)):
            outcome = ("not needed", apart)
        elif outcome[0] == "taken":
            self.used.update(_NAME.findall(step.command.text))
        self._find(step.command.line, text, outcome)

    def _apart(self, step: Step) -> str:
        """Why the program has nothing of what a command sets; empty: it has."""
        if id(step) in self.staging.outcomes:
            return ""
        if id(step) in self.later:
            return "it stands behind the program"
        around = self.step.shells[: len(step.shells)]
        return "" if step.shells == around else "it ends with its subshell"

    def _fate(self, step: Step) -> Outcome | None:
        """None: what it does is said elsewhere."""
        name, words = PurePosixPath(step.words[0]).name or step.words[0], step.words[1:]
        variables = self.environment["variables"]
        if (outcome := self.staging.outcomes.get(id(step))) is not None:
            return outcome
        if step.command.here_document:
            return "no home", "a here-document is not read"
        prints = name in _FILTERS or _COMMANDS.get(name) == "it prints"
        if prints and any(map(_WRITES.match, step.command.redirections)):
            return "no home", "a job writes no file: write it beforehand"
        if step.piped and name in _FILTERS:
            return "not needed", _KEEPS_OUTPUT
        if name == "trap" or (name == "scontrol" and "show" not in words):
            return "no home", _RETRY
        if name in ("module", "ml"):
            return self._module(name, words)
        if name in ("conda", "mamba", "micromamba") and words[:1] == ("activate",):
            return self._activated("conda", words[1] if len(words) > 1 else "base")
        if name in ("source", "."):
            return self._source(step, words)
        if name in ("cd", "pushd", "popd"):
            if step.directory == self.walk.slurm["SLURM_SUBMIT_DIR"]:
                return "not needed", "a job runs where it is submitted from"
            return _ON_NODE if self.walk.unknowns(" ".join(words)) else None
        if name == "unset" and None not in [variables.pop(word, None) for word in words]:
            return "taken", "environment.variables is without it"
        if name == ":" and _NAME.search(step.command.text):
            return _IN_COMMAND
        if name == "eval" and sets_conda_up(self.walk, step):
            return "not needed", _SETS_UP
        if name == "mkdir" and all(_LOGS.search(w) for w in words if not w.startswith("-")):
            return "not needed", _KEEPS_OUTPUT
        if name in self.walk.functions:
            return None
        if "deactivate" in (name, *words[:1]):
            left = [self.environment.pop(key, None) for key in ("conda", "venv")]
            return "taken" if any(left) else "not needed", "the job activates no environment"
        why = _COMMANDS.get(name)
        return ("not needed", why) if why else ("no home", "fsdpkit runs no other command")

    def _assignment(self, step: Step, name: str, value: str) -> Outcome:
        words = value.split()
        pasted = len(words) > 1 and (name in self.pasted or " ".join(words) in self.command)
        if name in step.exports and not pasted:
            return self._variable(name, value)
        in_args = any(mark in word for word in self.launch.args for mark in self.walk.marks(value))
        of_ranks = name in OF_RANKS or _OF_ADDRESSES.search(self.walk.shown(value))
        if of_ranks and not in_args:
            return "not needed", _FINDS_ADDRESSES
        return _IN_COMMAND

    def _variable(self, name: str, value: str) -> Outcome:
        """What every rank would have in its environment."""
        raw = self.walk.unknowns(value)
        if name in OF_RANKS or OF_SLURM.match(name):
            return "not needed", _FINDS_ADDRESSES if name in OF_RANKS else "fsdpkit sets it itself"
        if raw and (added := self._added_to(name, value)) is not None:
            self.environment["prepend"][name] = added
            behind = value[0] in self.walk.marks(value)
            return "taken", f"environment.prepend.{name}" + ", so before the rest" * behind
        if raw and name.endswith("_VISIBLE_DEVICES"):
            return "no home", "a rank sees all GPUs of its node, and its own is that of LOCAL_RANK"
        if raw and _OF_ADDRESSES.search(self.walk.shown(value)):
            return "not needed", _FINDS_ADDRESSES
        if raw:
            return _ON_NODE
        if why := why_secret(name, value):
            return "no home", f"{why}: environment.pass hands it on by name"
        if name == "CUDA_VISIBLE_DEVICES" and value == ",".join(map(str, range(self.shape.gpus))):
            return "not needed", "a node's ranks have its GPUs in this order"
        if any(ord(c) < 32 for c in value):
            return "no home", "a variable of a job is one line"
        try:
            msgspec.convert({"variables": {name: value}}, Environment)
        except msgspec.ValidationError as error:
            return "no home", str(error)
        self.environment["variables"][name] = value
        self.environment["prepend"].pop(name, None)
        return "taken", f"environment.variables.{name}"

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

    def _module(self, name: str, words: tuple[str, ...]) -> Outcome:
        verb, *names = words or ("list",)
        if name == "ml" and verb not in _MODULE_VERBS:
            verb, names = "load", [*words]
        if verb == "purge":
            self.environment["modules"].clear()
        names = [name for name in names if name not in ("-q", "-s", "--quiet")]
        if verb not in ("load", "add") or not names or any(n.startswith("-") for n in names):
            return _MODULE.get(verb, ("no home", "a job loads modules, and does nothing else"))
        if self.walk.unknowns(" ".join(names)):
            return _ON_NODE
        loaded = self.environment["modules"]
        loaded += [name for name in names if name not in loaded]
        return "taken", "environment.modules"

    def _activated(self, key: str, value: str) -> Outcome:
        """A virtual or conda environment, in the place of any before."""
        if self.walk.unknowns(value):
            return _ON_NODE
        for each in ("conda", "venv"):
            self.environment.pop(each, None)
        self.environment[key] = value
        return "taken", f"environment.{key}"

    def _source(self, step: Step, words: tuple[str, ...]) -> Outcome:
        path = words[0] if words else ""
        if _INITS.search(path):
            return "not needed", _SETS_UP
        if PurePosixPath(path).name != "activate":
            return "no home", "what it does to the environment is not read"
        if self.walk.unknowns(" ".join(words[:2])):
            return _ON_NODE
        prefix = os.path.normpath(PurePosixPath(step.directory, path).parent.parent)
        key = "conda" if re.search(r"conda|mamba|miniforge", prefix) else "venv"
        if len(words) > 1:
            return self._activated("conda", words[1])
        later = self.steps[self.steps.index(step) + 1 :] if key == "conda" else ()
        if path == "activate" or any(each.words[1:2] == ("activate",) for each in later):
            return "not needed", _SETS_UP
        return self._activated(key, prefix)


def _plain(outcome: LineOutcome) -> LineOutcome:
    """As it is printed, and as a comment of the job file has it."""
    return replace(outcome, text=short(outcome.text, 400), note=short(outcome.note, 200))


def sets_conda_up(walk: Walk, step: Step) -> bool:
    said = walk.shown(" ".join(step.words))
    return "hook" in said and ("conda" in said or "mamba" in said)


def short(text: str, most: int = 100) -> str:
    """On one line, without anything that a terminal or a comment would obey."""
    line = " ".join(text.replace("\\\n", " ").split())
    line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"
