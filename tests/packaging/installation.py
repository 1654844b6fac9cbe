"""An environment in which nothing of fsdpkit is but the wheel, and the command run from it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

Completed = subprocess.CompletedProcess[str]
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel in it."""

    prefix: Path

    @property
    def package(self) -> Path:
        """The directory of the installed package."""
        (found,) = self.prefix.glob("lib/python3*/site-packages/fsdpkit")
        return found

    def fsdpkit(self, *args: str, cwd: Path) -> Completed:
        """The installed command, as a person with only this environment on PATH runs it."""
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        dropped = ("PYTHON", "VIRTUAL_ENV", "PATH")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        return subprocess.run(
            [str(self.prefix / "bin" / "fsdpkit"), *args],
            cwd=cwd,
            env={**kept, "PATH": f"{self.prefix}/bin:{system}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def run_checked(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"


def install(wheel: Path, prefix: Path) -> Installation:
    """The wheel in a new environment. Its dependencies are the ones that are here already, linked
    one by one, so that neither this checkout nor its metadata can be found from there."""
    run_checked([sys.executable, "-m", "venv", "--without-pip", str(prefix)])
    pip = [sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"), "install"]
    run_checked([*pip, "--no-deps", "--no-index", "--quiet", str(wheel)])
    installed = Installation(prefix)
    _link_dependencies(prefix.parent / "dependencies", installed.package.parent)
    torchrun = prefix / "bin" / "torchrun"  # torch's own entry point, for this environment
    torchrun.write_text(
        f"#!{prefix}/bin/python\nfrom torch.distributed.run import main\nmain()\n", encoding="utf-8"
    )
    torchrun.chmod(0o755)
    return installed


def _link_dependencies(directory: Path, site_packages: Path) -> None:
    directory.mkdir()
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(source).iterdir():
            ours = "fsdpkit" in entry.name.lower() or entry.suffix in (".pth", ".egg-link")
            if not ours:
                (directory / entry.name).symlink_to(entry)
    (site_packages / "dependencies.pth").write_text(f"{directory}\n")
