"""`#SBATCH` lines: which ones a job gets, and how sbatch will read them back.

`read_directives` follows Slurm's own lexer (src/sbatch/opt.c, get_argument and
_opt_batch_script at 22.05), so that the local cluster and the tests see what sbatch sees.
"""

from __future__ import annotations

import msgspec

from fsdpkit.config.job import Resources
from fsdpkit.config.placement import Placement
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.units import format_time


class Directive(msgspec.Struct, frozen=True):
    """One `#SBATCH --name=value`. No value: a bare flag."""

    name: str
    value: str | None


def gpu_directive(profile: SiteProfile, placement: Placement, gpus: int) -> Directive | None:
    """The one form in which this site asks for GPUs, per node."""
    if placement.gpu_form == "none":
        return None
    kind = placement.node_type.gpu_type or profile.gpu_request.type
    count = f"{kind}:{gpus}" if kind else str(gpus)
    if placement.gpu_form == "gres":
        return Directive("gres", f"gpu:{count}")
    return Directive("gpus-per-node", count)


def resource_directives(
    resources: Resources, placement: Placement, profile: SiteProfile
) -> list[Directive]:
    """What is asked of Slurm for a node and its one task. An unknown asks for nothing."""
    pairs: list[tuple[str, str | None]] = [
        ("account", resources.account),
        *placement.select.items(),
        ("qos", resources.qos),
        ("nodes", str(resources.nodes_asked)),
        ("ntasks", str(resources.nodes_asked) if profile.slurm.ntasks else None),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", str(placement.cpus_per_task)),
        # In megabytes, because not every Slurm reads every spelling that a person may use.
        ("mem", _memory(placement.memory_mb)),
        ("time", format_time(resources.time_s)),
        ("constraint", resources.constraint),
        ("reservation", resources.reservation),
        ("nodelist", resources.nodelist),
        ("exclude", resources.exclude),
    ]
    # A value of the person's own wins over what the partition selects; features add up.
    chosen = {name: value for name, value in pairs if value is not None}
    if (own := resources.constraint) and (selected := placement.select.get("constraint")):
        chosen["constraint"] = f"{selected}&{own}"
    if gpu := gpu_directive(profile, placement, resources.gpus):
        # sbatch keeps only the last --gres, so a partition's own joins the GPUs'.
        others = [chosen[gpu.name]] if gpu.name in chosen else []
        chosen[gpu.name] = ",".join([str(gpu.value), *others])
    directives = [Directive(name, value) for name, value in chosen.items()]
    if resources.spare:  # Slurm must not end the job for the node that a spare one replaces
        directives.append(Directive("no-kill", None))
    if resources.exclusive:
        directives.append(Directive("exclusive", None))
    return directives


def _memory(megabytes: int | None) -> str | None:
    """0 asks for all of a node's memory (sbatch(1), --mem)."""
    return f"{megabytes}M" if megabytes else None if megabytes is None else "0"


_SPACE = " \t\v\f\r"


class DirectiveError(ValueError):
    """What sbatch would answer with a fatal error."""


def split_directive(line: str) -> list[str]:
    """The arguments of the text behind `#SBATCH`, as sbatch's lexer splits it. Raises
    DirectiveError where sbatch stops: an unmatched quote, an argument that begins with ':'."""
    arguments: list[str] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _SPACE:
            at += 1
        if at >= len(line) or line[at] == "#":
            return arguments
        if line[at] == ":":
            raise DirectiveError(f"unexpected ':' in {line!r}")
        word, quote, escaped = [], "", False
        while at < len(line) and (quote or line[at] not in _SPACE):
            char = line[at]
            at += 1
            if escaped:
                word.append(char)
                escaped = False
            elif char == "\\":  # escapes inside single quotes too, unlike in a shell
                escaped = True
            elif quote:
                if char == quote:
                    quote = ""
                else:
                    word.append(char)
            elif char in "\"'":
                quote = char
            elif char == "#":
                at = len(line)  # the rest is a comment
            else:
                word.append(char)
        if quote:
            raise DirectiveError(f"unmatched {quote} in {line!r}")
        arguments.append("".join(word))


def read_directives(script: str) -> list[tuple[str, str | None]]:
    """The options of a script's `#SBATCH` lines, in order: (long name, value or None). Reading
    ends, as in sbatch, at the first line that is neither a comment nor blank. Only long options
    written `--name=value` or `--name` are understood; that is all our templates write."""
    options = []
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            for argument in split_directive(line.removeprefix("#SBATCH")):
                name, equals, value = argument.partition("=")
                if not name.startswith("--"):
                    raise DirectiveError(f"{argument!r} is not a long option")
                options.append((name[2:], value if equals else None))
        elif line.strip() and not line.startswith("#"):
            break
    return options
