"""The GPU, its driver, and what libraries of CUDA say."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    CALL,
    DEVICE_SIDE,
    FRAMES,
    NOT_DESTROYED,
    OMP,
    PROGRESS,
    QUIET,
    RESOURCE_TRACKER,
    STEPS,
    TOP,
    WANDB_END,
    aborted,
    by,
    lost_peer,
    on_record,
    raised,
)

_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 5 has a total "
    "capacity of 79.10 GiB of which 1.72 GiB is free. Including non-PyTorch memory, this process "
    "has 77.37 GiB memory in use. Of the allocated memory 71.02 GiB is allocated by PyTorch, and "
    "4.81 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
    "documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
_ON_GPU_1 = _OOM.replace("GPU 5", "GPU 1")
_BACKWARD = (
    TOP
    + """  File "/home/ada/t5/train.py", line 97, in train_step
    loss.backward()
  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 648, in backward
    torch.autograd.backward(
  File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 353, in backward
    _engine_run_backward(
  File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 824, in \
_engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
)
_FORWARD = TOP + CALL


def _assertion(block: int) -> str:
    return (
        f"../aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [{block},0,"
        "0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    )


CASES = [
    Case(
        name="oom-in-backward-one-of-eight-on-each",
        source="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
        nodes=8,
        gpus=8,
        ranks={
            37: raised(37, _BACKWARD + _OOM, after=NOT_DESTROYED.format(rank=37)),
            0: Rank(err=lost_peer(0), out=STEPS, status=134, after_s=2.2),
        },
        others=QUIET,
        want=wanted(
            "gpu-out-of-memory", rank=37, node="node5", retry="out-of-memory", forbid="ulimit|RAM"
        ),
    ),
    Case(
        name="oom-on-record-middle-of-node",
        source="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
        nodes=2,
        gpus=4,
        ranks={
            5: raised(5, _BACKWARD + _ON_GPU_1, record=_ON_GPU_1.partition(".")[2]),
            **{rank: aborted(rank) for rank in range(4)},
        },
        others=QUIET,
        want=wanted("gpu-out-of-memory", rank=5, node="node2", retry="out-of-memory"),
    ),
    Case(
        name="oom-in-replica-of-data-parallel",
        source="https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/parallel_apply.py",
        nodes=1,
        gpus=1,
        ranks={
            0: raised(
                0,
                _FORWARD + '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/'
                'data_parallel.py", line 212, in parallel_apply\n'
                "    return parallel_apply(\n"
                '  File "/opt/venv/lib/python3.11/site-packages/torch/_utils.py", line 750, in '
                "reraise\n    raise exception\n"
                "torch.OutOfMemoryError: Caught OutOfMemoryError in replica 3 on device 3.\n"
                "Original Traceback (most recent call last):\n"
                '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/'
                'parallel_apply.py", line 96, in _worker\n    output = module(*input, **kwargs)\n'
                '  File "/home/ada/t5/model.py", line 66, in forward\n'
                "    scores = torch.matmul(q, k.transpose(-1, -2))\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 "
                "has a total capacity of 31.74 GiB of which 118.31 MiB is free. Process 2811 has "
                "31.61 GiB memory in use.\n",
                prefixed=False,
                after=RESOURCE_TRACKER,
            )
        },
        want=wanted("gpu-out-of-memory", rank=0, node="node1", retry="out-of-memory"),
    ),
    Case(
        name="oom-of-cublas-handle",
        source="https://docs.nvidia.com/cuda/cublas/index.html#cublasstatus-t",
        nodes=1,
        gpus=8,
        ranks={
            3: raised(
                3,
                _FORWARD + '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/'
                'linear.py", line 125, in forward\n'
                "    return F.linear(input, self.weight, self.bias)\n"
                "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
                "`cublasCreate(handle)`\n",
            )
        },
        others=QUIET,
        want=wanted("gpu-out-of-memory", rank=3, node="node1"),
    ),
    Case(
        name="oom-of-jax",
        source="https://docs.jax.dev/en/latest/gpu_memory_allocation.html",
        nodes=1,
        gpus=4,
        ranks={
            2: raised(
                2,
                """Traceback (most recent call last):
  File "/home/ada/flax/train.py", line 133, in <module>
    state, metrics = p_train_step(state, batch)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate \
21474836480 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:   12.33GiB
              constant allocation:         0B
        maybe_live_out allocation:   12.33GiB
     preallocated temp allocation:   20.00GiB
                 total allocation:   44.66GiB
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception. \
Set JAX_TRACEBACK_FILTERING=off to include these.
""",
                prefixed=False,
                before="2026-11-22 00:31:40.702211: W external/xla/xla/tsl/framework/"
                "bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate "
                "20.00GiB (rounded to 21474836480)requested by op \n",
            )
        },
        others=QUIET,
        want=wanted("gpu-out-of-memory", rank=2, node="node1", retry="out-of-memory"),
    ),
    Case(
        name="oom-inside-nccl",
        source="https://github.com/NVIDIA/nccl/issues/1235",
        nodes=4,
        gpus=2,
        ranks={
            3: raised(
                3,
                _FORWARD + "torch.distributed.DistBackendError: NCCL error in: "
                "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run "
                "with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
                "ncclUnhandledCudaError: Call to CUDA function failed.\n"
                "Last error:\nFailed to CUDA calloc async 608 bytes\n",
                before=ADDRESS + "gpu02:4101:4388 [1] include/alloc.h:228 NCCL WARN Cuda failure 2 "
                "'out of memory'\ngpu02:4101:4388 [1] include/alloc.h:241 NCCL WARN Failed to CUDA "
                "calloc async 608 bytes\n",
            )
        },
        others=QUIET,
        want=wanted("gpu-out-of-memory", rank=3, node="node2"),
    ),
    Case(
        name="oom-handled-then-shape-error",
        source="made: innocent words of a handled error, docs.pytorch.org FAQ 'out of memory'",
        nodes=1,
        gpus=4,
        ranks={
            1: raised(
                1,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 92, in train_step
    return full_batch(model, batch)
           ^^^^^^^^^^^^^^^^^^^^^^^^
"""
                + _OOM
                + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
                + TOP
                + '  File "/home/ada/t5/train.py", line 96, in train_step\n'
                "    parts = batch.view(micro, -1, length)\n"
                "            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                "RuntimeError: shape '[8, -1, 512]' is invalid for input of size 61952\n",
            )
        },
        others=QUIET,
        want=wanted("exception", "gpu-out-of-memory", rank=1, node="node1"),
    ),
    Case(
        name="device-side-assert",
        source="https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/Indexing.cu",
        nodes=2,
        gpus=4,
        ranks={
            6: raised(
                6,
                _FORWARD + '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/'
                'sparse.py", line 190, in forward\n    return F.embedding(\n'
                "           ^^^^^^^^^^^^\n"
                "RuntimeError: CUDA error: device-side assert triggered\n" + DEVICE_SIDE,
                before=ADDRESS + "".join(_assertion(block) for block in range(181, 199)),
            ),
            **{rank: aborted(rank) for rank in range(4)},
        },
        others=QUIET,
        want=wanted(
            "exception",
            rank=6,
            node="node2",
            forbid="broken|hardware|exclude|avoid|administrat",
            retry="crash",
        ),
    ),
    Case(
        name="illegal-memory-access-with-xid-31",
        source="https://docs.nvidia.com/deploy/xid-errors/index.html",
        nodes=2,
        gpus=4,
        ranks={
            4: Rank(
                err=ADDRESS
                + by(
                    4,
                    _BACKWARD + "RuntimeError: CUDA error: an illegal memory access was "
                    "encountered\n" + DEVICE_SIDE,
                )
                + "terminate called after throwing an instance of 'c10::Error'\n"
                "  what():  CUDA error: an illegal memory access was encountered\n"
                + DEVICE_SIDE
                + "Exception raised from c10_cuda_check_implementation at "
                "/pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):\n" + FRAMES,
                status=134,
            ),
        },
        others=QUIET,
        node_logs={
            1: "[852013.774512] NVRM: Xid (PCI:0000:41:00): 31, pid=4100, name=python, Ch 00000008,"
            " intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f4a_20000000. "
            "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n"
        },
        want=wanted("exception", rank=4, node="node2", forbid="broken|avoid|faulty", retry="crash"),
    ),
    Case(
        name="ecc-error-of-one-gpu",
        source="https://docs.nvidia.com/deploy/xid-errors/index.html",
        nodes=4,
        gpus=2,
        ranks={
            5: raised(
                5,
                _BACKWARD
                + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
                + DEVICE_SIDE,
            ),
            **{rank: aborted(rank, "10.99.7.3<50111>", 2.0) for rank in (0, 1, 2, 3, 6, 7)},
        },
        others=QUIET,
        want=wanted("bad-gpu", rank=5, node="node3", retry="node-failure"),
    ),
    Case(
        name="fell-off-the-bus-xid-in-node-log",
        source="https://docs.nvidia.com/deploy/xid-errors/index.html",
        nodes=2,
        gpus=8,
        ranks={
            11: raised(
                11,
                _FORWARD
                + "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
                + DEVICE_SIDE,
            ),
        },
        others=QUIET,
        node_logs={
            1: "kernel: NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has "
            "fallen off the bus.\nkernel: NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.\n"
        },
        want=wanted("bad-gpu", rank="any", node="node2"),
    ),
    Case(
        name="fabric-manager-not-up",
        source="https://github.com/pytorch/pytorch/issues/35710",
        nodes=2,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 120, in main
    torch.cuda.set_device(local_rank)
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 567, in set_device
    torch._C._cuda_setDevice(device)
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 410, in _lazy_init
    torch._C._cuda_init()
RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before \
calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized
""",
                prefixed=False,
            )
            for rank in range(8, 16)
        },
        others=QUIET,
        want=wanted("bad-gpu", rank="any", node="node2"),
    ),
    Case(
        name="no-kernel-image-for-device",
        source="https://pytorch.org/get-started/previous-versions/ (CUDA architectures)",
        nodes=1,
        gpus=1,
        ranks={
            0: raised(
                0,
                _FORWARD + "RuntimeError: CUDA error: no kernel image is available for execution "
                "on the device\n" + DEVICE_SIDE,
                prefixed=False,
                before="/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:283: "
                "UserWarning: \n    Found GPU0 Tesla P100-PCIE-16GB which is of cuda capability "
                "6.0.\n    Minimum and Maximum cuda capability supported by this version of "
                "PyTorch is\n    (7.5) - (12.0)\n    \n  warnings.warn(\n",
            )
        },
        want=wanted(
            "version-mismatch", rank="any", node="any", forbid="batch size|broken", retry="any"
        ),
    ),
    Case(
        name="driver-too-old-on-one-node",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/cuda/Module.cpp",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 120, in main
    torch.cuda.set_device(local_rank)
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 410, in _lazy_init
    torch._C._cuda_init()
RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your \
GPU driver by downloading and installing a new version from the URL: \
http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a \
PyTorch version that has been compiled with your version of the CUDA driver.
""",
                prefixed=False,
            )
            for rank in (2, 3)
        },
        others=QUIET,
        want=wanted("version-mismatch", rank="any", node="node2"),
    ),
    Case(
        name="nvml-driver-library-mismatch",
        source="https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html",
        nodes=1,
        gpus=2,
        ranks={
            1: raised(
                1,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 6, in <module>
    monitor = GpuMonitor()
              ^^^^^^^^^^^^
  File "/home/ada/t5/monitor.py", line 14, in __init__
    pynvml.nvmlInit()
  File "/opt/venv/lib/python3.11/site-packages/pynvml.py", line 2417, in nvmlInit
    nvmlInitWithFlags(0)
  File "/opt/venv/lib/python3.11/site-packages/pynvml.py", line 2407, in nvmlInitWithFlags
    _nvmlCheckReturn(ret)
  File "/opt/venv/lib/python3.11/site-packages/pynvml.py", line 1059, in _nvmlCheckReturn
    raise NVMLError(ret)
pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch
""",
                prefixed=False,
            )
        },
        others=QUIET,
        want=wanted("version-mismatch", "bad-gpu", rank="any", node="node1"),
    ),
    Case(
        name="cudnn-version-incompatibility",
        source="https://github.com/pytorch/pytorch/blob/main/torch/backends/cudnn/__init__.py",
        nodes=1,
        gpus=4,
        ranks={
            rank: raised(
                rank,
                _FORWARD
                + '  File "/opt/venv/lib/python3.11/site-packages/torch/backends/cudnn/__init__.py'
                '", line 63, in _init\n    raise RuntimeError(\n'
                "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against "
                "(9, 10, 2) but found runtime version (9, 1, 0). PyTorch already comes with "
                "bundled cuDNN. One option to resolving this error is to ensure PyTorch can find "
                "the bundled cuDNN. Looks like your LD_LIBRARY_PATH contains incompatible version "
                "of cudnn. Please either remove it from the path or install cudnn (9, 10, 2)\n",
            )
            for rank in range(4)
        },
        want=wanted("version-mismatch", rank="any", node="any"),
    ),
    Case(
        name="triton-shared-memory-is-no-gpu-memory",
        source="https://github.com/triton-lang/triton/issues/8182",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _FORWARD + '  File "/opt/venv/lib/python3.11/site-packages/triton/runtime/jit.py",'
                " line 359, in <lambda>\n"
                "    return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, "
                "**kwargs)\n"
                '  File "/opt/venv/lib/python3.11/site-packages/triton/compiler/compiler.py", line '
                "483, in _init_handles\n"
                '    raise OutOfResources(self.metadata.shared, max_shared, "shared memory")\n'
                "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: "
                "147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n",
                record="OutOfResources: out of resource: shared memory, Required: 147456, Hardware "
                "limit: 101376. Reducing block sizes or `num_stages` may help.",
            )
            for rank in range(4)
        },
        want=wanted(
            "exception",
            rank="any",
            node="any",
            forbid="/dev/shm|batch size|activation checkpoint",
            retry="crash",
        ),
    ),
    Case(
        name="inductor-finds-no-python-header",
        source="https://github.com/pytorch/pytorch/issues/97146",
        nodes=2,
        gpus=4,
        ranks={
            rank: raised(
                rank,
                _FORWARD
                + '  File "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/output_graph.py", '
                "line 1601, in _call_user_compiler\n    raise BackendCompilerFailed(\n"
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
                "CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpm_pufzho/main.c', '-O3', "
                "'-shared', '-fPIC', '-Wno-psabi', '-o', "
                "'/tmp/tmpm_pufzho/cuda_utils.cpython-311-x86_64-linux-gnu.so', '-lcuda', "
                "'-I/usr/include/python3.11']' returned non-zero exit status 1.\n\n"
                "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this "
                "especially if you're reporting a bug to PyTorch). For even more developer context, "
                'set TORCH_LOGS="+dynamo"\n',
                before=ADDRESS
                + "/tmp/tmpm_pufzho/main.c:4:10: fatal error: Python.h: No such file or directory\n"
                "    4 | #include <Python.h>\n      |          ^~~~~~~~~~\ncompilation "
                "terminated.\n",
            )
            for rank in range(8)
        },
        want=wanted(
            "environment-missing",
            "exception",
            rank="any",
            node="any",
            forbid="data set|dataset|data\\.dir",
        ),
    ),
    Case(
        name="invalid-device-ordinal",
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        nodes=1,
        gpus=8,
        ranks={
            7: raised(
                7,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 120, in main
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) + 1)
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 567, in set_device
    torch._C._cuda_setDevice(device)
torch.AcceleratorError: CUDA error: invalid device ordinal
GPU device may be out of range, do you have enough GPUs?
"""
                + DEVICE_SIDE,
                prefixed=False,
            )
        },
        others=QUIET,
        want=wanted("exception", "settings", rank=7, node="node1", forbid="broken|avoid"),
    ),
    Case(
        name="illegal-instruction-of-binary",
        source="signal(7); bash(1)",
        nodes=2,
        gpus=2,
        ranks={
            2: Rank(
                err="Fatal Python error: Illegal instruction\n\n"
                "Current thread 0x00007f4d0c2f2740 (most recent call first):\n"
                '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed\n'
                '  File "/opt/venv/lib/python3.11/site-packages/pyarrow/__init__.py", line 65 in '
                "<module>\n"
                '  File "/home/ada/t5/train.py", line 9 in <module>\n',
                status=132,
            ),
            3: Rank(err="", status=132, after_s=0.02),
        },
        others=QUIET,
        want=wanted("exception", "import-error", "version-mismatch", rank=2, node="node2"),
    ),
    Case(
        name="segfault-many-threads",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=1,
        gpus=8,
        ranks={
            5: Rank(
                err=OMP
                + "Fatal Python error: Segmentation fault\n\n"
                + "".join(
                    f"Thread 0x00007f4d{i:02x}ff96c0 (most recent call first):\n"
                    '  File "/opt/venv/lib/python3.11/threading.py", line 331 in wait\n'
                    '  File "/opt/venv/lib/python3.11/multiprocessing/queues.py", line 231 in '
                    "_feed\n"
                    '  File "/opt/venv/lib/python3.11/threading.py", line 982 in run\n\n'
                    for i in range(9)
                )
                + "Current thread 0x00007f4dfa2f2740 (most recent call first):\n"
                '  File "/home/ada/t5/fused/rotary.py", line 88 in apply_rotary\n'
                '  File "/home/ada/t5/model.py", line 142 in forward\n'
                '  File "/home/ada/t5/train.py", line 93 in train_step\n'
                '  File "/home/ada/t5/train.py", line 188 in main\n\n'
                "Extension modules: numpy.core._multiarray_umath, torch._C, psutil._psutil_linux, "
                "yaml._yaml (total: 41)\n",
                out=STEPS,
                status=139,
            )
        },
        others=QUIET,
        want=wanted("exception", rank=5, node="node1", forbid="out of memory", retry="crash"),
    ),
    Case(
        name="busy-gpu-of-another-program",
        source="https://docs.nvidia.com/deploy/driver-persistence (compute modes)",
        nodes=1,
        gpus=2,
        ranks={
            1: raised(
                1,
                TOP + "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or "
                "unavailable\n" + DEVICE_SIDE,
                after=WANDB_END,
            )
        },
        others=QUIET,
        want=wanted(
            "bad-gpu", "exception", "network-setup", "unknown", rank="any", node="any", retry="any"
        ),
    ),
    Case(
        name="fused-kernel-undefined-symbol",
        source="https://github.com/Dao-AILab/flash-attention/issues/940",
        nodes=4,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 21, in <module>
    from flash_attn import flash_attn_func
  File "/opt/venv/lib/python3.11/site-packages/flash_attn/__init__.py", line 3, in <module>
    from flash_attn.flash_attn_interface import (
  File "/opt/venv/lib/python3.11/site-packages/flash_attn/flash_attn_interface.py", line 15, in \
<module>
    import flash_attn_2_cuda as flash_attn_gpu
ImportError: /opt/venv/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: \
undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcE\
SaIcEEE
""",
                prefixed=False,
                before="",
            )
            for rank in range(8)
        },
        want=wanted("import-error", "version-mismatch", rank="any", node="any"),
    ),
    Case(
        name="oom-hint-printed-at-start-then-index-error",
        source="made: a hint that a launcher prints, then an error of the program",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err=ADDRESS,
                out="tip: if you see CUDA out of memory, lower --micro-batch or set "
                "PYTORCH_ALLOC_CONF=expandable_segments:True\n" + STEPS,
            ),
            6: raised(
                6,
                TOP + '  File "/home/ada/t5/train.py", line 91, in train_step\n'
                "    weights = schedule[step]\n              ~~~~~~~~^^^^^^\n"
                "IndexError: list index out of range\n",
                before=ADDRESS + "INFO: memory guard armed; retries a step once on CUDA out of "
                "memory\n" + PROGRESS,
            ),
        },
        others=QUIET,
        want=wanted("exception", rank=6, node="node2", forbid="memory|batch", retry="crash"),
    ),
]

CASES = on_record(
    CASES,
    "oom-handled-then-shape-error",
    "device-side-assert",
    "fell-off-the-bus-xid-in-node-log",
    "cudnn-version-incompatibility",
    "inductor-finds-no-python-header",
    "oom-inside-nccl",
)
