"""What finished runs and `fsdpkit check --nodes` have measured, one small file each, kept apart.

`fsdpkit plan` looks at the newest runs of the directory of runs and keeps what each one says beside
the remembered plans, so that it is still known when the run has been pruned. Only runs and files of
this account are read, none is unpickled, and one that is not what it should be is as good as none.
Which of them a plan goes by is decided in `speed_learned.py`.
"""

from __future__ import annotations

import os
import stat
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.key_changes import without_unknown
from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs import node_report
from fsdpkit.runs.caches import cache, cache_directory, cached
from fsdpkit.runs.history import Attempt, history_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.predicted import Line, Positive, predicted_of
from fsdpkit.runs.reading import open_regular, parsed, read_bytes
from fsdpkit.runs.record import Count, RunId, RunRecord, Time, load
from fsdpkit.runs.store import all_runs
from fsdpkit.training.offer import TRAINER

MOST_RUNS = 60
"""Of the newest runs that are looked at each time."""
_MOST_KEPT = 400
_TAIL_BYTES = 4 << 20
"""Of metrics.jsonl: ten thousand lines and more."""
_FEWEST_LINES = 3
_WELL = ("done", "stopped")
T5_TRAINER = "fsdp_t5.py"


class MeasuredSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """What one run says of a machine's speed; of a preflight the last three figures."""

    schema: Literal["fsdpkit.measured/1"] = "fsdpkit.measured/1"
    run: RunId
    made_s: Time
    """When it was submitted, Unix time."""
    site: Line
    gpu: Line
    """As the driver calls it, or the site's profile."""
    torch: Line
    nodes: Count
    gpus: Count
    """Per node."""
    training: TrainingSettings | None = None
    """What the T5 trainer read; None of a script of one's own, and of a preflight."""
    plan: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    """Name of the plan of a script of one's own, with which its step was recorded."""
    lines: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Logged steps that the next is the median of."""
    step_s: Positive | None = None
    tokens_per_step: Positive | None = None
    """Of all ranks, as the run counted them."""
    in_node_gb_s: Positive | None = None
    between_gb_s: Positive | None = None
    tflop_s: Positive | None = None
    seen_s: Time = 0.0
    """When its metrics had last been written to, Unix time: a run that went on is read again."""
    problem: Line = ""
    """Why nothing can be learned from it."""

    @property
    def is_check(self) -> bool:
        return self.training is None and not self.plan


def directory() -> Path:
    return cache_directory() / "speed"


def recorded() -> list[MeasuredSpeed]:
    """All that is kept, the newest first."""
    try:
        names = sorted(os.listdir(directory()))
    except OSError:
        return []
    found = [one for name in names if name.endswith(".json") and (one := _read(name))]
    return sorted(found, key=lambda one: -one.made_s)[:_MOST_KEPT]


def _read(name: str) -> MeasuredSpeed | None:
    found = cached(f"speed/{name}", MeasuredSpeed)
    return found if found is not None and name == f"{found.run}.json" else None


def keep(one: MeasuredSpeed) -> None:
    """Write it down, if there is a place for it; else the next plan reads the run again."""
    cache(f"speed/{one.run}.json", one)


def learn(runs: Path) -> list[MeasuredSpeed]:
    """All that is known, with what the newest runs in the directory `runs` add to it."""
    known = {one.run: one for one in recorded()}
    try:
        newest = all_runs(runs)[:MOST_RUNS]
    except FsdpkitError:
        newest = []
    for path in newest:
        before = known.get(path.name)
        if before is not None and _written_s(path) <= before.seen_s:
            continue
        if (found := measured_by(path)) is not None:
            known[found.run] = found
            keep(found)
    return sorted(known.values(), key=lambda one: -one.made_s)


def _written_s(run: Path) -> float:
    try:
        return os.lstat(RunPaths(run).task().metrics).st_mtime
    except OSError:
        return 0.0


def measured_by(run: Path) -> MeasuredSpeed | None:
    """What the run says; None of one that is not this account's, has not ended, or failed: steps
    on a node that was about to break are no measure. Never raises for what lies there."""
    try:
        found = os.lstat(run)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return None
        record = load(run)
        return _of(RunPaths(run), record)
    except (OSError, FsdpkitError, ValueError, TypeError, RecursionError):
        return None


def _of(paths: RunPaths, record: RunRecord) -> MeasuredSpeed | None:
    if record.array is not None or record.id != paths.dir.name:
        return None  # tasks of an array share nothing that is known here but the shape
    attempts = [
        attempt
        for attempt in history_of(paths, record).attempts
        if attempt.number >= record.first_attempt
    ]
    if not attempts or not _ended_well(attempts[-1], record):
        return None
    newest = attempts[-1]
    plain = MeasuredSpeed(
        run=record.id,
        made_s=record.created_s,
        seen_s=_written_s(paths.dir),
        site=record.site[:300],
        gpu=_gpu(paths, newest)[:300],
        torch=_torch(newest)[:300],
        nodes=record.nodes,
        gpus=record.ranks_per_node,
    )
    if (newest.dir / node_report.FILE).exists():
        return _of_check(plain, node_report.load(newest.dir))
    found = _job_of(parsed(read_bytes(paths.job)), paths, record)
    if found is None:
        return None
    began_s = min((a.began_s for a in attempts if a.began_s is not None), default=0.0)
    lines = [line for line in _lines(paths.task().metrics) if line.get("time_s", 0) >= began_s]
    return _with_steps(msgspec.structs.replace(plain, **found), lines)


def _job_of(job: Mapping[str, Any], paths: RunPaths, record: RunRecord) -> dict[str, Any] | None:
    """By which the run's step is known: the T5's settings, or a script's plan; None: unplanned."""
    table, entry = job.get("training"), str(job.get("entry", T5_TRAINER))
    if not isinstance(table, dict) or Path(entry).name != T5_TRAINER:
        planned = predicted_of(paths)
        return {"plan": planned.name} if planned else None
    table, _ = without_unknown(TrainingSettings, table)  # of another release
    training = msgspec.convert(table, TrainingSettings)
    return {"training": TRAINER.in_place(training, Path(record.work_dir))}


def _with_steps(plain: MeasuredSpeed, lines: Sequence[dict[str, Any]]) -> MeasuredSpeed:
    pairs = [
        (step_s, _number(line.get("tokens_per_s")))
        for line in lines
        if (step_s := _number(line.get("step_time_s"))) is not None
    ]
    kept = _settled(pairs)
    if not kept:
        return msgspec.structs.replace(
            plain, problem=f"too short: {len(pairs)} steps were logged", lines=len(pairs)
        )
    tokens = [step_s * rate for step_s, rate in kept if rate is not None]
    return msgspec.structs.replace(
        plain,
        lines=len(kept),
        step_s=statistics.median(step_s for step_s, _ in kept),
        tokens_per_step=statistics.median(tokens) if tokens else None,
    )


def _settled(values: Sequence[tuple[float, float | None]]) -> Sequence[tuple[float, float | None]]:
    """Seconds of a step, and tokens a second where they were counted, of a run that was under way:
    without the first third, in which code is compiled and memory is found. Nothing where too little
    is left to say anything."""
    kept = values[len(values) // 3 :]
    return kept if len(kept) >= _FEWEST_LINES else []


def _of_check(plain: MeasuredSpeed, report: node_report.NodeReport) -> MeasuredSpeed:
    names = {gpu.name for node in report.nodes for gpu in node.gpus if gpu.name}
    gpu = names.pop()[:300] if len(names) == 1 else plain.gpu
    inside, between, tflop_s = preflight_figures(report)
    problem = "" if report.device == "cuda" else "its ranks ran on CPU cores"
    return msgspec.structs.replace(
        plain, gpu=gpu, in_node_gb_s=inside, between_gb_s=between, tflop_s=tflop_s, problem=problem
    )


def preflight_figures(
    report: node_report.NodeReport,
) -> tuple[float | None, float | None, float | None]:
    """10^9 bytes a second inside a node and between nodes, TFLOP/s of a product: the slowest
    node's, for a step waits for the slowest; but those of no node that `check` itself calls slow
    or broken, which jobs are told to avoid. None: not measured."""
    bad = {verdict.node for verdict in node_report.judge(report) if verdict.state != "ok"}
    nodes = [node for node in report.nodes if node.name not in bad]
    inside = [node.in_node_gb_s for node in nodes if node.in_node_gb_s]
    pairs = [pair.gb_s for pair in report.pairs if not bad & {*pair.nodes}]
    between = report.all_nodes_gb_s if len(report.nodes) > 1 and not bad else None
    if between is None and pairs:
        between = statistics.median(pairs)
    products = [node.slowest_tflop_s for node in nodes if node.slowest_tflop_s]
    return min(inside, default=None), between, min(products, default=None)


def _ended_well(attempt: Attempt, record: RunRecord) -> bool:
    if attempt.ending is not None:
        return attempt.ending.cause in _WELL
    ended = record.ended or {}
    return bool(ended) and all(state.get("state") == "COMPLETED" for state in ended.values())


def _gpu(paths: RunPaths, attempt: Attempt) -> str:
    """What all nodes call their GPUs; else what the job was planned for; else nothing."""
    names = {node.findings.get("gpu_model") for node in attempt.nodes}
    if len(names) == 1 and isinstance(name := names.pop(), str):
        return name
    planned = predicted_of(paths) if not names else None
    return planned.card if planned else ""


def _torch(attempt: Attempt) -> str:
    for node in attempt.nodes:
        software = node.findings.get("software")
        if isinstance(software, dict) and isinstance(release := software.get("torch"), str):
            return release
    return ""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Of the end of metrics.jsonl, those that are whole."""
    with open_regular(path) as file:
        older = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
        file.seek(older)
        content = file.read(_TAIL_BYTES)
    for line in content.split(b"\n")[1 if older else 0 :]:
        try:
            found = parsed(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(found.get("time_s"), int | float):
            yield found


def _number(value: Any) -> float | None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18
    return float(value) if fine else None
