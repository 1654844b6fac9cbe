"""Every exit status: of fsdpkit by its exceptions, of a job by what ends it, and command by
command."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from fsdpkit import errors
from fsdpkit.reference import markdown
from fsdpkit.reference.commands import all_commands

_NONE = ""
OF_COMMANDS: Mapping[int, str] = {
    0: "Done.",
    1: "A comparison found a difference, or a plan does not fit: see the command.",
    70: "The run ended and nobody knows whether it did anything: `--wait`, `watch`, `status RUN`.",
    130: "Interrupted (Ctrl-C). A run that was submitted goes on.",
    141: "Whoever read the output closed it.",
}
"""What no exception stands for. The others come from the exceptions' own sentences."""
OF_JOBS: Mapping[int, str] = {
    0: "COMPLETED: every rank ended with 0.",
    70: "The agents left no verdict: nobody knows whether anything was done.",
    71: "A node or its agent was lost or is broken, or somebody took the head node's port.",
    74: "A checkpoint could not be read or saved, or a disk or quota is full.",
    75: "STOPPED: stopped early as asked, checkpoint saved. Go on: `fsdpkit resume RUN`.",
    78: "A check before training failed; the log names the node, the value and the remedy.",
    errors.STEP_FAILED: "A file of `[steps]` failed before the training.",
    124: "A rank made no progress for `retry.hang_s`.",
}
_BESIDES: Mapping[int, str] = {
    2: "Also resources that no node type has, and `checkpoint save`, `stacks` or `shell` of a run "
    "that has not begun or has ended.",
    65: "Also a file that is not trusted (`--trust`).",
    69: "Also `checkpoint save`: the script opens no checkpoints, or ended before it saved; "
    "`stacks`: a rank or node gave no answer; `shell`: no agent on that node; a package that is "
    "missing.",
}
"""What the exceptions' sentences leave out."""
_OTHER = (
    "other",
    "With `--wait`, `--follow` and `watch`: the job's. `shell`: the command's.",
    "The first failing rank's own; 128 + signal if a signal killed it.",
)


def kinds() -> dict[int, list[type[errors.FsdpkitError]]]:
    """The exceptions by the status that they end `fsdpkit` with."""
    found: dict[int, list[type[errors.FsdpkitError]]] = {}
    for kind in vars(errors).values():
        is_error = inspect.isclass(kind) and issubclass(kind, errors.FsdpkitError)
        if is_error and kind is not errors.FsdpkitError:
            found.setdefault(kind.exit_code, []).append(kind)
    return found


def page() -> str:
    head = [
        "The status of `fsdpkit` itself, and that of a job, which `--wait`, `--follow` and `watch`",
        "hand on. An error says on standard error what was wrong, where, and what to do; with",
        "`--json` it is an object, too",
        "([error.schema.json](../../site/schema/output/error.schema.json)).",
    ]
    everything = sorted({*OF_COMMANDS, *OF_JOBS, *kinds()})
    rows = [(str(status), _of_fsdpkit(status), OF_JOBS.get(status, _NONE)) for status in everything]
    table = markdown.table(("status", "of `fsdpkit`", "of the job"), [*rows, _OTHER])
    by_command = markdown.table(("command", "exit status"), list(_by_command()))
    return markdown.page("Exit statuses", head, table, ["## Command by command", ""], by_command)


def _of_fsdpkit(status: int) -> str:
    if status in OF_COMMANDS:
        return OF_COMMANDS[status]
    told = [
        " ".join((kind.__doc__ or "").split("\n\n")[0].split()) for kind in kinds().get(status, [])
    ]
    told += [_BESIDES[status]] if status in _BESIDES else []
    return " ".join(markdown.escaped(sentence) for sentence in told)


def _by_command() -> Iterator[tuple[str, str]]:
    """Where a command's help has a sentence on it."""
    for words, command, _ in all_commands():
        text = " ".join(inspect.cleandoc(command.help or "").split())
        if "Exit status" in text:
            said = text[text.index("Exit status") :]
            yield f"`fsdpkit {words}`", markdown.escaped(said)
