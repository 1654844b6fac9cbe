"""What to do about memory and other limits of a process."""

from __future__ import annotations

from fsdpkit.failures.advice.entry import Advice

ENTRIES = (
    Advice(
        "A node locks too little memory for InfiniBand",
        (
            "A process may lock too little memory for InfiniBand there (ulimit -l), which is the "
            "centre's to raise for Slurm's daemons (LimitMEMLOCK=infinity, "
            "PropagateResourceLimitsExcept=MEMLOCK).",
        ),
        (*("max locked memory", "memlock", "ibv_…cannot allocate memory"),),
        causes=("exception", "network-setup", "host-out-of-memory", "connection-reset"),
        around=True,
    ),
    Advice(
        "No more threads or processes may be started",
        (
            "A limit on threads and processes is reached (ulimit -u, the job's cgroup), which is "
            "not one of memory: fewer loader workers, "
            "{set:environment.variables.OMP_NUM_THREADS=1} (and OPENBLAS_NUM_THREADS), or more "
            "cores for each GPU (resources.cpus_per_gpu).",
            "[else] A limit on threads and processes is reached (ulimit -u, the job's cgroup): "
            "fewer loader workers, or more cores for each GPU (resources.cpus_per_gpu).",
        ),
        (
            *("can't start new thread", "pthread_create failed", "hread creation failed"),
            *("omp: system error #11", "[errno 11] resource temporarily unavailable"),
            *("fork: resource temporarily", "fork: retry", "libgomp: thread creation"),
        ),
    ),
    Advice(
        "Java has its own limit of memory",
        (
            "The Java virtual machine has a limit of its own, whatever the node has: raise -Xmx "
            "(for Spark spark.driver.memory).",
        ),
        ("java heap space", "java.lang.outofmemoryerror", "gc overhead limit"),
        around=True,
        causes=("exception", "host-out-of-memory", "unknown"),
    ),
    Advice(
        "A loader worker is gone without a word",
        (
            "A worker of the DataLoader crashed or was killed. num_workers=0 shows its own error; "
            "if it was killed, compare the memory with what was requested (fsdpkit logs {run} "
            "--batch, sacct -o MaxRSS,ReqMem).",
        ),
        ("exited unexpectedly", "brokenprocesspool", "terminated abruptly", "abruptly died"),
        causes=("exception", "unknown"),
    ),
    Advice(
        "Too many open files",
        (
            "Keep fewer files open at once (fewer loader workers, torch.multiprocessing."
            'set_sharing_strategy("file_system")), or raise the limit at the head of the script: '
            "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)).",
        ),
        ("too many open files", "[errno 24]", "received 0 items of ancdata"),
    ),
    Advice(
        "The check before training found too little memory free on a node",
        ("Something else fills that node: leave it out ({exclude}).",),
        ("mb of memory are free",),
        causes=("host-out-of-memory",),
    ),
    Advice(
        "A node's or a job's memory is used up",
        (
            "[trainer] Request more memory ({set:resources.memory=…}), or use less: fewer loader "
            "workers (training.data.workers), a smaller batch.",
            "[script] Request more memory for each node ({set:resources.memory=…}), or use less: "
            "fewer workers of the DataLoader, which each copy the data set, or a smaller batch. "
            "Loading a checkpoint on every rank multiplies it by the ranks of a node.",
        ),
        causes=("host-out-of-memory",),
    ),
    Advice(
        "A checkpoint did not fit the GPU",
        (
            'Load it with map_location="cpu" (or mmap=True), before the model\'s own copy is made '
            "or in its place; or read it shard by shard with torch.distributed.checkpoint.",
        ),
        causes=("gpu-out-of-memory",),
        phases=("loading",),
    ),
    Advice(
        "A GPU's memory is used up",
        (
            "[trainer] Use less: a smaller training.batch_size, training.micro_batch=auto, "
            "activation checkpointing (training.sharding.activation_checkpointing), or more GPUs.",
            "[script] Use less: a smaller batch, activation checkpointing "
            "(torch.utils.checkpoint), FSDP instead of DDP, or more GPUs.",
            "If much is reserved but unallocated, let segments grow "
            "({set:environment.variables.PYTORCH_ALLOC_CONF=expandable_segments:True}).",
        ),
        causes=("gpu-out-of-memory",),
    ),
    Advice(
        "A signal ended it, and nobody says why",
        (
            "Find out who sent that signal: compare MaxRSS with ReqMem (sacct -o "
            "State,MaxRSS,ReqMem -j JOB), and ask the centre what the node's kernel log says of "
            "that minute.",
        ),
        causes=("unknown",),
        killed=True,
    ),
)
