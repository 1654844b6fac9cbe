"""Looking runs nothing: whoever is asked to look at a stranger's file or run types a command, and
none of what the stranger put there runs, is loaded, is believed, or gets a secret."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fsdpkit.cli.main import _HIDDEN, fsdpkit
from tests.looking import stranger
from tests.looking.commands import COMMANDS, Command, Line
from tests.looking.stranger import VICTIM, Places
from tests.refusing_server import refusing_server

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users"),
]

ALIVE = {"venv-python", "entry", "module-beside", "notify", "call"}
ALIVE |= {"step-before", "step-each_node", "step-after"}
NOT_WATCHED = (".cache", ".local/state/fsdpkit", "out", "runs", "tmp")
"""Where fsdpkit keeps what is the victim's own, and where a line was told to write."""


@pytest.fixture(scope="module")
def canaries() -> Iterator[tuple[Places, list[str]]]:
    """Everything of the stranger's, and which canaries sang while it was made."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-looking-", dir="/tmp") as directory:
        places = Places(Path(directory))
        with stranger.listening(places) as server, refusing_server() as own:
            stranger.make(places, server, own)
            yield places, stranger.make_runs(places, server)


@pytest.fixture
def places(canaries: tuple[Places, list[str]]) -> Iterator[Places]:
    places, _ = canaries
    places.marks_now()
    yield places
    stranger.end_what_goes_on(places)


def all_commands(group: click.Group, *words: str) -> Iterator[Command]:
    context = click.Context(group)
    hidden = _HIDDEN if group is fsdpkit else group.commands
    for name in sorted({*group.list_commands(context), *hidden}):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from all_commands(command, *words, name)
        else:
            yield *words, name


def contents(home: Path) -> dict[str, bytes]:
    """What stands in the home of whoever looks, and is nothing that fsdpkit keeps there."""
    files = (path for path in home.rglob("*") if path.is_file())
    named = {str(path.relative_to(home)): path for path in files}
    return {
        name: path.read_bytes()
        for name, path in named.items()
        if not name.startswith(tuple(f"{each}/" for each in NOT_WATCHED))
    }


def problems_of(places: Places, command: Command, line: Line) -> list[str]:
    """What a command did that it must not do."""
    before = contents(places.alex)
    environ = {**stranger.TOKENS, **stranger.PASSWORDS, **line.env}
    words = [*command, *map(places.word, line.words)]
    done = stranger.run_as(places, VICTIM, words, cwd=places.sam / "tree", env=environ)
    said = done.stdout + done.stderr
    after = contents(places.alex)
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    found = [f"touched {mark}" for mark in places.marks_now()]
    found += [f"changed {name} at home" for name in changed]
    if done.returncode not in line.statuses or line.says not in said or "Traceback" in said:
        found.append(f"ended with {done.returncode}, saying {said.strip()[-300:]!r}")
    return found


def test_every_command_says_what_it_does_with_a_stranger_s_file() -> None:
    assert sorted(COMMANDS) == sorted(all_commands(fsdpkit))


def test_the_canaries_are_alive(canaries: tuple[Places, list[str]]) -> None:
    """The stranger's own commands touch them, as they may."""
    assert {*canaries[1]} >= ALIVE


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_of_a_stranger_s_runs_or_leaks(places: Places, command: Command) -> None:
    found = {str(line): problems_of(places, command, line) for line in COMMANDS[command]}
    assert {line: problems for line, problems in found.items() if problems} == {}
