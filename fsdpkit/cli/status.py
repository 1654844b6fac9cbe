"""`fsdpkit status`."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.options import complete_run, runs_option, table

if TYPE_CHECKING:
    from fsdpkit.runs.layout import TaskPaths
    from fsdpkit.runs.record import RunRecord
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.states import JobState


@click.command("status")
@click.argument("run", required=False, shell_complete=complete_run)
@runs_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(run: str | None, runs: str | None, as_json: bool) -> int:
    """Show all runs in the directory of runs, or RUN (its path, id, or a unique part of it).

    \b
      fsdpkit status
      fsdpkit status fsdp-t5-20261121-101500-3f2a
    """
    from fsdpkit.runs.store import runs_dir

    if run is not None:
        _show_one(run, runs, as_json)
    else:
        _show_all(runs_dir(runs), as_json)
    return 0


def _show_all(top: Path, as_json: bool) -> None:
    from fsdpkit.errors import FsdpkitError
    from fsdpkit.runs.store import all_runs
    from fsdpkit.scheduling.run import Run, states_of

    rows: list[list[str]] = []
    answers: list[dict[str, Any]] = []
    opened: dict[Path, Run | FsdpkitError] = {}
    for directory in all_runs(top):
        try:
            opened[directory] = Run.open(directory)
        except FsdpkitError as error:
            opened[directory] = error
    readable = [run for run in opened.values() if isinstance(run, Run)]
    states = dict(zip((run.dir for run in readable), states_of(readable), strict=True))
    for directory, run in opened.items():
        if isinstance(run, Run):
            answer = _answer(run, states[run.dir])
        else:
            answer = {"run": directory.name, "dir": str(directory), "error": str(run)}
        answers.append(answer)
        job = str(answer.get("job_id") or "-")
        rows.append([answer["run"], job, answer.get("state") or f"unreadable: {answer['error']}"])
    if as_json:
        click.echo(json.dumps(answers))
    elif rows:
        table(["RUN", "JOB", "STATE"], rows)
    else:
        click.echo(f"no runs in {top}")


def _show_one(run_name: str, runs: str | None, as_json: bool) -> None:
    from fsdpkit.cli.submit import failure_lines
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.run_states import decisive

    run = Run.open(run_name, runs=runs)
    known = run.job_states()
    states = decisive(run.record, known)
    answer = _answer(run, states)
    if as_json:
        click.echo(json.dumps(answer))
        return
    record = run.record
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created_s))
    click.echo(run.id)
    click.echo(f"  state      {answer['state']}")
    job = answer["job_id"] or "not confirmed"
    click.echo(f"  job        {job} on {record.cluster or record.site}")
    click.echo(f"  submitted  {created}")
    for line in _other_jobs(record, known, states):
        click.echo(f"  {line}")
    click.echo(f"  shape      {record.nodes} nodes x {record.ranks_per_node} ranks")
    if nodes := answer["nodes"]:
        click.echo(f"  nodes      {nodes}")
    if step := answer["step"]:
        click.echo(f"  step       {step['step']}, loss {step['loss']:.4f}")
    if answer["attempts"]:
        click.echo(f"  attempts   {_attempts_in_words(answer)}")
    click.echo(f"  directory  {run.dir}")
    state = run.state()
    if state is not None and state.phase == "ended" and not state.succeeded:
        for line in failure_lines(run):
            click.echo(f"  {line}")


def _other_jobs(
    record: RunRecord, known: Mapping[str, JobState | None], decisive: Mapping[str, JobState | None]
) -> list[str]:
    """A line for each job of the run before the one that matters now, and each behind it."""
    lines, word = [], "before"
    for job in record.jobs:
        if any(job_id in decisive for job_id in job.job_ids):
            word = "behind"
            continue
        ends = Counter(_described(known.get(job_id)) for job_id in job.job_ids)
        words = ", ".join(f"{n} {end}" if job.array else end for end, n in ends.most_common())
        shape = f"{job.nodes} nodes x {job.ranks_per_node} ranks"
        lines.append(f"{word}     job {job.job_id}, {shape}: {words}")
    return lines


def _described(state: JobState | None) -> str:
    return state.describe() if state else "unknown to squeue, sacct and scontrol"


def _attempts_in_words(answer: dict[str, Any]) -> str:
    attempts, ending = answer["attempts"], answer["ending"]
    count = f"{len(attempts)}, the newest is {attempts[-1]}"
    return f"{count}; the last to end: {ending['why']}" if ending and ending["why"] else count


def _answer(run: Run, states: dict[str, JobState | None]) -> dict[str, Any]:
    from msgspec.structs import asdict

    known = [s for s in states.values() if s is not None]
    task = run.paths.task(run.record.array[0] if run.record.array else None)
    return {
        "run": run.id,
        "job_id": next((job_id.partition("_")[0] for job_id in states), run.job_id),
        "cluster": run.record.cluster or run.record.site,
        "dir": str(run.dir),
        "state": _in_words(run, states),
        "states": {job: s.state if s else None for job, s in states.items()},
        "nodes": next((s.node_list for s in known if s.node_list), None),
        "step": _newest_step(run),
        "attempts": task.attempts(),
        "ending": _newest_ending(task),
        "before": [asdict(job) for job in run.record.earlier],
    }


def _in_words(run: Run, states: dict[str, JobState | None]) -> str:
    if run.job_id is None:
        return "submission not confirmed, and Slurm knows no such job"
    words = [_described(state) for state in states.values()]
    if len(words) == 1:
        return words[0]
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def _newest_ending(task: TaskPaths) -> dict[str, Any] | None:
    """What the newest attempt that ended left as `ending.json`."""
    for number in reversed(task.attempts()):
        with contextlib.suppress(OSError, ValueError):
            ending = dict(json.loads(task.attempt(number).ending.read_bytes()))
            return {"attempt": number, "why": "", **ending}
    return None


def _newest_step(run: Run) -> dict[str, Any] | None:
    from fsdpkit.runs.events import read_json_lines

    task = run.paths.task(run.record.array[0] if run.record.array else None)
    steps = [line for line in read_json_lines(task.metrics) if "step" in line and "loss" in line]
    return {"step": steps[-1]["step"], "loss": steps[-1]["loss"]} if steps else None
