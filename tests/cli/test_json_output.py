"""`--json`: no answer changes unnoticed, an error is one object, and what cannot be written as JSON
harms nobody."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fsdpkit import errors
from fsdpkit.cli.json_output import ErrorKind, as_json, kind_of
from fsdpkit.cli.json_schemas import answers_of, commands, schemas
from fsdpkit.runs.avoided_nodes import avoid
from tests.conftest import Completed, answer_of
from tests.json_answers import BY_NAME, checked

Fsdpkit = Callable[..., Completed]


DIGESTS = Path(__file__).with_name("json_shapes.json")
"""A digest of each shape's JSON Schema. Written anew with UPDATE_GOLDEN=1."""


def test_no_shape_changes_unnoticed() -> None:
    """Fields are only added; where one goes or changes its meaning, the shape's number changes."""
    found = {
        file.removesuffix(".schema.json"): hashlib.sha256(text.encode()).hexdigest()[:16]
        for file, text in schemas().items()
    }
    if os.environ.get("UPDATE_GOLDEN"):
        DIGESTS.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(DIGESTS.read_text())


def test_every_command_with_json_says_what_it_prints_and_no_other() -> None:
    named = dict(commands())
    assert {"sweep", "sweep best", "site draft", "template context", "jobs"} <= named.keys()
    for name, command in named.items():
        has_option = any("--json" in parameter.opts for parameter in command.params)
        assert bool(answers_of(command)) == has_option, name


def test_schemas_have_one_name_and_one_file_each() -> None:
    titles = {json.loads(text)["title"]: json.loads(text) for text in schemas().values()}
    assert titles.keys() == BY_NAME.keys()
    for name, schema in titles.items():
        assert re.fullmatch(r"fsdpkit\.[a-z-]+/[1-9]", name)
        own = schema["$defs"][schema["$ref"].rpartition("/")[2]]
        assert "schema" in own["required"]


def kinds_of_errors(kind: type[errors.FsdpkitError]) -> Iterator[type[errors.FsdpkitError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_of_errors(below)


@pytest.mark.parametrize("kind", list(kinds_of_errors(errors.FsdpkitError)))
def test_every_error_of_ours_has_a_kind_in_the_schema(kind: type[errors.FsdpkitError]) -> None:
    msgspec.convert(kind_of(kind.__new__(kind)), ErrorKind)


@pytest.mark.parametrize(
    ("words", "kind", "status"),
    [
        (["status", "nobody", "--json"], "not_found", 66),
        (["checkpoint", "ls", "nobody", "--json"], "not_found", 66),
        (["submit", "--set", "resources.nodes=x", "--cluster", "local", "--json"], "config", 65),
        (["status", "--watch", "0", "--json"], "usage", 2),
        (["no-such-command", "--json"], "usage", 2),
    ],
)
def test_an_error_is_one_object_with_the_exit_status(
    words: list[str], kind: str, status: int, fsdpkit: Fsdpkit
) -> None:
    done = fsdpkit(*words, status=status)
    told = checked(done.stdout)
    assert (told["schema"], told["kind"]) == ("fsdpkit.error/1", kind)
    assert told["exit_status"] == status
    assert told["message"] in done.stderr
    without = fsdpkit(*[word for word in words if word != "--json"])
    assert (without.returncode, without.stdout) == (status, "")


def test_json_for_the_script_is_not_for_us(fsdpkit: Fsdpkit) -> None:
    done = fsdpkit("submit", "nobody.py", "--dry-run", "--", "--json")
    assert (done.returncode, done.stdout) == (66, "")


def test_no_runs_and_no_nodes_are_answers(fsdpkit: Fsdpkit) -> None:
    assert checked(fsdpkit("status", "--json").stdout)["runs"] == []
    assert checked(fsdpkit("nodes", "--json").stdout)["nodes"] == []


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        (["jobs"], "jobs"),
        (["jobs", "t5"], "jobs-show"),
        (["sites"], "sites"),
        (["sites", "osc-pitzer"], "sites-show"),
        (["templates"], "templates"),
        (["templates", "torchrun"], "templates-show"),
    ],
)
def test_what_can_be_submitted_is_told_as_json(
    words: list[str], schema: str, fsdpkit: Fsdpkit
) -> None:
    told = answer_of(fsdpkit(*words, "--json"))
    assert told["schema"] == f"fsdpkit.{schema}/1"
    if len(words) == 2:
        assert told["name"] == words[1]
    else:
        assert fsdpkit(*words).stdout.count("\n") == len(told[words[0]]) + 1


def test_a_dry_run_and_a_check_are_told_as_json(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    words = ["submit", "--nodes", "1", "--gpus", "1", "--cluster", "local"]
    told = answer_of(fsdpkit(*words, "--dry-run", "--json"))
    assert told["script"] == fsdpkit(*words, "--dry-run").stdout
    checked_by_slurm = answer_of(fsdpkit(*words, "--check", "--json"))
    assert checked_by_slurm["answer"] == fsdpkit(*words, "--check").stdout.strip()
    assert checked_by_slurm["asks"] == told["asks"]
    measuring = answer_of(fsdpkit("check", *words[1:], "--dry-run", "--json"))
    assert measuring["asks"]["nodes"] == 1 <= measuring["script"].count("#SBATCH --nodes=1\n")
    fsdpkit("check", "--dry-run", status=2)
    assert list(tmp_path.iterdir()) == []


def test_a_forgiven_node_is_told_as_json(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    until_s = time.time() + 3600
    (tmp_path / "runs").mkdir()
    avoid(tmp_path / "runs", "node017", why="it broke", run_id="r", until_s=until_s)
    (note,) = answer_of(fsdpkit("nodes", "--json"))["nodes"]
    assert (note["node"], note["why"], note["until_s"]) == ("node017", "it broke", until_s)
    assert answer_of(fsdpkit("nodes", "--forgive", "node017", "--json"))["node"] == "node017"
    assert answer_of(fsdpkit("nodes", "--json"))["nodes"] == []


def test_a_run_whose_name_is_no_utf_8_and_steers_a_terminal_is_valid_json(
    fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    for name in (b"a\xff-20260101-000000-aaaa", "b\x1b]0;x\x07\x9b\u202e-1".encode()):
        (tmp_path / "runs").mkdir(exist_ok=True)
        directory = Path(str(tmp_path / "runs"), name.decode("utf-8", "surrogateescape"))
        directory.mkdir()
        (directory / "run.json").write_text("{")
    done = fsdpkit("status", "--json", status=0)
    assert not set(done.stdout) & set("\x1b\x07\x9b\u202e")
    names = {one["run"] for one in checked(done.stdout)["runs"]}
    assert names == {"a\\udcff-20260101-000000-aaaa", "b\x1b]0;x\x07\x9b\u202e-1"}


def test_numbers_that_json_lacks_are_null() -> None:
    assert json.loads(as_json({"a": math.nan, "b": [-math.inf, 1.5]})) == {
        "a": None,
        "b": [None, 1.5],
    }
    told = json.loads(as_json({"a": math.nan, "b": "x\udcff"}))
    assert told == {"a": None, "b": "x\\udcff"}
