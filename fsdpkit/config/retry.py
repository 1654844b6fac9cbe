"""`[retry]` of a job: what happens when a cluster does to a run what clusters do.

One policy for all that can end an attempt; the agents in the job and the batch shell act on it.
"""

from typing import Annotated, Literal

import msgspec

from fsdpkit.config.fields import RENDERED_ONCE, doc

Return = Literal["requeue", "stop"]
Repair = Literal["restart", "requeue", "stop"]


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`restart`: start the ranks again in the same allocation, from the newest whole checkpoint.
    `requeue`: queue the job again, where the cluster allows that. `stop`: end, and say how to go
    on."""

    on_time_limit: Annotated[Return, doc("When Slurm warns that the time limit is near.")] = (
        "requeue"
    )
    on_preemption: Annotated[Return, doc("When a job of higher priority takes the nodes.")] = (
        "requeue"
    )
    on_node_failure: Annotated[
        Repair,
        doc("When a node is lost; `restart` needs resources.spare, else it requeues."),
        RENDERED_ONCE,
    ] = "restart"
    on_crash: Annotated[Repair, doc("When a rank dies or raises an exception.")] = "restart"
    on_hang: Annotated[Repair, doc("When a rank makes no progress for hang_s.")] = "restart"
    on_out_of_memory: Annotated[Repair, doc("When a rank runs out of memory.")] = "stop"
    args_again: Annotated[
        list[str],
        doc(
            "Arguments added to the script's own from its second start on, such as "
            "--resume: after a restart, a requeue or a resume."
        ),
    ] = []
    restarts: Annotated[int, doc("Restarts within one attempt.", ge=0, le=1000), RENDERED_ONCE] = 3
    requeues: Annotated[
        int,
        doc(
            "Attempts in a row that may end without a new checkpoint before the run "
            "stops; up to five starts that Slurm refuses because of a lost node do not count.",
            ge=0,
            le=1000,
        ),
    ] = 3
    backoff_s: Annotated[
        float, doc("Seconds before the first restart; doubles, up to 300.", ge=0, le=3600)
    ] = 5.0
    hang_s: Annotated[
        int,
        doc(
            "Seconds without a step after which a rank counts as hung; ten times as "
            "long during start-up and checkpoints; 0 never.",
            ge=0,
            le=86400,
        ),
    ] = 600
    on_idle_gpus: Annotated[
        Literal["warn", "stop"],
        doc(
            "When no GPU has computed for idle_gpus_s; `stop` asks the run to save, then ends it, "
            "unless its processes use a CPU or move data."
        ),
    ] = "warn"
    idle_gpus_s: Annotated[
        int,
        doc("Seconds without work on any GPU that are reported; 0 never.", ge=0, le=86400),
    ] = 1200
    lost_s: Annotated[
        int, doc("Seconds of silence after which a node counts as lost.", ge=5, le=3600)
    ] = 30
    avoid_node_h: Annotated[
        float, doc("Hours for which your later jobs avoid a node that failed.", ge=0, le=8760)
    ] = 6.0
