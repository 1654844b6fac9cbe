"""`--json`: every command's answer has a committed schema, an error is one object, and what cannot
be written as JSON harms nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
import pytest

from fsdpkit import errors
from fsdpkit.cli.json_answers import Error
from fsdpkit.cli.json_output import kind_of
from fsdpkit.cli.json_schemas import ANSWERS, files, schema_dir
from fsdpkit.cli.main import COMMANDS
from fsdpkit.cli.main import fsdpkit as group
from fsdpkit.cli.sweep import FirstWordOrCommand
from tests.conftest import Completed, answer_of
from tests.json_answers import checked

Fsdpkit = Callable[..., Completed]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for below in {*command.commands, *command.list_commands(context)}:
                found = command.get_command(context, below)
                assert found is not None
                unnamed = isinstance(command, FirstWordOrCommand) and below == "start"
                yield (name if unnamed else f"{name} {below}"), found
        else:
            yield name, command


def test_the_committed_schemas_are_those_of_the_structs() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in schema_dir().iterdir()}
    assert found == files(), "an answer changed: run python -m fsdpkit.cli.json_schemas"


def test_every_command_with_json_is_listed_and_no_other() -> None:
    with_json = {name for name, one in commands() if any("--json" in p.opts for p in one.params)}
    assert with_json == set(ANSWERS)


def kinds_of_errors(kind: type[errors.FsdpkitError]) -> Iterator[type[errors.FsdpkitError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_of_errors(below)


@pytest.mark.parametrize("kind", list(kinds_of_errors(errors.FsdpkitError)))
def test_every_error_of_ours_has_a_kind_in_the_schema(kind: type[errors.FsdpkitError]) -> None:
    error = {"kind": kind_of(kind.__new__(kind)), "message": "m", "exit_status": 1}
    msgspec.convert(error, Error, strict=True)


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
    done = fsdpkit(*words)
    assert done.returncode == status, done.stderr
    told = checked(done.stdout)
    assert (told["schema"], told["kind"]) == ("fsdpkit.error/1", kind)
    assert told["exit_status"] == status
    assert told["message"] in done.stderr
    without = fsdpkit(*[word for word in words if word != "--json"])
    assert (without.returncode, without.stdout) == (status, "")


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
    assert told == {"schema": "fsdpkit.dry-run/1", "script": fsdpkit(*words, "--dry-run").stdout}
    told = answer_of(fsdpkit(*words, "--check", "--json"))
    assert told["answer"] == fsdpkit(*words, "--check").stdout.strip()
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_name_is_no_utf_8_and_steers_a_terminal_is_valid_json(
    fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    for name in (b"a\xff-20260101-000000-aaaa", "b\x1b]0;x\x07\x9b\u202e-1".encode()):
        (tmp_path / "runs").mkdir(exist_ok=True)
        directory = Path(str(tmp_path / "runs"), name.decode("utf-8", "surrogateescape"))
        directory.mkdir()
        (directory / "run.json").write_text("{")
    done = fsdpkit("status", "--json")
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout) & set("\x1b\x07\x9b\u202e")
    names = {one["run"] for one in checked(done.stdout)["runs"]}
    assert names == {"a\\udcff-20260101-000000-aaaa", "b\x1b]0;x\x07\x9b\u202e-1"}
