"""What is measured: fsdpkit as its wheel installs it, and torchx, each in its own environment.

Both are compiled to bytecode before any clock starts, and run with a login shell's plain
environment: nothing of the person's, nothing of the environment that measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.installation import ROOT
from tests.packaging.release import build

TORCHX = "torchx==0.7.0"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PERSONAL = ("PYTHON", "VIRTUAL_ENV", "PATH", "FSDPKIT_", "CONDA", "OMP_", "TORCHX")


@dataclass(frozen=True)
class Installed:
    """A virtual environment and the environment variables that its commands get."""

    prefix: Path
    environ: Mapping[str, str]

    def program(self, name: str) -> str:
        return str(self.prefix / "bin" / name)

    def run(self, argv: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment; raises RuntimeError with its output if it fails."""
        done = self.attempt(argv, cwd)
        if done.returncode != 0:
            said = f"{done.stdout}{done.stderr}"
            raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{said}")
        return done

    def attempt(self, argv: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program(argv[0]), *argv[1:]],
            cwd=cwd,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def wall_s(self, argv: Sequence[str], cwd: Path) -> float:
        """Seconds that the command took from start to end."""
        started = time.perf_counter()
        self.run(argv, cwd)
        return time.perf_counter() - started

    def version(self, package: str) -> str:
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        return self.run(["python", "-c", code], self.prefix).stdout.strip()


def install_fsdpkit(work: Path, base: Mapping[str, str]) -> Installed:
    """fsdpkit from its wheel, with everything that jobs need, torch included."""
    (work / "wheel").mkdir()
    wheel = build(ROOT, work / "wheel")
    return _install(
        work / "fsdpkit", base, ["-c", str(ROOT / "constraints.txt"), f"{wheel}[torch]"]
    )


def install_torchx(work: Path, base: Mapping[str, str]) -> Installed:
    return _install(work / "torchx", base, [TORCHX])


def _install(prefix: Path, base: Mapping[str, str], requirements: Sequence[str]) -> Installed:
    kept = {k: v for k, v in base.items() if not k.startswith(_PERSONAL)}
    temporary = prefix.with_name(f"{prefix.name}-tmp")  # torchrun leaves directories there
    temporary.mkdir()
    environ = {
        **kept,
        "TMPDIR": str(temporary),
        "PATH": f"{prefix}/bin:{SYSTEM_PATH}",
        "VIRTUAL_ENV": str(prefix),
        "FSDPKIT_CONFIG_DIR": f"{prefix}/no-config",
        "FSDPKIT_STATE_DIR": f"{prefix}/state",
        "XDG_CACHE_HOME": f"{prefix}/cache",
    }
    installed = Installed(prefix, environ)
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    quiet.pop("PYTHONDONTWRITEBYTECODE", None)
    for argv in (
        [sys.executable, "-m", "venv", str(prefix)],
        [installed.program("python"), "-m", "pip", "install", "--quiet", *requirements],
        [installed.program("python"), "-m", "compileall", "-qq", str(prefix / "lib")],
    ):
        # compileall ends with 1 over files of a package that were never meant to compile.
        subprocess.run(argv, env=quiet, stdout=subprocess.DEVNULL, check="compileall" not in argv)
    return installed
