"""What CUDA, cuBLAS, cuDNN and the driver say, and what the kernel says of the GPU beside it."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

ASYNC = """\
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

FRAMES = """\
Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7a71e4e84617 in /opt/venv/lib/python3.11/site-packages/torch/lib/libc10.so)
frame #1: c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::string const&) + 0x64 (0x7a71e4e3f98d in /opt/venv/lib/python3.11/site-packages/torch/lib/libc10.so)
frame #2: c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool) + 0x118 (0x7a71e4f3a9f8 in /opt/venv/lib/python3.11/site-packages/torch/lib/libc10_cuda.so)
frame #3: c10d::ProcessGroupNCCL::WorkNCCL::finishedGPUExecutionInternal() const + 0x56 (0x7a71a2e4c6d6 in /opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so)
frame #4: c10d::ProcessGroupNCCL::watchdogHandler() + 0x78c (0x7a71a2e5f2bc in /opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so)
frame #5: <unknown function> + 0xdc253 (0x7a71f40b0253 in /lib/x86_64-linux-gnu/libstdc++.so.6)
frame #6: clone + 0x44 (0x7a71f5d26a04 in /lib/x86_64-linux-gnu/libc.so.6)
"""


def trace(line: str, *calls: str) -> str:
    frames = "".join(
        f'  File "/home/ada/lm/{place}\n    {code}\n'
        for place, _, code in (c.partition("|") for c in calls)
    )
    return f"Traceback (most recent call last):\n{frames}{line}\n"


def watchdog(rank: int, error: str) -> str:
    head = f"[rank{rank}]:[E1118 04:22:09.118733201 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {error}\n{ASYNC}\n{FRAMES}"
    return f"{head}\nterminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {head}\n"


ASSERT = "".join(
    f"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [{b},0,0], thread: [{t},0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    for b in (217, 218)
    for t in range(64, 96)
)

CASES = [
    Case(
        name="cuda-token-id-past-the-vocabulary",
        source="https://github.com/huggingface/transformers/issues/28104",
        nodes=2,
        gpus=4,
        step=57,
        ranks={
            5: Rank(
                err=ASSERT
                + trace(
                    "RuntimeError: CUDA error: device-side assert triggered\n" + ASYNC,
                    'train.py", line 301, in <module>|main()',
                    'train.py", line 244, in main|loss = model(batch["input_ids"], labels=batch["labels"]).loss',
                    '.venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1747, in _call_impl|return forward_call(*args, **kwargs)',
                )
                + watchdog(5, "CUDA error: device-side assert triggered"),
                status=134,
            ),
        },
        node_logs={
            2: "[1839201.331201] NVRM: Xid (PCI:0000:5d:00): 43, pid=88120, name=python3, Ch 00000008\n"
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=5,
            node="node2",
            forbid=r"\bbad GPU\b|hardware fault|broken hardware|drain the node|--exclude|exclude the node|broken GPU|batch size",
            retry="crash",
        ),
    ),
    Case(
        name="cuda-illegal-address-and-its-xid",
        source="https://docs.nvidia.com/deploy/xid-errors/index.html",
        nodes=4,
        gpus=2,
        ranks={
            2: Rank(
                err="/home/ada/lm/kernels/fused_ce.py:88: UserWarning: fused_ce falls back to int32 offsets\n  warnings.warn(\n"
                + trace(
                    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
                    "Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
                    + ASYNC,
                    'train.py", line 190, in <module>|trainer.run()',
                    'trainer.py", line 77, in run|torch.cuda.synchronize()',
                ),
                status=1,
            ),
        },
        node_logs={
            2: "[771203.004412] NVRM: Xid (PCI:0000:9a:00): 31, pid=30211, name=python3, Ch 0000000b, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC4 GPCCLIENT_T1_3 faulted @ 0x7f3a_2c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n"
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=2,
            node="node2",
            forbid=r"\bbad GPU\b|hardware fault|broken hardware|drain the node|--exclude|exclude the node|broken GPU",
            retry="crash",
        ),
    ),
    Case(
        name="cuda-uncorrectable-ecc-of-sixty-four",
        source="https://github.com/kohya-ss/sd-scripts/issues/1434",
        nodes=8,
        gpus=8,
        step=14200,
        ranks={
            43: Rank(
                err="step 14200 loss 1.992 grad_norm 0.31\n"
                + trace(
                    "RuntimeError: CUDA error: uncorrectable ECC error encountered\n" + ASYNC,
                    'train.py", line 190, in <module>|trainer.run()',
                    'trainer.py", line 131, in step|loss.backward()',
                    '.venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 347, in backward|_engine_run_backward(',
                )
                + watchdog(43, "CUDA error: uncorrectable ECC error encountered"),
                status=134,
            ),
        },
        others=Rank(err="step 14200 loss 1.992 grad_norm 0.31\n"),
        want=Want(
            frozenset({"bad-gpu"}),
            "bad-gpu",
            rank=43,
            node="node6",
            forbid=r"batch size|(set|try|run with) CUDA_LAUNCH_BLOCKING|your (code|script)",
        ),
    ),
    Case(
        name="cuda-fell-off-the-bus",
        source="https://docs.nvidia.com/deploy/xid-errors/index.html",
        nodes=2,
        gpus=4,
        ranks={
            1: Rank(
                err=trace(
                    "RuntimeError: CUDA error: unspecified launch failure\n" + ASYNC,
                    'train.py", line 190, in <module>|trainer.run()',
                    'trainer.py", line 140, in step|total = loss.item()',
                ),
                status=1,
            ),
        },
        node_logs={
            1: "[ 9120.550112] NVRM: GPU at PCI:0000:3b:00: GPU-1f2a9c33-77d0-9f6b-0f59-d1b2f0c6e7aa\n"
            "[ 9120.550118] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
            "[ 9120.550121] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n"
        },
        want=Want(
            frozenset({"bad-gpu"}),
            "bad-gpu",
            rank="any",
            node="node1",
            forbid=r"(set|try|run with) CUDA_LAUNCH_BLOCKING|batch size",
        ),
    ),
    Case(
        name="cuda-nvlink-error",
        source="https://github.com/pytorch/pytorch/issues/58155",
        nodes=1,
        gpus=8,
        ranks={
            3: Rank(
                err=trace(
                    "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n"
                    + ASYNC,
                    'pretrain.py", line 402, in <module>|main(args)',
                    'pretrain.py", line 351, in main|model.reduce_gradients()',
                ),
                status=1,
                record="RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n"
                + ASYNC,
                callstack='Traceback (most recent call last):\n  File "/home/ada/lm/pretrain.py", line 351, in main\n    model.reduce_gradients()\n',
            ),
        },
        want=Want(
            frozenset({"bad-gpu"}),
            "bad-gpu",
            rank=3,
            node="node1",
            forbid=r"(set|try|run with) CUDA_LAUNCH_BLOCKING|batch size",
        ),
    ),
    Case(
        name="cublas-cannot-allocate-its-handle",
        source="https://github.com/pytorch/pytorch/issues/128601",
        nodes=1,
        gpus=8,
        ranks={
            0: Rank(
                err="\rTraining:   0%|          | 0/5000 [00:00<?, ?it/s]\n"
                + trace(
                    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                    'sft.py", line 88, in <module>|train()',
                    'sft.py", line 61, in train|out = model(**batch)',
                    '.venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward|return F.linear(input, self.weight, self.bias)',
                ),
                status=1,
            ),
        },
        want=Want(
            frozenset({"gpu-out-of-memory", "exception"}), "gpu-out-of-memory", rank=0, node="node1"
        ),
    ),
    Case(
        name="cublas-execution-failed-alone",
        source="https://docs.nvidia.com/cuda/cublas/index.html#cublasstatus-t",
        nodes=2,
        gpus=4,
        ranks={
            6: Rank(
                err=trace(
                    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, CUDA_R_16BF, lda, b, CUDA_R_16BF, ldb, &fbeta, c, CUDA_R_16BF, ldc, compute_type, CUBLAS_GEMM_DEFAULT_TENSOR_OP)`",
                    'sft.py", line 88, in <module>|train()',
                    'model.py", line 210, in forward|q, k, v = self.qkv(x).chunk(3, dim=-1)',
                ),
                status=1,
            ),
        },
        want=Want(
            frozenset({"exception", "bad-gpu", "unknown"}),
            "exception",
            rank=6,
            node="node2",
            forbid=r"NCCL_SOCKET|disk is full|free (disk )?space",
        ),
    ),
    Case(
        name="cudnn-two-versions",
        source="https://github.com/pytorch/pytorch/blob/main/torch/backends/cudnn/__init__.py",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=trace(
                    "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, 2). PyTorch already comes bundled with cuDNN. One option to resolving this error is to ensure PyTorch can find the bundled cuDNN. Looks like your LD_LIBRARY_PATH contains incompatible version of cudnn. Please either remove it from the path or install cudnn (9, 1, 0)",
                    'vit.py", line 20, in <module>|print("cuDNN", torch.backends.cudnn.version())',
                    '.venv/lib/python3.11/site-packages/torch/backends/cudnn/__init__.py", line 75, in version|if not _init():',
                ),
                status=1,
                after_s=0.05 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"version-mismatch"}),
            "version-mismatch",
            rank="any",
            node="any",
            forbid=r"(update|newer|install)[^.]*\bdriver",
        ),
    ),
    Case(
        name="cuda-no-kernel-image",
        source="https://github.com/pytorch/pytorch/issues/31285",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err="/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:235: UserWarning: \nNVIDIA B200 with CUDA capability sm_100 is not compatible with the current PyTorch installation.\nThe current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90.\n"
                "If you want to use the NVIDIA B200 GPU with PyTorch, please check the instructions at https://pytorch.org/get-started/locally/\n\n  warnings.warn(\n"
                + trace(
                    "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
                    + ASYNC,
                    'train.py", line 60, in <module>|torch.manual_seed(args.seed); x = torch.randn(8, device="cuda")',
                ),
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"version-mismatch"}),
            "version-mismatch",
            rank="any",
            node="any",
            forbid=r"hardware fault|drain the node|(set|try|run with) CUDA_LAUNCH_BLOCKING",
        ),
    ),
    Case(
        name="cuda-driver-too-old-on-one-node",
        source="https://github.com/pytorch/pytorch/blob/main/torch/cuda/__init__.py",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err=trace(
                    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver.",
                    'train.py", line 48, in <module>|torch.cuda.set_device(local_rank)',
                    '.venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 319, in _lazy_init|torch._C._cuda_init()',
                ),
                status=1,
                after_s=0.02 * (r - 6),
            )
            for r in (6, 7)
        },
        want=Want(
            frozenset({"version-mismatch", "bad-gpu"}), "version-mismatch", rank="any", node="node4"
        ),
    ),
    Case(
        name="cuda-unknown-error-on-node-three",
        source="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDAFunctions.cpp",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err=trace(
                    "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
                    'train.py", line 48, in <module>|torch.cuda.set_device(local_rank)',
                    '.venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 319, in _lazy_init|torch._C._cuda_init()',
                ),
                status=1,
                after_s=0.02 * (r - 4),
            )
            for r in (4, 5)
        },
        node_logs={3: "[   31.202910] nvidia-uvm: probe of 0000:00:00.0 failed with error -1\n"},
        want=Want(
            frozenset({"bad-gpu", "version-mismatch", "unknown"}),
            "bad-gpu",
            rank="any",
            node="node3",
            forbid=r"batch size",
        ),
    ),
    Case(
        name="cuda-out-of-memory-beside-another-process",
        source="https://github.com/pytorch/pytorch/blob/main/docs/source/notes/cuda.rst",
        nodes=2,
        gpus=4,
        ranks={
            7: Rank(
                err=trace(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 3 has a total capacity of 79.11 GiB of which 471.69 MiB is free. Process 3606394 has 61.27 GiB memory in use. Including non-PyTorch memory, this process has 17.35 GiB memory in use. Of the allocated memory 15.03 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
                    'train.py", line 190, in <module>|trainer.run()',
                    'trainer.py", line 99, in run|hidden = self.blocks(hidden)',
                ),
                status=1,
            ),
        },
        want=Want(
            frozenset({"gpu-out-of-memory"}),
            "gpu-out-of-memory",
            rank=7,
            node="node2",
            forbid=r"--mem\b|more host memory",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="cuda-caught-and-lowered-then-an-index",
        source="https://huggingface.co/docs/accelerate/usage_guides/memory",
        nodes=1,
        gpus=8,
        step=640,
        ranks={
            3: Rank(
                err="[auto-batch] probing per-device batch size 64\n"
                + trace(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.37 GiB. GPU 3 has a total capacity of 79.11 GiB of which 2.93 GiB is free. Including non-PyTorch memory, this process has 76.17 GiB memory in use.",
                    'probe.py", line 31, in find|step(batch)',
                )
                + "[auto-batch] batch size 64 does not fit; continuing with 32\n[auto-batch] 32 fits, peak 61.0 GiB\n"
                + "step 600 loss 3.02\nstep 620 loss 2.99\nstep 640 loss 2.97\n"
                + trace(
                    "IndexError: list index out of range",
                    'train.py", line 233, in <module>|main()',
                    'train.py", line 180, in main|name = groups[ends.index(end) + 1]',
                ),
                status=1,
            ),
        },
        others=Rank(
            err="[auto-batch] batch size 64 does not fit; continuing with 32\n[auto-batch] 32 fits, peak 61.0 GiB\n"
        ),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=3,
            node="node1",
            forbid=r"out of memory|batch size|activation checkpoint",
            retry="crash",
        ),
    ),
    Case(
        name="cuda-out-of-memory-in-a-replica",
        source="https://github.com/pytorch/pytorch/blob/main/torch/_utils.py",
        nodes=1,
        gpus=1,
        ranks={
            0: Rank(
                err=trace(
                    "torch.cuda.OutOfMemoryError: Caught OutOfMemoryError in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n"
                    '  File "/opt/venv/lib/python3.10/site-packages/torch/nn/parallel/parallel_apply.py", line 64, in _worker\n    output = module(*input, **kwargs)\n'
                    '  File "/home/ada/lm/unet.py", line 71, in forward\n    x = self.up(x)\n'
                    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 472.00 MiB (GPU 0; 23.70 GiB total capacity; 18.26 GiB already allocated; 114.56 MiB free; 22.1 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\n",
                    'main.py", line 75, in <module>|fit(net)',
                    'main.py", line 52, in fit|pred = net(x)',
                    '.venv/lib/python3.10/site-packages/torch/_utils.py", line 644, in reraise|raise exception',
                ),
                status=1,
            ),
        },
        want=Want(
            frozenset({"gpu-out-of-memory"}),
            "gpu-out-of-memory",
            rank=0,
            node="node1",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="cuda-nvml-mismatch-on-node-two",
        source="https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html",
        nodes=2,
        gpus=4,
        ranks={
            4: Rank(
                err=trace(
                    "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
                    'train.py", line 31, in <module>|monitor = GpuMonitor()',
                    'monitor.py", line 12, in __init__|pynvml.nvmlInit()',
                ),
                status=1,
            ),
        },
        node_logs={
            2: "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n"
        },
        want=Want(
            frozenset({"version-mismatch", "bad-gpu"}), "version-mismatch", rank="any", node="node2"
        ),
    ),
    Case(
        name="cuda-gsp-does-not-answer",
        source="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446",
        nodes=4,
        gpus=2,
        step=903,
        ranks={
            7: Rank(
                err="step 900 | loss 2.711\n" + watchdog(7, "CUDA error: unknown error"),
                status=134,
            )
        },
        node_logs={
            4: "[84738.325] NVRM: Xid (PCI:0000:dc:00): 119, pid=1818990, name=python3, Timeout after 45s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a81 0x4).\n"
            "[84744.118] NVRM: Xid (PCI:0000:dc:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n"
        },
        want=Want(
            frozenset({"bad-gpu"}),
            "bad-gpu",
            rank="any",
            node="node4",
            forbid=r"your (code|script|kernel)|batch size",
        ),
    ),
    Case(
        name="cuda-column-called-xid",
        source="https://docs.python.org/3/library/exceptions.html#KeyError",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="INFO schema: ['Xid', 'oxide', 'ecc_errors', 'label']\n"
                "INFO 48 rows with Xid 79 (GPU has fallen off the bus), 64 rows with Xid 48 in the fault corpus\n"
                + trace(
                    "KeyError: 'oxide_class'",
                    'faults.py", line 140, in <module>|main()',
                    'faults.py", line 88, in load|return table["oxide_class"]',
                    '.venv/lib/python3.11/site-packages/pandas/core/frame.py", line 4102, in __getitem__|indexer = self.columns.get_loc(key)',
                ),
                status=1,
                after_s=0.01 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"\bbad GPU\b|ECC error|fell off|drain the node|--exclude|exclude the node",
            retry="crash",
        ),
    ),
    Case(
        name="cuda-exclusive-gpu-still-taken",
        source="https://github.com/huggingface/pytorch-image-models/issues/1033",
        nodes=1,
        gpus=8,
        ranks={
            5: Rank(
                err=trace(
                    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
                    + ASYNC,
                    'train.py", line 50, in <module>|model.to(device)',
                ),
                status=1,
            )
        },
        want=Want(
            frozenset({"bad-gpu", "exception", "unknown"}),
            "bad-gpu",
            rank=5,
            node="node1",
            forbid=r"batch size|out of memory",
        ),
    ),
]

CASES = finish(CASES)
