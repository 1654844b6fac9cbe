"""What to do about Slurm's decisions."""

from __future__ import annotations

from fsdpkit.failures.advice.entry import Advice

ENTRIES = (
    Advice(
        "The job inherited how another one binds to cores",
        (
            "The job was submitted from inside another one, whose binding it inherited: unset "
            "SLURM_CPU_BIND, SLURM_CPU_BIND_TYPE and SLURM_CPU_BIND_LIST there, or submit from a "
            "login node.",
        ),
        ("cpu bind request",),
    ),
    Advice(
        "The step asks for more than the allocation has",
        (
            "The step asks for other cores, tasks or memory than the job was given: compare "
            "scontrol show job with resources.cpus_per_gpu, resources.gpus and the options in "
            "[slurm]; leave out what is set twice.",
        ),
        (
            *("layout tasks on given cpus", "more processors requested", "task layout"),
            *("requested node configuration", "memory required by task", "unable to satisfy"),
            *("cpu count per node can not be satisfied", "invalid generic resource"),
        ),
        causes=("refused", "node-failure", "settings"),
    ),
    Advice(
        "A node still holds the attempt before",
        (
            "A node may still hold the attempt before. If it comes back, ask for what the "
            "allocation has (scontrol show job): nodes, cores, memory, GPUs.",
        ),
        ("nodes are busy", "already completing"),
        causes=("refused",),
    ),
    Advice(
        "A job that the script submits is refused",
        (
            "Submit within what is allowed; yours: sacctmgr -nP show assoc user=$USER "
            "format=account,partition,qos",
        ),
        (*("invalid account", "job violates", "invalid qos"),),
        causes=("refused",),
    ),
    Advice(
        "Account, QOS, partition or a limit do not allow the job",
        (
            "Cancel it (fsdpkit cancel {run}) and submit it within what is allowed; yours: "
            "sacctmgr -nP show assoc user=$USER format=account,partition,qos",
        ),
        (
            *("invalidaccount", "invalidqos", "notallowed", "not permitted to use"),
            *("maxmemperlimit", "is not valid"),
        ),
        causes=("refused",),
    ),
    Advice(
        "Memory is requested in two ways",
        (
            "Memory is requested in two ways, one of them inherited from the job in which this "
            "one was submitted: unset SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU and "
            "SLURM_MEM_PER_NODE there, and keep resources.memory.",
        ),
        ("mutually exclusive",),
        causes=("refused",),
    ),
    Advice(
        "srun has no such plugin for MPI",
        ("Choose one that srun --mpi=list shows: SLURM_MPI_TYPE, or [slurm] and the script.",),
        ("invalid mpi type",),
    ),
    Advice(
        "Slurm did not start the program",
        ("Slurm did not start the program: send this message to the centre.",),
        causes=("refused",),
    ),
    Advice(
        "Slurm preempted the job",
        (
            "It can requeue by itself ({set:retry.on_preemption=requeue}).",
            "A QOS or partition that is not preemptible lets it run through.",
        ),
        causes=("preemption",),
    ),
    Advice(
        "The time limit is reached",
        (
            "If its steps went on to the end, request more time (--time).",
            "It can requeue by itself ({set:retry.on_time_limit=requeue}).",
        ),
        causes=("time-limit",),
    ),
    Advice(
        "A node failed",
        (
            "A lost node is left out of the next attempt.",
            "With standby nodes ({set:resources.spare=1}) a run survives this.",
        ),
        causes=("node-failure",),
    ),
)
