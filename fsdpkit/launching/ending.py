"""Decides what the batch shell does after srun has ended; the argument is srun's status.

Standard input is `scontrol show job -o`, followed by sinfo's list of the partition's nodes
(runs/exclusions.py). Standard output is one line for the shell: `end STATUS [JOBS]` with the
dependent jobs that are not to start; `requeued STATUS` if Slurm has already requeued the job
itself; or `requeue STATUS [NODES]` with the new exclude list, where `-` means an empty list and
nothing means that the list stays as it is. Jobs and nodes are separated by commas.
Messages for people go to standard error. Imports no torch: the job's last seconds may be short.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config.retry import Retry
from fsdpkit.errors import FsdpkitError, NodeError, NodeLostError, StorageError
from fsdpkit.launching.held import end_of_hold
from fsdpkit.launching.job_log import say
from fsdpkit.launching.keeping_account import keep_account
from fsdpkit.launching.leaving_out import Exclusions, exclusions
from fsdpkit.launching.policy import AttemptFacts, JobFacts, after_attempt, cause_of, trouble_of
from fsdpkit.runs import avoided_nodes, outcomes
from fsdpkit.runs.accounting import kept_accounts
from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.exclusions import nodes_of
from fsdpkit.runs.failures import CHECK, HEAD_SILENT, REFUSED, FailureRecord, Level, bounded
from fsdpkit.runs.history import attempt_of, failures_in
from fsdpkit.runs.job_file import table_of_job
from fsdpkit.runs.job_ids import ONE, id_of, job_of, task_of
from fsdpkit.runs.layout import AttemptPaths, RunPaths, TaskPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Ending, Trouble
from fsdpkit.runs.reading import open_regular, read_text, table_in
from fsdpkit.runs.record import load
from fsdpkit.runs.saved_steps import newest_saved
from fsdpkit.runs.shared_record import AttemptEnd, add_end

_LONGEST_S = 120
"""A file system that does not answer for so long ends this process, and the job without it."""
_WORD_S, _LOOK_S = 40.0, 0.2
"""How long nodes that the head lost may take to say that they lost the head."""
_LOG_BYTES = 256 << 10
_FEW = 5
"""Starts that Slurm may refuse and that are not counted: at least ten minutes, for after each it
holds the job back for two."""
_LONG_S = 300.0
"""A script that stops so late has had time to do something."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_JOB = re.compile(ONE)


def main() -> int:
    """Decide and answer. Ends with a signal if the run's file system does not answer."""
    signal.alarm(_LONGEST_S)
    with contextlib.suppress(BrokenPipeError):  # Slurm ended the calling shell
        return _answer(int(sys.argv[1]))
    return 0


def _answer(status: int) -> int:
    run = RunPaths(Path(os.environ["FSDPKIT_RUN_DIR"]))
    attempt = AttemptPaths(Path(os.environ["FSDPKIT_ATTEMPT_DIR"]))
    task = TaskPaths(attempt.dir.parent)
    retry = _retry(run)
    about_job, _, about_nodes = sys.stdin.read().partition("\n")
    gathered = gather(status, job_told(about_job), attempt, task, retry)
    facts = _with_their_word(gathered, attempt)
    decision = after_attempt(facts, retry)
    ending = msgspec.structs.replace(
        decision, step=_saved_step(task, facts.trouble), log_bytes=_log_bytes()
    )
    left_out = None
    if ending.action == "requeue":
        left_out = _exclusions(facts, ending, run, attempt, about_nodes)
        ending = msgspec.structs.replace(ending, left_out=left_out.left_out)
    try:
        _record(ending, attempt, run, retry)
    except OSError as error:  # an attempt without a record must not be followed by another
        why = f"{ending.why}; and {attempt.dir} cannot be written: {error.strerror}"
        status = ending.status if ending.action == "end" else StorageError.exit_code
        ending = msgspec.structs.replace(ending, action="end", status=status, why=why)
    keep_account(run, _task_of(run, attempt), attempt.number, ending=facts.job.ending)
    _tell_centre(ending, attempt, run)
    if ending.action == "requeue":
        without = f" without {', '.join(ending.left_out)}" if ending.left_out else ""
        say(f"{ending.why}; queued again{without}", sys.stderr)
        change = left_out.change if left_out else None
        print("requeue", ending.status, "" if change is None else change or "-")
        return 0
    behind = _chained(run) if ending.for_good else []
    if ending.cause != "done":
        say(ending.why, sys.stderr)
        if behind:
            jobs = " and ".join(behind)
            say(f"chained behind it, and cancelled, for it would end the same: {jobs}", sys.stderr)
        if ending.status and not facts.job.requeued:
            say(_onward(shlex.quote(str(run.dir)), facts), sys.stderr)
    print("requeued" if facts.job.requeued else "end", ending.status, ",".join(behind))
    return 0


def _onward(run: str, facts: AttemptFacts) -> str:
    """The log's last line: what its reader types next."""
    if facts.came_back:
        return f"to go on, mend the cause (fsdpkit diagnose {run}), then: fsdpkit resume {run}"
    return f"to go on: fsdpkit resume {run}"


def _exclusions(
    facts: AttemptFacts, ending: Ending, run: RunPaths, attempt: AttemptPaths, about_nodes: str
) -> Exclusions:
    """What the job should exclude when it is requeued."""
    job = facts.job
    now_s = time.time()
    avoided = [AvoidedNode(node, ending.why, run.dir.name, now_s, now_s) for node in ending.avoid]
    before: set[str] = set()
    with contextlib.suppress(FsdpkitError):  # then nothing is known about the nodes of other runs
        record = load(run.dir)
        others = avoided_nodes.avoided_on(record.site, run.dir.parent, now_s)
        avoided += [note for note in others if note.node not in ending.avoid]
        this = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
        before = {node for one in record.jobs if one.job_id == this for node in one.left_out}
    resources: dict[str, Any] = {}
    with contextlib.suppress(OSError, StorageError):
        resources = table_of_job(run.dir, "resources", dict[str, Any])
    for past in _endings_of_job(attempt):
        before.update(past.left_out, past.avoid)
    return exclusions(
        avoided,
        present=job.exclude,
        own=resources.get("exclude") or "",
        before=before,
        nodes=nodes_of(about_nodes),
        had=os.environ.get("FSDPKIT_NODE_NAMES", "").split(),
        gone=facts.silences.maybe_gone,
        features=job.features,
        chosen=job.chosen,
    )


def _endings_of_job(attempt: AttemptPaths) -> list[Ending]:
    """How this job's earlier attempts ended, as far as that is on record."""
    number, task = attempt.number, TaskPaths(attempt.dir.parent)
    first = number - int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    found = [outcomes.read(task.attempt(n).ending, Ending) for n in range(max(0, first), number)]
    return [ending for ending in found if ending is not None]


def _chained(run: RunPaths) -> list[str]:
    """Slurm's ids of the jobs, or array tasks, that depend on this one."""
    job_id, task = job_of(this_job()), task_of(this_job())
    try:
        jobs = load(run.dir).jobs
    except FsdpkitError as error:
        say(f"warning: what is chained behind this job is not known: {error}", sys.stderr)
        return []
    behind = [id_of(job.job_id, task) for job in jobs if job.job_id and job_id in job.after]
    return [one for one in behind if _JOB.fullmatch(one)]


def job_told(text: str) -> JobFacts:
    """What `scontrol show job -o` said. An empty text means that it did not answer."""
    fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))
    if "JobState" not in fields:
        return JobFacts()
    here = "FSDPKIT_HERE" in os.environ  # somebody's allocation, which is not the run's to requeue
    restarts = int(fields.get("Restarts", "0"))
    return JobFacts(
        ending=fields["JobState"] != "RUNNING",
        reason=fields.get("Reason"),
        preempted=fields.get("PreemptTime", "None") not in ("None", "Unknown", ""),
        requeue=False if here else {"1": True, "0": False}.get(fields.get("Requeue", "")),
        exclude=_unless_null(fields.get("ExcNodeList")),
        features=bool(_unless_null(fields.get("Features"))),
        chosen=bool(_unless_null(fields.get("ReqNodeList")) or "Reservation" in fields),
        requeued=not here and restarts > int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    )


def _unless_null(value: str | None) -> str | None:
    return "" if value == "(null)" else value


def gather(
    status: int, job: JobFacts, attempt: AttemptPaths, task: TaskPaths, retry: Retry
) -> AttemptFacts:
    """The facts of the attempt, from the files in its directory."""
    verdict = outcomes.read(attempt.verdict, AttemptVerdict)
    trouble = verdict.trouble if verdict else None
    if verdict and trouble is None:
        status = 0  # whatever srun says, as it had to be ended because a node is gone
    elif status and trouble is None:
        trouble = _told_by_srun(attempt, _first_recorded(attempt))
    if trouble is not None:
        trouble = msgspec.structs.replace(trouble, lost=_names(trouble.lost))
    request = None
    with contextlib.suppress(OSError):
        request = read_text(task.stop_requested).strip()
    return AttemptFacts(
        status=status,
        job=job,
        trouble=trouble,
        nodes=int(os.environ.get("FSDPKIT_NODES", "1")),
        head=os.environ.get("FSDPKIT_NODE_NAMES", "").partition(" ")[0],
        losses=tuple(_names(one.lost) for one in verdict.earlier) if verdict else (),
        accusers=_accusers(attempt),
        cut_off=verdict is not None and verdict.cut_off,
        decided=verdict is not None,
        warned=verdict is not None and verdict.warned,
        why=verdict.why if verdict else "",
        came_back=verdict is not None and verdict.came_back,
        hold_gone=end_of_hold(attempt, verdict),
        request=request,
        fruitless=_fruitless(attempt, task, trouble, retry),
    )


def _first_recorded(attempt: AttemptPaths) -> Trouble | None:
    standing = (each.record for each in attempt_of(attempt).standing_failures)
    found = [record for record in standing if record is not None and 0 < record.status < 256]
    if not found:
        return None
    if found[0].rule != CHECK or cause_of(found[0]) != "node-failure":
        return trouble_of(found[0])
    nodes = {one.name for one in found if one.rule == CHECK}
    if len(nodes) == 1:
        return trouble_of(found[0], lost=(*nodes,))
    # If it is the same on several nodes, it is not the nodes' fault.
    trouble = trouble_of(found[0])
    return msgspec.structs.replace(trouble, cause="preflight", status=NodeError.exit_code)


def _accusers(attempt: AttemptPaths) -> tuple[str, ...]:
    """Nodes that recorded that the head node does not answer."""
    told = (each.record for each in failures_in(attempt))
    return _names(one.name for one in told if one is not None and one.rule == HEAD_SILENT)


def _with_their_word(facts: AttemptFacts, attempt: AttemptPaths) -> AttemptFacts:
    """The facts with what the lost nodes say about the head node. They notice as late as it does,
    and stop their ranks first: so it waits a while for them, unless Slurm is already ending the
    job."""
    deadline = time.monotonic() + (0 if facts.job.ending else _WORD_S)
    while facts.silences.depend_on_their_word:
        if time.monotonic() > deadline:
            return facts
        time.sleep(_LOOK_S)
        facts = msgspec.structs.replace(facts, accusers=_accusers(attempt))
    return facts


def _names(nodes: Iterable[str]) -> tuple[str, ...]:
    """Those that can be node names: they are passed to the shell and to scontrol."""
    return tuple(node for node in nodes if _NODE.fullmatch(node))


def _told_by_srun(attempt: AttemptPaths, found: Trouble | None) -> Trouble | None:
    """What srun says of the step where no agent knows why it ended, in the job's log."""
    if found is not None and not (found.failure and found.failure.level <= Level.KILLED):
        return found
    log = _new_in_log(attempt)
    if (memory := _out_of_memory(log)) is not None:
        return trouble_of(memory)
    if not_launched := _NOT_LAUNCHED.findall(log):
        nodes = {node for _, node in not_launched}
        words, status = not_launched[0][0], NodeLostError.exit_code
        record = _by_srun("node-failure", words, status, ", ".join(sorted(nodes)))
        return trouble_of(record, lost=tuple(nodes) if len(nodes) == 1 else ())
    refused = _REFUSED_LINE.findall(log)
    if not refused or list(attempt.dir.glob("node-*.events.jsonl")):
        return found
    if _NEVER.search(refused[-1]):
        return trouble_of(_by_srun("refused", refused[-1], NodeError.exit_code))
    # A node may still hold the previous attempt's.
    status = NodeLostError.exit_code
    return trouble_of(_by_srun("refused", refused[-1], status, rule=REFUSED))


def _out_of_memory(log: str) -> FailureRecord | None:
    """By the same words as `diagnose`."""
    from fsdpkit.failures.causes import CAUSES  # only on failure

    cause = CAUSES["host-out-of-memory"]
    said = "\n".join(_OF_SLURM.findall(log))
    for pattern in cause.patterns:
        if pattern.level == Level.OUTSIDE and (place := pattern.found_in(said)) is not None:
            words = said[place.begin : place.end]
            return _by_srun(cause.name, words, 137, place.node or "srun")
    return None


def _by_srun(
    cause: str, words: str, status: int, name: str = "srun", rule: str = ""
) -> FailureRecord:
    return FailureRecord(
        by="shell",
        rule=rule,
        name=name,
        cause=cause,
        status=status,
        level=Level.OUTSIDE,
        words=bounded(words),
    )


def _new_in_log(attempt: AttemptPaths) -> str:
    """What this attempt has added to the job's log, since its step was started the last time."""
    endings = _endings_of_job(attempt)
    before = endings[-1].log_bytes if endings else 0
    with contextlib.suppress(OSError), open_regular(_log()) as log:
        log.seek(max(before, os.fstat(log.fileno()).st_size - _LOG_BYTES))
        return log.read(_LOG_BYTES).decode(errors="replace").rpartition(_SECOND_START)[2]
    return ""


_SECOND_START = "fsdpkit: a node did not start its part in time"
"""What the batch shell says before it starts the step again in the same attempt."""


_OF_SLURM = re.compile(r"^(?:srun|slurmstepd[\w.-]*): .*$", re.M)
_NOT_LAUNCHED = re.compile(
    r"^srun: error: (Task launch for \S+ failed on node ([\w.-]+): "
    r"(?:Job prolog failed|Socket timed out|Communication connection failure|Unable to contact).*)",
    re.M,
)
"""What a node's slurmd says, or does not say, of a step whose request is all right."""
_REFUSED_LINE = re.compile(r"^srun: error: ((?:Unable to create step|Task launch for ).*)", re.M)
_NEVER = re.compile(
    r"(?i)more processors requested|requested node configuration|memory required|not permitted|"
    r"invalid (?!job id|generic)|unable to satisfy|configuration not available"
)
"""Of Slurm's reasons not to create a step, those that stay (slurm_errno.c of 22.05 to 26.05). That
GPUs are missing may be said of a node which still holds the last attempt's."""


def _log() -> Path:
    return Path(os.environ["FSDPKIT_RUN_DIR"]) / f"slurm-{this_job()}.log"


def _log_bytes() -> int:
    with contextlib.suppress(OSError):
        return _log().stat().st_size
    return 0


def this_job() -> str:
    """Slurm's id of this job, of an array task as `12_3`."""
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
    return os.environ.get("SLURM_JOB_ID", "")


def _saved_step(task: TaskPaths, trouble: Trouble | None) -> int | None:
    """Up to which step the work is saved; a script that stopped as asked says that it has saved."""
    if (newest := newest_saved(task)) is not None:
        return newest[0]
    if trouble is None or trouble.cause != "stopped" or trouble.step == -1:
        return None
    return trouble.step


def _fruitless(
    attempt: AttemptPaths, task: TaskPaths, trouble: Trouble | None, retry: Retry
) -> int:
    """How many attempts of this job in a row, up to this one, have saved nothing further.

    Attempts that Slurm ended without asking (a lost node, a preemption) have left no record, and
    do not count. Nor do starts that Slurm refused, as long as they are few: until it notices that a
    node is gone (SlurmdTimeout) it may refuse one after another. A script that stops when it is
    warned, or is told to go on from what it has saved, saves by itself, nobody knows up to where.
    """
    newest = _saved_step(task, trouble)
    lasted_s, cause = (trouble.lasted_s, trouble.cause) if trouble else (0.0, None)
    if newest is None and lasted_s > _LONG_S and (retry.args_again or cause == "stopped"):
        return 0
    number = attempt.number
    first = number - int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    endings = {n: table_in(task.attempt(n).ending) for n in range(max(0, first - 1), number)}
    rules = {n: ending.get("rule", "") for n, ending in endings.items()}
    rules[number] = trouble.failure.rule if trouble and trouble.failure else ""
    refused = [n for n, rule in rules.items() if rule == REFUSED]
    count = 0
    for n in range(number, first - 1, -1):
        if (n and "step" not in endings[n - 1]) or (n in refused and len(refused) <= _FEW):
            continue
        steps = [endings[m].get("step") for m in endings if m < n]
        before = max((step for step in steps if isinstance(step, int)), default=None)
        if newest is not None and (before is None or newest > before):
            break
        count += 1
    return count


def _record(ending: Ending, attempt: AttemptPaths, run: RunPaths, retry: Retry) -> None:
    """The decision for people and programs. Raises OSError."""
    outcomes.write(attempt.ending, ending)
    until_s = time.time() + 3600 * retry.avoid_node_h
    for node in ending.avoid:
        with contextlib.suppress(OSError, FsdpkitError):
            avoided_nodes.avoid(
                run.dir.parent, node, why=ending.why, run_id=run.dir.name, until_s=until_s
            )


def _task_of(run: RunPaths, attempt: AttemptPaths) -> int | None:
    """The number of the array's task."""
    _, _, task = attempt.dir.parent.name.partition("task-")
    return int(task) if task.isdecimal() and attempt.dir.parent != run.dir else None


def _tell_centre(ending: Ending, attempt: AttemptPaths, run: RunPaths) -> None:
    """How the attempt ended, of a run that its owner shares."""
    end = AttemptEnd(
        attempt=attempt.number,
        action=ending.action,
        cause=ending.cause,
        at_s=time.time(),
        nodes=[*ending.avoid],
    )
    task = _task_of(run, attempt)
    add_end(run, task, end, kept_accounts(run, task))


def _retry(run: RunPaths) -> Retry:
    """The job's own; fsdpkit's defaults if its file is gone, or not the one submitted."""
    try:
        return table_of_job(run.dir, "retry", Retry)
    except FileNotFoundError:  # a script started by hand
        return Retry()
    except (OSError, StorageError) as error:
        say(f"warning: what the job wants after this end is not known: {error}", sys.stderr)
        return Retry()
