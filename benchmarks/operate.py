"""How fast runs are looked after: `python benchmarks/operate.py`, as root, about ten minutes.

status with 10,000 runs on disk and with 1,000 active array tasks, the report of a long run of 1,024
ranks, which share of the failure captures of the tests is named right,
and how often commands that watch ask Slurm. What is measured how stands in operate_parts/, one
module each.

Writes results/operate.json and the table in README.md. `--only PART` measures one part and leaves
the others' figures as they are; `--quick` takes small numbers and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.measured import measured  # noqa: E402
from benchmarks.report import finish, with_earlier_figures, with_load  # noqa: E402

RESULTS = HERE / "results" / "operate.json"
PARTS = ("status", "report", "diagnosis", "calls")


def measure(parts: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """All figures of these parts, as results/operate.json holds them."""
    figures = []
    for part in parts:
        load = os.getloadavg()[0]
        found = import_module(f"benchmarks.operate_parts.{part}").figures(quick)
        for figure in found:
            print(f"{figure.name}: {figure.value:.2f}, load before {load:.1f}", file=sys.stderr)
        figures += with_load(found, load)
    return {"measured": measured("msgspec"), "figures": figures}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how runs are looked after.")
    parser.add_argument("--quick", action="store_true", help="small numbers; write no results")
    parser.add_argument("--only", choices=PARTS, help="one part; keep the others' figures")
    arguments = parser.parse_args()
    result = measure([arguments.only] if arguments.only else PARTS, quick=arguments.quick)
    if arguments.quick:
        return finish(result, None)
    return finish(with_earlier_figures(result, RESULTS) if arguments.only else result, RESULTS)


if __name__ == "__main__":
    sys.exit(main())
