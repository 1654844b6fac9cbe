"""Machines and Slurm: GPUs, memory, links, file systems, ends of jobs."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.third.common import HOME, SITE, STEP, before, failing, shown, stack
from tests.reporting.unseen.third.slurm import state
from tests.reporting.unseen.words import DEVICE_SIDE, aborted, watchdog

GONE = aborted(0)
DIED = Rank(err="step 1200 loss 2.11\n", status=137)
SIGNALLED = Rank(
    err=stack(
        f'{SITE}/torch/distributed/elastic/multiprocessing/api.py:82 _terminate_process_handler | raise SignalException(f"Process {{os.getpid()}} got signal: {{sigval}}", sigval=sigval)'
    )
    + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4102 got signal: 15\n",
    status=1,
)
PEERS = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.99.7.2]:41022"
CASES = [
    state("time-over-and-signal-exceptions", "TIMEOUT|0:15", "time-limit", others=SIGNALLED),
    state(
        "cancelled-and-signal-exceptions", "CANCELLED by 1000|0:15", "cancelled", others=SIGNALLED
    ),
    state(
        "preempted-and-exit-143",
        "PREEMPTED|0:15",
        "preemption",
        others=Rank(err="received SIGTERM, saving\n", status=143),
    ),
    state(
        "node-failed-and-gloo-is-loud",
        "NODE_FAIL|1:0",
        "node-failure",
        others=Rank(err=shown(stack(*STEP) + PEERS, 0, "rank"), status=1),
    ),
    state(
        "memory-state-and-a-bus-error-elsewhere",
        "OUT_OF_MEMORY|0:125",
        "host-out-of-memory",
        others=GONE,
        batch="slurmstepd: error: Detected 3 oom_kill events in StepId=4711.0. Some of the step tasks have been OOM Killed.\n",
    ),
    state(
        "qos-minutes-of-the-job",
        "PENDING|0:0|QOSMaxWallDurationPerJobLimit",
        "pending-forever|refused",
    ),
    state("qos-gpus-per-user", "PENDING|0:0|QOSMaxGRESPerUser", "pending|pending-forever"),
    state("partition-is-down", "PENDING|0:0|PartitionDown", "pending|pending-forever"),
    state(
        "nodes-too-many-for-the-partition",
        "PENDING|0:0|PartitionNodeLimit",
        "pending-forever|refused|pending",
    ),
    state("held-by-its-user", "PENDING|0:0|JobHeldUser", "pending-forever|pending"),
    state("waits-for-resources", "PENDING|0:0|Resources", "pending"),
    state("waits-for-a-dependency", "PENDING|0:0|Dependency", "pending"),
    before(
        "step-on-busy-nodes",
        "srun",
        "refused|pending|unknown",
        "srun: Job 4711 step creation temporarily disabled, retrying (Requested nodes are busy)\nsrun: error: Unable to create step for job 4711: Requested nodes are busy\n",
    ),
    before(
        "nodes-not-ready",
        "srun",
        "node-failure|refused",
        "srun: error: Nodes node2 are still not ready\nsrun: error: Something is wrong with the boot of the nodes.\n",
    ),
    before(
        "io-error-of-slurmstepd",
        "slurmstepd",
        "storage|disk-full|refused|node-failure|script-not-visible|unknown",
        "slurmstepd: error: Could not open stdout file /lustre/k.meyer/run/out.log: Input/output error\nsrun: error: task 1 launch failed: I/O error setting up job files\n",
    ),
    Case(
        name="seven-were-killed-when-the-eighth-used-up-the-node",
        source="mm/oom_kill.c",
        nodes=2,
        gpus=4,
        ranks={5: DIED},
        others=GONE,
        node_logs={
            1: "[ 8812.11] Out of memory: Killed process 4101 (python) total-vm:912331008kB, anon-rss:510112344kB, file-rss:0kB, shmem-rss:20kB, UID:1000\n"
        },
        want=wanted("host-out-of-memory", rank="any", node="node2"),
    ),
    failing(
        "gpu-row-remap-failed",
        "NVIDIA Xid 64",
        "bad-gpu",
        f"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n{DEVICE_SIDE}",
        *STEP,
        rank=6,
        judged=False,
        others=GONE,
        node_logs={
            1: "[  921.114] NVRM: Xid (PCI:0000:9b:00): 64, pid=4102, name=python, Row Remapper: Failed to record remapping info\n"
        },
    ),
    failing(
        "mmu-fault-of-a-kernel",
        "NVIDIA Xid 31",
        "exception",
        f"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n{DEVICE_SIDE}",
        *STEP,
        rank=6,
        others=GONE,
        node_logs={
            1: "[  921.114] NVRM: Xid (PCI:0000:9b:00): 31, pid=4102, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS\n"
        },
        forbid="broken|exclude",
    ),
    failing(
        "switch-fatal",
        "nvidia-nvswitch SXid",
        "bad-gpu|network-setup|connection-reset|unknown",
        f"torch.AcceleratorError: CUDA error: unknown error\n{DEVICE_SIDE}",
        *STEP,
        rank=6,
        judged=False,
        others=GONE,
        node_logs={
            1: "[ 771.2] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Fatal, Link 33 egress non-posted PRIV error\n"
        },
    ),
    failing(
        "launch-timed-out",
        "CUDA error 702",
        "exception|hang|bad-gpu",
        f"torch.AcceleratorError: CUDA error: the launch timed out and was terminated\n{DEVICE_SIDE}",
        *STEP,
        rank=6,
        others=GONE,
    ),
    failing(
        "cuda-host-memory-cannot-be-pinned",
        "torch CachingHostAllocator",
        "host-out-of-memory|gpu-out-of-memory|exception",
        f"torch.AcceleratorError: CUDA error: out of memory\n{DEVICE_SIDE}",
        f"{HOME}/data.py:31 pin | batch.pin_memory()",
        rank=2,
        others=GONE,
    ),
    failing(
        "no-memory-for-a-cufft-plan",
        "cufft",
        "gpu-out-of-memory|exception",
        "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
        *STEP,
        rank=2,
    ),
    failing(
        "thread-limit-of-openblas",
        "OpenBLAS",
        "exception|host-out-of-memory|settings|import-error",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 47 of 64: Resource temporarily unavailable\nOpenBLAS blas_thread_init: RLIMIT_NPROC 512 current, 512 max\nSegmentation fault",
        "-",
        rank=2,
        status=139,
        prefix="",
    ),
    failing(
        "peers-refuse-in-german",
        "strerror(3), de_DE",
        "connection-reset|unknown|network-setup|rendezvous-timeout",
        "ConnectionRefusedError: [Errno 111] Verbindungsaufbau abgelehnt",
        f"{HOME}/train.py:99 main | sock.connect((head, port))",
        everyone=True,
    ),
    Case(
        name="refused-in-german-because-the-head-raised",
        source="strerror(3), de_DE",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err=shown(stack(*STEP) + "TypeError: 'int' object is not iterable", 0, "rank"),
                status=1,
                after_s=0.05,
            )
        },
        others=Rank(
            err=stack(*STEP)
            + "ConnectionResetError: [Errno 104] Die Verbindung wurde vom Kommunikationspartner zurückgesetzt\n",
            status=1,
            after_s=0.0,
        ),
        want=wanted("exception", rank=0, node="node1"),
    ),
    failing(
        "name-in-german",
        "getaddrinfo, de_DE",
        "head-address|rendezvous-timeout",
        "socket.gaierror: [Errno -2] Der Name oder der Dienst ist nicht bekannt",
        f"{HOME}/train.py:99 main | socket.getaddrinfo(head, port)",
        everyone=True,
    ),
    failing(
        "name-of-a-service-not-resolved",
        "urllib",
        "no-internet",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "/usr/lib/python3.12/urllib/request.py:1351 do_open | raise URLError(err)",
        rank=0,
    ),
    failing(
        "no-route-in-french",
        "strerror(3), fr_FR",
        "head-address|network-setup|connection-reset|unknown|exception",
        "OSError: [Errno 113] Aucun chemin d'accès pour atteindre l'hôte cible",
        f"{HOME}/train.py:99 main | sock.connect((head, port))",
        everyone=True,
    ),
    failing(
        "file-server-stale-in-spanish",
        "strerror(3), es_ES",
        "storage",
        "OSError: [Errno 116] Manejador de fichero en desuso: '/lustre/a'",
        f"{HOME}/data.py:31 get | open(path)",
        rank=6,
    ),
    failing(
        "rust-says-os-error-28",
        "tokenizers",
        "disk-full",
        "Exception: No space left on device (os error 28)",
        f"{HOME}/prep.py:31 save | tok.save(path)",
        rank=0,
    ),
    failing(
        "object-of-lustre-lost",
        "lustre",
        "storage|exception|data-missing",
        "OSError: [Errno 61] No data available: '/lustre/set/a.bin'",
        f"{HOME}/data.py:31 get | f.read()",
        rank=6,
    ),
    failing(
        "bad-message-of-a-disk",
        "errno 74",
        "storage",
        "OSError: [Errno 74] Bad message: '/scratch/a.bin'",
        f"{HOME}/data.py:31 get | f.read()",
        rank=6,
    ),
    failing(
        "structure-needs-cleaning",
        "errno 117",
        "storage",
        "OSError: [Errno 117] Structure needs cleaning: '/tmp/a.bin'",
        f"{HOME}/data.py:31 get | f.read()",
        rank=6,
    ),
    failing(
        "mount-is-gone",
        "errno 107",
        "storage",
        "OSError: [Errno 107] Transport endpoint is not connected: '/fuse/set'",
        f"{HOME}/data.py:31 get | os.listdir(path)",
        rank=6,
    ),
    failing(
        "debugger-left-in-the-code",
        "pdb",
        "exception",
        "bdb.BdbQuit",
        f"{HOME}/train.py:99 step | breakpoint()",
        "/usr/lib/python3.12/bdb.py:134 dispatch_line | if self.quitting: raise BdbQuit",
        everyone=True,
    ),
    Case(
        name="watchdogs-everywhere-and-one-rank-on-a-slow-disk",
        source="made",
        nodes=2,
        gpus=4,
        ranks={
            6: Rank(
                err=shown(
                    stack(f"{HOME}/data.py:31 get | f.read()")
                    + "OSError: [Errno 5] Input/output error",
                    6,
                    "rank",
                ),
                status=1,
            )
        },
        others=Rank(err=watchdog(0), status=134, after_s=2.0),
        want=wanted("storage", rank=6, node="node2"),
    ),
    failing(
        "stopped-with-a-sentence",
        "made",
        "exception|settings|unknown|data-missing",
        "no training files below /lustre/set, giving up",
        "-",
        rank=0,
        prefix="",
    ),
    failing(
        "exit-with-zero-words", "made", "exception|unknown", "", "-", rank=3, status=7, prefix=""
    ),
    failing(
        "double-fault-in-a-handler",
        "made",
        "gpu-out-of-memory",
        stack(*STEP)
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB.\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + stack(f"{HOME}/train.py:300 dump | torch.cuda.memory._dump_snapshot(path)")
        + "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/dumps/mem.pickle'",
        "-",
        rank=5,
    ),
    failing(
        "handled-miss-and-then-a-disk",
        "made",
        "disk-full",
        stack(f"{HOME}/cache.py:9 get | open(path)")
        + "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/cache/a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + stack(f"{HOME}/cache.py:14 build | f.write(b)")
        + "OSError: [Errno 28] No space left on device",
        "-",
        rank=5,
    ),
    failing(
        "nan-then-an-assertion",
        "made",
        "nan-loss|exception",
        "AssertionError: loss became NaN at step 812",
        *STEP,
        rank=0,
    ),
    failing(
        "losses-that-are-fine-and-an-odd-word",
        "made",
        "exception",
        "ValueError: unknown loss 'infonce'",
        *STEP,
        rank=0,
        forbid="overflow",
    ),
    failing(
        "quoted-oom-in-json-of-data",
        "made",
        "exception",
        "ValueError: cannot parse record 18",
        *STEP,
        rank=5,
        before='{"log": "CUDA out of memory. Tried to allocate 2 GiB", "label": 3}\n{"log": "Killed process 41 (python)", "label": 1}\n',
        forbid="memory",
    ),
    failing(
        "exception-of-a-thread-is-not-the-end",
        "threading",
        "exception",
        "KeyError: 'mask'",
        *STEP,
        rank=5,
        before="Exception in thread Thread-7 (upload):\n"
        + stack("/usr/lib/python3.12/threading.py:1073 _bootstrap_inner | self.run()")
        + "OSError: [Errno 28] No space left on device\nstep 41 loss 2.1\n",
        forbid="room",
    ),
    failing(
        "asyncio-task-was-never-retrieved",
        "asyncio",
        "exception",
        "KeyError: 'mask'",
        *STEP,
        rank=5,
        before="Task exception was never retrieved\nfuture: <Task finished name='Task-3' coro=<push() done> exception=ConnectionResetError(104, 'Connection reset by peer')>\n"
        + stack(f"{HOME}/push.py:3 push | await send()")
        + "ConnectionResetError: [Errno 104] Connection reset by peer\nstep 41 loss 2.1\n",
        forbid="connection",
    ),
]
