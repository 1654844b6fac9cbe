"""Templates' typed parameters, and the checksum that names a template's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fsdpkit.config.template import load_template, parameter_values
from fsdpkit.errors import ConfigError
from tests.programs import Write

HEAD = 'schema = "fsdpkit.template/1"\nname = "mine"\nversion = "1.2.3"\ndescription = "d"\n'
PARAMETERS = """
[parameters.count]
type = "int"
default = 3
minimum = 1
maximum = 10
help = "How many."
[parameters.share]
type = "float"
help = "How much."
[parameters.mode]
type = "str"
choices = ["fast", "slow"]
help = "Which way."
[parameters.label]
type = "str"
pattern = "[a-z]+"
help = "A word."
[parameters.loud]
type = "bool"
default = false
help = "Whether."
"""


@pytest.fixture
def mine(user_file: Write) -> Callable[[str], None]:
    def write(text: str) -> None:
        user_file("templates/mine/template.toml", HEAD + text)
        user_file("templates/mine/job.sbatch.j2", "#!/bin/bash\n")

    write(PARAMETERS)
    return write


@pytest.mark.usefixtures("mine")
def test_the_nearest_value_of_a_parameter_wins() -> None:
    values = parameter_values(
        load_template("mine").manifest,
        ("site s", {"count": 4}),
        ("job j", {"count": 5, "share": 1}),
    )
    assert values == {"count": 5, "share": 1, "mode": None, "label": None, "loud": False}


WRONG = [
    ("count", 0, "is below 1"),
    ("count", 10**400, "is above 10"),
    ("count", True, "is not of type int"),
    ("count", "3", "is not of type int"),
    ("share", "1", "is not of type float"),
    ("mode", "fsat", "is not one of fast, slow"),
    ("label", "a b", r"does not match \[a-z\]\+"),
    ("loud", 1, "is not of type bool"),
    ("cuont", 1, "has no parameter 'cuont'. Did you mean 'count'?"),
]


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(("name", "value", "why"), WRONG)
def test_a_wrong_parameter_is_refused_with_who_set_it(name: str, value: Any, why: str) -> None:
    manifest = load_template("mine").manifest
    with pytest.raises(ConfigError, match=why) as refused:
        parameter_values(manifest, ("job j", {name: value}))
    assert str(refused.value).startswith("job j: ")


MANIFESTS = {
    "[parameters.x]\ntype = 'int'\nhelp = 'h'\ndefault = 'x'": "default: parameter x = 'x' is not",
    "[parameters.x]\ntype = 'str'\nhelp = 'h'\npattern = '['": r"parameters\.x\.pattern .*regular",
    "[parameters.x]\ntype = 'str'\nhelp = 'h'\npattern = '(?=a)'": "cannot be used here",
    "[parameters.x]\ntype = 'str'\nhelp = 'h'\nminimum = 1": r"parameters\.x\.minimum .*numbers",
    "[parameters.x]\ntype = 'int'\nhelp = ''": r"parameters\.x\.help .*must not be empty",
    "[parameters.'a b']\ntype = 'int'\nhelp = 'h'": r"parameters\.a b .*this name must match",
    "[parameters.x]\ntype = 'list'\nhelp = 'h'": r"parameters\.x\.type .*bool, int, float, str",
}


@pytest.mark.parametrize(("text", "why"), MANIFESTS.items(), ids=[k[14:40] for k in MANIFESTS])
def test_a_wrong_manifest_is_refused(text: str, why: str, mine: Callable[[str], None]) -> None:
    mine(text)
    with pytest.raises(ConfigError, match=why):
        load_template("mine")


def test_the_checksum_covers_manifest_and_every_part(
    mine: Callable[[str], None], user_file: Write
) -> None:
    sums = {load_template("mine").sha256}
    user_file("templates/mine/part.j2", "echo\n")
    sums.add(load_template("mine").sha256)
    user_file("templates/mine/part.j2", "echo 2\n")
    sums.add(load_template("mine").sha256)
    mine("")
    sums.add(load_template("mine").sha256)
    assert len(sums) == 4
