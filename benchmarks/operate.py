"""How fast runs are looked after: `python benchmarks/operate.py`, as root, about ten minutes.

status with 10,000 runs on disk and with 1,000 active array tasks, the report of a long run of 1,024
ranks, logs of 64 ranks that write, which share of the failure captures of the tests is named right,
and how often commands that watch ask Slurm. What is measured how stands in operate_parts/, one
module each.

Writes results/operate.json and the table in README.md. `--only PART` measures one part and leaves
the others' figures as they are; `--quick` takes small numbers and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.report import README, table, with_all_tables  # noqa: E402

RESULTS = HERE / "results" / "operate.json"
PARTS = ("status", "report", "logs", "diagnosis", "calls")


def measure(parts: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """All figures of these parts, as results/operate.json holds them."""
    figures = []
    for part in parts:
        load = os.getloadavg()[0]
        for figure in import_module(f"benchmarks.operate_parts.{part}").figures(quick):
            print(f"{figure.name}: {figure.value:.2f}, load before {load:.1f}", file=sys.stderr)
            figures.append({**asdict(figure), "load_before": round(load, 2)})
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "msgspec": version("msgspec"),
    }
    return {"measured": about, "figures": figures}


def with_others(result: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The figures of one part in the place of those that were known of it, or behind all others."""
    new = {figure["name"]: figure for figure in result["figures"]}
    kept = [new.pop(figure["name"], figure) for figure in known["figures"]]
    return {**known, "figures": [*kept, *new.values()]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how runs are looked after.")
    parser.add_argument("--quick", action="store_true", help="small numbers; write no results")
    parser.add_argument("--only", choices=PARTS, help="one part; keep the others' figures")
    arguments = parser.parse_args()
    parts = [arguments.only] if arguments.only else PARTS
    result = measure(parts, quick=arguments.quick)
    print(table(result))
    if arguments.only and not arguments.quick:
        result = with_others(result, json.loads(RESULTS.read_text("utf-8")))
    if not arguments.quick:
        RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
        README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    return 0 if all(figure["met"] for figure in result["figures"]) else 1


if __name__ == "__main__":
    sys.exit(main())
