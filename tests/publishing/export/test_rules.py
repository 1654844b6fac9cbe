"""What of a centre's own words an export refuses, each broken once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsdpkit.publishing.export.rules import problems
from tests.publishing.export import made

Files = dict[str, Any]
SCRIPT = "template/script-heron.sh"


@pytest.fixture(scope="module")
def sound(folder: Path) -> Files:
    """What Batch Connect takes, with YAML as what it holds."""
    files = made.app(folder, "ondemand").files
    return {
        name: yaml.safe_load(text) if name.endswith(".yml") else text
        for name, text in files.items()
    }


def set_in(table: Files, key: str, value: Any) -> None:
    table[key] = value


def add_option(files: Files, value: str) -> None:
    files["form.yml"]["attributes"]["fsdpkit_place"]["options"].append(["again", value, {}])


BROKEN: list[tuple[str, Callable[[Files], Any], str]] = [
    ("4.2", lambda f: add_option(f, "HERON:long:1"), "two options that the form cannot tell apart"),
    ("4.0", lambda f: add_option(f, "it's"), "4.0 finds no option with a quote"),
    (
        "4.2",
        lambda f: set_in(f, SCRIPT, "#!/bin/bash\ncd /home/alex/x\n"),
        f"{SCRIPT}:2: a person's or project's path: /home/alex/x",
    ),
    ("4.2", lambda f: set_in(f, "README.md", "ask ann@example.org"), "an e-mail address"),
]


@pytest.mark.parametrize(("release", "breaks", "told"), BROKEN, ids=[told for *_, told in BROKEN])
def test_what_its_reader_would_not_take_is_named(
    sound: Files, release: str, breaks: Callable[[Files], Any], told: str
) -> None:
    files = copy.deepcopy(sound)
    assert problems("ondemand", release, files) == []
    breaks(files)
    found = problems("ondemand", release, files)
    assert any(told in problem for problem in found), found


def test_a_quote_in_a_place_is_refused_for_one_release_only(sound: Files) -> None:
    files = copy.deepcopy(sound)
    add_option(files, "it's")
    assert problems("ondemand", "4.2", files) == []
