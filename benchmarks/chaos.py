"""Random faults on a real Slurm: `python benchmarks/chaos.py --draws 300`, as root, about an hour.

Each draw (tests/faults/chaos.py) is a run of a light trainer on two or three nodes, with one fault
or two in it; clusters side by side take one draw after the other. Writes results/chaos.json and
the table in README.md after each. `--continue` goes on where a call was ended; `--number
N` makes one draw, says all that its run said, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.markdown import markdown  # noqa: E402
from benchmarks.measured import measured, slurm_version  # noqa: E402
from benchmarks.report import all_of, keep  # noqa: E402
from tests.faults.chaos import FAULTS, Outcome, draw, run, undisturbed_of  # noqa: E402
from tests.faults.trial import Bed  # noqa: E402
from tests.slurm_cluster import SlurmCluster  # noqa: E402

RESULTS = HERE / "results" / "chaos.json"


def result_of(outcomes: Sequence[Outcome], slurm: str) -> dict[str, Any]:
    """Everything that the result file holds; of what went wrong, the first line."""
    rows = sorted(outcomes, key=lambda one: one.number)
    figure = all_of(
        "chaos",
        "random draws after which the run stood as if undisturbed, or had a true diagnosis",
        [one.end != "wrong" for one in rows],
        unit="draws",
    )
    return {
        "measured": measured(slurm=slurm),
        "figures": [asdict(figure)],
        "notes": [faults_table(rows), *wrong_ones(rows)],
        "draws": [{**asdict(one), "wrong": one.wrong.partition("\n")[0]} for one in rows],
    }


def faults_table(rows: Iterable[Outcome]) -> str:
    """By fault: how many draws had it, and how they ended."""
    counts: dict[str, dict[str, int]] = {name: {} for name in FAULTS}
    for one in rows:
        for name in {strike.fault for strike in draw(one.number).strikes}:
            counts[name][one.end] = counts[name].get(one.end, 0) + 1
    lines = []
    for name, found in counts.items():
        ends = [found.get(end, 0) for end in ("undisturbed", "told", "wrong")]
        lines.append((name, *map(str, (sum(ends), *ends))))
    columns = ("Fault", "Draws", "As undisturbed", "Ended, reported correctly", "Wrong")
    return markdown(columns, lines)


def wrong_ones(rows: Iterable[Outcome]) -> list[str]:
    wrong = [one for one in rows if one.end == "wrong"]
    return [f"Wrong: {one.what}: {one.wrong.partition(chr(10))[0]}." for one in wrong]


class Pieces:
    """The draws still to be made, and what became of the others."""

    def __init__(self, numbers: Iterable[int], outcomes: Sequence[Outcome], *, keep: bool) -> None:
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in numbers:
            self._todo.put(number)
        self.outcomes, self.slurm = [*outcomes], ""
        self._keep, self._lock = keep, threading.Lock()

    def work(self, cluster: SlurmCluster, directory: Path) -> None:
        """On a cluster of its own, draw by draw until none is left."""
        cluster.up()
        self.slurm = slurm_version(cluster)
        bed = Bed(cluster, directory)
        undisturbed = undisturbed_of(bed)
        while True:
            try:
                one = draw(self._todo.get_nowait())
            except queue.Empty:
                return
            outcome = run(one, bed, undisturbed[one.shape.world])
            self._done(outcome)
            bed.mend()

    def _done(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            shown = f"{outcome.what}: {outcome.end} ({outcome.state}, {outcome.cause})"
            print(f"{shown} {outcome.seconds} s", outcome.wrong, file=sys.stderr, flush=True)
            if self._keep:
                keep(result_of(self.outcomes, self.slurm), RESULTS)


def main() -> int:
    parser = argparse.ArgumentParser(description="Break runs at random and see what is left.")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--clusters", type=int, default=2, help="side by side")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="the ones missing")
    parser.add_argument("--number", type=int, help="this draw alone; write no results")
    parser.add_argument("--dry", action="store_true", help="write no results")
    arguments = parser.parse_args()
    before: list[Outcome] = []
    if arguments.goes_on and RESULTS.exists():
        before = [Outcome(**each) for each in json.loads(RESULTS.read_text("utf-8"))["draws"]]
    done = {one.number for one in before}
    numbers = range(arguments.first, arguments.first + arguments.draws)
    alone = arguments.number is not None
    pieces = Pieces(
        [arguments.number] if alone else [n for n in numbers if n not in done],
        before,
        keep=not alone and not arguments.dry,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clusters go down on the way out
    with tempfile.TemporaryDirectory(prefix="fsdpkit-chaos-") as name, ExitStack() as clusters:
        threads = []
        for number in range(1 if alone else arguments.clusters):
            directory = Path(name) / f"bed-{number}"
            directory.mkdir()
            cluster = SlurmCluster(Path(name) / f"slurm-{number}", kill_wait_s=2)
            clusters.callback(cluster.down)
            work = threading.Thread(target=pieces.work, args=(cluster, directory), daemon=True)
            threads.append(work)
            work.start()
        for thread in threads:
            thread.join()
    return 1 if any(one.end == "wrong" for one in pieces.outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
