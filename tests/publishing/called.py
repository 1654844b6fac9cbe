"""The command line in this process, and templates to try it on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fsdpkit.cli.main import fsdpkit
from fsdpkit.errors import FsdpkitError
from tests.json_answers import checked

Call = Callable[..., Result]
_SMALL = Path(__file__).parent / "folders" / "small"
TEMPLATE = (_SMALL / "job.sbatch.j2").read_text(encoding="utf-8")
MANIFEST = (_SMALL / "template.toml").read_text(encoding="utf-8")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`fsdpkit WORDS…` in the test's directory; an error of ours becomes its exit status.
    status: that it must end with; None: any."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, status: int | None = None) -> Result:
        result = CliRunner().invoke(fsdpkit, words, standalone_mode=False)
        if isinstance(result.exception, FsdpkitError):
            result.exit_code = result.exception.exit_code
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        else:
            result.exit_code = result.return_value or 0
        assert status is None or result.exit_code == status, result.output
        return result

    return run


def answer(result: Result) -> dict[str, Any]:
    """The JSON that was printed, which fits its schema."""
    found: dict[str, Any] = checked(result.stdout.splitlines()[-1])
    assert json.loads(result.stdout) == found
    return found


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder `small`: a sound template of a few lines, changed as a test wants."""

    def write(
        *,
        script: str | bytes = TEMPLATE,
        manifest: str = MANIFEST,
        name: str = "small",
        **files: str,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "template.toml").write_text(manifest.replace('"small"', f'"{name}"'))
        raw = script if isinstance(script, bytes) else script.encode()
        (folder / "job.sbatch.j2").write_bytes(raw)
        (folder / "README.md").write_text(files.pop("readme", "# small\n"))
        for file, text in files.items():
            (folder / file).write_text(text)
        return folder

    return write
