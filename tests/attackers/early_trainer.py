"""The T5 trainer, which can be held before its ranks have met: their store is open, and empty."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

from breakpoints import hold
from trainer import main

if __name__ == "__main__":
    hold("start-up")
    sys.exit(main())
