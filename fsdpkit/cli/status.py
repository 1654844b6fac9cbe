"""`fsdpkit status`."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.options import complete_run, runs_option, table

if TYPE_CHECKING:
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

    run = Run.open(run_name, runs=runs)
    states = run.states()
    answer = _answer(run, states)
    if as_json:
        click.echo(json.dumps(answer))
        return
    record = run.record
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created_s))
    click.echo(run.id)
    click.echo(f"  state      {answer['state']}")
    click.echo(f"  job        {run.job_id or 'not confirmed'} on {record.cluster or record.site}")
    click.echo(f"  submitted  {created}")
    click.echo(f"  shape      {record.nodes} nodes x {record.ranks_per_node} ranks")
    if nodes := answer["nodes"]:
        click.echo(f"  nodes      {nodes}")
    if step := answer["step"]:
        click.echo(f"  step       {step['step']}, loss {step['loss']:.4f}")
    click.echo(f"  directory  {run.dir}")
    state = run.state()
    if state is not None and state.phase == "ended" and not state.succeeded:
        for line in failure_lines(run):
            click.echo(f"  {line}")


def _answer(run: Run, states: dict[str, JobState | None]) -> dict[str, Any]:
    known = [s for s in states.values() if s is not None]
    return {
        "run": run.id,
        "job_id": run.job_id,
        "cluster": run.record.cluster or run.record.site,
        "dir": str(run.dir),
        "state": _in_words(run, states),
        "states": {job: s.state if s else None for job, s in states.items()},
        "nodes": next((s.node_list for s in known if s.node_list), None),
        "step": _newest_step(run),
    }


def _in_words(run: Run, states: dict[str, JobState | None]) -> str:
    if run.job_id is None:
        return "submission not confirmed, and Slurm knows no such job"
    words = [
        s.describe() if s else "unknown to squeue, sacct and scontrol" for s in states.values()
    ]
    if len(words) == 1:
        return words[0]
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def _newest_step(run: Run) -> dict[str, Any] | None:
    from fsdpkit.runs.events import read_json_lines

    task = run.paths.task(run.record.array[0] if run.record.array else None)
    steps = [line for line in read_json_lines(task.metrics) if "step" in line and "loss" in line]
    return {"step": steps[-1]["step"], "loss": steps[-1]["loss"]} if steps else None
