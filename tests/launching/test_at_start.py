"""What a rank that is started anew does before its script, and that the script does not see it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fsdpkit.launching.at_start import sitecustomize
from tests.launching.forking import Ended, started_anew
from tests.programs import ran

pytestmark = pytest.mark.torch

SEES = """
import os, sys
print(sys.path[1:], [*sys.path_importer_cache], os.environ.get("PYTHONPATH"))
print(sys.argv, __name__, __spec__, sorted(vars()), "sitecustomize" in sys.modules)
print({m for m in sys.modules if "fsdpkit" in m})
"""
ALONE = {"PATH": os.environ["PATH"]}


def started_by_hand(command: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Ended:
    done = ran(command, env=dict(environ), cwd=cwd)
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (None, ""),
        ("lib", "print('the own one', __name__)"),
        ("lib:/nowhere", "1 / 0"),
        (":lib", "import missing"),
        (":lib", "print('the own one', __name__)"),
    ],
)
def test_a_script_finds_path_and_environment_as_without(
    tmp_path: Path, path: str | None, own: str
) -> None:
    """The site's own module runs if there is one, and fails as it would."""
    (tmp_path / "train.py").write_text(SEES)
    if own:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "sitecustomize.py").write_text(own)
    environ = ALONE if path is None else {**ALONE, "PYTHONPATH": path}
    command = (sys.executable, "train.py", "--lr", "1e-3")
    started = started_anew(command, environ, tmp_path)
    assert started == started_by_hand(command, environ, tmp_path)
    assert started.status == 0


@pytest.mark.parametrize("flags", [(), ("-I",), ("-E",), ("-S",)], ids=str)
def test_a_warning_ends_no_rank_whatever_its_python_reads(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    numbers = [*map(int, sitecustomize.WARNINGS)]
    (tmp_path / "train.py").write_text(
        f"import os\nfor number in {numbers}: os.kill(os.getpid(), number)\nprint('goes on')"
    )
    started = started_anew((sys.executable, *flags, "train.py"), ALONE, tmp_path)
    assert started == Ended(0, "goes on\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_script_s_own_handler_is_the_script_s_and_its_children_s(
    tmp_path: Path, number: int
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal\n"
        f"signal.signal({number}, lambda *_: print('told', flush=True))\n"
        f"os.kill(os.getpid(), {number})\n"
        "if not (child := os.fork()):\n"
        f"    os.kill(os.getpid(), {number}); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    started = started_anew((sys.executable, "-u", "train.py"), ALONE, tmp_path)
    assert started == Ended(0, "told\ntold\n0\n", "")


def test_a_wait_in_the_rank_goes_on_after_a_warning(tmp_path: Path) -> None:
    """Also one of a library that does not expect to be interrupted: the kernel begins it again."""
    script = (
        "import ctypes, os\n"
        "print('waits', flush=True)\n"
        "print(ctypes.CDLL(None).read(0, ctypes.create_string_buffer(1), 1))\n"
    )
    (tmp_path / "train.py").write_text(script)
    from fsdpkit.launching.ranks import _SHIELDED

    with subprocess.Popen(
        [*_SHIELDED, sys.executable, "train.py"],
        env=ALONE, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.2)  # until it reads; if it does not yet, the test only shows less
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.stdin.write("x")
        process.stdin.flush()
        assert process.stdout.readline() == "1\n"
