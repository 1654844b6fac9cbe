"""What `fsdpkit submit` answers to somebody who hands it a batch script: the command that does the
same.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.errors import ConfigError, StorageError, UsageError
from fsdpkit.scheduling.batch_file.reading import command_of, read
from fsdpkit.scheduling.batch_file.recognition import (
    environ_of_person,
    read_text,
    shell_script_kind,
)


def refuse_batch_file(job: str, args: Sequence[str] = ()) -> None:
    """Raises UsageError, with the command that starts the same, if a job is a file that a shell
    would run. args: what would be handed to it."""
    path = Path(job)
    if not path.suffix and job in assets.available("job"):
        return
    kind = shell_script_kind(path)
    if kind is None:
        return
    may_be_a_program = kind == "a shell script" and not path.suffix
    try:
        found = read(read_text(path), environ_of_person(), os.getcwd())
    except (ConfigError, StorageError) as error:
        if may_be_a_program:
            return
        raise UsageError(
            f"{job} is {kind}. fsdpkit writes its own and starts the Python program in it, which "
            f"cannot be told here: {error}"
        ) from error
    shape, program = found.shape, shlex.join([*found.entry.split(" ", 1), *found.args])
    if may_be_a_program and shape.nodes * shape.ranks == 1:
        return  # of each rank, and happens to be written in shell
    ranks = f"{shape.ranks} rank{'s' * (shape.ranks > 1)}"
    nodes = f"each of {shape.nodes} nodes" if shape.nodes > 1 else "one node"
    found = replace(found, args=(*found.args, *args))
    raise UsageError(
        f"{job} is {kind}. fsdpkit writes its own: name the program that is trained. Line "
        f"{found.line} starts {program}, with {ranks} on {nodes}. The same is\n"
        f"  {command_of(found, found.entry)}\n"
        f"and with its environment and further options, as a job file,\n"
        f"  fsdpkit init --from {shlex.quote(job)}"
    )
