"""How much of a long run's time is training, at 8 to 1,024 nodes: `python benchmarks/goodput.py`.

Effective training time is the share of wall time that ends in steps which are kept: not the steps
that a failure takes back, not the time until it is noticed and repaired, not what saving costs.
Failure rates are published ones, what a failure costs is measured here where that transfers to a
cluster (results/faults.json, results/checkpoints-cpu-2.json) and assumed where it does not; each
assumption has its source beside it, and a table says what another value would change.

Each size is computed twice, by a formula and by simulating runs failure by failure, and the two
must agree. Writes results/goodput.json and the tables in README.md, in seconds; `--quick`
simulates little and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.fault_parts.costs import Assumptions, Measured, system_of  # noqa: E402
from benchmarks.fault_parts.model import (  # noqa: E402
    Losses,
    System,
    best_interval_s,
    downtime_s,
    goodput,
    losses,
    young_interval_s,
)
from benchmarks.fault_parts.rates import LLAMA3, PUBLISHED  # noqa: E402
from benchmarks.fault_parts.simulation import simulate  # noqa: E402
from benchmarks.gpu_parts.tables import markdown  # noqa: E402
from benchmarks.report import README, Figure, table, with_all_tables  # noqa: E402

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
LARGEST = SIZES[-1]
TARGET = 0.99
DAYS = 54  # as long as the run that the failure rate comes from
# Standard errors that formula and simulation may lie apart: eight sizes all stay within four
# unless one run in two thousand is unlucky, and the seed makes it the same run every time.
AGREEMENT = 4.0

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Size:
    """One row: a run on so many nodes, saved as often as is best."""

    nodes: int
    spares: int
    failures_a_day: float
    interval_s: float
    young_s: float
    formula: float
    simulated: float
    half_width: float  # of the 95 % confidence interval of `simulated`
    worst_of_20: float  # the 5th percentile of runs
    lost: Losses


def look_at(system: System, *, runs: int, seed: int) -> Size:
    """Formula and simulation; RuntimeError if they disagree."""
    interval_s = best_interval_s(system)
    formula = goodput(system, interval_s)
    found = simulate(system, interval_s, days=DAYS, runs=runs, seed=seed)
    if abs(found.mean - formula) > found.half_width(AGREEMENT):
        raise RuntimeError(
            f"{system.nodes} nodes: the formula says {formula:.5f}, the simulation "
            f"{found.mean:.5f} ± {found.half_width():.5f}: one of them is wrong"
        )
    return Size(
        nodes=system.nodes,
        spares=system.spares,
        failures_a_day=system.failures_per_s * 86_400,
        interval_s=interval_s,
        young_s=young_interval_s(system),
        formula=formula,
        simulated=found.mean,
        half_width=found.half_width(),
        worst_of_20=found.percentile(5),
        lost=losses(system, interval_s),
    )


def cases(measured: Measured, given: Assumptions) -> list[tuple[str, Changes, Changes]]:
    """What could be otherwise: its name, other assumptions, other measured times."""
    twice = {name: 2 * getattr(measured, name) for name in ("restart_s", "requeue_s")}
    return [
        ("a hang is noticed after 2 minutes, not 10 (`retry.hang_s`)", {}, {"notice_hang_s": 120}),
        ("no spare nodes: every broken node means a requeue", {"nodes_per_spare": 0}, {}),
        ("a broken device or link means a requeue, too", {"spares_for_devices": 0}, {}),
        ("twice the spare nodes", {"nodes_per_spare": given.nodes_per_spare // 2}, {}),
        ("a requeued job starts at once", {"queue_s": 0}, {}),
        ("a requeued job waits 4 hours", {"queue_s": 4 * 3600}, {}),
        ("restarts and requeues take twice the measured time", {}, twice),
        ("ranks that restart import torch (`launch.warm = \"off\"`)", {"warm_restarts": 0}, {}),
        ("imports take 2 minutes more", {"import_s": given.import_s + 120}, {}),
        ("ten times as long to join", {"join_s_per_rank": 10 * given.join_s_per_rank}, {}),
        ("4 GB of state a rank", {"state_bytes": 4e9}, {}),
        (
            "storage a quarter as fast",
            {
                "storage_write_bytes_per_s": given.storage_write_bytes_per_s / 4,
                "storage_read_bytes_per_s": given.storage_read_bytes_per_s / 4,
            },
            {},
        ),
        ("steps as slow during a save as on two cores", {"slowdown": 0.7}, {}),
        ("shards are copied aside ten times slower", {}, slower(measured, "copy_bytes_per_s", 10)),
        ("ranks write and read ten times slower", {}, slower(measured, "write_bytes_per_s", 10)
         | slower(measured, "read_bytes_per_s", 10)),
    ]  # fmt: skip


def slower(measured: Measured, name: str, times: float) -> dict[str, Any]:
    return {name: getattr(measured, name) / times}


def sensitivity(measured: Measured, given: Assumptions) -> list[dict[str, Any]]:
    """Goodput at the largest size in each case, each with the interval that is best for it."""
    rows = []
    for what, assumed, timed in [("as assumed", {}, {}), *cases(measured, given)]:
        system = system_of(LARGEST, replace(measured, **timed), replace(given, **assumed))
        rows.append(_case(what, system, best_interval_s(system)))
    base = system_of(LARGEST, measured, given)
    for minutes in (10, 30, 60):
        rows.append(_case(f"a checkpoint every {minutes} minutes", base, minutes * 60.0))
    limited = _case("a time limit of 24 hours, then the same wait", base, best_interval_s(base))
    rows.append({**limited, "goodput": within_limits(base, limited["interval_s"], limit_s=86_400)})
    for other in PUBLISHED:
        system = system_of(LARGEST, measured, given, other)
        what = f"failures of {other.name}: {1000 * other.per_node_day:.2f} in 1,000 node-days"
        rows.append(_case(what, system, best_interval_s(system)))
    return rows


def within_limits(system: System, interval_s: float, limit_s: float) -> float:
    """Goodput of a run that Slurm ends every `limit_s`, just saved, and starts again."""
    between_s = system.requeue.away_s + system.requeue.start_s
    return goodput(system, interval_s) * limit_s / (limit_s + between_s)


def _case(what: str, system: System, interval_s: float) -> dict[str, Any]:
    return {"what": what, "interval_s": interval_s, "goodput": goodput(system, interval_s)}


# Tables


def figure(size: Size) -> Figure:
    return Figure(
        "goodput",
        f"effective training time on {size.nodes:,} nodes, simulated",
        "the same time without failures and checkpoints",
        "ratio",
        "≥",
        TARGET,
        100 * size.simulated,
        100.0,
        size.simulated,
        unit="%",
    )


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def table_of_sizes(sizes: Iterable[Size]) -> str:
    columns = (
        *("Nodes", "Spare", "Failures a day", "Save every", "Young", "Formula", "Simulated"),
        *("Worst of 20", "Saving", "Repeated", "Down", f"≥ {percent(TARGET, 0)}"),
    )
    rows = [
        (
            f"{size.nodes:,}",
            str(size.spares),
            f"{size.failures_a_day:.2f}",
            span(size.interval_s),
            span(size.young_s),
            percent(size.formula, 3),
            f"{100 * size.simulated:.3f} ± {100 * size.half_width:.3f} %",
            percent(size.worst_of_20),
            *map(percent, (size.lost.saving, size.lost.repeated, size.lost.down)),
            "met" if size.simulated >= TARGET else "**missed**",
        )
        for size in sizes
    ]
    return markdown(columns, rows)


def table_of_cases(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = (f"On {LARGEST:,} nodes, if", "Save every", "Effective", "Change")
    base = rows[0]["goodput"]
    return markdown(
        columns,
        [
            (
                row["what"],
                span(row["interval_s"]),
                percent(row["goodput"]),
                f"{100 * (row['goodput'] - base):+.2f}" if number else "",
            )
            for number, row in enumerate(rows)
        ],
    )


def table_of_assumptions(given: Assumptions) -> str:
    rows = [
        (f"`{each['name']}`", f"{each['value']:,g} {each['unit']}".strip(), each["source"])
        for each in given.told()
    ]
    return markdown(("Assumed", "Value", "Why"), rows)


def told_about_costs(system: System, measured: Measured) -> str:
    """What one failure costs at this size, and what of that is measured."""
    repairs = {kind.name: kind.repair for kind in system.kinds}
    crash = repairs["crash"]
    said = (
        f"On {system.nodes:,} nodes a save blocks for {system.blocked_s:.2f} s and is safe after "
        f"{system.safe_after_s:.0f} s; a crash is noticed after {crash.away_s:.0f} s, a hang after "
        f"{repairs['hang'].away_s:.0f} s, a lost node after {repairs['node'].away_s:.0f} s; the "
        f"first step follows {crash.start_s:.0f} s later, {repairs['device'].start_s:.0f} s if a "
        f"broken device first fails a restart, and {system.requeue.away_s:.0f} s of waiting later "
        f"with a requeue. On average a failure costs {downtime_s(system):.0f} s, plus the repeated "
        f"steps."
    )
    if measured.missing:
        said += (
            f" Not measured yet, and assumed until then: {', '.join(measured.missing)} of "
            "results/faults.json."
        )
    return said


def told_about_rates(largest: System) -> str:
    idle = largest.spares / (largest.nodes + largest.spares)
    return (
        f"Failure rate of the first table: {LLAMA3.source}; their kinds: its table 5. Standby "
        f"nodes are idle and not counted: at {largest.nodes:,} nodes they are {percent(idle, 1)} "
        "of all."
    )


def measure(runs: int, seed: int = 1) -> dict[str, Any]:
    """Everything that results/goodput.json holds."""
    measured, given = Measured.read(HERE / "results"), Assumptions()
    systems = [system_of(nodes, measured, given) for nodes in SIZES]
    sizes = [look_at(system, runs=runs, seed=seed) for system in systems]
    rows = sensitivity(measured, given)
    return {
        "measured": {
            "date": time.strftime("%Y-%m-%d"),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "figures": [asdict(figure(sizes[-1]))],
        "notes": [
            table_of_sizes(sizes),
            told_about_costs(systems[-1], measured),
            table_of_cases(rows),
            table_of_assumptions(given),
            told_about_rates(systems[-1]),
        ],
        "simulated": {"days": DAYS, "runs": runs, "seed": seed},
        "sizes": [asdict(size) for size in sizes],
        "sensitivity": rows,
        "assumptions": given.told(),
        "inputs": measured.told(),
        "rates": [asdict(rate) for rate in PUBLISHED],
        "systems": [asdict(system) for system in systems],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate the effective training time of runs.")
    parser.add_argument("--quick", action="store_true", help="few runs; write no results")
    arguments = parser.parse_args()
    result = measure(50 if arguments.quick else 2000)
    print(table(result))
    if not arguments.quick:
        path = HERE / "results" / "goodput.json"
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
        README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    return 0 if all(row["met"] for row in result["figures"]) else 1


if __name__ == "__main__":
    sys.exit(main())
