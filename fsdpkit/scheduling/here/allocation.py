"""The allocation that this process is in, as Slurm describes it."""

from __future__ import annotations

import os
import re
import time

from fsdpkit.config.allocation import Allocation
from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.scheduling.here.commands import host_names, job_text
from fsdpkit.scheduling.slurm import Round, SlurmClient
from fsdpkit.scheduling.states import job_fields, parse_time

_OF_NODE = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S*) Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)*:([0-9]+)(?=[(,]|$)")
_UNLIMITED_S = 365 * 86400


def allocation_here() -> Allocation:
    """Raises UsageError outside an allocation of one's own, SchedulerError if Slurm is silent."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"[0-9]{1,18}", job_id):
        raise UsageError(
            "--here runs in an allocation, and this shell is in none (SLURM_JOB_ID is not set): "
            "get one with salloc, or leave out --here to queue a job"
        )
    text = job_text(job_id)
    fields = job_fields(text)
    mine = re.search(r"\(([0-9]+)\)", fields.get("UserId", ""))
    if fields.get("JobState") != "RUNNING" or mine is None or int(mine[1]) != os.getuid():
        state = fields.get("JobState", "unknown")
        raise UsageError(
            f"--here: job {job_id} of this shell's environment is {state}, or another user's: "
            "get an allocation with salloc"
        )
    return allocation_of(job_id, text, SlurmClient())


def allocation_of(job_id: str, text: str, client: SlurmClient) -> Allocation:
    """What a running job has, by `scontrol show job -d`. Raises SchedulerError if unsaid."""
    fields = job_fields(text)
    names = host_names(fields.get("NodeList", ""))
    submitted = parse_time(fields.get("SubmitTime", ""))
    cores, gpus = per_node(text)
    if submitted is None or not names or cores is None:
        raise SchedulerError(f"scontrol does not say what the allocation {job_id} has")
    account = fields.get("Account", "")
    ends = parse_time(fields.get("EndTime", ""))
    return Allocation(
        job_id=job_id,
        nodes=tuple(names),
        gpus=gpus,
        cpus=cores,
        left_s=_UNLIMITED_S if ends is None else max(0, int(ends - time.time())),
        partition=fields.get("Partition", ""),
        account=account if account not in ("", "(null)") else None,
        cluster=client.name(Round()),
        submit_s=submitted,
    )


def per_node(text: str) -> tuple[int | None, int | None]:
    """Cores and GPUs of the node that has the fewest, from `scontrol show job -d`."""
    rows = [(_count(ids), _gpus(gres)) for _, ids, gres in _OF_NODE.findall(text)]
    cores = min((cores for cores, _ in rows), default=None)
    return cores or None, min((gpus for _, gpus in rows), default=None)


def _gpus(gres: str) -> int:
    # An index list in parentheses has commas of its own.
    return sum(map(int, _GPUS.findall(re.sub(r"\([^)]*\)", "", gres))))


def _count(ids: str) -> int:
    spans = (part.partition("-") for part in ids.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)
