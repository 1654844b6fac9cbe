"""Virtual environments of peers, each made once and kept in the person's cache directory.

The project's environment has none of them, and they get none of the project's packages.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PEERS = (
    "torch==2.13.0",
    "transformers==5.23.0",
    "accelerate==1.15.0",
    "lightning==2.6.6",
)


def peers_python(name: str = "peers", peers: Sequence[str] = PEERS) -> str:
    """The Python that has exactly `peers` and what they need; made now unless it is there."""
    made_of = "\n".join([*peers, sys.version, sys.prefix])
    key = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    prefix = cache / "fsdpkit-benchmarks" / f"{name}-{key}"
    python, complete = prefix / "bin" / "python", prefix / "complete"
    if not complete.exists():
        print(f"installing {', '.join(peers)} in {prefix}", file=sys.stderr)
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        for argv in (
            [sys.executable, "-m", "venv", "--clear", str(prefix)],
            [str(python), "-m", "pip", "install", "--quiet", *peers],
            [str(python), "-m", "compileall", "-qq", str(prefix / "lib")],
        ):
            # compileall ends with 1 over files of a package that were never meant to compile.
            subprocess.run(argv, env=environ, check="compileall" not in argv)
        complete.touch()
    return str(python)


def version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    argv = [python, "-c", code]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
