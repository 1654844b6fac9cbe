"""Command lines of other launchers, `python train.py` or `torchrun …`, and the fsdpkit command that
does the same. Read as words; what is not understood gets no such command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from fsdpkit.errors import UsageError

_INTERPRETER = re.compile(r"python[\d.]*")
_TORCHRUNS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_STARTERS = _TORCHRUNS | {"srun", "sbatch", "salloc", "mpirun", "mpiexec"}
_OF_TORCHRUN = {"--nnodes": "--nodes", "--nproc-per-node": "--gpus"}
_BARE_OF_TORCHRUN = frozenset({"--standalone", "--no-python", "--run-path"})


def is_launcher(word: str) -> bool:
    """Whether it is a program or module whose work fsdpkit does: `python`, `torchrun`, `srun` …"""
    name = Path(word).name
    return name in _STARTERS or _INTERPRETER.fullmatch(name) is not None


def refuse_launcher(words: Sequence[str], what: str, *also: str) -> None:
    """Raises UsageError for `python train.py` and the like, with the command that does the same.
    also: launchers that a job may start, as one process a node."""
    if not words or not (is_launcher(words[0]) or words[0] in also):
        return
    same = same_submission(words)
    instead = f": {same}" if same else ", with the script, -m MODULE or the command alone"
    raise UsageError(
        f"{what}: fsdpkit starts Python and the ranks itself, so leave {words[0]} out{instead}"
    )


def same_submission(words: Sequence[str]) -> str | None:
    """The `fsdpkit submit` that starts what `python …` or `torchrun …` would; None: not known."""
    program, rest = Path(words[0]).name, list(words[1:])
    options: list[str] = []
    if _INTERPRETER.fullmatch(program):
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
            del rest[: 2 if rest[0] in ("-W", "-X") else 1]
        if rest[:1] == ["-m"] and _TORCHRUNS.intersection(rest[1:2]):
            program, rest = rest[1], rest[2:]
    if program == "accelerate":  # launch
        del rest[:1]
    if program in _TORCHRUNS:
        options, rest = _without_torchruns(rest)
    target = rest[:2] if rest[:1] == ["-m"] else rest[:1]
    if not target or target[-1].startswith("-") or is_launcher(target[-1]):
        return None
    args = rest[len(target) :]
    return shlex.join(["fsdpkit", "submit", *target, *options, *(["--", *args] if args else [])])


def _without_torchruns(words: list[str]) -> tuple[list[str], list[str]]:
    """Our options for those of torchrun that say a size, and the words of the program."""
    options: list[str] = []
    module: list[str] = []
    while words and words[0].startswith("-") and words[0] != "--":
        key, said, value = words.pop(0).partition("=")
        key = key.replace("_", "-")
        if key in ("-m", "--module"):
            module = ["-m"]
        elif key not in _BARE_OF_TORCHRUN:
            value = value if said or not words else words.pop(0)
            if key in _OF_TORCHRUN and value.isdecimal():
                options += [_OF_TORCHRUN[key], value]
    return options, [*module, *(words[1:] if words[:1] == ["--"] else words)]
