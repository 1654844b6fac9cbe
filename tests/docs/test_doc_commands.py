"""What the documents tell people to type is what the program takes, and files that they show are
files that it reads."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import fsdpkit
from docs.reference_hooks import all_commands, help_in_markdown
from fsdpkit.cli.main import fsdpkit as top
from fsdpkit.config.explain import fields_of
from fsdpkit.config.loading import Layered, build, overrides, read_toml
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.template import TemplateManifest
from fsdpkit.config.trainers import job_type
from fsdpkit.config.trust import AllowedKinds
from fsdpkit.errors import ConfigError
from fsdpkit.remote.hosts import chosen_host, hosts_file
from fsdpkit.sweeps.file import load_file
from tests.docs.documents import (
    blocks,
    commands,
    commands_in,
    documents,
    prose,
    words_of,
)
from tests.packaging.installation import ROOT

REFUSED = "docs/messages.md"
"""What stands there is typed wrong on purpose; messages.py runs it."""
TAKEN = [name for name in documents() if name != REFUSED]
HELP = [help_in_markdown(command.help or "") for command in all_commands(top, click.Context(top))]
SHOWN = {**{name: commands(name) for name in TAKEN}, "--help": commands_in("\n\n".join(HELP))}


# The command line's own parser


def parsed(words: list[str]) -> Iterator[click.Context]:
    """The contexts of the command and those above it, by click, which runs nothing. Raises
    click.UsageError for what does not exist, has a wrong value or is missing."""
    context = top.make_context("fsdpkit", list(words))
    yield context
    rest = [*context._protected_args, *context.args]
    while rest and isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)
        yield context
        rest = [*context._protected_args, *context.args]


def wrong(line: str) -> Iterator[str]:
    """Why the program would not take the line."""
    for words in words_of(line):
        try:
            contexts = list(parsed(words))
        except click.UsageError as error:
            yield error.format_message()
            continue
        except click.exceptions.Exit:  # --help, --version
            continue
        parameters = contexts[-1].params
        settings = [*(parameters.get("sets") or ())]
        settings += [one.partition(",")[0] for one in parameters.get("tried") or ()]
        for setting in settings:
            try:
                overrides(job_type(), [setting])
            except ConfigError as error:
                if "…" not in setting and "RUN" not in setting:
                    yield str(error)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that documents speak of as the person's own."""
    (tmp_path / "train.py").write_text("print('a step')\n")
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "train.py").write_text("print('a step')\n")
    for name in ("train.toml", "finetune.toml"):
        (tmp_path / name).write_text(
            'schema = "fsdpkit.job/1"\nname = "finetune"\nentry = "train.py"\n'
            '[resources]\nnodes = 1\ngpus = 1\ntime = "10"\n'
        )
    (tmp_path / "ours.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize("document", SHOWN)
def test_every_command_in_a_code_block_is_one_that_the_program_takes(
    document: str, place: Path
) -> None:
    refused = {line: list(wrong(line)) for line in SHOWN[document]}
    assert {line: why for line, why in refused.items() if why} == {}


# Run


CHEAP = (
    *("jobs", "jobs t5", "sites osc-ascend", "templates", "templates torchrun", "nodes", "usage"),
    *("template context", "completion fish", "skill", "audit --mine", "jobs --check"),
    "data prepare pairs.jsonl --output prepared",
)
"""Of `--help`, in this order; the documents' commands run in test_doc_pages.py."""


def test_what_costs_little_and_needs_no_cluster_does_what_it_says(place: Path) -> None:
    rows = [{"source": f"text {n}", "target": "a word"} for n in range(20)]
    (place / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shown = {" ".join(words) for line in SHOWN["--help"] for words in words_of(line)}
    assert [line for line in CHEAP if line not in shown] == []
    for line in CHEAP:
        done = CliRunner().invoke(
            top, line.split(), prog_name="fsdpkit", standalone_mode=False, catch_exceptions=False
        )
        assert (done.return_value or 0) == 0, f"{line}: {done.output}"
        assert done.output, line


# Files


def shown(language: str) -> list[Any]:
    return [
        pytest.param(textwrap.dedent(block.text), id=f"{name}-{number}")
        for name in documents()
        for number, block in enumerate(blocks(name))
        if block.language == language
    ]


_TO_REPLACE = r"(?<!\?P)<([^<>]*)>"
"""A part that the reader is to write; a group of a regular expression is none."""


@pytest.mark.parametrize("text", shown("toml"))
def test_a_file_that_is_shown_is_one_that_the_program_reads(text: str, tmp_path: Path) -> None:
    if "…" in text or re.search(_TO_REPLACE, text):
        text = re.sub(_TO_REPLACE, r"\1", text.replace("…", "x"))
    file = tmp_path / "shown.toml"
    file.write_text(text)
    values = read_toml(file)
    schema = values.get("schema", "")
    if schema == "fsdpkit.sweep/1":
        load_file(file)
    elif schema in (one_of := {"fsdpkit.job/1": job_type(), "fsdpkit.site/1": SiteProfile}):
        built(one_of[schema], file)
    elif schema == "fsdpkit.template/1":
        built(TemplateManifest, file)
    elif schema == "fsdpkit.trust/1":
        assert values.keys() <= fields_of(AllowedKinds).keys()
    elif values.keys() <= fields_of(job_type()).keys():
        built(job_type(), ROOT / "jobs" / "t5.toml", file)
    elif values.keys() <= fields_of(SiteProfile).keys():
        built(SiteProfile, ROOT / "site" / "profiles" / "generic.toml", file)
    else:
        hosts_file().parent.mkdir(parents=True, exist_ok=True)
        hosts_file().write_text(text)
        assert chosen_host(None) is not None


def built(kind: Any, *files: Path) -> None:
    layered = Layered()
    for file in files:
        layered.overlay(read_toml(file), file.name)
    build(kind, layered, files[-1].name)


def python(text: str) -> ast.Module:
    return ast.parse(text.replace(", …", "").replace("…", "..."))


@pytest.mark.parametrize("text", shown("python"))
def test_program_text_is_python_and_names_what_the_package_has(text: str) -> None:
    for node in ast.walk(python(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "fsdpkit":
            assert hasattr(fsdpkit, node.attr)
        if isinstance(node, ast.ImportFrom) and node.module == "fsdpkit":
            assert all(hasattr(fsdpkit, name.name) for name in node.names)


@pytest.mark.parametrize("document", documents())
def test_files_and_extras_in_code_blocks_exist(document: str) -> None:
    """Paths that begin with a folder of this project, and what pip is to bring along."""
    text = "\n".join(block.text for block in blocks(document))
    paths = re.findall(r"(?<![\w/.~-])(?:examples|templates/torchrun|jobs)/[\w/.-]+\w", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    if document.startswith("docs/"):  # an installation from a wheel has no examples
        assert [path for path in paths if path.startswith("examples/")] == []
    extras = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    named = re.findall(r"(?:\.|fsdpkit)\[([\w,]+)\]'", text + prose(document))
    assert {extra for words in named for extra in words.split(",")} <= set(extras)
