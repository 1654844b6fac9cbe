"""Accounts: how what an attempt was granted was used, from what the run's directory has.

Granted is nodes × the time from the start of the batch shell to its end. Every moment of it is
counted once, separately for nodes that trained and standby nodes:

    |-- start-up --|-- training … checkpoints, pauses … --|-- lost --|-- start-up --|-- training …
    attempt      first step                           last line   launch again

The batch shell keeps the accounts of its training (`keep`): also those of earlier attempts, for
only later ones show which steps were repeated. Pure Python.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from fsdpkit.bounded import NODES, NODES_READ, NOTE_BYTES
from fsdpkit.config.units import parse_time_s
from fsdpkit.runs.account import USES, Account, Measured, SeenJobs, Use
from fsdpkit.runs.bounds import attempt_bounds
from fsdpkit.runs.history import Attempt, History, Launch, history_of
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.reading import record_in, table_in
from fsdpkit.runs.record import JobRecord, RunRecord, jobs_of_attempts
from fsdpkit.runs.samples import GpuSums, Sample, newest_sample
from fsdpkit.runs.saved_steps import newest_saved
from fsdpkit.runs.step_lines import StepLines, step_lines
from fsdpkit.runs.tally import wrong_in

_UNSEEN = SeenJobs()


def accounts_of(
    history: History,
    record: RunRecord,
    seen: SeenJobs = _UNSEEN,
    now_s: float | None = None,
) -> list[Account]:
    """Of all attempts of a training of which anything is on record."""
    made_s = time.time() if now_s is None else now_s
    lines = step_lines(history.paths.metrics)
    lines.unsaved_after = _held_until(history, lines, seen)
    bounds = attempt_bounds(history, seen.running, lines.time_s)
    numbers = [attempt.number for attempt in history.attempts]
    jobs = jobs_of_attempts(record.jobs, numbers, history.array_task)
    found: list[Account] = []
    before: tuple[str | None, float] = (None, 0.0)
    for attempt, (begin_s, end_s) in zip(history.attempts, bounds, strict=True):
        if begin_s is None:
            continue
        samples = _AttemptSamples(attempt)
        job = jobs.get(attempt.number) or record.job
        resources = _resources(history.run, record, job)
        at_once = max((len(launch.nodes) for launch in attempt.launches), default=0)
        # Agents on standby nodes write, too.
        nodes = min(NODES, max(job.nodes, at_once, len(attempt.nodes)))
        gpus = _gpus(job, resources)
        # This machine has the GPUs that were sampled, whatever was asked for.
        gpus = min(gpus, samples.most_gpus) if record.kind == "local" else gpus
        until_s = end_s if end_s is not None else max(made_s, begin_s)
        goes_on = attempt is history.attempts[-1] and end_s is None
        painter = _Painter(nodes, max(0.0, begin_s), max(0.0, begin_s, until_s), goes_on, samples)
        painter.attempt(attempt, lines)
        lasted_s = painter.end_s - painter.began_s
        if record.holds:  # the runs on it have accounts of their own
            painter.used_s = defaultdict(float, {"idle": nodes * lasted_s})
        name, measured = samples.measured(nodes, gpus, lasted_s)
        since_s = before[1] if before[0] == job.job_id else job.submitted_s
        before = (job.job_id, until_s)
        account = Account(
            attempt=attempt.number,
            began_s=painter.began_s,
            ended_s=painter.end_s,
            nodes=nodes,
            gpus=gpus,
            used_s={use: painter.used_s[use] for use in USES if painter.used_s[use] > 0},
            gpu=name,
            measured=measured,
            asked_s=_asked_s(resources),
            queued_s=None if since_s is None or job.here else max(0.0, begin_s - since_s),
            tflops_per_gpu=painter.mean("tflops"),
            mfu=painter.mean("mfu"),
        )
        found.append(account)
    return found


def read_or_make(
    paths: RunPaths,
    record: RunRecord,
    task: int | None = None,
    seen: SeenJobs = _UNSEEN,
    now_s: float | None = None,
    history: History | None = None,
) -> list[Account]:
    """The accounts as the last batch shell left them, else made."""
    if kept := kept_accounts(paths, task):
        return kept
    return accounts_of(history or history_of(paths, record, task), record, seen, now_s)


def kept_accounts(paths: RunPaths, task: int | None = None) -> list[Account]:
    """Those that the last batch shell left; none if an attempt has none that can be believed."""
    directory = paths.task(task)
    found = []
    for number in directory.attempts():
        one = record_in(directory.attempt(number).account, Account, NOTE_BYTES)
        if one is None or one.attempt != number or wrong_in(one, time.time()):
            return []
        found.append(one)
    return found


def keep(history: History, record: RunRecord) -> list[Account]:
    """Make the accounts of a training whose newest attempt has just ended. Raises OSError."""
    found = accounts_of(history, record)
    for one in found:
        path = history.paths.attempt(one.attempt).account
        if record_in(path, Account, NOTE_BYTES) != one:
            write_atomically(path, msgspec.json.format(msgspec.json.encode(one)).decode() + "\n")
    return found


def _held_until(history: History, lines: StepLines, seen: SeenJobs) -> float:
    """After which step the work of a training that stands still, and is not done, is lost."""
    if not history.attempts:
        return float("inf")
    last = history.attempts[-1]
    done = last.ending is not None and last.ending.cause == "done"
    runs = last.ending is None and last.job_id in seen.running
    if done or runs or last.job_id in seen.succeeded:
        return float("inf")
    newest = newest_saved(history.paths)
    told = (a.ending.step for a in history.attempts if a.ending and a.ending.step is not None)
    began_s = (launch.began_s for attempt in history.attempts for launch in attempt.launches)
    return lines.saved_step(newest[0] if newest else None, told, began_s)


def _resources(run: Any, record: RunRecord, job: JobRecord) -> Mapping[str, Any]:
    path = RunPaths(run).job
    if job.job_id is not None and job.job_id != record.job_id:
        path = path.with_name(f"{path.stem}.{job.job_id}{path.suffix}")
    found = table_in(path).get("resources")
    return found if isinstance(found, dict) else {}


def _gpus(job: JobRecord, resources: Mapping[str, Any]) -> int:
    """Of each node, as asked for; one for each rank where that cannot be read."""
    own = resources.get("gpus")
    return own if isinstance(own, int) and 0 <= own <= 1024 else min(job.ranks_per_node, 1024)


def _asked_s(resources: Mapping[str, Any]) -> float | None:
    with contextlib.suppress(ValueError):
        return float(parse_time_s(str(resources.get("time"))))
    return None


class _Painter:
    """Node-seconds of one attempt, painted from its beginning to its end without a gap."""

    def __init__(
        self, nodes: int, began_s: float, end_s: float, goes_on: bool, samples: _AttemptSamples
    ) -> None:
        self.nodes, self.began_s, self.end_s, self.goes_on = nodes, began_s, end_s, goes_on
        self._samples = samples
        self.cursor_s = began_s
        self.used_s: dict[Use, float] = defaultdict(float)
        self._means: dict[str, tuple[float, float]] = {}

    def mean(self, name: str) -> float | None:
        """Of a column, over the seconds of the steps that count."""
        total, seconds = self._means.get(name, (0.0, 0.0))
        return total / seconds if seconds > 0 else None

    def _until(self, time_s: float) -> float:
        """Seconds from what is painted already to a moment, none of them outside the attempt."""
        return max(0.0, min(time_s, self.end_s) - self.cursor_s)

    def _paint(self, time_s: float, use: Use, nodes: int) -> None:
        seconds = self._until(time_s)
        self.used_s[use] += seconds * nodes
        self.used_s["idle"] += seconds * (self.nodes - nodes)
        self.cursor_s += seconds

    def attempt(self, attempt: Attempt, lines: StepLines) -> None:
        if (stage := attempt.stage) is not None and (attempt.launches or self.goes_on):
            first_s = attempt.launches[0].began_s if attempt.launches else self.end_s
            staged_s = first_s if stage.ended_s is None else min(first_s, stage.ended_s)
            self._paint(min(stage.began_s, first_s), "startup", self.nodes)
            self._paint(staged_s, "staging", self.nodes)
        unfinished = attempt.verdict is None and attempt.ending is None and not self.goes_on
        # The order to relaunch includes the pause before it, which counts as the failure's.
        begins_s = [launch.began_s for launch in attempt.launches]
        stops_s = [
            min(self.end_s, later_s if launch.trouble_s is None else launch.trouble_s)
            for launch, later_s in zip(attempt.launches, [*begins_s[1:], self.end_s], strict=False)
        ]
        launched_s = sum(stops_s) - sum(begins_s)
        for place, launch in enumerate(attempt.launches):
            last, stop_s = place == len(attempt.launches) - 1, stops_s[place]
            self._paint(launch.began_s, "lost" if place else "startup", self.nodes)
            share = (stop_s - launch.began_s) / launched_s if launched_s > 0 else 0.0
            failed = launch.trouble_s is not None and launch.cause != "stopped"
            failed_so = failed or (last and unfinished)
            self._launch(launch, stop_s, min(1.0, max(0.0, share)), lines, failed_so)
            ends_well = last and not failed
            self._paint(
                stop_s if not last else self.end_s, "pauses" if ends_well else "lost", self.nodes
            )
        if not attempt.launches:
            self._paint(self.end_s, "startup" if self.goes_on else "lost", self.nodes)

    def _launch(
        self, launch: Launch, stop_s: float, share: float, lines: StepLines, failed: bool
    ) -> None:
        """share: of the time of all launches, for what is only known of them together."""
        nodes = min(len(launch.nodes), self.nodes)
        inside = lines.between(launch.began_s, stop_s)
        if not inside:
            self._without_steps(launch, nodes, stop_s, share, failed)
            return
        first = inside[0]
        steps = lines.steps_of_first(first, launch.began_s)
        first_s = lines.step_time_s[first] * steps
        self._paint(max(launch.began_s, lines.time_s[first] - first_s), "startup", nodes)
        began_s, trained_s = self.cursor_s, self.used_s["training"]
        rest_s = self._steps(inside, steps, lines, nodes)
        if not any(lines.loading_s[place] >= 0 for place in inside):
            loading_s = self._samples.loading_s(launch.nodes) * share
            self._from("training", "loading", min(loading_s, self.used_s["training"] - trained_s))
        painted_s, tail_s = self.cursor_s - began_s, self._until(stop_s)
        if failed:
            self.used_s["lost"] += tail_s * nodes
        elif self.goes_on and stop_s == self.end_s:
            self.used_s["open"] += tail_s * nodes
        else:
            rest_s += tail_s
        saving_s = min(rest_s, lines.blocked_between_s(began_s, stop_s))
        self.used_s["checkpoints"] += saving_s * nodes
        self.used_s["pauses"] += (rest_s - saving_s) * nodes
        self.used_s["idle"] += (painted_s + tail_s) * (self.nodes - nodes)
        self.cursor_s += tail_s

    def _from(self, use: Use, other: Use, node_s: float) -> None:
        self.used_s[use] -= node_s
        self.used_s[other] += node_s

    def _without_steps(
        self, launch: Launch, nodes: int, stop_s: float, share: float, failed: bool
    ) -> None:
        """A launch in which no step was logged: so far, or by such a program."""
        left_s = self._until(stop_s) * nodes
        idle_s = self._samples.idle_s(launch.nodes, self.cursor_s)
        starting = self.goes_on and (idle_s is None or idle_s > left_s / 2)
        use: Use = "lost" if failed else "startup" if starting else "unknown"
        self._paint(stop_s, use, nodes)
        if use == "unknown":
            loading_s = min(left_s, self._samples.loading_s(launch.nodes) * share)
            self._from("unknown", "loading", loading_s)
            unused_s = min(left_s, idle_s or 0.0) - loading_s
            self._from("unknown", "unused", max(0.0, unused_s))

    def _steps(self, inside: range, first: float, lines: StepLines, nodes: int) -> float:
        """Paint up to the last line, of whose lines the first stands for so many steps; what is
        left between the steps, seconds."""
        rest_s, before = 0.0, lines.step[inside[0]]
        for place in inside:
            elapsed_s, step = self._until(lines.time_s[place]), lines.step[place]
            steps, before = max(0.0, step - before), step
            trained_s = min(elapsed_s, lines.step_time_s[place] * steps)
            if place == inside[0]:
                trained_s, steps = elapsed_s, first
            self._count(place, lines, trained_s, steps, nodes)
            rest_s += elapsed_s - trained_s
            self.cursor_s += elapsed_s
        return rest_s

    def _count(
        self, place: int, lines: StepLines, trained_s: float, steps: float, nodes: int
    ) -> None:
        if lines.again[place] or lines.lost(place):
            self.used_s["repeated" if lines.again[place] else "lost"] += trained_s * nodes
            return
        loading_s = min(trained_s, max(0.0, lines.loading_s[place]))
        waiting_s = min(trained_s - loading_s, max(0.0, lines.waiting_s[place]) * steps)
        self.used_s["loading"] += loading_s * nodes
        self.used_s["waiting"] += waiting_s * nodes
        self.used_s["training"] += (trained_s - loading_s - waiting_s) * nodes
        for name, value in (("tflops", lines.tflops[place]), ("mfu", lines.mfu[place])):
            if value > 0:
                total, seconds = self._means.get(name, (0.0, 0.0))
                self._means[name] = (total + value * trained_s, seconds + trained_s)


class _AttemptSamples:
    """Of all nodes of an attempt, by name; of a node that has not told its own, by its file's.
    The newest line has the sums since its sampler began. Nothing is believed beyond what an attempt
    can have used."""

    def __init__(self, attempt: Attempt) -> None:
        self.newest: dict[str, Sample] = {}
        for path, node in islice(attempt.sampled(), NODES_READ):
            with contextlib.suppress(OSError):
                if (found := newest_sample(path)) is not None:
                    self.newest[(node and node.name) or path.name] = found

    def loading_s(self, names: Iterable[str]) -> float:
        """Seconds for which these nodes' first ranks have waited for data in all launches together;
        0 where no node tells."""
        sums = [self.newest[name].sums for name in names if name in self.newest]
        return sum(one.loading_s or 0.0 for one in sums if one is not None)

    @property
    def most_gpus(self) -> int:
        """Of a node."""
        return max((len(one.sums.gpus) for one in self.newest.values() if one.sums), default=0)

    def idle_s(self, names: Iterable[str], since_s: float) -> float | None:
        """Node-seconds of these nodes in which no kernel ran, by the mean of a node's GPUs: at
        least so many were after `since_s`. None: no node has GPUs that were sampled."""
        found = []
        for name in names:
            sums = self.newest[name].sums if name in self.newest else None
            if sums is not None and sums.gpus:
                idle_s = sum(max(0.0, gpu.observed_s - (gpu.busy_s or 0.0)) for gpu in sums.gpus)
                before_s = max(0.0, since_s - sums.since_s)
                found.append(max(0.0, idle_s / len(sums.gpus) - before_s))
        return sum(found) if found else None

    def measured(
        self, nodes: int, gpus: int, lasted_s: float
    ) -> tuple[str | None, Measured | None]:
        """The GPU's name, and what was measured of an attempt of so many nodes with so many GPUs
        each. GPUs beyond those are not counted, nor seconds beyond what it lasted."""
        sums = [one.sums for one in self.newest.values() if one.sums is not None][:nodes]
        if not sums:
            return None, None
        of_gpus = [gpu for one in sums for gpu in _busiest(one.gpus, gpus)]
        seen_s = [min(lasted_s, gpu.observed_s) for gpu in of_gpus]
        pairs = list(zip(of_gpus, seen_s, strict=True))
        fullest = max(of_gpus, key=lambda gpu: gpu.memory_peak_bytes or 0, default=GpuSums())
        host = max(sums, key=lambda one: one.memory_peak_bytes or 0)
        return next((gpu.name for gpu in of_gpus if gpu.name), None), Measured(
            gpu_s=sum(seen_s, 0.0),
            busy_s=_whole(gpu.busy_s and min(gpu.busy_s, seen) for gpu, seen in pairs),
            active_s=_whole(gpu.active_s and min(gpu.active_s, seen) for gpu, seen in pairs),
            energy_j=_whole(gpu.energy_j for gpu in of_gpus),
            host_energy_j=_whole(one.host_energy_j for one in sums),
            gpu_memory_bytes=fullest.memory_peak_bytes,
            gpu_memory_total_bytes=fullest.memory_total_bytes,
            memory_bytes=host.memory_peak_bytes,
            memory_total_bytes=host.memory_total_bytes,
            cpu_s=_whole(one.cpu_s for one in sums),
            core_s=_whole(one.cores and one.cores * min(lasted_s, one.observed_s) for one in sums),
            nodes=len(sums),
        )


def _busiest(gpus: Iterable[GpuSums], most: int) -> list[GpuSums]:
    return sorted(gpus, key=lambda gpu: gpu.busy_s or 0.0, reverse=True)[:most]


def _whole(values: Iterable[float | None]) -> float | None:
    """The sum, if each is known and there is one."""
    told = list(values)
    known = [value for value in told if value is not None]
    return sum(known) if known and len(known) == len(told) else None
