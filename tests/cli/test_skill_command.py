"""`fsdpkit skill`: every command that it teaches an assistant does what it says, on a real run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.cli.main import COMMANDS
from tests.conftest import Completed
from tests.json_answers import checked

Fsdpkit = Callable[..., Completed]
SKILL = Path(__file__).parents[2] / "skills" / "fsdpkit" / "SKILL.md"
FAILING = "import sys\nprint('started', flush=True)\nraise ValueError('no such column')\n"
EXPECTED = {
    "watch": 1,  # the run's own
    "stacks": 2,  # it has ended
    "checkpoint ls": 66,  # it saved none
    "compare": 2,  # with itself
}
ASKED_FOR_ONLY = ("cancel", "prune", "nodes --forgive", "check --nodes")


def taught() -> list[list[str]]:
    """The words of each command in a code block, without `fsdpkit`."""
    blocks = re.findall(r"^```\n(.*?)^```", SKILL.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_it_opens_as_assistants_read_it_and_is_short() -> None:
    text = SKILL.read_text("utf-8")
    head = text.split("---\n")[1].splitlines()
    assert [line.partition(": ")[0] for line in head] == ["name", "description"]
    assert head[0] == f"name: {SKILL.parent.name}"
    assert len(text.splitlines()) < 150


def test_no_block_ends_or_deletes_anything_and_the_rules_forbid_it() -> None:
    rule = next(r for r in SKILL.read_text("utf-8").split("\n- ") if r.startswith("Never run"))
    for words in ASKED_FOR_ONLY:
        assert f"`fsdpkit {words}`" in rule
        assert not any(" ".join(command).startswith(words) for command in taught())
    assert not any({"--yes", "--trust"} & set(command) for command in taught())


@pytest.mark.local
def test_every_command_works_on_a_run_that_failed(
    fsdpkit: Fsdpkit, write_script: Callable[..., Path], tmp_path: Path
) -> None:
    write_script("train.py", FAILING)
    run, told = "RUN", {}
    for words in taught():
        assert words[0] in COMMANDS
        typed = " ".join(words).replace("--nodes 2 --gpus 4", "--nodes 1 --gpus 1")
        done = fsdpkit(
            *[run if word == "RUN" else word for word in typed.split()],
            env={"FSDPKIT_CLUSTER": "local"},
        )
        name = " ".join(words[:2]) if words[0] == "checkpoint" else words[0]
        if name == "status":  # by now it may have ended, or not
            fsdpkit("watch", run)
        assert done.returncode == EXPECTED.get(name, 0), f"{typed}\n{done.stdout}{done.stderr}"
        if "--json" in words and done.returncode == 0:
            told[name] = checked(done.stdout)
            run = told["submit"]["run"]
    assert told["diagnose"]["cause"] == "exception"
    assert "no such column" in told["diagnose"]["sentence"]
    assert (tmp_path / f"{run}.html").exists()
    assert len(list((tmp_path / "runs").glob("train-*"))) == 1
