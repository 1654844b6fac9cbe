"""Every environment variable that fsdpkit reads or sets, with a sentence.

This is the one place where they stand together; a test holds it against the names in the code and
in the packaged template.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsdpkit.reference import markdown

Group = Mapping[str, str]

YOURS: Group = {
    "FSDPKIT_RUNS": "Directory of runs. Default: `./runs`.",
    "FSDPKIT_CLUSTER": "Site profile to use, where `--cluster` is not given.",
    "FSDPKIT_SITE_PATH": "Folders of your centre's templates, profiles and jobs, separated by `:`; "
    "the first is the strongest.",
    "FSDPKIT_CHANNEL": "Channel of published versions: `stable` (default) or `testing`.",
    "FSDPKIT_CONFIG_DIR": "Your own configuration. Default: `fsdpkit` in `XDG_CONFIG_HOME`, else "
    "`~/.config/fsdpkit`.",
    "FSDPKIT_STATE_DIR": "What fsdpkit remembers: indexes that it has seen, local jobs. Default: "
    "`fsdpkit` in `XDG_STATE_HOME`, else `~/.local/state/fsdpkit`.",
    "FSDPKIT_HOST": "Login node that runs the command, as `--host`.",
    "FSDPKIT_REMOTE": "Path of `fsdpkit` on that login node.",
    "FSDPKIT_SIGNING_KEY": "For administrators: the key that `fsdpkit publish` signs with.",
    "FSDPKIT_ALLOWED_SIGNERS": "For administrators: the file that says whose signatures count, "
    "where it does not lie in the published folder.",
    "_FSDPKIT_COMPLETE": "Set by the completion script of your shell.",
}
IN_RANKS: Group = {
    "FSDPKIT_RUN_DIR": "Directory of the run.",
    "FSDPKIT_TASK_DIR": "Directory of this job or array task, which survives requeues; in a script "
    "`fsdpkit.task_dir()`.",
    "FSDPKIT_ATTEMPT_DIR": "Directory of this attempt.",
    "RANK": "Rank among all processes, from 0; also `ROLE_RANK`.",
    "LOCAL_RANK": "Rank on this node, from 0: the index of its GPU.",
    "WORLD_SIZE": "Number of ranks; also `ROLE_WORLD_SIZE`.",
    "LOCAL_WORLD_SIZE": "Number of ranks on this node.",
    "GROUP_RANK": "Index of this node within the job.",
    "GROUP_WORLD_SIZE": "Number of nodes.",
    "SLURM_PROCID": "The rank; with `SLURM_LOCALID`, `SLURM_NTASKS`, `SLURM_NTASKS_PER_NODE`, "
    "`SLURM_CPUS_PER_TASK` and the like: what `srun` with one task for each rank would set.",
    "MASTER_ADDR": "Address where the ranks meet.",
    "MASTER_PORT": "Port there, anew at each launch.",
    "OMP_NUM_THREADS": "Threads of a rank: cores of the task divided by its ranks, unless the job "
    "sets it or `parameters.omp_threads`.",
    "NCCL_SOCKET_IFNAME": "The interface with the head node's address, unless profile, job or "
    "submitting shell set it; also `GLOO_SOCKET_IFNAME`.",
    "PYTORCH_ALLOC_CONF": "`expandable_segments:True` on NVIDIA GPUs, unless you set an allocator; "
    "torch before 2.10 is given `PYTORCH_CUDA_ALLOC_CONF`.",
    "TORCH_FR_BUFFER_SIZE": "Size of the flight recorder; `TORCH_FR_DUMP_TEMP_FILE`, "
    "`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`, `TORCH_NCCL_DEBUG_INFO_PIPE_FILE` and "
    "`TORCH_NCCL_DUMP_ON_TIMEOUT` say when and where it is written.",
    "TORCHELASTIC_ERROR_FILE": "Where torchelastic puts the exception of a rank.",
    "TORCHELASTIC_USE_AGENT_STORE": "Whether an agent has opened the store at `MASTER_ADDR`; not "
    "where the script chooses another port.",
    "TORCHELASTIC_RESTART_COUNT": "Index of the launch within the attempt.",
    "FSDPKIT_HEARTBEAT_DIR": "Where `fsdpkit.log` notes that the rank made a step.",
    "ACCELERATE_USE_CPU": "With `launch.accelerate_config`, beside the others that `accelerate "
    "launch` sets.",
    "FSDPKIT_VISIT": "`1` in `fsdpkit shell`: nothing that runs there changes the run.",
}
IN_PORTALS: Group = {
    "FSDPKIT_FORM_…": "A field of the form, such as `FSDPKIT_FORM_NODES`, or what the script made "
    "of several; nothing is used before it was checked.",
}
IN_NOTIFY: Group = {
    "FSDPKIT_EVENT": "`end`, `failure` or `requeue`.",
    "FSDPKIT_RUN_ID": "Name of the run.",
    "FSDPKIT_JOB_ID": "Slurm's id of the job.",
    "FSDPKIT_JOB_NAME": "Name of the job.",
    "FSDPKIT_ATTEMPT": "Number of the attempt, from 0.",
    "FSDPKIT_STATUS": "Its exit status; `steps.after` finds it, too.",
    "FSDPKIT_CAUSE": "Why it ended, in a word.",
    "FSDPKIT_WHY": "Why it ended, in a sentence.",
    "FSDPKIT_STEP": "The last step that was logged.",
}
OF_OTHERS: Group = {
    "SBATCH_ACCOUNT": "Slurm's own: the account, where neither job nor `--account` names one.",
    "SLURM_CONF": "Slurm's own, for its commands; also `SLURM_CLUSTERS`, `SLURM_CONF_SERVER`, "
    "`SLURM_JWT`.",
    "SLURM_JOB_ID": "In a job, with `SLURM_ARRAY_JOB_ID`, `SLURM_ARRAY_TASK_ID`, "
    "`SLURM_RESTART_COUNT`, `SLURM_JOB_NODELIST`, `SLURM_JOB_NUM_NODES`, `SLURM_JOB_START_TIME`, "
    "`SLURM_MEM_PER_NODE`, `SLURM_NODEID` and `SLURMD_NODENAME`: which job, attempt and node this "
    "is. Ranks do not read them.",
    "CONDA_EXE": "Which conda to use; with `CONDA_PREFIX`, `CONDA_DEFAULT_ENV` and "
    "`CONDA_ENVS_PATH` which environment is active.",
    "VIRTUAL_ENV": "The active virtual environment, which `fsdpkit init` proposes.",
    "LOADEDMODULES": "Modules that are loaded, which `fsdpkit init` proposes; with `LMOD_CMD`, "
    "`LMOD_VERSION`, `MODULEPATH`, `MODULESHOME` and `MODULES_CMD` which module system there is.",
    "CUDA_VISIBLE_DEVICES": "GPUs of the job, which are counted before training; "
    "`ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` on AMD's.",
    "CUBLAS_WORKSPACE_CONFIG": "Set by `training.debug.deterministic`, which needs it.",
    "TOKENIZERS_PARALLELISM": "Set while data is prepared, for Hugging Face's tokenizers.",
    "MLFLOW_TRACKING_URI": "Server that `fsdpkit track --to mlflow` sends to.",
    "WANDB_BASE_URL": "Server that `fsdpkit track --to wandb` sends to.",
    "PYTHONPATH": "Kept for the ranks as you had it, without empty and relative entries.",
    "PYTHONUNBUFFERED": "Set for the ranks, so that what they print is there at once.",
    "PATH": "Set by the environment that the job activates.",
    "HOME": "Where your configuration lies.",
    "TERM": "Whether `watch` and `top` may redraw.",
    "COLUMNS": "Width of your terminal, which a login node is told with `--host`.",
    "XDG_CONFIG_HOME": "Where configuration lies; `XDG_STATE_HOME` what is remembered, "
    "`XDG_CACHE_HOME` plans, measured speeds and parsed templates, `XDG_RUNTIME_DIR` the "
    "shared ssh connection.",
}
INTERNAL: Group = {
    "FSDPKIT_ALLOW_LOOPBACK": "The head node may have a loopback address: the local cluster.",
    "FSDPKIT_CONTAINER": "Words that start the container.",
    "FSDPKIT_DEVICE": "`gpu`, `nvidia`, `amd` or `cpu`, by the job and the profile.",
    "FSDPKIT_JOB_SHA256": "Digest of `job.json`; nodes believe no other.",
    "FSDPKIT_MIN_FREE_GB": "`parameters.min_free_gb`.",
    "FSDPKIT_NODES": "Number of nodes, without standby nodes.",
    "FSDPKIT_NODE_NAMES": "Their names, the head first.",
    "FSDPKIT_PREFLIGHT": "`0`: no checks before training (`parameters.preflight`).",
    "FSDPKIT_PROGRAM": "What each rank runs, and its arguments.",
    "FSDPKIT_PYTHONPATH": "`PYTHONPATH` as you had it, until the agent has started.",
    "FSDPKIT_GPUS_PER_NODE": "GPUs of each node.",
    "FSDPKIT_RANKS_PER_NODE": "Ranks on each node.",
    "FSDPKIT_WORLD": "`any` where a process group may have other ranks than the job.",
    "FSDPKIT_SAMPLE_S": "`parameters.sample_s`.",
    "FSDPKIT_SECRET": "32 random bytes by which the agents know each other; no rank and no file "
    "has it.",
    "FSDPKIT_SOCKET_IFNAME": "`network.socket_ifname` of the profile.",
    "FSDPKIT_START": "The program text that starts an agent.",
    "FSDPKIT_VIA": "The host that the command was sent to, for what it prints.",
    "RDZV_HOST": "Address of the head node; `RDZV_PORT` the agents' port there.",
    "SUBMITIT_FOLDER": "Where submitit keeps its files; `SUBMITIT_EXECUTOR` which executor it is.",
    "SLURM_EXPORT_ENV": "`ALL`, so that a nested srun hands the environment on.",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "Set by the agent: warnings are ours to handle.",
}
GROUPS: Mapping[str, Group] = {
    "You may set": YOURS,
    "Your script finds": IN_RANKS,
    "The command of `[notify]` finds": IN_NOTIFY,
    "In a script of `fsdpkit template export`": IN_PORTALS,
    "Of other programs": OF_OTHERS,
    "Between the script, agents and ranks": INTERNAL,
}


def named() -> set[str]:
    """Every variable that the page names, in its tables or their sentences."""
    import re

    text = " ".join(f"{name} {words}" for group in GROUPS.values() for name, words in group.items())
    return set(re.findall(r"\b_?[A-Z][A-Z0-9_]+\b", text))


def page() -> str:
    parts: list[list[str]] = [["No variable that is not here changes what fsdpkit does."]]
    for title, group in GROUPS.items():
        rows = [(f"`{name}`", markdown.escaped(words)) for name, words in group.items()]
        note = ["These may change with any release.", ""] if group is INTERNAL else []
        parts.append([f"## {title}", "", *note, *markdown.table(("variable", "meaning"), rows)])
    return markdown.page("Environment variables", *parts)
