"""What an audit counted as a file for the textfile collector of Prometheus' node exporter.

Valid as OpenMetrics and as Prometheus' older text format, which that collector reads: gauges only,
for they are of a period that moves on, without timestamps of their own. What is not known has no
sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fsdpkit.publishing.audit import FailingNode, RunAudit
from fsdpkit.runs.tally import Row, tally

_MOST_ROWS = 200
"""Of a family, those with the most users first: no single user can crowd others out."""
Sample = tuple[Mapping[str, str | None], float]
"""Labels and value; no two of a family have the same labels, or nothing of the file is read."""
_FIGURES = (
    ("busy_ratio", "Share of the sampled GPU time in which a kernel ran.", "busy_share", 1),
    ("active_ratio", "The same by multiprocessors that worked.", "active_share", 1),
    ("measured_ratio", "Share of the granted time that was sampled.", "measured_share", 1),
    ("energy_joules", "By the GPUs' own counters.", "gpu_kwh", 3.6e6),
    ("queue_wait_seconds", "Median time of attempts in the queue.", "queued_median_s", 1),
    ("queue_wait_most_seconds", "The longest of them.", "queued_most_s", 1),
)


def metrics_text(found: RunAudit, nodes: Sequence[FailingNode]) -> str:
    """The whole file. Labels are partition, gpu, and where it says so one more."""
    lines = []
    for family, help_, samples in _families(found, nodes):
        name = f"fsdpkit_audit_{family}"
        if samples:
            lines += [f"# HELP {name} {help_}", f"# TYPE {name} gauge"]
            lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in samples]
    return "\n".join([*lines, "# EOF", ""])


def _families(
    found: RunAudit, nodes: Sequence[FailingNode]
) -> Iterator[tuple[str, str, Sequence[Sample]]]:
    rows = tally(found.spent, ("partition", "gpu"))
    rows = sorted(rows, key=lambda row: (-row.users, -row.hours))[:_MOST_ROWS]
    yield "made_timestamp_seconds", "When this was counted.", [({}, found.until_s)]
    yield "since_timestamp_seconds", "Since when.", [({}, found.since_s)]
    yield "runs", "Runs that left a record.", [({}, found.runs)]
    yield "runs_without_end", "Of them, those without an end.", [({}, found.without_end)]
    yield "users", "Users with such runs.", [({}, len(found.users))]
    of_gpus = [row for row in rows if row.unit == "GPU-hours"]
    of_nodes = [row for row in rows if row.unit == "node-hours"]
    for unit, some in (("gpu", of_gpus), ("node", of_nodes)):
        what = "GPU-seconds" if unit == "gpu" else "node-seconds of runs without a GPU"
        yield f"{unit}_seconds", f"Granted {what}, by use.", _split(some, "used", "use")
        lost = _split(some, "wasted", "cause")
        yield f"wasted_{unit}_seconds", f"Of the granted {what} those lost, by cause.", lost
    for name, help_, field, size in _FIGURES:
        values = [(_of(row), getattr(row, field)) for row in of_gpus]
        known = [(labels, value * size) for labels, value in values if value is not None]
        yield f"gpu_{name}", help_, known
    ended = [
        ({**_of(row), "unit": row.unit, "cause": cause}, float(count))
        for row in rows
        for cause, count in [*row.ends.items()][:_MOST_ROWS]
    ]
    yield "attempts_ended", "Attempts by how they ended.", ended
    failed = [({"node": one.node}, float(one.failures)) for one in nodes]
    yield "node_failures", "Attempts that the node ended.", failed
    left_out = [({"reason": why}, float(n)) for why, n in found.left_out.items()]
    yield "left_out", "Records and accounts that do not count.", left_out


def _split(rows: Sequence[Row], field: str, label: str) -> list[Sample]:
    return [
        ({**_of(row), label: name}, hours * 3600)
        for row in rows
        for name, hours in getattr(row, field).items()
    ]


def _of(row: Row) -> dict[str, str | None]:
    return {"partition": row.by["partition"], "gpu": row.by["gpu"]}


def _labels(labels: Mapping[str, str | None]) -> str:
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    said = ",".join(f'{name}="{(text or "").translate(escaped)}"' for name, text in labels.items())
    return f"{{{said}}}" if said else ""
