"""The command line that starts a training, taken apart from outside to inside: srun, container,
shell, launcher, Python; what is left is a program and its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fsdpkit.scheduling.batch_file.bash import parse
from fsdpkit.scheduling.batch_file.expansion import is_unknown
from fsdpkit.scheduling.batch_file.options import (
    ACCELERATE,
    CONTAINER,
    DEEPSPEED,
    ENV,
    MPIRUN,
    PYTHON,
    SHIFTER,
    SRUN,
    TORCHRUN,
    Split,
)
from fsdpkit.scheduling.batch_file.walking import Step, Walk

_DEEPEST = 6
_PYTHON = re.compile(r"python(\d(\.\d+)?)?t?")
_SHELLS = frozenset(["bash", "sh", "zsh", "ksh", "dash"])
_TORCHRUN = frozenset(["torchrun", "torchrun_jsc", "torchrun-hpc"])
_TORCH_MODULES = frozenset(
    ["torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run"]
)
_ACCELERATE_MODULES = frozenset(
    ["accelerate.commands.launch", "accelerate.commands.accelerate_cli"]
)
_MPI = frozenset(["mpirun", "mpiexec", "orterun", "prun", "ibrun", "aprun", "jsrun"])
_CONTAINERS = frozenset(["singularity", "apptainer"])
_COMMANDS = frozenset(["litgpt", "tune", "llamafactory-cli", "axolotl"])
"""Programs that train, started without srun or a launcher."""
_BEFORE = frozenset(["exec", "time", "nohup", "command", "builtin", "!", "setsid"])
_WRAPPERS = frozenset(
    "time numactl taskset nice ionice stdbuf unbuffer timeout nsys ncu perf strace rocprof "  # noqa: SIM905
    "rocprofv3 podman-hpc docker podman enroot ch-run conda mamba micromamba uv poetry pixi".split()
)
"""What runs the command behind its own options; which of them take values is not known here."""
TOOLS = frozenset(
    "hostname nvidia-smi rocm-smi echo printf date env printenv cat ls mkdir cp mv rm rsync tar "  # noqa: SIM905
    "unzip df du free lscpu ulimit sleep true false test touch chmod ln find grep sed awk head "
    "tail sort uniq wc tee id whoami pwd which git pip pip3 wget curl scontrol sacct squeue sinfo "
    "scancel sstat sattach sbcast seff ip ifconfig getent nslookup dcgmi killall pkill kill ps top "
    "htop lspci ibstat ibv_devinfo uname uptime make cmake gcc nvcc virtualenv sync stat module "
    "sudo apt apt-get yum dnf npm node ray conda mamba wandb huggingface-cli hf jq expr seq bc "
    "basename dirname realpath readlink md5sum ssh "
    "xargs wait exit return cd set unset export source . : trap shift eval umask shopt clear "
    "deactivate ml local read declare".split()
)
"""Commands that are not a training, whoever starts them."""
_ENGINES = frozenset(["docker", "podman", "podman-hpc", "enroot"])
_OWN = "fsdpkit starts the ranks and gives them their addresses"
_SRUN_WHY = "fsdpkit writes its own srun line"


@dataclass
class StartedProgram:
    """What a command line starts. Filled in from outside to inside."""

    launcher: str = ""
    """torchrun, accelerate, deepspeed, tune, mpirun or srun; empty: the program alone."""
    srun: Split | None = None
    entry: str = ""
    """A file, `-m MODULE`, or the name of a command."""
    args: tuple[str, ...] = ()
    is_python: bool = False
    processes: str | None = None
    """As written: a number for each node, or `gpu`; of accelerate and mpirun, a total."""
    total: bool = False
    nodes: str | None = None
    container: str | None = None
    accelerate_config: str | None = None
    python: str | None = None
    """The interpreter's path, where one is written."""
    variables: dict[str, str] = field(default_factory=dict)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    """Pieces that are not needed any more, and why."""
    homeless: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    """What else the shell string around it does."""
    shell_file: str | None = None
    """Another shell script that is started instead of a program."""
    evaluated: bool = False

    @property
    def strength(self) -> int:
        """How surely this is the training: 3 by a launcher, 2 by srun, 1 a Python program alone,
        0 some other program below srun."""
        if self.launcher not in ("", "srun", "mpirun"):
            return 3
        if self.is_python or self.entry in _COMMANDS or self.entry.endswith(".py"):
            return 2 if self.launcher else 1
        return 0


def launch_of(walk: Walk, step: Step) -> StartedProgram | None:
    """What a command starts; None if it is no training."""
    launch = StartedProgram(
        variables={name: value.text for name, value in step.assigned if step.words}
    )
    return launch if _peeled(walk, list(step.words), launch, 0) else None


def _peeled(walk: Walk, words: list[str], launch: StartedProgram, depth: int) -> bool:
    """Whether a program is found, which `launch` then has."""
    while words and depth < _DEEPEST:
        word = words[0]
        name = PurePosixPath(word).name
        if found := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.ASCII | re.DOTALL):
            launch.variables[found[1]] = found[2]
            words.pop(0)
        elif not word or (word in _BEFORE and not "".join(words[1:2]).startswith("-")):
            words.pop(0)
        elif name == "env":
            split = ENV.split(words[1:])
            launch.homeless += [said for _, _, said in split.options]
            words = list(split.rest)
        elif name == "srun":
            words = _srun(words, launch)
        elif name in _MPI:
            words = _mpirun(words, launch)
        elif name == "flux" and len(words) > 1:
            words = _mpirun(words[1:], launch)
        elif name in _CONTAINERS:
            words = _container(walk, words, launch)
        elif name == "shifter":
            split = SHIFTER.split(words[1:])
            launch.container = split.last("image") or launch.container
            launch.homeless += [said for key, _, said in split.options if key != "image"]
            words = list(split.rest)
        elif name in _SHELLS:
            return _shell(walk, words, launch, depth)
        elif word == "eval":
            inner = list(words[1:])
            launch.evaluated = _text(walk, " ".join(inner), launch, depth)
            return launch.evaluated
        elif is_unknown(word):
            launch.homeless.append(word)  # a prefix that may be empty
            words.pop(0)
        elif (wrapped := _wrapped(name, words)) is not None:
            launch.homeless.append(" ".join(words[: len(words) - len(wrapped)]))
            words = wrapped
        else:
            return _program(words, launch)
    return False


def starts_training(word: str) -> bool:
    """Whether a word is a program that a training is started with."""
    name = PurePosixPath(word).name
    known = {*_TORCHRUN, *_SHELLS, *_CONTAINERS, "accelerate", "deepspeed", "shifter"}
    return name in known or _PYTHON.fullmatch(name) is not None


def _is_script(word: str) -> bool:
    return word.endswith(".py") or word in ("-m", "--module")


def _srun(words: list[str], launch: StartedProgram) -> list[str]:
    split = SRUN.split(words[1:], starts_training)
    launch.launcher, launch.srun = launch.launcher or "srun", split
    for key, value, said in split.options:
        if key == "container-image":
            launch.container = value
        elif key == "export":
            for item in (value or "").split(","):
                name, equals, text = item.partition("=")
                if equals:
                    launch.variables[name] = text
        elif key.startswith("container-") or not key:
            launch.homeless.append(said)
        else:
            launch.dropped.append((said, _SRUN_WHY))
    return list(split.rest)


def _mpirun(words: list[str], launch: StartedProgram) -> list[str]:
    split = MPIRUN.split(words[1:])
    launch.launcher = "mpirun"
    for key, value, said in split.options:
        if key == "x" and value and "=" in value:
            name, _, text = value.partition("=")
            launch.variables[name] = text
        else:
            launch.dropped.append((said, _OWN))
    launch.processes = split.last("npernode", "ppn", "N")
    if launch.processes is None and (total := split.last("np", "n")):
        launch.processes, launch.total = total, True
    return list(split.rest)


def _container(walk: Walk, words: list[str], launch: StartedProgram) -> list[str]:
    rest = CONTAINER.split(words[1:]).rest
    if not rest or rest[0] not in ("exec", "run"):
        return []
    split = CONTAINER.split(rest[1:])
    for key, value, said in split.options:
        name, equals, text = (value or "").partition("=")
        if key == "env" and equals:
            launch.variables[name] = text
        elif key in ("nv", "rocm"):
            launch.dropped.append((said, "the site's profile says how its containers see GPUs"))
        else:
            launch.homeless.append(said)
    if split.rest:
        launch.container = split.rest[0]
    return list(split.rest[1:])


def _shell(walk: Walk, words: list[str], launch: StartedProgram, depth: int) -> bool:
    at = 1
    while at < len(words) and words[at].startswith("-") and "c" not in words[at].lstrip("-"):
        at += 1
    if at + 1 < len(words) and words[at].startswith("-"):
        return _text(walk, words[at + 1], launch, depth)
    if at < len(words):
        launch.shell_file = words[at]
        return True
    return False


def _text(walk: Walk, text: str, launch: StartedProgram, depth: int) -> bool:
    """A shell's string is a script of its own."""
    outer, walk.steps = walk.steps, []
    try:
        walk.walk(parse(text))
        inner = walk.steps
    finally:
        walk.steps = outer
    starts: list[tuple[Step, StartedProgram]] = []
    for step in inner:
        tried = StartedProgram(launch.launcher, launch.srun, container=launch.container)
        tried.variables = {n: value.text for n, value in step.assigned if step.words}
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


def _wrapped(name: str, words: Sequence[str]) -> list[str] | None:
    """The command behind a wrapper: the first word from which on it is one that is known."""
    if name not in _WRAPPERS and not name.endswith("_wrapper"):
        return None
    if name in _ENGINES and not {"run", "exec", "start"}.intersection(words[1:3]):
        return []
    return next((list(words[at:]) for at in range(1, len(words)) if starts_training(words[at])), [])


def _program(words: list[str], launch: StartedProgram) -> bool:
    word, name = words[0], PurePosixPath(words[0]).name
    if name in _TORCHRUN:
        return _torchrun(words[1:], launch)
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _accelerate(words[2:], launch)
    if name == "accelerate-launch":
        return _accelerate(words[1:], launch)
    if name == "deepspeed":
        return _deepspeed(words[1:], launch)
    if name == "tune" and words[1:2] == ["run"]:
        return _tune(words, launch)
    if _PYTHON.fullmatch(name):
        launch.python = word if "/" in word else launch.python
        return _python(words[1:], launch)
    if name in TOOLS or name.startswith(("-", "#")):
        return False
    if name.endswith((".sh", ".bash")):
        launch.shell_file = word
        return True
    launch.entry, launch.args = word, tuple(words[1:])
    return launch.launcher != "" or launch.strength > 0


def _python(words: Sequence[str], launch: StartedProgram) -> bool:
    words, options = list(words), []
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        split = PYTHON.split(words[:1])
        key, _, _ = split.options[-1] if split.options else ("", None, "")
        taken = [words.pop(0)]
        if key in ("W", "X") and len(taken[0]) == 2 and words:
            taken.append(words.pop(0))
        if key.startswith("m") or taken[0].endswith("m"):  # such as -um
            words.insert(0, "-m")
            taken[0] = taken[0][:-1]
        if key in ("V", "h", "version", "help"):
            return False
        options.append(" ".join(taken))
    launch.homeless += [said for said in options if said.strip("-") not in ("u", "")]
    if words[:1] == ["-m"] and len(words) > 1:
        module = words[1]
        if module in _TORCH_MODULES:
            return _torchrun(words[2:], launch)
        if module in _ACCELERATE_MODULES:
            rest = words[2:]
            return _accelerate(rest[1:] if rest[:1] == ["launch"] else rest, launch)
        if module == "deepspeed.launcher.runner" or module == "deepspeed":
            return _deepspeed(words[2:], launch)
        if module.partition(".")[0] in ("pip", "venv", "ensurepip", "ipykernel", "json", "http"):
            return False
        launch.entry, launch.args, launch.is_python = f"-m {module}", tuple(words[2:]), True
        return True
    if not words or words[0].startswith("-") or PurePosixPath(words[0]).name == "setup.py":
        return False
    launch.entry, launch.args = words[0], tuple(words[1:])
    launch.is_python = True
    return True


def _started(split: Split, launch: StartedProgram) -> bool:
    """The program behind a launcher's options."""
    if not split.rest:
        return False
    program = split.rest[0]
    if split.last("module") is not None:
        program = f"-m {program}"
    launch.entry, launch.args = program, split.rest[1:]
    if launch.args[:1] == ("--",):
        launch.args = launch.args[1:]
    return True


def _torchrun(words: Iterable[str], launch: StartedProgram) -> bool:
    split = TORCHRUN.split(list(words), _is_script)
    launch.launcher = "torchrun"
    launch.processes, launch.nodes = split.last("nproc-per-node") or "1", split.last("nnodes")
    _drop(split, launch, {"module", "no-python", "run-path"})
    return _started(split, launch)


def _tune(words: Sequence[str], launch: StartedProgram) -> bool:
    split = TORCHRUN.split(words[2:])
    if not split.rest:
        return False
    if split.last("nproc-per-node") is not None or split.last("nnodes") is not None:
        launch.launcher = "torchrun"
        launch.processes, launch.nodes = split.last("nproc-per-node") or "1", split.last("nnodes")
    _drop(split, launch, set())
    launch.entry, launch.args = "tune", ("run", *split.rest)
    return True


def _drop(split: Split, launch: StartedProgram, kept: set[str]) -> None:
    for key, _, said in split.options:
        if key in ("rdzv-endpoint", "master-addr", "master-port", "rdzv-id", "rdzv-backend"):
            launch.dropped.append((said, "fsdpkit finds the rendezvous' address and port itself"))
        elif key in ("nnodes", "nproc-per-node", "standalone", "node-rank", "rdzv-conf"):
            launch.dropped.append((said, _OWN))
        elif key == "max-restarts":
            launch.dropped.append((said, "[retry] says what follows a failure"))
        elif key in ("tee", "redirects", "log-dir", "role", "local-ranks-filter"):
            launch.dropped.append((said, "fsdpkit keeps the output of every rank: fsdpkit logs"))
        elif key not in kept and key not in ("use-env", "monitor-interval"):
            launch.homeless.append(said)


_BY_VARIABLE = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "num-cpu-threads-per-process": "OMP_NUM_THREADS",
}
"""How `accelerate launch` hands these to a script."""
_ACCELERATE_OWN = frozenset(
    "num-processes num-machines machine-rank main-process-ip main-process-port rdzv-backend "  # noqa: SIM905
    "rdzv-conf same-network multi-gpu max-restarts monitor-interval role tee log-dir quiet".split()
)


def _accelerate(words: Iterable[str], launch: StartedProgram) -> bool:
    split = ACCELERATE.split(list(words), _is_script)
    launch.launcher, launch.total = "accelerate", True
    launch.processes, launch.nodes = split.last("num-processes"), split.last("num-machines")
    for key, value, said in split.options:
        if key in _BY_VARIABLE and value:
            launch.variables[_BY_VARIABLE[key]] = value
        elif key == "config-file":
            launch.accelerate_config = value
        elif key in _ACCELERATE_OWN:
            launch.dropped.append((said, _OWN))
        elif key not in ("module", "no-python"):
            launch.homeless.append(said)
    return _started(split, launch)


def _deepspeed(words: Iterable[str], launch: StartedProgram) -> bool:
    split = DEEPSPEED.split(list(words), _is_script)
    launch.launcher, launch.processes = "deepspeed", split.last("num-gpus") or "gpu"
    launch.nodes = split.last("num-nodes")
    launch.dropped += [
        (said, _OWN)
        for key, _, said in split.options
        if key not in ("module", "no-python", "no-local-rank")
    ]
    return _started(split, launch)
