"""A command on a node of a running job: as a step of the job that takes nothing from its ranks, or
on this machine for the local cluster.

What the job's script has activated (modules, an environment, variables) is read where it is in use:
in the environment of the node's agent. What would make a program part of the run, its directories
and the secret by which the agents know each other, is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import SchedulerError
from fsdpkit.runs.history import NodeStory
from fsdpkit.scheduling.environment import scrubbed
from fsdpkit.scheduling.slurm import Round
from fsdpkit.scheduling.states import VISIT_STEP
from fsdpkit.scheduling.visiting import Visited

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PASSED = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""What the visitor's own terminal needs."""


@dataclass(frozen=True)
class Visit:
    """What to execute, and with which environment."""

    argv: list[str]
    environ: dict[str, str]


def visit_of(
    visited: Visited,
    node: NodeStory,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    terminal: bool,
) -> Visit:
    """The visit to one node; without a command, a shell. terminal: the command gets one of its own.
    Raises SchedulerError."""
    if node.pid is None or not _NAME.fullmatch(node.name):
        raise SchedulerError(f"the agent of node {node.number} of {visited.run.id} left no address")
    prompt = f"[{visited.run.id} {node.name}] \\w \\$ "
    attempt = os.path.abspath(visited.attempt.dir)
    script = Path(__file__).with_name("visit.sh").read_text(encoding="utf-8")
    there = ["/bin/bash", "-p", "-c", script, "fsdpkit", str(node.pid), attempt, prompt, *command]
    clean, _ = scrubbed(environ)
    if not visited.run.client().elsewhere:
        return Visit(there, clean)
    return Visit([*_step(visited, node, clean, terminal=terminal), *there], clean)


def _step(
    visited: Visited, node: NodeStory, environ: Mapping[str, str], *, terminal: bool
) -> list[str]:
    """srun's part: one task that shares all that the job has on the node. Source: srun(1),
    --overlap. Without --exact the step sees all of the job's CPUs there."""
    visited.run.client().confirm(visited.run.marked(visited.job_id))
    cluster = visited.run.record.cluster
    passed = ",".join(name for name in _PASSED if name in environ)
    return [
        "srun",
        *(["-M", cluster] if cluster else []),
        f"--jobid={_number(visited)}",
        f"--nodelist={node.name}",
        *("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--mpi=none"),
        *(f"--job-name={VISIT_STEP}", f"--export={passed or 'NONE'}", "--chdir=/"),
        *(["--pty"] if terminal else ["--unbuffered"]),
    ]


def _number(visited: Visited) -> str:
    """The job's own number, which a task of an array has, too; srun knows no `12_3`. Raises
    SchedulerError."""
    if visited.job_id.isdecimal():
        return visited.job_id
    details = visited.run.client().details(visited.run.marked(visited.job_id), Round())
    number = details.get("JobId", "")
    if not number.isdecimal():
        raise SchedulerError(f"Slurm does not report the number of job {visited.job_id}: try again")
    return number
