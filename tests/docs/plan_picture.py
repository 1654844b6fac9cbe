"""`python -m tests.docs.plan_picture`: makes docs/pictures/memory.svg anew, by the first command of
docs/planning.md, whatever was measured on this machine."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.documents import commands, words_of
from tests.docs.run_pictures import PICTURES

PAGE = "docs/planning.md"


def shown() -> list[str]:
    """What is typed behind `fsdpkit`."""
    return next(words_of(commands(PAGE)[0]))


def main() -> None:
    argv = [sys.executable, "-m", "fsdpkit", *shown(), "--no-calibration"]
    subprocess.run(argv, cwd=PICTURES, check=True)


if __name__ == "__main__":
    main()
