"""The program that copies files to a node's disk, as text that fits into an environment variable.

What it copies may be the job's own environment, so it is not started from there: the script hands
it to every node with srun's message, and the node's own Python runs it.
"""

from __future__ import annotations

import base64
import io
import sys
import zipfile
from pathlib import Path

import fsdpkit.staging

_START = "from fsdpkit.staging.node import main\nmain()\n"


def packed() -> bytes:
    """The room `staging` as a zip that Python runs."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _START)
        archive.writestr("fsdpkit/__init__.py", "")
        for file in sorted(Path(fsdpkit.staging.__path__[0]).glob("*.py")):
            archive.write(file, f"fsdpkit/staging/{file.name}")
    return held.getvalue()


def main() -> int:
    """Print it in base64: half of the 128 KiB that Linux lets a variable have."""
    sys.stdout.write(base64.b64encode(packed()).decode())
    return 0
