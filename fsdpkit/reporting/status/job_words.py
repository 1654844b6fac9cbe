"""How a run stands, and each of its jobs, in words: from what is known of their states. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fsdpkit.listing import node_list
from fsdpkit.reporting.status.status_record import Phase
from fsdpkit.reporting.words import moment
from fsdpkit.runs.record import JobRecord, RunRecord
from fsdpkit.scheduling.run_states import Standing, States
from fsdpkit.scheduling.states import JobState

if TYPE_CHECKING:
    from fsdpkit.runs.history import Attempt, History
    from fsdpkit.runs.outcomes import IdleGpus


def phase_of(states: Sequence[JobState | None]) -> Phase:
    """Of a run with these tasks: what is still to come decides, then what is not known."""
    phases = [state.phase if state else "unknown" for state in states]
    if "running" in phases:
        return "running"
    if "pending" in phases:
        return "pending"
    if not states or "unknown" in phases:
        return "unknown"
    short = {state.outcome for state in states if state and not state.succeeded}
    if not short:
        return "succeeded"
    return "unknown" if "unknown" in short else "stopped" if short == {"stopped"} else "failed"


def described(state: JobState | None, standing: Standing) -> str:
    """The state for a person; for an unknown job, why it is unknown."""
    if state is not None:
        return state.describe()
    if standing.strange:
        return f"unknown here: {standing.strange}"
    if standing.answered:
        return "unknown to squeue, sacct and scontrol"
    return "unknown: Slurm does not answer"


def state_in_words(standing: Standing, states: States) -> str:
    """Of the run as a whole, from its jobs that matter now."""
    if standing.record.job_id is None:
        known = "Slurm knows no such job" if standing.answered else "Slurm does not answer"
        return f"submission not confirmed, and {known}"
    if len(states) == 1:
        return described(next(iter(states.values())), standing)
    words = [
        state.word if state is not None and state.outcome else described(state, standing)
        for state in states.values()
    ]
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def exit_in_words(state: JobState) -> str | None:
    """Both of Slurm's codes: after a rank's failure the first may be what ended its neighbours."""
    if state.phase != "ended" or state.succeeded or state.exit_code is None:
        return None
    words = f"ExitCode {state.exit_code}:{state.exit_signal or 0}"
    if state.derived_exit_code is not None:
        words += f", DerivedExitCode {state.derived_exit_code}:{state.derived_exit_signal or 0}"
    return words


def shape(nodes: int, ranks: int) -> str:
    """`2 nodes x 4 ranks`; ranks: on each node."""
    return f"{nodes} node{'s' * (nodes != 1)} x {ranks} rank{'s' * (ranks != 1)}"


def other_jobs(record: RunRecord, standing: Standing, states: States) -> list[str]:
    """A line for each job of the run before the one that matters now, and each behind it."""
    lines, word = [], "before"
    for job in record.jobs:
        if any(job_id in states for job_id in job.job_ids):
            word = "behind"
            continue
        lines.append(f"{word}     {_job_line(job, standing)}")
    return lines


def _job_line(job: JobRecord, standing: Standing) -> str:
    ends = Counter(described(standing.states.get(i), standing) for i in job.job_ids)
    words = ", ".join(f"{n} {end}" if job.array else end for end, n in ends.most_common())
    return f"job {job.job_id}, {shape(job.nodes, job.ranks_per_node)}: {words}"


def remarks(history: History, job: Mapping[str, Any], *, running: bool) -> list[str]:
    """Sentences about a training besides its steps; `job`: what is in `job.json`."""
    from fsdpkit.runs.saved_steps import began_again

    newest = history.attempts[-1] if history.attempts else None
    now = newest if running and newest and newest.ending is None else None
    idle = now.idle if now and now.idle and now.idle.until_s is None else None
    found = [
        without_work(idle) if idle else None,
        unheeded(now) if now and now.stop_ignored and not (idle and idle.asked_s) else None,
        apart(now) if now and not now.launches else None,
    ]
    found += [started_again(newest)] if newest else []
    return list(filter(None, [*found, began_again(history, job), without_a_group(history)]))


def started_again(attempt: Attempt) -> str | None:
    """That its ranks were started more than once, and why the last time."""
    if len(attempt.launches) < 2:
        return None
    before, last = attempt.launches[-2:]
    why = f", after this: {before.message}" if before.message else ""
    times = len(attempt.launches) - 1
    often = "" if times == 1 else f" {times} times, last"
    return f"its ranks were restarted{often} at {moment(last.began_s)}{why}"


def without_work(idle: IdleGpus) -> str:
    """That its GPUs do nothing, or only wait, and what follows."""
    asked = f"; asked to save and stop at {moment(idle.asked_s)}" if idle.asked_s else ""
    return f"{idle.sentence(f'since {moment(idle.since_s)}')}{asked}"


def unheeded(attempt: Attempt) -> str:
    """That a request to stop will not be seen, and what to do."""
    assert attempt.stop_requested_s is not None
    return (
        f"asked to stop at {moment(attempt.stop_requested_s)}, but its script has not checked: "
        f"it does not call fsdpkit.stop_requested(), or has not got there yet, and runs until it "
        f"ends or is cancelled without --save"
    )


def apart(attempt: Attempt) -> str | None:
    """That ranks have not started, because nodes do not reach the head node's agent."""
    apart = [node for node in attempt.nodes if node.unreached]
    if not apart:
        return None
    return (
        f"{node_list([node.name for node in apart])}: nothing has reached the head node's agent "
        f"as yet, at {apart[0].unreached}"
    )


def without_a_group(history: History) -> str | None:
    """That an ended training's ranks did not train together, as far as that is known."""
    newest = history.attempts[-1] if history.attempts else None
    if newest is None or newest.ending is None or newest.made_group is not False:
        return None
    return (
        "its ranks made no process group: each ran by itself and did the same; for one rank, "
        "submit with --nodes 1 --gpus 1"
    )
