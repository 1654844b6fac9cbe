"""How far plans are from what was measured: `python benchmarks/plan.py`, half an hour.

Speed against published runs, memory against what real ranks hold, what a plan itself takes, and
what compiled blocks keep. What is compared how
stands in plan_parts/, a module each, with a file of results of its own, from which the tables in
README.md are made.

`--only PART` measures one part and leaves the others' files as they are; `--quick` tries every part
once with small numbers and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.plan_parts.tables import met  # noqa: E402
from benchmarks.report import README, table, with_all_tables  # noqa: E402

RESULTS = HERE / "results"
PACKAGE = "benchmarks.plan_parts"
PARTS = {
    "memory": "plan-memory.json",
    "cost": "plan-cost.json",
    "compiled": "plan-compiled.json",
    "speed": "plan-speed.json",
}
"""Each module, which has `measure(quick)`, with its file of results."""


def measure(parts: Sequence[str], *, quick: bool) -> dict[str, dict[str, Any]]:
    """What each part found, as its file of results holds it."""
    return {part: import_module(f"{PACKAGE}.{part}").measure(quick) for part in parts}


def keep(found: Mapping[str, Mapping[str, Any]], results: Path) -> None:
    """Write the files of these parts, and of no other."""
    for part, result in found.items():
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (results / PARTS[part]).write_text(text, "utf-8")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare plans with what was measured.")
    parser.add_argument("--quick", action="store_true", help="small numbers; write no results")
    parser.add_argument("--only", choices=PARTS, help="one part; keep the others' figures")
    arguments = parser.parse_args(words)
    found = measure([arguments.only] if arguments.only else [*PARTS], quick=arguments.quick)
    for part, result in found.items():
        print(f"{part}\n\n{table(dict(result))}\n")
    if not arguments.quick:
        keep(found, RESULTS)
        README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    return 0 if all(map(met, found.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
