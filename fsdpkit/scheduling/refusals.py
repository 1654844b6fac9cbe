"""What Slurm's commands say when they refuse, and what a person can do about it."""

from __future__ import annotations

import re
import subprocess

from fsdpkit.scheduling.named_limits import limit_in, remedy

_REMEDIES = [
    (
        r"[Ii]nvalid account|account/partition combination",
        "This account may not use this partition. List yours: "
        "sacctmgr -nP show assoc user=$USER format=account,partition,qos",
    ),
    (r"[Ii]nvalid partition", "List the partitions: sinfo -s; choose one with --partition."),
    (r"[Ii]nvalid qos", "List yours: sacctmgr -nP show assoc user=$USER format=account,qos"),
    (
        r"[Jj]ob violates accounting/QOS policy",
        "A limit of your account or QOS is reached: sacctmgr show assoc user=$USER.",
    ),
    (
        r"time limit|TimeLimit|[Rr]equested time",
        "Ask for less with --time; limits: sinfo -o '%P %l'.",
    ),
    (
        r"node configuration is not available",
        "No node has this many GPUs, cores or this much memory: sinfo -o '%P %G %c %m'.",
    ),
    (
        r"More processors requested|Node count specification",
        "Ask for fewer nodes; limits: scontrol show partition.",
    ),
    (
        r"[Ii]nvalid wckey",
        "The site enforces wckeys; set yours in SBATCH_WCKEY.",
    ),
    (
        r"Could not establish a configuration source",
        "Slurm's commands find no cluster: is this a login node? Without Slurm: --cluster local.",
    ),
    (
        r"[Uu]nable to contact slurm controller|Connection refused|connection failure",
        "slurmctld does not answer: try again in a minute, or ask the centre.",
    ),
    (r"[Ii]nvalid feature|[Ii]nvalid constraint", "List node features: sinfo -o '%P %f'."),
    (r"[Ii]nvalid generic resource|gres", "List the GPUs that Slurm knows: sinfo -o '%P %G'."),
    (r"[Ii]nvalid job array", "The array is larger than MaxArraySize: scontrol show config."),
    (
        r"[Ii]nvalid node name",
        "A node in resources.nodelist or exclude does not exist (any more); see what fsdpkit "
        "excludes: fsdpkit nodes.",
    ),
    (
        r"job queue full|temporarily unable to accept job",
        "The cluster has reached its limit of jobs (MaxJobCount): submit again when some have "
        "ended.",
    ),
    (
        r"group not permitted",
        "Choose a partition that is open to your groups with --partition: scontrol show partition.",
    ),
    (
        r"Required partition not available",
        "It is closed: choose another with --partition; partitions: sinfo -s.",
    ),
    (
        r"Access/permission denied",
        "The partition, its reservation or this machine is not open to you: scontrol show "
        "partition (AllocNodes, ReqResv, RootOnly).",
    ),
    (
        r"[Rr]equested reservation is invalid",
        "List the reservations: scontrol show reservation; choose with --set "
        "resources.reservation=….",
    ),
    (r"dependency", "The job to wait for is unknown to Slurm, or ended long ago."),
]


def remedy_for(stderr: str) -> str | None:
    """What to do about a refusal, where its cause is known; first by the limit that it names."""
    if (limit := limit_in(stderr)) is not None:
        return remedy(limit)
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, stderr)), None)


def refusal(command: str, done: subprocess.CompletedProcess[str]) -> str:
    """The words of a command that failed, with the remedy where there is one."""
    words = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    remedy = remedy_for(words)
    return f"{command} refused: {words}" + (f"\n{remedy}" if remedy else "")
