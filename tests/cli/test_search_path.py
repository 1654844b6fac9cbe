"""What lies in the directory where a command is typed is not imported by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("click", "json", "msgspec", "queue", "rich", "torch", "submitit")


@pytest.mark.parametrize("python_path", ["", ":", ":/nowhere", "."])
@pytest.mark.parametrize("how", ["script", "module"])
def test_modules_of_the_current_directory_stay_where_they_are(
    how: str, python_path: str, tmp_path: Path
) -> None:
    mark, script = tmp_path / "ran", tmp_path / "bin" / "fsdpkit"
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name} ')\n")
    script.parent.mkdir()
    script.write_text("from fsdpkit.cli.main import main\nmain()\n")
    words = [str(script)] if how == "script" else ["-m", "fsdpkit"]
    env = {**os.environ, "PYTHONPATH": python_path, "FSDPKIT_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, *words, "status"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not mark.exists(), mark.read_text()
