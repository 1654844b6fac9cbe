"""A node that runs out of memory, of threads or of processes, said by numpy, malloc, fork, the kernel and Slurm."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"

CASES = [
    Case(
        name="array-that-does-not-fit",
        source="https://github.com/numpy/numpy/blob/main/numpy/_core/_exceptions.py",
        nodes=2,
        gpus=4,
        ranks={
            2: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/geo/train.py", line 40, in <module>\n    grid = np.zeros((720, 1440, 69, 365), dtype=np.float64)\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 195. GiB for an array with shape (720, 1440, 69, 365) and data type float64\n',
                status=1,
                record="_ArrayMemoryError: Unable to allocate 195. GiB for an array with shape (720, 1440, 69, 365) and data type float64",
                callstack='Traceback (most recent call last):\n  File "/home/ada/geo/train.py", line 40, in main\n    grid = np.zeros((720, 1440, 69, 365), dtype=np.float64)\n',
            )
        },
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank=2,
            node="node1",
            forbid=r"CUDA out of memory|PYTORCH_CUDA|(free|less|more|reduce) GPU memory|micro.?batch",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="no-memory-for-a-fork",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        ranks={
            4: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/vit/train.py", line 88, in <module>\n    for batch in loader:\n  File "{SITE}/torch/utils/data/dataloader.py", line 1170, in __init__\n    w.start()\n  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch\n    self.pid = os.fork()\n               ^^^^^^^^^\nOSError: [Errno 12] Cannot allocate memory\n',
                status=1,
            )
        },
        memory_share={2: 0.93},
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank=4,
            node="node2",
            forbid=r"CUDA out of memory|PYTORCH_CUDA|(free|less|more|reduce) GPU memory|micro.?batch|disk is full|free (disk )?space",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="memory-error-without-a-word",
        source="https://docs.python.org/3/library/exceptions.html#MemoryError",
        nodes=1,
        gpus=8,
        ranks={
            0: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 51, in <module>\n    corpus = pickle.load(handle)\nMemoryError\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank=0,
            node="node1",
            forbid=r"CUDA out of memory|PYTORCH_CUDA|(free|less|more|reduce) GPU memory",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="cpu-allocator",
        source="https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 61, in <module>\n    full = model.state_dict()\n'
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 137438953472 bytes. Error code 12 (Cannot allocate memory)\n",
                status=1,
                after_s=0.3 * r,
            )
            for r in (0, 1)
        },
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank="any",
            node="node1",
            forbid=r"CUDA out of memory|PYTORCH_CUDA|micro.?batch",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="bad-alloc",
        source="https://en.cppreference.com/w/cpp/memory/new/bad_alloc",
        nodes=4,
        gpus=2,
        ranks={
            7: Rank(
                err="building index …\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nFatal Python error: Aborted\n",
                status=134,
            )
        },
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank=7,
            node="node4",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="killed-by-the-kernel-of-the-node",
        source="https://www.kernel.org/doc/gorman/html/understand/understand016.html",
        nodes=8,
        gpus=8,
        step=700,
        ranks={33: Rank(err="", status=137)},
        others=Rank(
            err="[rank0]:[W1117 09:41:20.881 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=41, addr=[node1]:50112, remote=[node1]:29500): Connection reset by peer\n"
        ),
        node_logs={
            5: "[1203991.118] python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0\n"
            "[1203991.220] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=slurm,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/job_4711,task_memcg=/system.slice/slurmstepd.scope/job_4711/step_0/user/task_4,task=python3,pid=40112,uid=1000\n"
            "[1203991.223] Memory cgroup out of memory: Killed process 40112 (python3) total-vm:218102032kB, anon-rss:190410112kB, file-rss:102400kB, shmem-rss:8192kB, UID:1000 pgtables:391220kB oom_score_adj:0\n"
        },
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank="any",
            node="node5",
            forbid=r"CUDA out of memory|PYTORCH_CUDA|micro.?batch|check the network|firewall|check the store",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="slurm-detected-oom-kills",
        source="https://github.com/SchedMD/slurm/blob/master/src/plugins/task/cgroup/task_cgroup_memory.c",
        nodes=2,
        gpus=4,
        step=42,
        ranks={1: Rank(err="", status=137), 2: Rank(err="", status=137, after_s=0.4)},
        batch="slurmstepd-node1: error: Detected 2 oom_kill events in StepId=4711.0. Some of the step tasks have been OOM Killed.\nsrun: error: node1: task 0: Out Of Memory\nsrun: Terminating StepId=4711.0\n",
        slurm="OUT_OF_MEMORY|0:125",
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank="any",
            node="node1",
            forbid=r"CUDA out of memory|PYTORCH_CUDA|micro.?batch",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="killed-and-nobody-says-by-whom",
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
        nodes=2,
        gpus=4,
        step=310,
        ranks={6: Rank(err="step 310 loss 2.2\n", status=137)},
        others=Rank(err="step 310 loss 2.2\n"),
        memory_share={1: 0.31, 2: 0.33},
        want=Want(
            frozenset({"unknown", "exception", "host-out-of-memory"}),
            "unknown",
            rank=6,
            node="node2",
            forbid=r"CUDA out of memory|micro.?batch|\bNaN\b",
        ),
    ),
    Case(
        name="no-threads-left",
        source="https://github.com/OpenMathLib/OpenBLAS/blob/develop/driver/others/blas_server.c",
        nodes=1,
        gpus=8,
        ranks={
            3: Rank(
                err="OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource temporarily unavailable\nOpenBLAS blas_thread_init: ensure that your address space and process count limits are big enough (ulimit -a)\nOpenBLAS blas_thread_init: or set a smaller OPENBLAS_NUM_THREADS to fit into what you have available\nOpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 4096 max\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 2, in <module>\n    import numpy as np\nKeyboardInterrupt\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception", "host-out-of-memory", "import-error"}),
            "exception",
            rank=3,
            node="node1",
            forbid=r"cancelled by|pip install|CUDA out of memory|PYTORCH_CUDA",
        ),
    ),
    Case(
        name="pinned-memory-that-cuda-refuses",
        source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/_utils/pin_memory.py",
        nodes=2,
        gpus=4,
        ranks={
            5: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/vit/train.py", line 88, in <module>\n    for batch in loader:\n  File "{SITE}/torch/_utils.py", line 750, in reraise\n    raise exception\nRuntimeError: Caught RuntimeError in pin memory thread for device 1.\nOriginal Traceback (most recent call last):\n  File "{SITE}/torch/utils/data/_utils/pin_memory.py", line 41, in do_one_step\n    data = pin_memory(data, device)\nRuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"gpu-out-of-memory", "host-out-of-memory"}),
            "gpu-out-of-memory",
            rank=5,
            node="node2",
            retry="out-of-memory",
        ),
    ),
]

CASES = finish(CASES)
