"""`fsdpkit generate` finds weights and script, and hands on the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpkit.cli import generate
from fsdpkit.runs.layout import RunPaths

REPOSITORY = Path(__file__).resolve().parents[2]
SAYS_ITS_WORDS = """import sys
print(*sys.argv[1:], sep="|")
sys.exit(65 if "--rouge" in sys.argv else 0)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "generate.py"
    path.write_text(SAYS_ITS_WORDS)
    monkeypatch.setattr(generate, "SCRIPT", path)


def said(*words: str) -> tuple[list[str], int]:
    result = CliRunner().invoke(generate.command, list(words), standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.stdout.strip().split("|"), result.return_value


def test_a_directory_is_taken_as_it_is_and_options_go_on(tmp_path: Path) -> None:
    words, status = said(str(tmp_path), "--beams", "4", "--source-prefix", "to: ", "a text", "b")
    assert words[:2] == ["--weights", str(tmp_path)]
    assert set(words[2:4]) == {"--source-prefix=to: ", "--beams=4"}
    assert words[4:] == ["--", "a text", "b"]
    assert status == 0


def test_a_run_is_found_by_a_part_of_its_name(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "summarize-20261121-101500-3f2a"
    run.mkdir(parents=True)
    RunPaths(run).record.write_text("{}")
    words, _ = said("3f2a", "one", "--runs", str(tmp_path / "runs"))
    assert words == ["--weights", str(run), "--", "one"]


def test_every_option_of_the_script_is_one_of_the_command() -> None:
    """But those that the command stands for: the weights, and help."""
    script = (REPOSITORY / "examples" / "T5-fsdp" / "generate.py").read_text()
    known = {option for each in generate.command.params for option in each.opts}
    asked = set(re.findall(r"\"(--[a-z-]+)\"", script)) - {"--weights"}
    assert asked - known == set()
