"""Causes: memory that was not enough, of a GPU or of a node."""

from __future__ import annotations

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern
from fsdpkit.runs.failures import Level

_SAME_MEMORY = "no, it would need the same memory again"

HOST_OUT_OF_MEMORY = Cause(
    "host-out-of-memory",
    "{who} ran out of host memory, the node's or the job's share of it: {words}",
    retry="out-of-memory",
    again=_SAME_MEMORY,
    states=frozenset({"OUT_OF_MEMORY"}),
    patterns=(
        pattern(
            "oom_kill event | oom-kill event",
            "slurmstepd, when the kernel killed a process in the job's cgroup",
            Level.OUTSIDE,
            line=r"(?:slurmstepd-(?P<node>[\w.-]+))?.*Detected \d+ oom",
        ),
        pattern(
            ": Out Of Memory",
            "srun, for a task killed this way",
            Level.OUTSIDE,
            line=r"srun: error: (?P<node>\S+): tasks? ",
        ),
        pattern(
            "xceeded memory limit | xceeded job memory limit | exceeded virtual memory limit | "
            "ut of memory: Kill | oom-kill:constraint | invoked oom-killer | "
            "earlyoom…sending SIG | oomd…due to memory pressure",
            "slurmstepd, where the site has it end a step by itself; the kernel's log; daemons "
            "that kill before the kernel must",
            Level.OUTSIDE,
            by=("agent", "batch"),
        ),
        pattern(
            "DataLoader worker …is killed by signal: Killed | "
            "DefaultCPUAllocator: …can't allocate | DefaultCPUAllocator: …not enough memory | "
            "memory allocation of …bytes failed",
            "torch, for a worker and on CPU; Rust",
        ),
        pattern(
            "MemoryError",
            "Python and numpy; a GPU's has the same end",
            line=r"^(?!.*OutOfMemoryError(?:\(|.*(?:CUDA|HIP|XPU|GPU)))"
            r"(?:\S+\.)?\w*MemoryError\b(?!\w)",
        ),
        pattern(
            "annot allocate memory | std::bad_alloc | failed to allocate …bytes",
            "the kernel's ENOMEM, of fork(2) or mmap(2); C++, but for its libraries for GPUs",
            line=r"(?i)^(?!.*(?:cuda|\bhip|thrust|rmm))",
        ),
    ),
)

GPU_OUT_OF_MEMORY = Cause(
    "gpu-out-of-memory",
    "{who} ran out of GPU memory: {words}",
    retry="out-of-memory",
    again=_SAME_MEMORY,
    patterns=(
        pattern(
            "OutOfMemoryError",
            "torch",
            line=r"^(?!.*\bout of resource)",  # so Triton calls what one kernel wants too much
        ),
        pattern(
            "CUDA out of memory | CUDA failed to allocate | HIP out of memory | "
            "cudaErrorMemoryAllocation | _STATUS_ALLOC_FAILED | "
            "OUT_OF_RESOURCES…Available Free mem : 0 MB",
            "torch, CUDA; cuBLAS and cuDNN, of a workspace; ROCm's runtime, of a queue",
        ),
        pattern(
            "ut of memory",
            "CUDA, HIP, XLA; extensions, which name their own source",
            line=r"(?:CUDA|HIP|GPU|XLA|XPU|cuda)\b.{0,40}ut of mem|"
            r"ut of memory\b.*(?:\.cuh?\b|/csrc/|\bcuda)",
        ),
        pattern(
            "uda failure…ut of memory | uda failure 2  | UDA_ERROR_OUT_OF_MEMORY",
            "NCCL, for its buffers",
            quoted=True,
        ),
    ),
)
