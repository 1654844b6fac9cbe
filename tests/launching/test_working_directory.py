"""The directory that a job was submitted from is data: no module of ours is taken from it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fsdpkit.runs.layout import RunPaths

NAMES = ("queue", "json", "torch", "submitit", "psutil", "msgspec", "importlib", "fractions")
TRAP = "open({marker!r}, 'a').write(__name__ + '\\n')\nraise SystemExit(3)\n"
PROGRAM = """
    import os, sys
    import neighbour
    print(sys.path[0], neighbour.__name__, os.environ.get("PYTHONPATH"))
    print(*[entry for entry in sys.path[1:] if entry.startswith(os.getcwd())])
"""


@pytest.mark.torch
@pytest.mark.parametrize(("warm", "variable"), [("on", None), ("off", ":relative")])
def test_modules_in_it_do_not_take_the_place_of_ours(
    tmp_path: Path, warm: str, variable: str | None
) -> None:
    """As the job's program lies elsewhere, it does not import them either, unless it asks to."""
    here, own = tmp_path / "here", tmp_path / "own"
    own.mkdir()
    (own / "train.py").write_text(textwrap.dedent(PROGRAM))
    (own / "neighbour.py").write_text("")
    trap = TRAP.format(marker=str(tmp_path / "taken"))
    for place in (here, here / "relative"):
        (place / "fsdpkit").mkdir(parents=True)
        (place / "fsdpkit" / "__init__.py").write_text(trap)
    # What Python itself imports as it starts, the program would take from where the variable says.
    for name in NAMES if variable is None else ("submitit", "psutil", "msgspec"):
        (here / f"{name}.py").write_text(trap)
    words = ["--set", f"launch.warm={warm}", "--cluster", "local", "--gpus", "2", "--time", "15"]
    if variable is not None:
        words += ["--set", f"environment.variables.PYTHONPATH={variable}"]
    done = subprocess.run(
        [Path(sys.executable).parent / "fsdpkit", "submit", own / "train.py", "--wait", *words],
        cwd=here,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "taken").exists()
    (run,) = (here / "runs").iterdir()
    output = RunPaths(run).task(None).attempt(0).rank_file(0, "out", 0).read_text()
    relative = "" if variable is None else f"{here} {here / 'relative'}"
    assert output.splitlines() == [f"{own} neighbour {variable}", relative]
