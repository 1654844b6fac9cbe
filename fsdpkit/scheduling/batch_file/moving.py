"""From a batch script to a job: what `fsdpkit init --from` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsdpkit.config.job import Environment
from fsdpkit.config.loading import FileTables
from fsdpkit.config.new_job import Answers
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.scheduling import first_job
from fsdpkit.scheduling.batch_file.lines import BatchFile
from fsdpkit.scheduling.batch_file.reading import read
from fsdpkit.scheduling.batch_file.recognition import environ_of_person, read_text
from fsdpkit.scheduling.batch_file.resources import LineOutcome
from fsdpkit.scheduling.batch_file.shape import Given

_OF_ENVIRONMENT = ("modules", "conda", "venv", "container")
_OF_ANSWERS = ("nodes", "gpus", "time", "account")


def read_batch_file(path: Path, given: Given) -> tuple[BatchFile, FileTables]:
    """As if it were submitted from the current directory; and what was read. Raises NotFoundError,
    StorageError or ConfigError, which names the file."""
    text = read_text(path)
    try:
        found = read(text, environ_of_person(), os.getcwd(), given)
    except ConfigError as error:
        raise type(error)(f"{path}: {error}") from error
    content = text.encode(errors="surrogateescape")
    return found, FileTables({}, path.absolute(), content, kind="script")


def answers_of(
    found: BatchFile,
    path: Path,
    site: LoadedSite,
    script: Path | None,
    environment: Environment | None,
    *,
    for_this_machine: bool = False,
) -> tuple[Answers, BatchFile]:
    """The job that it becomes on a site; script, environment: what flags say instead. With what
    has no home there. Raises NotFoundError for a script that is not there."""
    tables: dict[str, Mapping[str, Any]] = {k: dict(v) for k, v in found.tables.items()}
    of_job = dict(tables.pop("environment", {}))
    own = {key: of_job.pop(key) for key in _OF_ENVIRONMENT if key in of_job}
    resources = dict(found.tables["resources"])
    if "container" in own and site.profile.container.engine is None:
        note = f"the profile of {site.profile.title} names no container engine"
        found = _without(found, "environment.container", own.pop("container"), note)
    if for_this_machine and "memory" in resources:
        said = resources.pop("memory")
        found = _without(found, "resources.memory", said, "this machine's is not reserved")
    if environment is not None:
        modules = environment.modules if environment.modules is not None else own.get("modules")
        environment = Environment(modules=modules, conda=environment.conda, venv=environment.venv)
    tables |= {f"environment.{key}": value for key, value in of_job.items()}
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
        each_node=found.each_node,
        left_out=left_out,
    )
    return answers, found


def _without(found: BatchFile, key: str, value: str, note: str) -> BatchFile:
    """With what was taken for a key said to have no home here."""
    changed = (
        replace(each, fate="no home", note=note) if each.note.startswith(key) else each
        for each in found.findings
    )
    findings = tuple(changed)
    if findings == found.findings:
        findings = (*findings, LineOutcome(0, f"{key} = {value}", "no home", note))
    return replace(found, findings=findings)


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
