"""Causes that Slurm knows: a job it ended, lost a node of, has not started or will not start."""

from __future__ import annotations

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import Speaker, pattern
from fsdpkit.runs.failures import Level

_NO_RANK: tuple[Speaker, ...] = ("agent", "batch")

PREEMPTION = Cause(
    "preemption",
    "Slurm preempted the job for one with a higher priority.",
    states=frozenset({"PREEMPTED"}),
    endings=frozenset({"preemption"}),
    of_job=True,
    again="yes, as soon as Slurm grants the nodes",
    patterns=(
        pattern(
            "DUE TO PREEMPTION", "slurmstepd, at the end of the grace", Level.OUTSIDE, by=_NO_RANK
        ),
    ),
)

TIME_LIMIT = Cause(
    "time-limit",
    "The job reached its time limit.",
    states=frozenset({"TIMEOUT", "DEADLINE"}),
    endings=frozenset({"time-limit"}),
    of_job=True,
    again="yes, from the newest checkpoint",
    patterns=(
        pattern(
            "DUE TO TIME LIMIT | this job is timed-out | requeued because: timed-out",
            "slurmstepd, of the job and each step; submitit, which knows how long it may run",
            Level.OUTSIDE,
            by=_NO_RANK,
        ),
    ),
)

CANCELLED = Cause(
    "cancelled",
    "The job was cancelled{words}.",
    states=frozenset({"CANCELLED", "REVOKED"}),
    endings=frozenset({"cancelled"}),
    of_job=True,
    patterns=(
        pattern(
            "*** JOB ",
            "slurmstepd; a step alone is also cancelled when one of its tasks fails",
            Level.OUTSIDE,
            line=r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ (?:DUE to SIGNAL \w+ )?\*\*\*",
        ),
        pattern(
            "*** STEP ",
            "slurmstepd, of a step that somebody asked to end; srun itself kills one at once when "
            "a task has failed",
            Level.SUMMED_UP,
            by=_NO_RANK,
            line=r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ DUE to SIGNAL "
            r"(?!Killed|(?:SIG)?KILL|9\b)",
        ),
    ),
)

IDLE = Cause(
    "idle",
    "The job was stopped because its GPUs were idle: {words}.",
    endings=frozenset({"idle"}),
    retry="idle",
    of_job=True,
    again="no, unless what it waited for is available now",
)

NODE_FAILURE = Cause(
    "node-failure",
    "A node failed: {who}: {words}",
    retry="node-failure",
    again="yes, without that node",
    states=frozenset({"NODE_FAIL", "BOOT_FAIL"}),
    patterns=(
        pattern(
            "Node failure on ",
            "srun, when slurmctld declared a node down",
            Level.OUTSIDE,
            line=r"srun: error: Node failure on (?P<node>[\w.-]+)",
        ),
        pattern(
            "DUE TO NODE FAILURE | due to hardware memory corruption | "
            "***…UNCORRECTABLE MEMORY ERROR | not syncing: Fatal Machine check",
            "slurmstepd on a surviving node; the kernel and slurmstepd, of the node's memory",
            Level.OUTSIDE,
            by=_NO_RANK,
        ),
        pattern(
            "Task launch for ",
            "srun, of a node whose slurmd did not take the step, unless the request is at fault",
            Level.OUTSIDE,
            by=_NO_RANK,
            line=r"Task launch for \S+ failed on node (?P<node>[\w.-]+): "
            r"(?!.*(?:Requested|Unable to satisfy|Invalid job id|already|task layout|layout tasks|"
            r"More processors))",
        ),
    ),
)

REFUSED = Cause(
    "refused",
    "Slurm will not run the job: {words}.",
    retry="node-failure",
    patterns=(
        pattern(
            "srun: fatal:  | srun: error: Unable to create step | error: Batch job submission | "
            "error: Unable to allocate resources: ",
            "srun; sbatch, of a job that the script submits",
            by=_NO_RANK,
        ),
        pattern(
            "Task launch for  | Application launch failed | ob credential | "
            "Requested node configuration | More processors requested | Invalid job id specified",
            "srun and slurmd, of a step that was not started",
            by=_NO_RANK,
            line=r"^(?:srun|slurmstepd\S*|slurmd): ",
        ),
    ),
)

PENDING_FOREVER = Cause(
    "pending-forever", "The job is pending and will not start by itself: {words}."
)

PENDING = Cause("pending", "The job is pending: {words}.")
