"""The environment that Slurm's commands, and programs of the job's, are started with here.

Whoever submits from within an allocation has its variables, which sbatch and srun would take for
options of the new job. Others have their own defaults for what Slurm's commands print: those would
filter answers (SQUEUE_PARTITION), or make scancel ask a terminal that is not there
(SCANCEL_INTERACTIVE). With PYTHONINSPECT no Python ends with the status that it was told to.
"""

from __future__ import annotations

from collections.abc import Mapping

# Variables by which a person points the commands at a cluster; all other SLURM_* describe a job.
# SBATCH_WCKEY stays, too: no directive of ours competes with it.
_KEPT = {
    "SBATCH_WCKEY",
    "SLURM_CONF",
    "SLURM_CLUSTERS",
    "SLURM_TIME_FORMAT",
    "SLURM_JWT",
    "SLURM_CONF_SERVER",
}
_RANK = {
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "OMP_NUM_THREADS",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "SUBMITIT_EXECUTOR",
    "SUBMITIT_FOLDER",
}
_PREFIXES = (
    "SLURM_",
    "SRUN_",
    "SBATCH_",
    "SLURMD_",
    "TORCHELASTIC_",
    "PMI_",
    "PMIX_",
    "FSDPKIT_JOB_",
)


_OF_COMMANDS = ("SQUEUE_", "SINFO_", "SACCT_", "SACCTMGR_", "SCONTROL_", "SCANCEL_")


def scrubbed(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """`environ` without a surrounding allocation's variables, and the names taken out; also without
    options of Slurm's other commands, but for those that only let them show more (_ALL), and
    without PYTHONINSPECT.

    Inside an allocation the rank variables and the job's own FSDPKIT_* go too; outside, a person's
    OMP_NUM_THREADS and the like stay, for they are a choice.
    """
    inside = "SLURM_JOB_ID" in environ
    job_own = {
        "FSDPKIT_RUN_DIR",
        "FSDPKIT_TASK_DIR",
        "FSDPKIT_ATTEMPT_DIR",
        "FSDPKIT_NODES",
        "FSDPKIT_GPUS_PER_NODE",
        "FSDPKIT_RANKS_PER_NODE",
        "FSDPKIT_DEVICE",
        "FSDPKIT_HERE",
    }

    def leaks(name: str) -> bool:
        if name in _KEPT or name.startswith("PMIX_MCA_"):  # a setting of PMIx, not a place in a job
            return False
        return name.startswith(_PREFIXES) or name in job_own or (inside and name in _RANK)

    def filters(name: str) -> bool:
        of_commands = name.startswith(_OF_COMMANDS) and not name.endswith("_ALL")
        return of_commands or name == "PYTHONINSPECT"

    removed = sorted(name for name in environ if leaks(name))
    return {k: v for k, v in environ.items() if not leaks(k) and not filters(k)}, removed
