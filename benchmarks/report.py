"""The table in README.md from results/launch.json: `python benchmarks/report.py` writes it anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "launch.json"
README = HERE / "README.md"
BEGIN = "<!-- made by report.py from results/launch.json: do not edit -->"
END = "<!-- end of what report.py made -->"

COLUMNS = ("What", "Against", "Ours", "Theirs", "Figure", "Target", "")


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table, and a line that says where they come from."""
    rows = [COLUMNS, tuple("-" * max(3, len(c)) for c in COLUMNS)]
    rows += [_row(figure) for figure in result["figures"]]
    about = result["measured"]
    source = (
        f"Measured {about['date']} on {about['cpus']} CPU cores: Slurm {about['slurm']}, "
        f"Python {about['python']}, torch {about['torch']}, fsdpkit {about['fsdpkit']}, "
        f"torchx {about['torchx']}."
    )
    lines = ["| " + " | ".join(row).rstrip() + " |" for row in rows]
    return "\n".join([*lines, "", source])


def _row(figure: dict[str, Any]) -> tuple[str, ...]:
    theirs = figure["theirs"]
    return (
        figure["what"],
        figure["against"] or "",
        _amount(figure["ours"], figure),
        _amount(theirs, figure) if theirs is not None else "",
        _value(figure["value"], figure["kind"]),
        f"{figure['bound']} {_value(figure['target'], figure['kind'])}",
        "met" if figure["met"] else "**missed**",
    )


def _amount(value: float, figure: dict[str, Any]) -> str:
    if figure["kind"] == "count":
        return f"{value:.0f} of {len(figure['samples']['ours'])}"
    return f"{value:.3f} s" if value < 1 else f"{value:.2f} s"


def _value(value: float, kind: str) -> str:
    if kind == "count":
        return f"{value:.0f}"
    return f"{value:.2f} s" if kind == "seconds" else f"{value:.2f} ×"


def with_table(readme: str, result: dict[str, Any]) -> str:
    """The README's text with the table of this result in its place."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(result)}\n\n{END}{after}"


def main() -> int:
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    README.write_text(with_table(README.read_text(encoding="utf-8"), result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
