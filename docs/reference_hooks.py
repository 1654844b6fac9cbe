"""What MkDocs makes of the code for `docs/reference/`, beside mkdocs-click and mkdocstrings.

A page there says in a comment what belongs in its place: `<!-- built: job-keys -->`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import click
import msgspec

from docs.making.markdown import code, escaped, table
from fsdpkit.cli.json_schemas import answers_of, commands, file_of, name_of, schemas
from fsdpkit.cli.main import COMMANDS
from fsdpkit.cli.main import fsdpkit as top
from fsdpkit.config import assets
from fsdpkit.config.partition import NodeType
from fsdpkit.config.schema import SCHEMAS
from fsdpkit.config.site import load_site
from fsdpkit.sweeps.file import SweepFile

_PLACE = re.compile(r"<!-- built: ([a-z-]+) -->")


def on_config(config: Any) -> Any:
    """Has mkdocs-click show the examples of a command's help as code."""
    for command in all_commands(top, click.Context(top)):
        command.help = help_in_markdown(command.help or "")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the JSON Schema of each answer of `--json`, which the page on them links to."""
    from mkdocs.structure.files import File

    for name, text in schemas().items():
        files.append(File.generated(config, f"reference/schema/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return _PLACE.sub(lambda found: "\n".join(BUILT[found[1]]()), markdown)


# ---- Commands


def all_commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    """The command, and all below it."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from all_commands(below, click.Context(below, parent=context))


def help_in_markdown(text: str) -> str:
    """What click is told not to fold (`\\b`) becomes code."""
    paragraphs = inspect.cleandoc(text).split("\f")[0].split("\n\n")
    return "\n\n".join(
        f"```\n{inspect.cleandoc(each[1:])}\n```" if each.startswith("\b") else each
        for each in paragraphs
    )


def list_of_commands() -> Iterator[str]:
    for name, sentence in COMMANDS.items():
        yield f"- [`fsdpkit {name}`](#fsdpkit-{name}): {escaped(sentence)}"


# ---- JSON


def table_of_answers() -> Iterator[str]:
    rows = [
        (
            f"`fsdpkit {name}`",
            f"[{name_of(answer)}](schema/{file_of(answer)})",
            escaped((inspect.getdoc(answer.fields) or "").split("\n\n")[0]),
        )
        for name, command in commands()
        for answer in answers_of(command)
    ]
    return table(("command", "schema", "what it is"), rows)


# ---- Clusters


def table_of_centres() -> Iterator[str]:
    """The packaged profiles of clusters, with the time that their facts are of."""
    rows = []
    for name in assets.available("site"):
        if name in ("generic", "local"):
            continue
        profile = load_site(name).profile
        kinds = [_nodes_of(kind) for kind in profile.node_types.values() if kind.gpus != 0]
        title = f"[{profile.title}]({profile.docs})" if profile.docs else profile.title
        facts_of = {s.dated or s.checked for s in profile.sources if s.level != "vendor-docs"}
        dates = " to ".join(dict.fromkeys([min(facts_of), max(facts_of)]))
        rows.append((f"`{name}`", title, "; ".join(kinds), dates, profile.verified or "no"))
    return table(("name", "cluster", "GPU nodes", "facts as of", "run there"), rows)


def _nodes_of(kind: NodeType) -> str:
    count = f"{kind.nodes} × " if kind.nodes else ""
    return f"{count}{kind.gpus or '?'} {kind.gpu or 'GPUs'}"


# ---- Keys of the files that people write

Schema = Mapping[str, Any]


class Key(NamedTuple):
    """One key, as it is written with `--set`."""

    dotted: str
    meaning: str
    kind: str
    default: str


class Table(NamedTuple):
    """A table of the file: its name, its sentence and the keys that stand in it directly."""

    name: str
    meaning: str
    keys: list[Key]


def tables_of(struct: type[msgspec.Struct]) -> list[Table]:
    """All tables of a file, by the JSON Schema that msgspec makes of its model."""
    whole = msgspec.json.schema(struct)
    return list(_tables(_followed(whole, whole), whole, "", "", ""))


def _tables(table: Schema, whole: Schema, name: str, above: str, meaning: str) -> Iterator[Table]:
    keys: list[Key] = []
    below: list[Table] = []
    for key, given in table.get("properties", {}).items():
        about, dotted = _followed(given, whole), f"{above}{key}"
        sentence = escaped(str(given.get("description") or about.get("description") or ""))
        inner, written = _table_in(about, whole, dotted)
        if inner is not None:
            under = written.strip("[]") + "."
            below += _tables(inner, whole, written, under, sentence)
        elif dotted != "schema":
            required = key in table.get("required", ())
            default = "required" if required else _default(given.get("default"))
            keys.append(Key(dotted, sentence, _kind(about, whole), default))
    yield Table(name, meaning, keys)
    yield from below


def _table_in(about: Schema, whole: Schema, dotted: str) -> tuple[Schema | None, str]:
    """The table that the value is or holds, and its heading in a TOML file."""
    for one in about.get("anyOf", [about]):
        found = _followed(one, whole)
        inside = (
            (found, f"[{dotted}]"),
            (found.get("additionalProperties"), f"[{dotted}.NAME]"),
            (found.get("items"), f"[[{dotted}]]"),
        )
        for inner, written in inside:
            if isinstance(inner, Mapping) and "properties" in (table := _followed(inner, whole)):
                return table, written
    return None, ""


def _followed(about: Schema, whole: Schema) -> Schema:
    while "$ref" in about:
        about = whole["$defs"][str(about["$ref"]).rpartition("/")[2]]
    return about


def _default(value: object) -> str:
    if value is None:
        return "unset"
    return "none" if value in ([], {}, "") else code(json.dumps(value, ensure_ascii=False))


_KINDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}


def _kind(about: Schema, whole: Schema) -> str:
    """The type in words, with its bounds."""
    about = _followed(about, whole)
    if "enum" in about:
        return ", ".join(code(json.dumps(value)) for value in about["enum"])
    if "anyOf" in about:
        kinds = (_kind(one, whole) for one in about["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if about.get("type") == "array":
        return f"list of {_kind(about.get('items') or {}, whole)}"
    if about.get("type") == "object":
        inner = about.get("additionalProperties")
        return f"table of {_kind(inner if isinstance(inner, Mapping) else {}, whole)}"
    bounds = [f"{words} {about[key]:.15g}" for key, words in _BOUNDS.items() if key in about]
    return ", ".join([_KINDS.get(str(about.get("type")), "anything"), *bounds])


_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def keys_of(struct: type[msgspec.Struct]) -> Iterator[str]:
    for one in tables_of(struct):
        if one.name and one.keys:
            yield from (f"## `{one.name}`", "", one.meaning, "")
        if one.keys:
            rows = [(f"`{key.dotted}`", *key[1:]) for key in one.keys]
            yield from (*table(("key", "meaning", "type", "default"), rows), "")


BUILT: Mapping[str, Callable[[], Iterator[str]]] = {
    "commands": list_of_commands,
    "json": table_of_answers,
    "centres": table_of_centres,
    "job-keys": lambda: keys_of(SCHEMAS["job"]),
    "profile-keys": lambda: keys_of(SCHEMAS["site"]),
    "template-keys": lambda: keys_of(SCHEMAS["template"]),
    "sweep-keys": lambda: keys_of(SweepFile),
}
