"""The words of a program reach it as they are, whatever torchrun has for options."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fsdpkit.launching.ranks import Torchrun
from fsdpkit.runs.layout import AttemptPaths

OURS = ["--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=here:29500"]
WORDS = ["--log", "F", "--run=x", "--local", "--n", "3", "-m", "--", "z", "--", "--nnodes=7"]


def parsed(*words: str) -> Torchrun:
    return Torchrun.parse([*OURS, *words], AttemptPaths(Path("attempt-0")))


@pytest.mark.parametrize("words", [WORDS, WORDS[7:], ["--"], ["--", "--"], ["train.py"], []])
@pytest.mark.parametrize("separator", [["--"], []], ids=["now", "templates before 3.5"])
def test_the_programs_words_are_its_own(words: list[str], separator: list[str]) -> None:
    found = parsed(*separator, "train.py", *words)
    assert found.command[1:] == ("-u", "train.py", *words)
    assert found.config.nproc_per_node == 2


def test_a_module_and_a_command_are_started_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed("--module", "--", "a.b", *WORDS).command[1:] == ("-u", "-m", "a.b", *WORDS)
    tool = tmp_path / "tool"
    tool.touch(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert parsed("--no-python", "--", "tool", *WORDS).command == (str(tool), *WORDS)
