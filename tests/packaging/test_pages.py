"""examples/T5-fsdp/PAGES.md is true as far as a program can tell: what its rows name exists.

A row says what a page shows, what takes its place here, and what shows that it does. That the test
it names really shows it, whoever writes the row has to see.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_origin

import pytest

from fsdpkit import training
from fsdpkit.config.explain import alternatives, fields_of, struct_in
from fsdpkit.config.loading import Layered, build, read_toml
from fsdpkit.config.trainers import job_type
from fsdpkit.config.training import TrainingSettings, problems
from fsdpkit.errors import ConfigError
from tests.packaging.installation import ROOT
from tests.packaging.test_documentation import read

PAGE = "examples/T5-fsdp/PAGES.md"
README = "examples/T5-fsdp/README.md"
HEAD = ["| the page shows | here | shown by |", "|---|---|---|"]
SECTIONS = [
    "OSC's page",
    "The script that it starts",
    "Lightning's guide",
    "FairScale, Meta and PyTorch",
]


# What can be typed after the script that OSC's page starts, and what its configurations hold.
OF_THE_SCRIPT = (
    *("--batch-size", "--test-batch-size", "--epochs", "--lr", "--gamma", "--no-cuda", "--seed"),
    *("--track_memory", "--run_validation", "--save-model"),
    *("model_name", "run_validation", "batch_size_training", "num_workers_dataloader", "lr"),
    *("weight_decay", "gamma", "use_fp16", "mixed_precision", "save_model"),
    *("seed", "fsdp_activation_checkpointing", "limit_all_gathers", "sharding_strategy"),
    *("checkpoint_type", "save_optimizer"),
    *("bfSixteen", "fpSixteen", "bfSixteen_working", "fp32_policy"),
)

_CODE = re.compile(r"`([^`]+)`")
_KEY = re.compile(r"([a-z_]+(?:\.\w+)*)(?: = (.+))?")
_NODE_ID = re.compile(r"tests/[\w/]+\.py::test_\w+")
_PROGRAMS = ("fsdpkit", "make", "pip", "python", "torchrun")


@dataclass(frozen=True)
class Row:
    section: str
    page: str
    here: str
    shown_by: str


@cache
def tables() -> dict[str, list[list[str]]]:
    """The cells of each section's table."""
    found: dict[str, list[list[str]]] = {}
    for part in read(PAGE).split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        head, line, *lines = [line for line in text.splitlines() if line.startswith("|")]
        assert [head, line] == HEAD, title
        found[title] = [line.strip("| ").split(" | ") for line in lines]
    return found


def rows() -> Iterator[Row]:
    """The rows of all sections, but for those with too few or too many cells."""
    for section, table in tables().items():
        for cells in table:
            if len(cells) == 3:
                yield Row(section, *cells)


def code(cell: str) -> list[str]:
    return _CODE.findall(cell)


def commands(cells: list[str]) -> list[list[str]]:
    words = [text.split() for cell in cells for text in code(cell)]
    return [command for command in words if command[0] in _PROGRAMS and len(command) > 1]


def settings(row: Row) -> list[tuple[str, str]]:
    """Keys of a job file that the row names as its answer, each with its value as TOML or ""."""
    keys = [_KEY.fullmatch(text) for text in code(row.here) if not is_name(text)]
    return [(key[1], key[2] or "") for key in keys if key and (key[2] or "." in key[1])]


def is_name(text: str) -> bool:
    return text.startswith("fsdpkit.")


def names_of_the_library() -> list[str]:
    """Every `fsdpkit.…`, and call of one, that is an answer."""
    named = (text for row in rows() for text in code(row.here))
    return sorted({text for text in named if is_name(text)})


def test_the_page_has_its_sections_and_the_readme_leads_there() -> None:
    assert list(tables()) == SECTIONS
    assert f"]({Path(PAGE).name})" in read(README)


@pytest.mark.parametrize("section", SECTIONS)
def test_each_row_says_what_takes_its_place_and_what_shows_it(section: str) -> None:
    table = tables()[section]
    assert [cells for cells in table if len(cells) != 3 or not all(cells)] == []
    unproved = [
        row.page
        for row in rows()
        if row.section == section
        and not any(_NODE_ID.fullmatch(text) for text in code(row.shown_by))
        and not commands([row.shown_by])
    ]
    assert unproved == []


def test_what_the_script_and_its_configurations_take_has_a_row() -> None:
    typed = [row.page for row in rows() if row.section == "The script that it starts"]
    shown = [text for page in typed for text in code(page)]
    absent = [
        name
        for name in OF_THE_SCRIPT
        if not any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in shown)
    ]
    assert absent == []


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.page) for row in rows() if settings(row)],
)
def test_settings_exist_and_take_the_values_that_are_shown_together(
    row: Row, tmp_path: Path
) -> None:
    layered = Layered()
    layered.overlay(read_toml(ROOT / "jobs" / "t5.toml"), "jobs/t5.toml")
    for key, value in settings(row):
        require_key(key)
        if value:
            (tmp_path / "row.toml").write_text(f"{key} = {value}\n", encoding="utf-8")
            layered.overlay(read_toml(tmp_path / "row.toml"), row.page)
    job = build(job_type(), layered, PAGE)
    assert isinstance(job.training, TrainingSettings)
    assert problems(job.training, world_size=16, ranks_per_node=8) == []


def require_key(key: str) -> None:
    """Raise ConfigError for what is no key of a job file. A table of free keys has any."""
    annotation: Any = job_type()
    for part in key.split("."):
        if any(get_origin(kind) is dict for kind in alternatives(annotation)):
            return
        table = struct_in(annotation)
        fields = fields_of(table) if table else {}
        if part not in fields:
            raise ConfigError(f"{PAGE}: there is no key {key}")
        annotation = fields[part]


@pytest.mark.parametrize("text", names_of_the_library())
def test_a_name_of_the_library_is_one_and_takes_the_arguments_that_are_shown(text: str) -> None:
    called = ast.parse(text, mode="eval").body
    arguments: list[str | None] = []
    if isinstance(called, ast.Call):
        arguments, called = [keyword.arg for keyword in called.keywords], called.func
    path, _, name = ast.unparse(called).rpartition(".")
    assert path == "fsdpkit.training"
    assert name in training.__all__
    assert [a for a in arguments if a not in parameters_of(name)] == []


def parameters_of(name: str) -> list[str]:
    """Of a function of `fsdpkit.training`, from its source: importing it would import torch."""
    homes: Mapping[str, str] = training._HOME_OF
    source = read(f"fsdpkit/{homes[name].replace('.', '/')}.py")
    (function,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def test_a_script_takes_the_options_that_are_shown() -> None:
    """`fsdpkit` itself is looked at with all other documents."""
    known = read("fsdpkit/training/command_line.py")
    unknown = []
    for words in commands([cell for row in rows() for cell in (row.here, row.shown_by)]):
        script = next((word for word in words if word.endswith(".py")), None)
        if words[0] not in ("python", "torchrun") or script is None:
            continue
        for word in words[words.index(script) + 1 :]:
            if word.startswith("--") and f'"{word}"' not in read(script) + known:
                unknown.append(f"{script} {word}")
    assert unknown == []
