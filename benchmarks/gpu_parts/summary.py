"""From rows to a result file: figures with their targets, tables, and what was not measured.

Pure: what is not among the rows is left out or listed as missing, never made up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import checkpoints
from benchmarks.gpu_parts.rows import ABOUT
from benchmarks.markdown import digits, gib, markdown, seconds
from benchmarks.report import Figure, all_of, ratio

Row = Mapping[str, Any]
Rows = Sequence[Row]
Columns = Mapping[str, Callable[[Any], str]]

# NVIDIA's figure is that of its T5X README; 40 % of bf16 peak is that of an H100's or H200's 989.4.
PUBLISHED = (
    ("NVIDIA T5X in FP8, one of 64 H100 (published)", 174.1),
    ("40 % of an H100's bf16 peak", 263.0),
    ("the target after it", 292.0),
)
PEERS = (
    # ours, the peer, how much faster at least
    ("sdpa, uncompiled", "Hugging Face sdpa", 1.0),
    ("sdpa, uncompiled", "Hugging Face eager", 2.0),
    ("flex, compiled, more rows", "Hugging Face sdpa, compiled", 1.3),
)
NEAR, NEAR_COMPILED = 0.01, 0.06
"""How far a planned peak may be from the measured one; of compiled blocks it may only be above."""


def result_of(rows: Rows, before: Sequence[str] = ()) -> dict[str, Any]:
    """What results/gpu-<machine>.json holds; every row is in it. Of the notes before, tables remain
    that are of parts which this program no longer has."""
    calls = [row for row in rows if row["name"] == ABOUT]
    on_gpu = [row for row in calls if row["device"] != "CPU"] or calls
    about = on_gpu[-1]
    measured = {"date": about["date"], "cpus": os.cpu_count(), "device": about["device"]}
    made = [*filter(None, tables(rows))]
    headings = {_heading(table) for table in made}
    kept = [note for note in before if note[:1] == "|" and _heading(note) not in headings]
    return {
        "measured": {**measured, **about["versions"]},
        "figures": [asdict(figure) for figure in figures(rows)],
        "notes": [*made, *kept, of_calls(on_gpu), missing(rows)],
        "rows": list(rows),
    }


def _heading(table: str) -> str:
    return table.split("|")[1].strip()


def of_part(rows: Rows, part: str) -> list[Row]:
    """Its rows that were measured, each with its plan, if there is one, as `plan`."""
    measured = [row for row in rows if row["status"] == "measured" and row["name"] != ABOUT]
    plans = {row["name"]: row for row in measured if row["part"] == "plans"}
    return [{**row, "plan": plans.get(row["name"])} for row in measured if row["part"] == part]


def figures(rows: Rows) -> list[Figure]:
    found = [*_speeds(rows), *_plans(rows)]
    for row in of_part(rows, "trainer"):
        if row.get("expected_per_s"):
            against = "the part step at the same settings"
            samples = [row["sequences_per_s"]], [row["expected_per_s"]]
            what = "fsdp_t5.py as torchrun starts it"
            found.append(ratio("trainer", what, against, "≥", 0.97, samples, "sequences/s"))
    held = [bool(row["passed"]) for row in of_part(rows, "trainer")]
    if held:
        found.append(all_of("compiled", "runs of fsdp_t5.py with all blocks compiled", held))
    worth = [bool(row["passed"]) for row in of_part(rows, "worth") if row.get("passed") is not None]
    if worth:
        found.append(all_of("worth", "phases whose account by samples is right", worth))
    for row in of_part(rows, "saves"):
        found += checkpoints.figures(row["samples"])
    return found


def _speeds(rows: Rows) -> list[Figure]:
    """Our fastest beside what was published, and like beside like of the peers'."""
    ours, peers = of_part(rows, "step"), of_part(rows, "peers")
    pairs = [(_fastest(ours), words, 1.0, [rate]) for words, rate in PUBLISHED]
    for name, peer, target in PEERS:
        theirs = _fastest(peers, peer)
        if theirs:
            against = f"{peer}, Accelerate FSDP2, batch {theirs['rows']}"
            pairs.append((_fastest(ours, name), against, target, theirs["samples"]))
    return [
        ratio(
            f"speed-{against}".lower().replace(" ", "-"),
            f"T5 v1.1-large, 512/128, bf16: {best['name']}, batch {best['rows']}",
            against,
            "≥",
            target,
            (best["samples"], samples),
            "sequences/s",
        )
        for best, against, target, samples in pairs
        if best
    ]


def _fastest(rows: Rows, name: str | None = None) -> Row | None:
    named = [row for row in rows if name in (None, row["name"])]
    return max(named, key=lambda row: float(row["sequences_per_s"]), default=None)


def _plans(rows: Rows) -> list[Figure]:
    planned = [
        r
        for part in ("memory", "step")
        for r in of_part(rows, part)
        if r["plan"] and r["peak_bytes"]
    ]
    timed = with_times(rows)
    words = "peaks of a step that were planned within 1 %, compiled ones at most 6 % above"
    checks = (
        all_of("plan-memory", words, [is_near(row) for row in planned]),
        all_of("plan-speed", "times of a step in the planned range", list(map(in_range, timed))),
    )
    return [figure for figure in checks if figure.target]


def with_times(rows: Rows) -> list[Row]:
    """Steps of which the plan says how long they take."""
    steps = [*of_part(rows, "step"), *of_part(rows, "memory")]
    return [row for row in steps if row["plan"] and row["plan"]["step_s"]]


def is_near(row: Row) -> bool:
    """Whether the planned peak is as near as it is to be."""
    error = row["plan"]["allocated_bytes"] / row["peak_bytes"] - 1
    compiled = "compile=true" in row["words"]
    return bool(0 <= error <= NEAR_COMPILED if compiled else abs(error) <= NEAR)


def in_range(row: Row) -> bool:
    """Whether the step took as long as planned, within the plan's range."""
    return bool(row["plan"]["step_s"]["low"] <= step_s(row) <= row["plan"]["step_s"]["high"])


def step_s(row: Row) -> float:
    return float(row["rows"] / row["sequences_per_s"])


def _ms(value: float) -> str:
    return f"{1e3 * value:.1f} ms"


def _case(row: Row) -> str:
    return f"{row['name']}, {row['rows']} rows"


def _bytes(of_plan: str, of_row: str) -> Callable[[Row], str]:
    """Planned bytes, measured ones, and how far the plan is off."""

    def cell(row: Row) -> str:
        if not row.get(of_row):
            return ""
        if row["plan"] is None:
            return gib(row[of_row])
        planned, measured = row["plan"][of_plan], row[of_row]
        error = 100 * (planned / measured - 1)
        return f"{gib(planned)} of {gib(measured)}, {error:+.2f} %"

    return cell


def _range(row: Row) -> str:
    low, high = row["plan"]["step_s"]["low"], row["plan"]["step_s"]["high"]
    return f"{low:.3f} to {high:.3f} s"


CALL: Columns = {"Call": lambda row: str(row["call"])}
SPEED: Columns = {
    "Sequences/s": lambda row: digits(row["sequences_per_s"]),
    "MFU": lambda row: f"{100 * row['mfu']:.1f} %" if row["mfu"] else "",
    "Peak": lambda row: gib(row["peak_bytes"]) if row["peak_bytes"] else "",
    "Ready after": lambda row: seconds(row["ready_s"]),
    **CALL,
}
MEMORY: Columns = {
    "Peak of a step": _case,
    "Allocated, planned of measured": _bytes("allocated_bytes", "peak_bytes"),
    "Reserved, planned of measured": _bytes("reserved_bytes", "reserved_bytes"),
    **CALL,
}
PLANNED: Columns = {
    "Time of a step": _case,
    "Planned": lambda row: f"{row['plan']['step_s']['middle']:.3f} s",
    "Range": _range,
    "Measured": lambda row: f"{step_s(row):.3f} s",
    "": lambda row: "in range" if in_range(row) else "**not in range**",
    **CALL,
}


def _of(*path: str, unit: str = "s") -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value: Any = row
        for name in path:
            value = value.get(name)
        return "" if value is None else f"{digits(value)} {unit}"

    return cell


WORTH: Columns = {
    "Account of a phase": lambda row: row["name"],
    "Took": _of("phase_s"),
    "Busy": _of("gpu", "busy_s"),
    "by events": _of("by_hand", "busy_s"),
    "Active": _of("gpu", "active_s"),
    "Idle": _of("gpu", "idle_s"),
    "Loading": _of("loading_s"),
    "asked for": _of("by_hand", "loading_s"),
    "Energy": _of("gpu", "energy_j", unit="J"),
    "by power": _of("by_hand", "joules", unit="J"),
    "": lambda row: {True: "agree", False: "**differ**"}.get(row["passed"], ""),
    **CALL,
}
TRAINER: Columns = {
    "fsdp_t5.py as torchrun starts it": lambda row: row["name"],
    "Sequences/s": lambda row: digits(rate) if (rate := row.get("sequences_per_s")) else "",
    "Compiled blocks": lambda row: f"{row['compiled_blocks']} of {row['blocks']}",
    **CALL,
}
COST: Columns = {
    "A sample, processor time": lambda row: row["name"],
    "Without costly readings": lambda row: _ms(row["sample_s"]),
    "With all": lambda row: _ms(row["whole_s"]),
    **CALL,
}


def tables(rows: Rows) -> list[str | None]:
    step, base = of_part(rows, "step"), of_part(rows, "memory")
    return [
        listing(step, {"T5 v1.1-large": _case, **SPEED}),
        phases(step),
        listing([row for row in (*base, *step) if row["peak_bytes"]], MEMORY),
        listing(with_times(rows), PLANNED),
        listing(of_part(rows, "trainer"), TRAINER),
        listing(of_part(rows, "peers"), {"Peer, Accelerate FSDP2": _case, **SPEED}),
        *(checkpoints.costs([row["samples"]]) for row in of_part(rows, "saves")),
        listing([row for row in of_part(rows, "worth") if "by_hand" in row], WORTH),
        listing([row for row in of_part(rows, "worth") if "whole_s" in row], COST),
    ]


def listing(rows: Rows, columns: Columns) -> str | None:
    cells = [tuple(cell(row) for cell in columns.values()) for row in rows]
    return markdown(tuple(columns), cells) if cells else None


def phases(rows: Rows) -> str | None:
    """Of each step twice: the host while the GPU runs behind it, and with a wait each phase."""
    shown, columns = [], ["Phases of a step"]
    for row in rows:
        for key, words in (("host_s", "host alone"), ("waited_s", "waiting for the GPU")):
            if spent := row.get(key):
                shown.append(
                    (f"{_case(row)}: {words}", *map(_ms, spent.values()), str(row["call"]))
                )
                columns = ["Phases of a step", *(name.capitalize() for name in spent), "Call"]
    return markdown(columns, shown) if shown else None


def of_calls(calls: Rows) -> str:
    """On what each call was measured, and what else is to be known of it."""
    return "\n".join(
        f"- Call {row['call']}: {row['device']}, {row['date']}, commit "
        f"{str(row['commit'])[:10]}{''.join(f'; {each}' for each in row.get('remarks', ()))}."
        for row in calls
    )


def missing(rows: Rows) -> str:
    """What is not in the tables, with its reason in the last call that tried."""
    known = {(row["part"], row["name"]) for row in rows if row["status"] in ("measured", "done")}
    why = {
        (row["part"], row["name"]): f"{row['status']}, {row['why']}"
        for row in rows
        if row["status"] in ("failed", "skipped") and (row["part"], row["name"]) not in known
    }
    lines = [f"- {part}, {name}: {reason}" for (part, name), reason in why.items()]
    return "\n".join(["Not measured:", "", *lines]) if lines else "Every row was measured."
