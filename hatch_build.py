"""What is built says which commit it is of: fsdpkit/commit.txt, which `fsdpkit --version` shows."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "fsdpkit/commit.txt"


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """An sdist and a wheel of a checkout; what is built of an sdist has the sdist's file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or not (root / ".git").exists() or (root / NAME).exists():
            return
        asked = ["git", "rev-parse", "HEAD"]
        found = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            path = Path(tempfile.mkdtemp(), "commit.txt")
            path.write_text(found.stdout, encoding="ascii")
            build_data["force_include"][str(path)] = NAME
