"""The names that a template can use, each with its type and what it means.

`rendering.script` fills these structs and hands their plain data to the template, so a name that is
not described here does not exist; `fsdpkit template context` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import doc
from fsdpkit.config.notify import Notify
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.retry import Retry
from fsdpkit.config.template import TemplateManifest


class RunNames(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, doc("Name of the run, the last part of its directory.")]
    dir: Annotated[str, doc("The run directory, a whole path.")]
    first_attempt: Annotated[
        int, doc("Number of the first attempt; above 0 in a run that was resumed.")
    ]


class TemplateNames(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, doc("Name of this template.")]
    version: Annotated[str, doc("Version of this template.")]


class DigestNames(msgspec.Struct, frozen=True, kw_only=True):
    template: Annotated[str, doc("First 12 digits of the template's SHA-256.")]
    site: Annotated[str, doc("First 12 digits of the site profile's SHA-256.")]
    job: Annotated[str, doc("First 12 digits of the job's SHA-256.")]


class JobNames(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, doc("Name of the job, as squeue shows it.")]
    entry: Annotated[
        str, doc("What is started: a script's whole path, a module's or command's name.")
    ]
    kind: Annotated[
        Literal["script", "module", "command"],
        doc("How: by Python, by `python -m`, or as a program of its own."),
    ]
    args: Annotated[list[str], doc("Arguments of the script; quote with sh_arg for {array_task}.")]
    array_args: Annotated[
        list[list[str]],
        doc(
            "For each array task with arguments of its own: the task's number, how "
            "many words, the words."
        ),
    ]


class DirectiveNames(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, doc("Long option of sbatch, without dashes.")]
    value: Annotated[str | None, doc("Its value; nothing for a bare flag.")]


class PythonNames(msgspec.Struct, frozen=True, kw_only=True):
    kind: Annotated[
        Literal["conda", "venv", "prefix", "container"],
        doc("How Python is activated; `prefix`: a directory put on PATH."),
    ]
    path: Annotated[str, doc("Name or path of the environment; empty for a container.")]
    conda: Annotated[str, doc("The conda executable, where it is known.")]


class EnvironmentNames(msgspec.Struct, frozen=True, kw_only=True):
    purge: Annotated[bool, doc("Run `module purge` first.")]
    use: Annotated[list[str], doc("Directories for `module use`.")]
    modules: Annotated[list[str], doc("Modules to load, in this order.")]
    python: Annotated[PythonNames, doc("The Python that the job activates.")]
    variables: Annotated[dict[str, str], doc("Variables to export: the site's, then the job's.")]
    array_variables: Annotated[
        list[list[str]],
        doc(
            "For each array task with variables of its own: the task's number, how "
            "many there are, each as NAME=value."
        ),
    ]
    prepend: Annotated[dict[str, str], doc("Text to put before what variables have on the node.")]
    unset: Annotated[list[str], doc("Variables to remove.")]
    passed: Annotated[list[str], doc("Variables that sbatch must have handed on, by name.")]


class StepNames(msgspec.Struct, frozen=True, kw_only=True):
    before: Annotated[list[str], doc("Words that run the job's steps.before; or none.")]
    each_node: Annotated[list[str], doc("The same of steps.each_node.")]
    after: Annotated[list[str], Meta(description="The same of steps.after.")]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a template is rendered with."""

    version: Annotated[str, doc("Version of fsdpkit.")]
    run: Annotated[RunNames, doc("The run directory.")]
    template: Annotated[TemplateNames, doc("This template.")]
    digests: Annotated[DigestNames, doc("Checksums, for the script's header.")]
    job: Annotated[JobNames, doc("What to run.")]
    site: Annotated[dict[str, Any], doc("The whole site profile, and its id.")]
    nodes: Annotated[int, doc("Nodes that train.")]
    spare: Annotated[int, doc("Standby nodes, besides those that train.")]
    gpus: Annotated[int, doc("GPUs per node.")]
    ranks_per_node: Annotated[int, doc("Ranks per node, one for each GPU as a rule.")]
    retry: Annotated[Retry, doc("The job's [retry].")]
    notify: Annotated[Notify, doc("The job's [notify].")]
    array: Annotated[bool, doc("Whether the job is an array.")]
    expedite: Annotated[bool, doc("Whether it is queued with --requeue=expedite.")]
    origins: Annotated[list[str], doc("One line a resource for the header: its value and origin.")]
    directives: Annotated[list[DirectiveNames], doc("The #SBATCH options, in order, each once.")]
    environment: Annotated[EnvironmentNames, doc("Modules, Python and variables.")]
    srun: Annotated[list[str], doc("Options of each srun in an allocation that exists; or none.")]
    hold: Annotated[
        str | None, Meta(description="The run whose nodes these are (fsdpkit hold); or none.")
    ]
    stage: Annotated[
        list[str],
        Meta(description="What is copied to the nodes' disks, as words for the program; or none."),
    ]
    container: Annotated[
        list[str], Meta(description="Words before the command that run it in a container; or none.")
    ]
    container_srun: Annotated[
        list[str], doc("Options of srun whose plugin runs it in one; or none.")
    ]
    steps: Annotated[StepNames, doc("The job's [steps], outside any container.")]
    device: Annotated[
        str, doc("What ranks train on: cpu, nvidia, amd, or gpu where it is unknown.")
    ]
    job_sha256: Annotated[str, doc("SHA-256 of the run's job.json.")]
    umask: Annotated[int, doc("Digits of the umask: 77, or 27 for group access.")]
    parameters: Annotated[
        dict[str, Any], doc("The template's parameters, by name; unset ones are none.")
    ]


class DocumentedName(msgspec.Struct, frozen=True):
    """One name of the context: `site.rendezvous.port_base`."""

    name: str
    type: str
    meaning: str


_IN_LOOP = "[]"
"""Behind the name of a list of tables, whose entries a loop gives one by one."""


def names(manifest: TemplateManifest) -> list[DocumentedName]:
    """Every name that a template with this manifest can use, in the order of the context."""
    found: list[DocumentedName] = []
    for each in _fields(Context, ""):
        found.append(each)
        if each.name == "site":
            found.append(
                DocumentedName("site.id", "text", "Id of the profile, as --cluster names it.")
            )
            found += _fields(SiteProfile, "site.")
        elif each.name == "parameters":
            kinds = {"bool": "yes or no", "int": "whole number", "float": "number", "str": "text"}
            for key, parameter in manifest.parameters.items():
                unset = " or nothing" if parameter.default is None else ""
                kind = kinds[parameter.type] + unset
                found.append(DocumentedName(f"parameters.{key}", kind, parameter.help))
    return found


def _fields(struct: type[msgspec.Struct], above: str) -> Iterator[DocumentedName]:
    for field in msgspec.structs.fields(struct):
        bare, meaning = _without_meta(field.type)
        name = above + field.encode_name
        yield DocumentedName(name, _called(bare), meaning)
        inner, is_list = bare, False
        if get_origin(bare) is list:
            (inner, _), is_list = _without_meta(get_args(bare)[0]), True
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from _fields(inner, f"{name}{_IN_LOOP if is_list else ''}.")


def _without_meta(kind: Any) -> tuple[Any, str]:
    """A type without its annotations, and the first description among those."""
    meaning = ""
    while get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
        texts = (meta.description for meta in metas if isinstance(meta, Meta) and meta.description)
        meaning = meaning or next(texts, "")
    return kind, meaning


def _called(kind: Any) -> str:
    """A type in words."""
    kind, _ = _without_meta(kind)
    plain = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "yes or no",
        type(None): "nothing",
        Any: "anything",
    }
    if kind in plain:
        return plain[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f'"{each}"' for each in arguments)
    if origin is list:
        return f"list of {_called(arguments[0])}"
    if origin is dict:
        value = _called(arguments[1])
        return "table" if value == "anything" else f"table of {value}"
    if origin is Union or type(kind).__name__ == "UnionType":
        return " or ".join(_called(each) for each in arguments)
    return "table"


def value_at(context: dict[str, Any], name: str) -> Any:
    """The value under a name; of a list of tables the first one's. None: no such entry."""
    value: Any = context
    for part in name.split("."):
        key = part.removesuffix(_IN_LOOP)
        value = value.get(key) if isinstance(value, dict) else None
        if part.endswith(_IN_LOOP):
            value = value[0] if value else None
    return value
