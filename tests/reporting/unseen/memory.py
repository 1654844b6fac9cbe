"""The node's own memory: exceptions, killers, loaders that vanish."""

# ruff: noqa: E501, W291 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    LOADER,
    LOADER_DEL,
    PROGRESS,
    QUIET,
    RESOURCE_TRACKER,
    STEPS,
    TOP,
    WORKER,
    aborted,
    on_record,
    raised,
)

_HANDLER = """  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler
    _error_if_any_worker_fails()
"""

CASES = [
    Case(
        name="numpy-array-too-large",
        source="https://github.com/numpy/numpy/blob/main/numpy/_core/_exceptions.py",
        nodes=2,
        gpus=4,
        ranks={
            4: raised(
                4,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 133, in main
    tokens = np.concatenate(parts)
             ^^^^^^^^^^^^^^^^^^^^^
numpy._core._exceptions._ArrayMemoryError: Unable to allocate 412. GiB for an array with shape (221190000000,) and data type uint16
""",
            )
        },
        others=QUIET,
        want=wanted("host-out-of-memory", rank=4, node="node2", forbid="micro_batch|activation"),
    ),
    Case(
        name="fork-errno-12",
        source="strerror(3)",
        nodes=1,
        gpus=8,
        ranks={
            6: raised(
                6,
                TOP.replace(
                    "loss = train_step(model, batch)\n           ^^^^^^^^^^^^^^^^^^^^^^^^",
                    "for batch in loader:",
                )
                + """  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1171, in __init__
    w.start()
  File "/opt/venv/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch
    self.pid = os.fork()
               ^^^^^^^^^
OSError: [Errno 12] Cannot allocate memory
""",
                record="OSError: [Errno 12] Cannot allocate memory",
                after=RESOURCE_TRACKER,
            )
        },
        others=QUIET,
        memory_share={0: 0.94},
        want=wanted("host-out-of-memory", rank=6, node="node1", forbid="disk"),
    ),
    Case(
        name="default-cpu-allocator",
        source="https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp",
        nodes=2,
        gpus=2,
        ranks={
            1: raised(
                1,
                TOP
                + "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 824633720832 bytes. Error code 12 (Cannot allocate memory)\n",
            ),
            2: aborted(2, "10.99.7.1<43000>"),
        },
        others=QUIET,
        want=wanted(
            "host-out-of-memory", rank=1, node="node1", forbid="micro_batch|activation check"
        ),
    ),
    Case(
        name="loader-worker-killed",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/DataLoader.cpp",
        nodes=4,
        gpus=2,
        ranks={
            3: raised(
                3,
                """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1275, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/multiprocessing/queues.py", line 113, in get
    if not self._poll(timeout):
"""
                + _HANDLER
                + """RuntimeError: DataLoader worker (pid 4219) is killed by signal: Killed. 

The above exception was the direct cause of the following exception:

"""
                + TOP
                + '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1288, in _try_get_data\n    raise RuntimeError(\nRuntimeError: DataLoader worker (pid(s) 4219) exited unexpectedly\n',
                after=LOADER_DEL,
            )
        },
        others=QUIET,
        node_logs={
            1: "slurmstepd-node2: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\n"
        },
        memory_share={1: 0.98},
        want=wanted("host-out-of-memory", rank="any", node="node2"),
    ),
    Case(
        name="loader-bus-error-of-shm",
        source="https://github.com/NVIDIA/Megatron-LM/issues/878",
        nodes=1,
        gpus=4,
        ranks={
            0: raised(
                0,
                TOP
                + _HANDLER
                + "RuntimeError: DataLoader worker (pid 56811) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n",
                before=ADDRESS
                + "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n\x00"
                * 1,
                after="Exception ignored in atexit callback: <function _MultiProcessingDataLoaderIter._clean_up_worker at 0x7fc7fa34f7f0>\n"
                + LOADER_DEL,
            )
        },
        others=QUIET,
        want=wanted(
            "disk-full",
            "host-out-of-memory",
            rank=0,
            node="node1",
            forbid="checkpoints|quota|GPU memory",
        ),
    ),
    Case(
        name="killed-with-node-full",
        source="signal(7); proc(5) oom_score",
        nodes=2,
        gpus=8,
        ranks={9: Rank(err=ADDRESS + PROGRESS, status=137)},
        others=QUIET,
        memory_share={1: 0.995},
        want=wanted("host-out-of-memory", rank=9, node="node2"),
    ),
    Case(
        name="killed-with-node-nearly-empty",
        source="signal(7)",
        nodes=2,
        gpus=8,
        ranks={12: Rank(err=ADDRESS + PROGRESS, status=137)},
        others=QUIET,
        memory_share={0: 0.2, 1: 0.21},
        want=wanted(
            "unknown", "exception", "cancelled", rank="any", node="node2", forbid="ran out of"
        ),
    ),
    Case(
        name="bad-alloc",
        source="https://en.cppreference.com/w/cpp/memory/new/bad_alloc",
        nodes=1,
        gpus=4,
        ranks={
            3: Rank(
                err=ADDRESS
                + 'terminate called after throwing an instance of \'std::bad_alloc\'\n  what():  std::bad_alloc\nFatal Python error: Aborted\n\nCurrent thread 0x00007f1200 (most recent call first):\n  File "/opt/venv/lib/python3.11/site-packages/faiss/swigfaiss_avx2.py", line 3110 in add\n  File "/home/ada/t5/index.py", line 44 in build\n',
                status=134,
            )
        },
        others=QUIET,
        memory_share={0: 0.96},
        want=wanted("host-out-of-memory", rank=3, node="node1"),
    ),
    Case(
        name="rust-allocation-failed",
        source="https://doc.rust-lang.org/std/alloc/fn.handle_alloc_error.html",
        nodes=2,
        gpus=2,
        ranks={
            0: Rank(
                err=ADDRESS
                + "\rTokenising: 41%|####1     | 4100/10000\nmemory allocation of 8589934592 bytes failed\n",
                out=STEPS,
                status=134,
            )
        },
        others=QUIET,
        want=wanted("host-out-of-memory", rank=0, node="node1"),
    ),
    Case(
        name="arrow-malloc-in-loader",
        source="https://arrow.apache.org/docs/python/generated/pyarrow.ArrowMemoryError.html",
        nodes=1,
        gpus=8,
        ranks={
            5: raised(
                5,
                TOP
                + LOADER
                + "pyarrow.lib.ArrowMemoryError: Caught ArrowMemoryError in DataLoader worker process 1.\n"
                + WORKER
                + '  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status\npyarrow.lib.ArrowMemoryError: malloc of size 17179869184 failed\n',
            )
        },
        others=QUIET,
        want=wanted("host-out-of-memory", rank=5, node="node1"),
    ),
    Case(
        name="memory-error-without-words",
        source="https://docs.python.org/3/library/exceptions.html#MemoryError",
        nodes=1,
        gpus=1,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 130, in main
    table = pickle.load(file)
            ^^^^^^^^^^^^^^^^^
MemoryError
""",
                record="MemoryError: ",
                prefixed=False,
            )
        },
        want=wanted("host-out-of-memory", rank=0, node="node1"),
    ),
    Case(
        name="pinning-host-memory-out-of-memory",
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html (cudaHostAlloc)",
        nodes=1,
        gpus=2,
        ranks={
            1: raised(
                1,
                TOP
                + '  File "/home/ada/t5/offload.py", line 22, in __init__\n    self.host = torch.empty(size, dtype=dtype, pin_memory=True)\n                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\ntorch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n',
            )
        },
        others=QUIET,
        memory_share={0: 0.97},
        want=wanted("host-out-of-memory", "gpu-out-of-memory", rank=1, node="node1"),
    ),
]

CASES = on_record(
    CASES,
    "default-cpu-allocator",
    "loader-worker-killed",
    "arrow-malloc-in-loader",
)
