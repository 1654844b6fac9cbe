"""The command line that starts a training, taken apart from outside to inside: srun, container,
shell, launcher, Python; what is left is a program and its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fsdpkit.scheduling.batch_file.options import PROGRAMS, SRUN, Split
from fsdpkit.scheduling.batch_file.walking import Step, Walk

_DEEPEST = 6
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_PYTHON = re.compile(r"python(\d(\.\d+)?)?t?")
_RUNS = re.compile(r"-[A-Za-z]*[mc]|-")
"""The options of Python behind which its program follows."""
_SHELLS = frozenset(["bash", "sh", "zsh", "ksh", "dash"])
_CONTAINERS = frozenset(["singularity", "apptainer", "shifter"])
BEFORE = frozenset(["exec", "time", "nohup", "command", "builtin", "!", "setsid", "env"])
_WRAPPERS = frozenset(
    "env time numactl taskset nice ionice stdbuf unbuffer timeout nsys ncu perf strace rocprof "  # noqa: SIM905
    "rocprofv3 podman-hpc docker podman enroot ch-run conda mamba micromamba uv poetry pixi".split()
)
"""What runs the command behind its own options; which of them take values is not known here."""
_OF_JOB = ("nodes", "ntasks", "gres", "gpus", "gpus-per-node", "partition")
_OF_PROGRAM = frozenset("chdir environment export-file image module uenv view volume".split())  # noqa: SIM905
"""Options of srun and of its plugins that decide where the program is and what it sees."""
_NOT_PROGRAMS = frozenset("pip venv ensurepip ipykernel json http".split())  # noqa: SIM905
"""Modules of Python that are no training."""


_LAUNCHERS = {word: name for name, each in PROGRAMS.launchers.items() for word in each.called}
_NOT_NEEDED = {option: each.why for each in PROGRAMS.not_needed for option in each.options}
_ABOUT_ENTRY = frozenset("module no-python run-path use-env no-local-rank".split())  # noqa: SIM905


@dataclass
class StartedProgram:
    """What a command line starts. Filled in from outside to inside."""

    launcher: str = ""
    """torchrun, accelerate, deepspeed or srun; empty: the program alone."""
    srun: Split | None = None
    entry: str = ""
    """A file, `-m MODULE`, or the name of a command."""
    args: tuple[str, ...] = ()
    processes: str | None = None
    """As written: a number for each node, or `gpu`; of accelerate, a total."""
    total: bool = False
    nodes: str | None = None
    container: str | None = None
    accelerate_config: str | None = None
    accelerate_args: list[str] = field(default_factory=list)
    """Options of `accelerate launch` that say how it is trained."""
    variables: dict[str, str] = field(default_factory=dict)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    """Pieces that are not needed any more, and why."""
    homeless: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    """What else the shell string around it does."""
    shell_file: str | None = None
    """Another shell script that is started instead of a program."""
    evaluated: bool = False
    """The entry is a text that the script puts together."""

    @property
    def asks_for_nodes(self) -> bool:
        """Outside of a job, srun makes one."""
        return self.srun is not None and self.srun.last(*_OF_JOB) is not None

    @property
    def strength(self) -> int:
        """How surely this is the training: 3 a launcher, 2 srun, 1 a program alone, else 0."""
        if self.launcher not in ("", "srun"):
            return 3
        return 0 if not self.entry else 2 if self.launcher else 1


def launch_of(walk: Walk, step: Step, *, any_command: bool = False) -> StartedProgram | None:
    """What a command starts; None if it is no training. any_command: srun decides that it is."""
    launch = StartedProgram(variables={name: value for name, value in step.assigned if step.words})
    if _peeled(walk, list(step.words), launch, 0):
        return launch
    named = launch.srun is not None and re.fullmatch(r"[\w.-]+", launch.entry) is not None
    return launch if named and any_command else None


def starts_training(word: str) -> bool:
    """Whether a word is a program that a training is started with."""
    name = PurePosixPath(word).name
    known = name in _LAUNCHERS or name in _SHELLS or name in _CONTAINERS
    return known or _PYTHON.fullmatch(name) is not None


def _peeled(walk: Walk, words: list[str], launch: StartedProgram, depth: int) -> bool:
    """Whether a program is found, which `launch` then has."""
    while words and depth < _DEEPEST:
        word, name = words[0], PurePosixPath(words[0]).name
        if found := _ASSIGNED.fullmatch(word):
            launch.variables[found[1]] = found[2]
            words = words[1:]
        elif not word or (word in BEFORE and not "".join(words[1:2]).startswith("-")):
            words = words[1:]
        elif name == "srun":
            words = _srun(words, launch)
        elif name in _CONTAINERS:
            words = _container(words, launch)
        elif name in _SHELLS:
            return _shell(walk, words, launch, depth)
        elif word == "eval":
            launch.entry = " ".join(words[1:])
            launch.evaluated = any(map(starts_training, launch.entry.split()))
            return launch.evaluated
        elif name in _WRAPPERS or name.endswith("_wrapper") or _is_wrapper(words, launch):
            at = len(words) if "build" in words[1:3] else _first_start(words)
            launch.homeless.append(" ".join(words[:at]))
            words = words[at:]
        else:
            return _program(words, launch)
    return False


def _is_wrapper(words: Sequence[str], launch: StartedProgram) -> bool:
    """Whether srun is given a program by its path, and that the command to run."""
    known = "/" not in words[0] or starts_training(words[0]) or words[0].endswith((".py", "sh"))
    return not known and launch.srun is not None and _first_start(words) < len(words)


def _first_start(words: Sequence[str]) -> int:
    """The place of the first word from the second on that a training is started with."""
    return next((at for at in range(1, len(words)) if starts_training(words[at])), len(words))


def _srun(words: list[str], launch: StartedProgram) -> list[str]:
    split = SRUN.split(words[1:], starts_training)
    launch.launcher, launch.srun = launch.launcher or "srun", split
    for key, value, said in split.options:
        of_program = key in ("", *_OF_PROGRAM)
        if key == "container-image":
            launch.container = value
        elif of_program or key.startswith("container-") or (key == "export" and value != "ALL"):
            launch.homeless.append(said)
        else:
            launch.dropped.append((said, "fsdpkit writes its own srun line"))
    return list(split.rest)


def _container(words: list[str], launch: StartedProgram) -> list[str]:
    """The image stands before the program, whatever options there are; shifter's is an option."""
    at = _first_start(words)
    before = words[1:at]
    if not before or at == len(words):
        return []
    if words[0] != "shifter":
        launch.container = before.pop()
    of_gpus = [said for said in before if said in ("--nv", "--rocm")]
    why = "the site's profile says how its containers see GPUs"
    launch.dropped += [(said, why) for said in of_gpus]
    others = [said for said in before if said not in ("exec", "run", *of_gpus)]
    launch.homeless += [" ".join(others)] if others else []
    return words[at:]


def _shell(walk: Walk, words: list[str], launch: StartedProgram, depth: int) -> bool:
    at = 1
    while at < len(words) and words[at].startswith("-") and "c" not in words[at].lstrip("-"):
        at += 1
    if at + 1 < len(words) and words[at].startswith("-"):
        return _text(walk, words[at + 1], launch, depth)
    if at < len(words):
        launch.shell_file = words[at]
    return at < len(words)


def _text(walk: Walk, text: str, launch: StartedProgram, depth: int) -> bool:
    """A shell's string is a script of its own."""
    inner = walk.inner(text)
    starts: list[tuple[Step, StartedProgram]] = []
    for step in inner:
        tried = StartedProgram(launch.launcher, launch.srun, container=launch.container)
        tried.variables = {n: value for n, value in step.assigned if step.words}
        if _peeled(walk, list(step.words), tried, depth + 1):
            starts.append((step, tried))
    if len(starts) != 1:
        launch.steps += inner
        return False
    step, tried = starts[0]
    tried.variables = {**launch.variables, **tried.variables}
    tried.dropped[:0] = launch.dropped
    tried.homeless[:0] = launch.homeless
    tried.steps += [each for each in inner if each is not step]
    vars(launch).update(vars(tried))
    return True


def _program(words: list[str], launch: StartedProgram) -> bool:
    word, name = words[0], PurePosixPath(words[0]).name
    launcher = _LAUNCHERS.get(name)
    if launcher and (name != "accelerate" or words[1:2] == ["launch"]):
        return _launched(launcher, words[1:], launch)
    if _PYTHON.fullmatch(name):
        return _python(words[1:], launch)
    if name.endswith((".sh", ".bash")):
        launch.shell_file = word
        return True
    launch.entry, launch.args = word, tuple(words[1:])
    return name.endswith(".py")


def _python(words: list[str], launch: StartedProgram) -> bool:
    while words and words[0].startswith("-") and not _RUNS.fullmatch(words[0]):
        taken = words[: 2 if words[0] in ("-W", "-X") else 1]
        launch.homeless += [" ".join(taken)] if taken != ["-u"] else []
        words = words[len(taken) :]
    if len(words) > 1 and words[0].endswith("m") and _RUNS.fullmatch(words[0]):
        module, rest = words[1], words[2:]
        if launcher := _LAUNCHERS.get(module):
            return _launched(launcher, rest, launch)
        launch.entry, launch.args = f"-m {module}", tuple(rest)
        return module.partition(".")[0] not in _NOT_PROGRAMS
    if not words or words[0].startswith("-") or PurePosixPath(words[0]).name == "setup.py":
        return False
    launch.entry, launch.args = words[0], tuple(words[1:])
    return True


def _launched(name: str, words: list[str], launch: StartedProgram) -> bool:
    """The program behind a launcher's options."""
    launcher, is_accelerate = PROGRAMS.launchers[name], name == "accelerate"
    if is_accelerate and words[:1] == ["launch"]:
        words = words[1:]
    split = launcher.grammar.split(words, _is_script)
    launch.launcher, launch.total = name, launcher.total
    launch.processes = split.last(launcher.processes) or launcher.without
    launch.nodes = split.last(launcher.nodes)
    of_accelerate: dict[str, str | None] = {}
    for key, value, said in split.options:
        if is_accelerate and key == "config-file":
            launch.accelerate_config = value
        elif why := _NOT_NEEDED.get(key):
            launch.dropped.append((said, why))
        elif key in _ABOUT_ENTRY:
            pass
        elif is_accelerate and key:
            of_accelerate[key] = value
        else:
            launch.homeless.append(said)
    if launch.accelerate_config is None and of_accelerate.keys() <= PROGRAMS.by_variable.keys():
        launch.variables |= {
            PROGRAMS.by_variable[key]: value or "" for key, value in of_accelerate.items()
        }
    else:
        launch.accelerate_args = [
            word
            for key, value in of_accelerate.items()
            for word in (f"--{key.replace('-', '_')}", value)
            if word is not None
        ]
    if not split.rest:
        return False
    program, *args = split.rest
    launch.entry = program if split.last("module") is None else f"-m {program}"
    launch.args = tuple(args[1:] if args[:1] == ["--"] else args)
    return True


def _is_script(word: str) -> bool:
    return word.endswith(".py") or word in ("-m", "--module")
