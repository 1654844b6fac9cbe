"""What a run survives and what that costs: `python benchmarks/faults.py`, as root, on real Slurm.

Every fault of tests/faults/matrix.py in every phase is one run of T5 on two nodes of one rank, held
in the phase while it is broken. Measured are the seconds from the fault to the first step of the
ranks that were started again, how many of them passed until it was noticed, and how many steps were
done twice; whether it ended well is judged by Slurm, and by the losses of an undisturbed run.

Writes results/faults.json and the table in README.md, anew after each
case: what a call that is cut short has measured is kept, and `--continue` takes those cases that
have no row. First come the cases that the tests run; `--core` takes no others, `--training` of
these the phase training, and the table says so. `--only WORD` takes the cases with this word in
their name, `--quick` three cases, and both write nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.markdown import markdown, seconds  # noqa: E402
from benchmarks.measured import measured, slurm_version  # noqa: E402
from benchmarks.report import all_of, finish, keep, with_load  # noqa: E402
from fsdpkit.runs.events import read_json_lines  # noqa: E402
from tests.faults.matrix import ALL, CORE, Case  # noqa: E402
from tests.faults.trial import T5, Bed, Trial, TrialError  # noqa: E402
from tests.slurm_cluster import ClusterError, SlurmCluster  # noqa: E402

RESULTS = HERE / "results" / "faults.json"
QUICK = ("warning in training", "rank killed in training", "node lost, one spare in training")
HOW = {
    "restart": "restart in the job",
    "requeue": "requeue",
    "spare": "spare node",
    "undisturbed": "goes on",
}
COLUMNS = ("Fault", "Phase", "Survived", "How", "Lost", "Noticed after", "Steps repeated", "Losses")


@dataclass(frozen=True)
class Row:
    """One run. Times are seconds since the fault; None where there is nothing to measure."""

    fault: str
    phase: str
    how: str
    survived: bool
    exact: bool
    back_s: float | None
    """Until the first step of ranks that were started again."""
    noticed_s: float | None
    """Until the agents had it on record; the rest of `back_s` is repair."""
    repeated: int
    """Steps done twice."""

    @property
    def case(self) -> str:
        return f"{self.fault} in {self.phase}"


def measure(case: Case, bed: Bed, undisturbed: Mapping[int, float]) -> Row:
    """Break one run as the case says, and see what becomes of it; then mend the cluster."""
    try:
        trial = case.strike(bed, T5)
        job = trial.wait_end()
        return row_of(case, trial, (job["JobState"], job["ExitCode"]), undisturbed)
    except (TrialError, ClusterError) as error:
        print(f"  {case}: {error}", file=sys.stderr)
        return Row(case.fault.name, case.phase, case.how, False, False, None, None, 0)
    finally:
        bed.mend()


def row_of(case: Case, trial: Trial, end: tuple[str, str], undisturbed: Mapping[int, float]) -> Row:
    """end: the job's state and exit code as Slurm has them."""
    losses, steps = trial.losses(), trial.steps()
    return Row(
        fault=case.fault.name,
        phase=case.phase,
        how=case.how,
        survived=end == ("COMPLETED", "0:0") and losses.keys() == undisturbed.keys(),
        exact=losses == undisturbed,
        back_s=since_fault(trial, first_step_again_s(trial)),
        noticed_s=since_fault(trial, noticed_s(trial)),
        repeated=len(steps) - len({*steps}),
    )


def since_fault(trial: Trial, time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s - trial.broken_s, 2)


def noticed_s(trial: Trial) -> float | None:
    """When the agents first had on record that a launch is over, or is to stop (Unix time)."""
    events = ("trouble", "stop-requested")
    times = [
        line["time_s"]
        for attempt in trial.task.attempts()
        for line in trial.orders(attempt)
        if line["event"] in events and line["time_s"] >= trial.broken_s
    ]
    return min(times, default=None)


def first_step_again_s(trial: Trial) -> float | None:
    """When the first step was logged by ranks that were started after the fault (Unix time)."""
    starts = [
        line["time_s"]
        for attempt in trial.attempts()
        for events in attempt.dir.glob("node-*.events.jsonl")
        for line in read_json_lines(events)
        if line["event"] == "ranks-starting" and line["time_s"] >= trial.broken_s
    ]
    if not starts:
        return None
    times = [line["time_s"] for line in trial.logged() if line["time_s"] > min(starts)]
    return min(times, default=None)


def faults_table(rows: Iterable[Row]) -> str:
    """Every run; what did not end well stands out."""

    def told(value: float | None) -> str:
        return "" if value is None else seconds(value)

    return markdown(
        COLUMNS,
        [
            (
                row.fault,
                row.phase,
                "yes" if row.survived else "**no**",
                HOW[row.how],
                told(row.back_s),
                told(row.noticed_s),
                str(row.repeated),
                "the same" if row.exact else "**others**",
            )
            for row in rows
        ],
    )


def left_out(rows: Sequence[Row], calls: int) -> str:
    """How many combinations of fault and phase were not run; in how many calls the others were."""
    missing = len(ALL) - len({row.case for row in rows})
    told = f"Of {len(ALL)} combinations of fault and phase {missing} were not run here."
    return told if calls == 1 else f"{told} The rows come from {calls} successive calls."


def result_of(rows: Sequence[Row], slurm: str, load: float, calls: int = 1) -> dict[str, Any]:
    """Everything that the result file holds."""
    figure = all_of(
        "survived",
        "runs that reach their last step with the losses of an undisturbed run",
        [row.survived and row.exact for row in rows],
    )
    return {
        "measured": measured("torch", slurm=slurm),
        "figures": with_load([figure], load),
        "notes": [faults_table(rows), left_out(rows, calls)],
        "calls": calls,
        "faults": [asdict(row) for row in rows],
    }


def run(cases: Sequence[Case], before: Sequence[Row], calls: int) -> Iterator[dict[str, Any]]:
    """Bring a cluster up and go through the cases; after each, the result so far.

    before: the rows of the calls until now, of which this is one.
    """
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="fsdpkit-bench-") as name,
        SlurmCluster(Path(name) / "slurm") as cluster,
    ):
        slurm = slurm_version(cluster)
        (Path(name) / "bed").mkdir()
        bed = Bed(cluster, Path(name) / "bed")
        undisturbed = bed.undisturbed(T5)
        rows = [*before]
        for case in cases:
            row = measure(case, bed, undisturbed)
            well = "" if row.survived and row.exact else ", BAD"
            print(f"  {case}: {row.back_s} s, {row.repeated} repeated{well}", file=sys.stderr)
            rows.append(row)
            yield result_of(rows, slurm, load, calls)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what faults cost a run.")
    parser.add_argument("--core", action="store_true", help="the cases that the tests run")
    parser.add_argument("--training", action="store_true", help="of these, the phase training")
    parser.add_argument(
        "--continue", dest="goes_on", action="store_true", help="the cases that have no row"
    )
    parser.add_argument("--quick", action="store_true", help="three cases; write no results")
    parser.add_argument("--only", metavar="WORD", help="cases with this in their name; likewise")
    arguments = parser.parse_args()
    earlier = json.loads(RESULTS.read_text("utf-8")) if arguments.goes_on else {}
    rows = [Row(**each) for each in earlier.get("faults", [])]
    calls = earlier.get("calls", 1) + 1 if earlier else 1
    wanted = QUICK if arguments.quick else None
    chosen = CORE if arguments.core or arguments.training else ALL
    cases = [
        case
        for case in sorted(chosen, key=lambda case: not case.in_core)
        if not (arguments.training and case.phase != "training")
        and (wanted is None or str(case) in wanted)
        and (arguments.only or "") in str(case)
        and str(case) not in {row.case for row in rows}
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down on the way out
    result: dict[str, Any] = {"figures": []}
    for result in run(cases, rows, calls):
        if not (arguments.quick or arguments.only):
            keep(result, RESULTS)
    return finish(result, None)


if __name__ == "__main__":
    sys.exit(main())
