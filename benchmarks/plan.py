"""How far plans are from what was measured: `python benchmarks/plan.py`, 90 minutes.

Speed against published runs, memory against what real ranks hold, what a plan itself takes, and
what compiled blocks keep. What is compared how
stands in plan_parts/, a module each, with a file of results of its own, from which the tables in
README.md are made. Files are written as rows come: a run that is interrupted keeps those it has.

`--only PART` measures one part and leaves the others' files as they are; `--quick` tries every part
once with small numbers and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
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
"""Each module, which has `measure(quick, before)`, with its file of results."""


def measure(parts: Sequence[str], *, quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each part, as often as it has found more, what its file of results is to hold."""
    for part in parts:
        before = {} if quick else json.loads((RESULTS / PARTS[part]).read_text("utf-8"))
        for found in import_module(f"{PACKAGE}.{part}").measure(quick, before):
            yield part, found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare plans with what was measured.")
    parser.add_argument("--quick", action="store_true", help="small numbers; write no results")
    parser.add_argument("--only", choices=PARTS, help="one part; keep the others' figures")
    arguments = parser.parse_args(words)
    found = dict[str, dict[str, Any]]()
    parts = [arguments.only] if arguments.only else [*PARTS]
    for part, result in measure(parts, quick=arguments.quick):
        found[part] = result
        if not arguments.quick:
            text = json.dumps(result, indent=1, ensure_ascii=False)
            (RESULTS / PARTS[part]).write_text(f"{text}\n", "utf-8")
            README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    for part, result in found.items():
        print(f"{part}\n\n{table(result)}\n")
    return 0 if all(map(met, found.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
