"""Slurm's variables as a rank should see them: those of `srun --ntasks-per-node=RANKS`.

Slurm runs one task a node here, the agent, so what it sets describes nodes. Many scripts take rank
and size from Slurm before they look at torchrun's variables, and would train in a world of nodes.
Names and forms: srun(1), OUTPUT ENVIRONMENT VARIABLES; of other launchers, only what is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_RANK = ("SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_LOCAL_RANK = ("SLURM_LOCALID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
_SIZE = (
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
    *("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"),
)
_LOCAL_SIZE = ("SLURM_NTASKS_PER_NODE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
_PER_NODE = ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE")
_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES")
_NODE_LIST = ("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST")
_OTHERS = ("SLURM_NODEID", "SLURM_GTIDS", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_ON_NODE")
_HEAD = "SLURM_LAUNCH_NODE_IPADDR"  # where srun ran; scripts take it for rank 0's address
NAMES = frozenset(
    (*_RANK, *_LOCAL_RANK, *_SIZE, *_LOCAL_SIZE, *_PER_NODE, *_NODES, *_NODE_LIST, *_OTHERS, _HEAD)
)


def of_rank(
    rank: Mapping[str, str], agent: Mapping[str, str], nodes: Sequence[str]
) -> dict[str, str]:
    """What a rank has in place of the agent's variables; nothing outside of a job. rank: its
    variables of torchrun. agent: the agent's environment. nodes: names of those that train."""
    if "SLURM_JOB_ID" not in agent:
        return {}
    here, count = int(rank["LOCAL_WORLD_SIZE"]), len(nodes)
    first = int(rank["GROUP_RANK"]) * here
    cpus = agent.get("SLURM_CPUS_PER_TASK", "")
    values = {
        **dict.fromkeys(_RANK, rank["RANK"]),
        **dict.fromkeys(_LOCAL_RANK, rank["LOCAL_RANK"]),
        **dict.fromkeys(_SIZE, rank["WORLD_SIZE"]),
        **dict.fromkeys(_LOCAL_SIZE, str(here)),
        **dict.fromkeys(_PER_NODE, f"{here}(x{count})" if count > 1 else str(here)),
        **dict.fromkeys(_NODES, str(count)),
        "SLURM_NODEID": rank["GROUP_RANK"],
        "SLURM_GTIDS": ",".join(str(first + local) for local in range(here)),
        "SLURM_GPUS_ON_NODE": agent.get("SLURM_GPUS_ON_NODE", str(here)),
        _HEAD: rank["MASTER_ADDR"],
    }
    if cpus.isdigit():
        values["SLURM_CPUS_PER_TASK"] = str(max(1, int(cpus) // here))
    if agent.get("SLURM_NNODES", str(count)) != str(count):  # Slurm's list has standby nodes
        values |= dict.fromkeys(_NODE_LIST, ",".join(nodes))
    return {
        name: value for name, value in values.items() if name.startswith("SLURM_") or name in agent
    }
