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
            ("oom_kill event", "oom-kill event"),
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
            "memory limit",
            "slurmstepd, where the site has it end a step by itself",
            Level.OUTSIDE,
            by=("agent", "batch"),
            line=r"slurmstepd\S*: error: (?:Step(?:Id=\S+)?|Job(?:Id=\S+)?) ?\S* "
            r"exceeded (?:virtual )?memory limit",
        ),
        pattern(
            ("ut of memory: Kill", "oom-kill:constraint", "invoked oom-killer"),
            "the kernel log, for the job's cgroup or the whole node",
            Level.OUTSIDE,
            by=("agent", "batch"),
        ),
        pattern(
            ("earlyoom", "oomd", "nohang"),
            "daemons that kill before the kernel must",
            Level.OUTSIDE,
            by=("agent", "batch"),
            line=r"(?:earlyoom|oomd|nohang)\b.*"
            r"(?:sending SIG(?:TERM|KILL) to|Killed \S+ due to memory)",
        ),
        pattern(
            "is killed by signal: ",
            "torch's DataLoader, for a worker",
            line=r"DataLoader worker .*Killed",
        ),
        pattern(
            "DefaultCPUAllocator: ",
            "torch on CPU",
            line=r"can't allocate|not enough memory",
        ),
        pattern(
            "MemoryError",
            "Python and numpy; a GPU's has the same end",
            line=r"^(?!.*OutOfMemoryError(?:\(|.*(?:CUDA|HIP|XPU|GPU)))"
            r"(?:\S+\.)?\w*MemoryError\b(?!\w)",
        ),
        pattern(
            ("annot allocate memory", "std::bad_alloc"),
            "the kernel's ENOMEM, of fork(2) or mmap(2); C++, but for its libraries for GPUs",
            line=r"(?i)^(?!.*(?:cuda|\bhip|thrust|rmm))",
        ),
        pattern("memory allocation of ", "Rust"),
    ),
)

GPU_OUT_OF_MEMORY = Cause(
    "gpu-out-of-memory",
    "{who} ran out of GPU memory: {words}",
    retry="out-of-memory",
    again=_SAME_MEMORY,
    patterns=(
        pattern(
            ("OutOfMemoryError", "CUDA out of memory", "HIP out of memory"),
            "torch",
            line=r"^(?!.*\bout of resource)",  # so Triton calls what one kernel wants too much
        ),
        pattern(
            ("ut of memory", "cudaErrorMemoryAllocation", "RESOURCE_EXHAUSTED"),
            "CUDA, HIP, XLA; extensions, which name their own source",
            line=r"(?:CUDA|HIP|GPU|XLA|XPU|cuda)\b.{0,40}ut of mem|cudaErrorM|RESOURCE_E|"
            r"ut of memory\b.*(?:\.cuh?\b|/csrc/|\bcuda)",
        ),
        pattern(
            "Available Free mem : ",
            "ROCm's runtime, of a queue",
            line=r"OUT_OF_RESOURCES.*Available Free mem : 0 MB",
        ),
        pattern("_STATUS_ALLOC_FAILED", "cuBLAS, cuDNN and their like, of a workspace"),
        pattern(
            ("uda failure", "UDA_ERROR_OUT_OF_MEMORY"),
            "NCCL, for its buffers",
            quoted=True,
            line=r"(?i)out[_ ]of[_ ]memory|failure 2\b",
        ),
    ),
)
