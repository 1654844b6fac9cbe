"""Makes the example's modules importable, as its own directory does when it is run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp"
for folder in (EXAMPLE, EXAMPLE.parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
