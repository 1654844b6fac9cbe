"""What is built says which commit it is of: fsdpkit/commit.txt, which `fsdpkit --version` shows,
with `-dirty` if files were changed or new."""

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
        try:
            commit, changes = (
                subprocess.run(
                    ["git", *words], cwd=root, capture_output=True, text=True, check=True
                )
                for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
            )
        except (OSError, subprocess.CalledProcessError):  # no git, or none of this user's
            return
        path = Path(tempfile.mkdtemp(), "commit.txt")
        told = commit.stdout.strip() + ("-dirty" if changes.stdout else "")
        path.write_text(f"{told}\n", encoding="ascii")
        build_data["force_include"][str(path)] = NAME
