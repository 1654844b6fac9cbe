"""The evidence about a run, read at the edge, so that the diagnosis itself can be pure.

`gather` asks Slurm and reads the run's directory; `gather_from` uses saved output of Slurm's
commands instead. Every field that is None was not read. Reading is bounded: only the end of a log,
and of many ranks those with a failure and some more (reporting/diagnosis/sources.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fsdpkit.bounded import ATTEMPTS_READ, NODES_READ, TASKS_READ, read_end
from fsdpkit.config.loading import dotted
from fsdpkit.errors import FsdpkitError, NotFoundError, StorageError
from fsdpkit.reporting.diagnosis.sources import Voice, batch_voices, voices_of
from fsdpkit.reporting.pending import PendingEvidence, evidence_of
from fsdpkit.reporting.staged import StageProgress, stage_progress
from fsdpkit.runs import history, samples
from fsdpkit.runs.failures import HOLD_GONE
from fsdpkit.runs.flight_record import FlightRecord, read_flight_record
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import RunPaths, TaskPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Ending, IdleGpus
from fsdpkit.runs.printed_when import PrintedWhen
from fsdpkit.runs.reading import read_text, table_in
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.runs.saved_steps import began_again
from fsdpkit.runs.stack_requests import Stall, read_stall
from fsdpkit.scheduling import states as slurms
from fsdpkit.scheduling.left_out import in_words, left_out
from fsdpkit.scheduling.run_states import decisive
from fsdpkit.scheduling.states import ALLOCATION_ENDED, JobState

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run

_SAMPLES_BYTES = 512 << 10
"""Of each node: about the last hour, of a long attempt more."""
_OF_LATE = 64
"""Samples in which the state of a machine may explain an end."""


class JobEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler says of a job, or of a task of an array."""

    id: str
    state: JobState | None = None
    """None: nobody could say."""
    pending: PendingEvidence | None = None
    left_out: str | None = None
    """Which nodes it does not use, until when, why, and how to lift it."""


class MachineEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the last samples of a node show, in words; None: nothing of the kind."""

    memory_share: float = 0.0
    """The largest part of its memory that was in use, 0 to 1."""
    memory_kills: str | None = None
    """The kernel killed processes of the job for want of memory."""
    broken_gpu: str | None = None
    """The driver reported an error that NVIDIA attributes to the hardware."""
    lost_bits: str | None = None
    """A GPU's memory had errors that it could not correct, in whosever part of it."""
    failed_link: str | None = None
    """A port of the network between nodes went down."""
    link_errors: str | None = None
    """The errors of such a port grew."""
    full: str | None = None
    """/dev/shm or /tmp was full."""
    gpus_busy: bool = False
    """In the newest sample."""


class AttemptEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the job by Slurm."""

    number: int | None
    """None: the job ended before it could make a directory."""
    ranks: int = 0
    """How many the last launch had; 0: it came to none."""
    nodes: int = 0
    """On how many nodes; 0: not known."""
    voices: tuple[Voice, ...] = ()
    """Who said what: ranks of the last launch, agents, the batch shell."""
    job: JobEvidence | None = None
    """If this was the last attempt of its job: whose end the scheduler's words describe."""
    ending: Ending | None = None
    verdict: AttemptVerdict | None = None
    files: tuple[Path | None, Path | None] = (None, None)
    """Where `ending` and `verdict` stand."""
    lost_nodes: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    """What the launches before the last ended for, which the attempt got over."""
    request: str | None = None
    """Content of `stop-requested`."""
    head: str | None = None
    """Name of the head node."""
    head_addresses: tuple[tuple[str, str], ...] = ()
    """By node, the head first: the address that the head node's name has there."""
    machines: Mapping[str, MachineEvidence] = {}
    """By node, what its last samples show."""
    flight: FlightRecord | None = None
    """What the flight recorders of the last launch say."""
    still: tuple[Stall, ...] = ()
    """Nodes of the last launch whose ranks do nothing, of an attempt that goes on."""
    done: tuple[str, ...] = ()
    """Nodes on which all ranks of the last launch have ended well."""
    idle: IdleGpus | None = None
    """That its GPUs do nothing, or only wait, of an attempt that goes on."""
    staging: StageProgress | None = None
    """What it was still copying to the nodes' own disks."""
    hold: Evidence | None = None
    """About the hold that it ran on, if it is on record that the hold ended before it."""

    def node_of(self, rank: int) -> str | None:
        return next((voice.node for voice in self.voices if voice.rank == rank), None)


class TaskEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One training: the run itself, or one task of an array."""

    number: int | None
    job: JobEvidence | None = None
    """The job that says how it stands."""
    attempts: tuple[AttemptEvidence, ...] | None = ()
    """The newest eight, oldest first. None: not read, for an array has many."""
    began_again: str | None = None
    """That its script began at its beginning when it was started again, as far as is known."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that the diagnosis of a run rests on."""

    run: str
    dir: Path
    submitted: bool
    """False: sbatch was called, and nobody heard its answer."""
    tasks: tuple[TaskEvidence, ...]
    unread: tuple[str, ...] = ()
    """Sources that gave no answer, a clause each."""
    reads_training: bool = True
    """False: the job has no `[training]`, as its script reads none."""
    settings: Mapping[str, object] = {}
    """The job's own, by dotted keys."""


class MustRead(msgspec.Struct, frozen=True):
    """What is to be read however many others there are."""

    task: int | None = None
    attempt: int | None = None


EVERYTHING = MustRead()


def gather(run: Run, wanted: MustRead = EVERYTHING) -> Evidence:
    """Everything about a run, or one task of an array, with one round of questions to the
    scheduler. Raises NotFoundError if there is no such task."""
    from fsdpkit.scheduling.run_states import standings

    (standing,) = standings([(run.paths, run.record)])
    fields: dict[str, Mapping[str, str]] = {}
    waiting = [i for i, s in standing.states.items() if s is not None and s.phase == "pending"]
    if waiting:
        from fsdpkit.scheduling.slurm import Round

        fields[waiting[0]] = run.client().details(run.marked(waiting[0]), Round())
    found = _evidence(run.paths, standing.record, standing.states, fields, standing.unread, wanted)
    return _with_hold(found, run)


def _with_hold(found: Evidence, run: Run) -> Evidence:
    """With what is known of the hold, where a run ended with it."""
    task = found.tasks[0]
    newest = task.attempts[-1] if task.attempts else None
    if run.record.on is None or newest is None or not _ended_with_its_hold(newest):
        return found
    with contextlib.suppress(FsdpkitError):
        hold = gather(type(run).open(run.dir.parent / run.record.on))
        newest = msgspec.structs.replace(newest, hold=hold)
    attempts = (*(task.attempts or ())[:-1], newest)
    return msgspec.structs.replace(found, tasks=(msgspec.structs.replace(task, attempts=attempts),))


def _ended_with_its_hold(attempt: AttemptEvidence) -> bool:
    state = attempt.job.state if attempt.job else None
    told = (voice.told for voice in attempt.voices)
    return (state is not None and state.reason == ALLOCATION_ENDED) or any(
        one is not None and one.rule == HOLD_GONE for one in told
    )


def gather_from(directory: Path, scheduler: Mapping[str, str] | None = None) -> Evidence:
    """The same for a run directory, wherever it was copied to, without asking Slurm. scheduler:
    what `squeue`, `sacct` and `scontrol` printed (in the formats of scheduling/slurm.py), by those
    names. Raises NotFoundError or StorageError for a directory that is no run."""
    texts = {name.removesuffix(".txt"): text for name, text in (scheduler or {}).items()}
    by_source = (
        slurms.parse_squeue(texts.get("squeue", "")),
        slurms.parse_sacct(texts.get("sacct", "")),
        slurms.parse_scontrol(texts.get("scontrol", "")),
    )
    record = load(directory, copied=True)
    states = dict[str, JobState | None].fromkeys(i for job in record.jobs for i in job.job_ids)
    for source in by_source:
        for job_id in states.keys() & source.keys():
            states[job_id] = slurms.decided(states[job_id], source[job_id])
    fields: dict[str, Mapping[str, str]] = {}
    for line in texts.get("scontrol", "").splitlines():
        one = slurms.job_fields(line)
        fields[one.get("JobId", "")] = one
    unread = [
        f"{name} was not asked" for name in ("squeue", "sacct", "scontrol") if name not in texts
    ]
    return _evidence(RunPaths(directory), record, states, fields, tuple(unread))


def _evidence(
    paths: RunPaths,
    record: RunRecord,
    states: Mapping[str, JobState | None],
    fields: Mapping[str, Mapping[str, str]],
    unread: Sequence[str],
    wanted: MustRead = EVERYTHING,
) -> Evidence:
    jobs = {
        job_id: JobEvidence(
            id=job_id,
            state=state,
            pending=(
                evidence_of(job_id, state, fields.get(job_id, {}), record.id)
                if state is not None and state.phase == "pending"
                else None
            ),
            left_out=_left_out(paths, record, job_id, fields.get(job_id, {})),
        )
        for job_id, state in states.items()
    }
    numbers: list[int | None] = [None] if record.array is None else [*(record.array_tasks or [])]
    if wanted.task is not None:
        if wanted.task not in numbers:
            raise NotFoundError(f"run {record.id} has no task {wanted.task}")
        numbers = [wanted.task]
    newest = {task_of(job_id): job_id for job_id in decisive(record, states)}
    left = TASKS_READ
    given, tasks = table_in(paths.job), []
    for number in numbers:
        job = jobs.get(newest.get(number, ""))
        well = job is not None and job.state is not None and job.state.succeeded
        if len(numbers) > 1 and (well or left <= 0):
            tasks.append(TaskEvidence(number=number, job=job, attempts=None))
            continue
        left -= 1
        past = history.history_of(paths, record, number)
        read = _attempts(paths, record, past, jobs, job, wanted.attempt)
        again = began_again(past, given)
        tasks.append(TaskEvidence(number=number, job=job, attempts=read, began_again=again))
    return Evidence(
        run=record.id,
        dir=paths.dir,
        submitted=record.state == "submitted",
        tasks=tuple(tasks),
        unread=tuple(unread),
        reads_training=not given or "training" in given,
        settings={key: value for key, value in dotted(given) if value != {}},
    )


def _left_out(
    paths: RunPaths, record: RunRecord, job_id: str, fields: Mapping[str, str]
) -> str | None:
    excluded = fields.get("ExcNodeList", "")
    return in_words(left_out(paths, record, job_id, excluded), paths.dir.parent)


def _attempts(
    paths: RunPaths,
    record: RunRecord,
    whole: history.History,
    jobs: Mapping[str, JobEvidence],
    newest: JobEvidence | None,
    wanted: int | None,
) -> tuple[AttemptEvidence, ...]:
    every, task = whole.attempts, whole.array_task
    past = [a for a in every if a in every[-ATTEMPTS_READ:] or a.number == wanted]
    ranks = {job.job_id: job.ranks_per_node for job in record.jobs}
    found = []
    for place, attempt in enumerate(past):
        last = place + 1 == len(past) or past[place + 1].job_id != attempt.job_id
        job = jobs.get(attempt.job_id or "") if last else None
        per_node = ranks.get(job_of(attempt.job_id or ""), record.ranks_per_node)
        one = _attempt(attempt, paths, task, job, per_node, last=last)
        staging = _staging(attempt, record.nodes)
        found.append(msgspec.structs.replace(one, staging=staging))
    begun = {attempt.job_id for attempt in past}
    ended = newest.state if newest is not None and newest.state and newest.state.over else None
    # Cancelled in the queue, perhaps after a requeue: its last attempt had ended for another cause.
    if newest is not None and ended and (newest.id not in begun or ended.never_began):
        voices = () if newest.id in begun else tuple(batch_voices(paths, newest.id))
        found.append(AttemptEvidence(number=None, voices=voices, job=newest))
    return tuple(found)


def _attempt(
    past: history.Attempt,
    paths: RunPaths,
    task: int | None,
    job: JobEvidence | None,
    ranks_per_node: int,
    *,
    last: bool,
) -> AttemptEvidence:
    voices = voices_of(past, paths, ranks_per_node, newest=last)
    place = paths.task(task)
    killed = any(voice.killed or voice.lost_a_child for voice in voices)
    sampled = _samples(past) if last or killed else {}
    launch = past.launches[-1].number if past.launches else 0
    when = {name: PrintedWhen(read, launch) for name, read in sampled.items()}
    return AttemptEvidence(
        number=past.number,
        ranks=len(past.launches[-1].nodes) * ranks_per_node if past.launches else 0,
        nodes=len(past.launches[-1].nodes if past.launches else past.nodes),
        voices=tuple(
            msgspec.structs.replace(voice, when=when.get(voice.node or "")) for voice in voices
        ),
        job=job,
        ending=past.ending,
        verdict=past.verdict,
        files=(past.paths.ending, past.paths.verdict),
        lost_nodes=past.lost_nodes,
        restarts=tuple(launch.message for launch in past.launches[:-1] if launch.message),
        request=_request(place) if last else None,
        head=next((node.name for node in past.nodes if node.number == 0 and node.name), None),
        head_addresses=tuple(
            (node.name, str(node.findings["head_address"]))
            for node in past.nodes
            if node.findings.get("head_address")
        ),
        machines={name: _machine(read[-_OF_LATE:]) for name, read in sampled.items()},
        flight=_flight(past),
        still=tuple(_still(past)) if last and past.ending is None else (),
        done=tuple(node.name for node in past.nodes if node.done_launch == launch),
        idle=past.idle if last and past.idle and past.idle.until_s is None else None,
    )


def _staging(past: history.Attempt, nodes: int) -> StageProgress | None:
    found = stage_progress(past.stage, nodes)
    return found if found is not None and not found.done and not past.launches else None


def _still(past: history.Attempt) -> Iterator[Stall]:
    launch = past.launches[-1].number if past.launches else 0
    for node in past.nodes[:NODES_READ]:
        found = read_stall(past.paths, node.number)
        if found is not None and found.launch == launch:
            yield found


def _request(task: TaskPaths) -> str | None:
    with contextlib.suppress(OSError):
        return read_text(task.stop_requested).strip()
    return None


def _samples(past: history.Attempt) -> dict[str, list[samples.Sample]]:
    """The newest of each node."""
    found = {}
    for node in past.nodes[:NODES_READ]:
        with contextlib.suppress(OSError):
            end = read_end(past.paths.node_samples(node.number), _SAMPLES_BYTES)
            if told := list(samples.decoded(end)):
                found[node.name] = told
    return found


def _machine(told: Sequence[samples.Sample]) -> MachineEvidence:
    broken = any(one.xid in samples.OF_THE_HARDWARE for one in samples.xids(told))
    return MachineEvidence(
        memory_share=max(map(samples.memory_share, told[-3:])),
        memory_kills=samples.oom_kills_in_words(told),
        broken_gpu=samples.xids_in_words(told) if broken else None,
        lost_bits=samples.ecc_in_words(told),
        failed_link=samples.failed_link_in_words(told),
        link_errors=samples.link_errors_in_words(told),
        full=samples.full_in_words(told),
        gpus_busy=any((gpu.utilization_percent or 0) >= 1 for gpu in told[-1].gpus),
    )


def _flight(past: history.Attempt) -> FlightRecord | None:
    with contextlib.suppress(StorageError):
        number = past.launches[-1].number if past.launches else 0
        return read_flight_record(past.paths.flight_record(number))
    return None
