"""From a batch script to the files and commands of fsdpkit: what `fsdpkit init --from` writes, and
what `fsdpkit submit` answers to somebody who hands it a shell script.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsdpkit.config import assets
from fsdpkit.config.job import Environment
from fsdpkit.config.new_job import Answers
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import ConfigError, NotFoundError, UsageError
from fsdpkit.scheduling import first_job
from fsdpkit.scheduling.batch_file.reading import (
    BatchFile,
    command_of,
    read,
    read_text,
    shell_script_kind,
)
from fsdpkit.scheduling.batch_file.resources import Finding, Given

_OF_ENVIRONMENT = ("modules", "conda", "venv", "container")
_OF_ANSWERS = ("nodes", "gpus", "time", "account")


def read_batch_file(path: Path, environ: Mapping[str, str], given: Given) -> BatchFile:
    """As if it were submitted from the current directory. Raises NotFoundError, StorageError or
    ConfigError, which names the file."""
    text = read_text(path)
    try:
        return read(text, environ, os.getcwd(), given)
    except ConfigError as error:
        raise type(error)(f"{path}: {error}") from error


def answers_of(
    found: BatchFile,
    path: Path,
    site: LoadedSite,
    script: Path | None,
    environment: Environment | None,
) -> tuple[Answers, BatchFile]:
    """The job that it becomes on a site; script, environment: what flags say instead. With what
    has no home there. Raises NotFoundError for a script that is not there."""
    tables: dict[str, Mapping[str, Any]] = {k: dict(v) for k, v in found.tables.items()}
    of_job = dict(tables.pop("environment", {}))
    own = {key: of_job.pop(key) for key in _OF_ENVIRONMENT if key in of_job}
    base = of_job.pop("conda_base", None)
    if base is not None and (prefix := Path(base, "envs", own["conda"])).is_dir():
        own["conda"] = str(prefix)
    image = own.get("container")
    if image is not None and site.profile.container.engine is None:
        del own["container"]
        note = f"the profile of {site.profile.title} names no container engine"
        lost = Finding(found.line, f"container {image}", "no home", note)
        kept = (each for each in found.findings if each.note != "environment.container")
        found = replace(found, findings=tuple(sorted([*kept, lost], key=lambda f: f.line)))
    if environment is not None:
        modules = environment.modules if environment.modules is not None else own.get("modules")
        environment = Environment(modules=modules, conda=environment.conda, venv=environment.venv)
    tables |= {f"environment.{key}": value for key, value in of_job.items()}
    resources = found.tables["resources"]
    tables["resources"] = {k: v for k, v in resources.items() if k not in _OF_ANSWERS}
    left_out = [
        (f"line {each.line}: " if each.line else "") + f"{each.text}  ({each.note})"
        for each in found.findings
        if each.fate == "no home"
    ]
    answers = Answers(
        script=script or _program(found, path),
        environment=environment or Environment(**own),
        account=resources.get("account"),
        nodes=resources["nodes"],
        gpus=resources["gpus"],
        time=resources["time"],
        name=found.name,
        args=found.args,
        tables=tables,
        left_out=left_out,
    )
    return answers, found


def _program(found: BatchFile, path: Path) -> Path | str:
    """The script by its whole path, or an entry that is no file."""
    entry = found.entry
    if entry.startswith("-m "):
        return entry
    for directory in (Path(found.directory), path.parent):
        if (directory / entry).is_file():
            return first_job.read_script(str(directory / entry))
    if "/" in entry or entry.endswith(".py"):
        raise NotFoundError(
            f"{path}: line {found.line} starts {entry}, which is not in {found.directory}: call "
            f"this where the batch script is submitted from, or name the file with --script"
        )
    return entry


def refuse_batch_file(job: str) -> None:
    """Raises UsageError, with the command that starts the same, if a job is a file that a shell
    would run."""
    path = Path(job)
    if path.suffix in (".toml", ".py") or (not path.suffix and job in assets.available("job")):
        return
    kind = shell_script_kind(path)
    if kind is None:
        return
    told = f"{job} is {kind}"
    moved = f"fsdpkit init --from {shlex.quote(job)}"
    try:
        found = read_batch_file(path, os.environ, Given())
    except ConfigError as error:
        why = re.sub(rf"^{re.escape(str(path))}: ", "", str(error))
        raise UsageError(
            f"{told}; fsdpkit starts a Python program, not a script around it, and cannot say "
            f"which one this starts: {why}"
        ) from error
    program, shape = found.entry, found.shape
    raise UsageError(
        f"{told}; fsdpkit writes its own. Line {found.line} of it starts "
        f"{shlex.join([*program.split(' ', 1), *found.args])} with {shape.ranks} ranks on "
        f"{shape.nodes} node{'s' * (shape.nodes > 1)}. The same is\n"
        f"  {command_of(found, program)}\n"
        f"and as a job file, with its modules, environment and other options\n"
        f"  {moved}"
    )
