"""Memory of the node, and words that only sound like it."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.third.common import HOME, SITE, failing
from tests.reporting.unseen.words import QUIET, aborted

GONE = aborted(0)
KILLED = Rank(err="step 1200 loss 2.11\n", status=137)
OOM = wanted("host-out-of-memory", rank="any", node="node2", retry="any")
CASES = [
    Case(
        name="step-of-the-cgroup-was-killed",
        source="slurmstepd 23.11",
        nodes=2,
        gpus=4,
        ranks={6: KILLED},
        others=GONE,
        batch="slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\nsrun: error: node2: task 1: Out Of Memory\n",
        slurm="OUT_OF_MEMORY|0:125",
        want=OOM,
    ),
    Case(
        name="kernel-of-a-cgroup-of-version-two",
        source="mm/oom_kill.c",
        nodes=2,
        gpus=4,
        ranks={6: KILLED},
        others=GONE,
        node_logs={
            1: "[91123.4] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_4711,mems_allowed=0-7,oom_memcg=/system.slice/slurmstepd.scope/job_4711,task_memcg=/system.slice/slurmstepd.scope/job_4711/step_0/user/task_1,task=python,pid=4102,uid=1000\n[91123.4] Memory cgroup out of memory: Killed process 4102 (python) total-vm:412331008kB, anon-rss:260112344kB\n"
        },
        want=OOM,
    ),
    Case(
        name="step-limit-of-an-older-slurm",
        source="slurmstepd 19",
        nodes=2,
        gpus=4,
        ranks={6: KILLED},
        others=GONE,
        batch="slurmstepd: error: Step 4711.0 exceeded memory limit (270532608 > 262144000), being killed\nslurmstepd: error: *** STEP 4711.0 ON node2 CANCELLED AT 2026-11-22T00:31:00 ***\n",
        want=wanted("host-out-of-memory", rank="any", node="any"),
    ),
    Case(
        name="killed-on-a-full-node-without-a-word",
        source="signal(7)",
        nodes=2,
        gpus=4,
        ranks={6: KILLED},
        others=GONE,
        memory_share={1: 0.98},
        want=wanted("host-out-of-memory", rank=6, node="node2"),
    ),
    Case(
        name="state-says-memory-and-text-says-nccl",
        source="sacct OUT_OF_MEMORY",
        nodes=2,
        gpus=4,
        ranks={1: aborted(1, after_s=0.0)},
        others=GONE,
        slurm="OUT_OF_MEMORY|0:125",
        want=wanted("host-out-of-memory", rank="any", node="any"),
    ),
    failing(
        "arrow-table-cannot-be-mapped",
        "errno 12 of mmap",
        "host-out-of-memory",
        "OSError: [Errno 12] Cannot allocate memory",
        f"{SITE}/datasets/table.py:49 _memory_mapped_arrow_table_from_file | opened_stream = pa.memory_map(filename)",
        rank=3,
    ),
    failing(
        "errno-twelve-in-german",
        "strerror(3), de_DE",
        "host-out-of-memory",
        "OSError: [Errno 12] Nicht genügend Hauptspeicher verfügbar",
        f"{HOME}/data.py:20 load | os.fork()",
        rank=3,
    ),
    failing(
        "shell-of-a-rank-in-german",
        "bash, de_DE",
        "host-out-of-memory|exception",
        "bash: fork: Nicht genügend Hauptspeicher verfügbar\nsubprocess.CalledProcessError: Command 'unpack.sh' returned non-zero exit status 254.",
        rank=0,
    ),
    failing(
        "torch-shared-file-not-mapped",
        "torch MapAllocator",
        "host-out-of-memory|disk-full",
        "RuntimeError: unable to mmap 1073741824 bytes from file </dev/shm/torch_4102_881>: Cannot allocate memory (12)",
        rank=2,
    ),
    failing(
        "processor-allocator",
        "torch alloc_cpu.cpp",
        "host-out-of-memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 137438953472 bytes. Error code 12 (Cannot allocate memory)",
        rank=0,
        retry="out-of-memory",
    ),
    failing(
        "arrow-malloc",
        "pyarrow",
        "host-out-of-memory",
        "pyarrow.lib.ArrowMemoryError: malloc of size 8589934592 failed",
        rank=7,
    ),
    failing(
        "tcmalloc-then-bad-alloc",
        "gperftools",
        "host-out-of-memory",
        "tcmalloc: large alloc 137438953472 bytes == (nil) @  0x7f1e6c 0x7f1e70\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "-",
        rank=5,
        status=134,
        prefix="",
    ),
    failing(
        "process-pool-ended-abruptly-on-a-full-node",
        "concurrent.futures",
        "host-out-of-memory|exception",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.",
        rank=4,
        memory_share={1: 0.985},
    ),
    failing(
        "no-new-thread",
        "threading",
        "exception|host-out-of-memory|settings",
        "RuntimeError: can't start new thread",
        "/usr/lib/python3.12/threading.py:992 start | _start_new_thread(self._bootstrap, ())",
        rank=4,
    ),
    failing(
        "handled-shortage-then-a-name",
        "made",
        "exception",
        "NameError: name 'btach' is not defined",
        rank=1,
        before="WARNING cache: MemoryError while building the index in memory; using the index on disk instead\n",
        forbid="memory",
    ),
    failing(
        "gpu-full-while-the-node-is-full-too",
        "made",
        "gpu-out-of-memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 47.94 MiB is free.",
        rank=5,
        memory_share={0: 0.97, 1: 0.97},
        others=QUIET,
    ),
]
