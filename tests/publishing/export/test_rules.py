"""The rules of a portal's readers, each broken once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsdpkit.publishing.export.build import RELEASES, Portal
from fsdpkit.publishing.export.rules import problems
from tests.publishing.export import made

Files = dict[str, Any]


@pytest.fixture(scope="module")
def sound(folder: Path) -> dict[str, Files]:
    """What each portal takes, with YAML as what it holds."""
    found = {}
    for portal in RELEASES:
        files = made.app(folder, portal).files
        found[portal] = {
            name: yaml.safe_load(text) if name.endswith(".yml") else text
            for name, text in files.items()
        }
    return found


def place(files: Files) -> Any:
    return files["form.yml"]["attributes"]["fsdpkit_place"]


def set_in(table: Files, key: str, value: Any) -> None:
    table[key] = value


BROKEN: list[tuple[Portal, Callable[[Files], Any], str]] = [
    ("ondemand", lambda f: f["manifest.yml"].pop("name"), "manifest.yml: needs a name"),
    ("ondemand", lambda f: set_in(f["manifest.yml"], "icon", "cog.png"), "is not like fas://cog"),
    ("ondemand", lambda f: f["manifest.yml"].pop("role"), "the role must be batch_connect"),
    ("ondemand", lambda f: f["form.yml"].pop("cluster"), "names no cluster"),
    ("ondemand", lambda f: f["form.yml"].pop("title"), "needs a title"),
    ("ondemand", lambda f: set_in(f["form.yml"], "form", "a"), "needs a list `form`"),
    ("ondemand", lambda f: f["form.yml"]["form"].append("bc_gpus"), "4.2 does not know bc_gpus"),
    ("ondemand", lambda f: f["form.yml"]["form"].append("gpus"), "gpus needs a widget"),
    ("ondemand", lambda f: f["form.yml"]["form"].append("a-b"), "'a-b' is no name of an item"),
    ("ondemand", lambda f: f["form.yml"]["form"].append("test"), "no item can be called test"),
    ("ondemand", lambda f: f["form.yml"]["form"].append("Upper"), "no item can be called Upper"),
    ("ondemand", lambda f: f["form.yml"]["form"].pop(), "list different items"),
    ("ondemand", lambda f: set_in(place(f), "value", "x"), "its default is none of its options"),
    ("ondemand", lambda f: set_in(place(f), "options", []), "has no options"),
    (
        "ondemand",
        lambda f: place(f)["options"].append(["again", "HERON:long-1".replace("-", ":"), {}]),
        "two options that the form cannot tell apart",
    ),
    (
        "ondemand",
        lambda f: place(f)["options"][0][2].update({"data-max-gpus": 1}),
        "data-max-gpus changes no item",
    ),
    ("ondemand", lambda f: f.pop("submit.yml.erb"), "submit.yml.erb: is missing"),
    ("ondemand", lambda f: set_in(f, "submit.yml.erb", "<% a"), "a tag is not closed"),
    ("ondemand", lambda f: f.pop("template/script-heron.sh"), "starts script-heron.sh"),
    (
        "ondemand",
        lambda f: set_in(f, "template/script-heron.sh", "#!/bin/bash\ncd /home/alex/x\n"),
        "template/script-heron.sh:2: a person's or project's path: /home/alex/x",
    ),
    ("ondemand", lambda f: set_in(f, "README.md", "ask ann@example.org"), "an e-mail address"),
    (
        "ondemand",
        lambda f: set_in(f, "template/script-heron.sh", "exit\n"),
        "does not begin with #!",
    ),
    (
        "ondemand",
        lambda f: set_in(f, "template/script-heron.sh", "#!/bin/bash\n#SBATCH --account=p1\n"),
        "names an account",
    ),
    ("open-composer", lambda f: f["manifest.yml"].pop("name"), "needs a name"),
    ("open-composer", lambda f: f["form.yml"].pop("script"), "needs the section script"),
    (
        "open-composer",
        lambda f: set_in(f["form.yml"]["form"], "_x", {"widget": "text"}),
        "'_x' is no name of a widget",
    ),
    (
        "open-composer",
        lambda f: set_in(f["form.yml"]["form"], "x_1", {"widget": "text"}),
        "'x_1' is no name of a widget",
    ),
    (
        "open-composer",
        lambda f: set_in(f["form.yml"]["form"], "x", {"widget": "slider"}),
        "there is no widget 'slider'",
    ),
    (
        "open-composer",
        lambda f: set_in(f["form.yml"], "script", "#!/bin/bash\n#{nobody}\n"),
        "the script names nobody, which is no widget",
    ),
    (
        "open-composer",
        lambda f: f["form.yml"]["form"]["place"]["options"][0][1].pop(),
        "options with different numbers of values",
    ),
    (
        "open-composer",
        lambda f: set_in(f["form.yml"]["form"]["place"]["options"][0][1], 0, 'a"b'),
        "Ruby and JavaScript read 'a\"b' differently",
    ),
    (
        "open-composer",
        lambda f: f["form.yml"]["form"]["place"]["options"][0].append({"set-max-gpus": 1}),
        "'set-max-gpus' changes no widget",
    ),
    (
        "open-composer",
        lambda f: set_in(f["form.yml"]["form"]["place"], "value", "x"),
        "its default is none of its options",
    ),
]


@pytest.mark.parametrize(("portal", "breaks", "told"), BROKEN, ids=[told for _, _, told in BROKEN])
def test_what_its_reader_would_not_take_is_named(
    sound: dict[str, Files], portal: Portal, breaks: Callable[[Files], Any], told: str
) -> None:
    release = RELEASES[portal][-1]
    files = copy.deepcopy(sound[portal])
    assert problems(portal, release, files) == []
    breaks(files)
    found = problems(portal, release, files)
    assert any(told in problem for problem in found), found
