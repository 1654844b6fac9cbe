"""`fsdpkit template diff` and `context`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config import assets
from tests.publishing.called import MANIFEST, TEMPLATE, Call, answer

Small = Callable[..., Path]
SITES = ("--site", "generic", "--site", "osc-cardinal")


def test_equal_scripts_are_equal_whatever_the_template_looks_like(call: Call, small: Small) -> None:
    small(name="old")
    commented = TEMPLATE.replace("set -euo", "<# a comment #>\nset -euo")
    small(name="new", script=commented, manifest=MANIFEST.replace("1.0.0", "2.0.0"))
    result = call("template", "diff", "old", "new", *SITES)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "old 1.0.0 → new 2.0.0: 31 of 31 scripts are equal" in result.stderr


def test_a_change_is_shown_once_with_all_that_have_it(call: Call, small: Small) -> None:
    small(name="old")
    small(name="new", script=TEMPLATE.replace("set -euo pipefail", "set -eu"))
    found = answer(call("template", "diff", "old", "new", *SITES, "--json"))
    (difference,) = found["differences"]
    assert not found["equal"]
    assert len(difference["cases"]) == found["compared"] == 31
    assert {"-set -euo pipefail", "+set -eu"} <= set(difference["diff"])


def test_a_change_for_some_profiles_alone_names_those(call: Call, small: Small) -> None:
    small(name="old")
    change = '{% if site.id == "osc-cardinal" and nodes == 1 %}\necho one\n{% endif %}\nstatus=0'
    small(name="new", script=TEMPLATE.replace("status=0", change))
    result = call("template", "diff", "old", "new", *SITES, status=1)
    assert result.stdout.startswith("osc-cardinal, one rank; osc-cardinal, one node\n")
    assert "    +echo one" in result.stdout
    assert "generic" not in result.stdout


def test_what_only_one_of_them_refuses_is_a_difference(call: Call, small: Small) -> None:
    small(name="old")
    refusing = '{% if nodes > 1 %}{{ refuse("one node only") }}{% endif %}\nset -euo'
    small(name="new", script=TEMPLATE.replace("set -euo", refusing))
    result = call("template", "diff", "old", "new", "--site", "generic", status=1)
    assert "+refused: job.sbatch.j2, line 17: refuses: one node only" in result.stdout


def test_exit_statuses(call: Call, small: Small) -> None:
    small(name="old")
    broken = small(name="new", manifest="[")
    call("template", "diff", "old", str(broken), status=65)
    call("template", "diff", "old", "nothing", status=66)
    call("template", "diff", "old", "old", "--site", "nowhere", status=66)


def test_context_lists_every_name_with_an_example(call: Call) -> None:
    found = answer(call("template", "context", "--site", "osc-cardinal", "--json"))
    names = {each["name"]: each for each in found["names"]}
    assert names["nodes"]["example"] == 2
    assert names["site.title"]["example"] == "OSC Cardinal"
    assert names["parameters.wait_s"]["meaning"].startswith("Seconds that")
    assert names["directives[].name"]["example"] == "job-name"
    text = call("template", "context").stdout
    assert "nodes: whole number, such as 2\n    Nodes that train." in text


def test_context_knows_the_parameters_of_the_template_that_is_asked_for(
    call: Call, small: Small
) -> None:
    colour = '[parameters.colour]\ntype = "str"\nchoices = ["red"]\nhelp = "Which one it is."\n'
    small(manifest=f"{MANIFEST}\n{colour}")
    assert (
        "parameters.colour: text or nothing\n    Which one it is."
        in call("template", "context", "small").stdout
    )


@pytest.mark.parametrize("site", ["generic", "local", "osc-ascend"])
def test_the_packaged_template_differs_in_nothing_from_itself(call: Call, site: str) -> None:
    folder = str(assets.packaged_dir() / "templates" / "torchrun")
    result = call("template", "diff", "torchrun", folder, "--site", site, "--json")
    assert json.loads(result.stdout)["differences"] == []
