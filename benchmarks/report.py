"""Result files, and the tables in README.md that `python benchmarks/report.py` makes of them.

A section of README.md names the files that it is made from, `results/training-*.json` say: one
table a file, by name. A result file is one JSON object:

- `figures`: the rows, each with the fields of `Figure`; a row without `unit` counts seconds.
- `measured`: `date`, `cpus` (a number), `device` if not the CPUs (a name), versions of software.
- `strategies`, if any: rows of one more table, with the keys that `_strategy` reads.
- `notes`, if any: sentences that follow the tables.

A file with a key of `tables.KEYS`, such as `plan_speed`, compares plans with what was measured
(plan.py).
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.markdown import digits, markdown, source  # noqa: E402
from benchmarks.plan_parts import tables  # noqa: E402
from fsdpkit.runs.layout import write_atomically  # noqa: E402

RESULTS = HERE / "results"
README = HERE / "README.md"
_BEGIN = "<!-- made by report.py from {files}: do not edit -->"
END = "<!-- end of what report.py made -->"
_SECTION = re.compile(
    _BEGIN.format(files=r"(?P<files>results/\S+)") + ".*?" + re.escape(END), re.DOTALL
)

COLUMNS = ("What", "Against", "Ours", "Theirs", "Figure", "Target", "")
STRATEGIES = ("Strategy", "Steps/s", "Weights", "Gradients", "Optimizer", "Peak")


@dataclass
class Figure:
    """One row of a table. `kind` says what `value` is: ours/theirs, seconds, or a count.

    `unit` is that of `ours`, `theirs` and the samples: s, MB/s, tokens/s, MiB, or any other word.
    """

    name: str
    what: str
    against: str | None
    kind: Literal["ratio", "seconds", "count"]
    bound: Literal["≤", "≥"]
    target: float
    ours: float
    theirs: float | None
    value: float
    unit: str = "s"
    met: bool = False
    samples: dict[str, list[float]] = field(default_factory=dict)
    of: int | None = None
    """Of a count without samples: how many were tried."""

    def __post_init__(self) -> None:
        self.met = self.value <= self.target if self.bound == "≤" else self.value >= self.target


def all_of(name: str, what: str, well: Sequence[bool], unit: str = "s") -> Figure:
    """How many of some cases went well; the target is all of them."""
    count = float(sum(well))
    return Figure(
        name=name,
        what=what,
        against=None,
        kind="count",
        bound="≥",
        target=len(well),
        ours=count,
        theirs=None,
        value=count,
        unit=unit,
        samples={"ours": [float(one) for one in well]},
    )


def ratio(
    name: str,
    what: str,
    against: str,
    bound: Literal["≤", "≥"],
    target: float,
    samples: tuple[Sequence[float], Sequence[float]],
    unit: str,
) -> Figure:
    """The median of our samples over the median of theirs; `samples` holds both in this order."""
    ours, theirs = (statistics.median(side) for side in samples)
    kept = {"ours": list(samples[0]), "theirs": list(samples[1])}
    value = ours / theirs
    return Figure(
        name, what, against, "ratio", bound, target, ours, theirs, value, unit, samples=kept
    )


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table, and a line that says where they come from."""
    if any(key in result for key in tables.KEYS):
        return tables.table(result)
    parts = [markdown(COLUMNS, map(_row, result["figures"]))]
    if strategies := result.get("strategies"):
        parts.append(markdown(STRATEGIES, map(_strategy, strategies)))
    parts += result.get("notes", [])
    return "\n\n".join([*parts, source(result["measured"])])


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


def _strategy(row: dict[str, Any]) -> tuple[str, ...]:
    held = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "peak_bytes")
    return (
        row["what"],
        f"{row['steps_per_s']:.2f}",
        *(digits(row[key] / 2**20) + " MiB" for key in held),
    )


def _amount(value: float, figure: dict[str, Any]) -> str:
    unit = figure.get("unit", "s")
    if figure["kind"] == "count" and unit == "s":
        return f"{value:.0f} of {figure.get('of') or len(figure['samples']['ours'])}"
    if figure["kind"] == "count":
        return f"{value:.0f} {unit}"
    if unit != "s":
        return f"{digits(value)} {unit}"
    return f"{value:.3f} s" if value < 1 else f"{value:.2f} s"


def _value(value: float, kind: str) -> str:
    if kind == "count":
        return f"{value:.0f}"
    return f"{value:.2f} s" if kind == "seconds" else f"{value:.2f} ×"


def with_all_tables(readme: str, directory: Path = HERE) -> str:
    """The README's text with every section made anew from the files it names, if there are any."""

    def section(match: re.Match[str]) -> str:
        files = match["files"]
        results = [json.loads(p.read_text("utf-8")) for p in sorted(directory.glob(files))]
        tables = [table(result) for result in results] or ["Not measured yet."]
        return "\n\n".join([_BEGIN.format(files=files), *tables, END])

    return _SECTION.sub(section, readme)


def with_load(figures: Sequence[Figure], load: float) -> list[dict[str, Any]]:
    """The figures as a result file holds them, with the machine's load before them."""
    return [{**asdict(figure), "load_before": round(load, 2)} for figure in figures]


def with_earlier_figures(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """What is kept already, with the figures that were measured this time in the place of theirs,
    new ones behind them."""
    if not path.exists():
        return result
    new = {figure["name"]: figure for figure in result["figures"]}
    earlier = json.loads(path.read_text("utf-8"))
    kept = [new.pop(figure["name"], figure) for figure in earlier["figures"]]
    return {**result, "figures": [*kept, *new.values()]}


def finish(result: dict[str, Any], path: Path | None) -> int:
    """Print the table; with a path keep the result there and make README.md anew. Returns the exit
    status: 1 if a target was missed."""
    print(table(result))
    if path is not None:
        keep(result, path)
    return 0 if all(figure["met"] for figure in result["figures"]) else 1


def keep(result: dict[str, Any], path: Path) -> None:
    """Write a result file, whole or not at all, and the tables that are made of it."""
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    write_atomically(README, with_all_tables(README.read_text("utf-8")))


def main() -> int:
    README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
