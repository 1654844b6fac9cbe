"""GPUs: broken, busy, misused, full."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.third.common import HOME, SITE, failing
from tests.reporting.unseen.words import DEVICE_SIDE, aborted

GONE = aborted(0)
CASES = [
    failing(
        "ecc-on-rank-three-and-seven-who-lost-it",
        "torch 2.9 AcceleratorError",
        "bad-gpu",
        f"torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n{DEVICE_SIDE}",
        rank=3,
        others=GONE,
    ),
    failing(
        "bus-said-in-the-kernel-and-unknown-in-the-rank",
        "NVIDIA Xid 79",
        "bad-gpu",
        f"torch.AcceleratorError: CUDA error: unspecified launch failure\n{DEVICE_SIDE}",
        rank=6,
        judged=False,
        others=GONE,
        node_logs={
            1: "[  921.114] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        },
    ),
    failing(
        "warp-exception-of-a-bad-index",
        "NVIDIA Xid 13",
        "exception",
        f"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n{DEVICE_SIDE}",
        rank=6,
        others=GONE,
        node_logs={
            1: "[  921.114] NVRM: Xid (PCI:0000:9b:00): 13, pid=4102, name=python, Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address\n"
        },
        forbid="broken|exclude",
    ),
    failing(
        "no-gpu-is-visible-on-a-node",
        "torch.cuda._lazy_init",
        "bad-gpu|environment-missing|version-mismatch",
        "RuntimeError: No CUDA GPUs are available",
        f"{HOME}/train.py:40 main | torch.cuda.set_device(local_rank)",
        f"{SITE}/torch/cuda/__init__.py:412 _lazy_init | torch._C._cuda_init()",
        rank=4,
        judged=False,
    ),
    failing(
        "amd-gpus-not-visible",
        "torch hip",
        "bad-gpu|environment-missing|version-mismatch",
        "RuntimeError: No HIP GPUs are available",
        f"{SITE}/torch/cuda/__init__.py:412 _lazy_init | torch._C._cuda_init()",
        rank=4,
        judged=False,
    ),
    failing(
        "amd-page-not-present",
        "github.com/ROCm/pytorch/issues/499",
        "exception|bad-gpu",
        "Memory access fault by GPU node-6 (Agent handle: 0x55d0c8f1a2b0) on address 0x7f4cf87ff000. Reason: Page not present or supervisor privilege.",
        "-",
        rank=2,
        status=134,
        prefix="",
        others=GONE,
    ),
    failing(
        "amd-hardware-exception",
        "ROCr: HW Exception by GPU",
        "bad-gpu|exception|unknown",
        "HW Exception by GPU node-4 (Agent handle: 0x55d0c8f1a2b0) reason :GPU Hang",
        "-",
        rank=2,
        status=134,
        prefix="",
        others=GONE,
    ),
    failing(
        "amd-memory-lost-bits",
        "amdgpu ras",
        "bad-gpu",
        "terminate called without an active exception",
        "-",
        rank=5,
        status=134,
        prefix="",
        judged=False,
        others=GONE,
        node_logs={
            1: "[ 4411.2] amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 1, 1 uncorrectable hardware errors detected in umc block\n[ 4411.2] amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!\n"
        },
    ),
    failing(
        "device-handle-of-a-lost-gpu",
        "nvidia-smi: GPU is lost",
        "bad-gpu",
        f"torch.AcceleratorError: CUDA error: unknown error\n{DEVICE_SIDE}",
        rank=5,
        judged=False,
        others=GONE,
        node_logs={
            1: "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
        },
    ),
    failing(
        "fabric-not-initialised",
        "CUDA error 802",
        "bad-gpu|version-mismatch|environment-missing",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
        rank=4,
        judged=False,
    ),
    failing(
        "label-outside-of-the-classes",
        "torch Loss.cu",
        "exception",
        f"torch.AcceleratorError: CUDA error: device-side assert triggered\n{DEVICE_SIDE}",
        rank=1,
        before="".join(
            f"/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [{n},0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
            for n in range(12)
        ),
        others=GONE,
        forbid="broken|exclude",
    ),
    failing(
        "misaligned-address-of-a-kernel",
        "CUDA error 716",
        "exception",
        f"torch.AcceleratorError: CUDA error: misaligned address\n{DEVICE_SIDE}",
        rank=7,
        others=GONE,
        forbid="broken|exclude",
    ),
    failing(
        "fork-after-cuda",
        "torch.cuda._lazy_init",
        "exception",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
        f"{SITE}/torch/cuda/__init__.py:388 _lazy_init | raise RuntimeError(",
        rank=0,
        forbid="broken",
    ),
    failing(
        "amd-gpu-full",
        "torch hip allocator",
        "gpu-out-of-memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 63.98 GiB of which 0 bytes is free. Of the allocated memory 60.11 GiB is allocated by PyTorch, and 2.71 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        rank=3,
        others=GONE,
        retry="out-of-memory",
    ),
    failing(
        "intel-gpu-full",
        "torch xpu allocator",
        "gpu-out-of-memory",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 64.00 GiB. Of the allocated memory 62.10 GiB is allocated by PyTorch, and 1.21 GiB is reserved by PyTorch but unallocated.",
        rank=4,
        retry="out-of-memory",
    ),
    failing(
        "driver-says-out-of-memory",
        "CUDA driver error",
        "gpu-out-of-memory",
        "RuntimeError: CUDA driver error: out of memory",
        f"{SITE}/torch/_inductor/runtime/triton_heuristics.py:1088 run | return launcher(",
        rank=6,
        retry="out-of-memory",
    ),
    failing(
        "triton-error-two",
        "triton driver.c",
        "gpu-out-of-memory",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        f"{SITE}/triton/backends/nvidia/driver.py:444 __call__ | self.launch(*args, **kwargs)",
        rank=6,
    ),
    failing(
        "spawned-child-full",
        "torch.multiprocessing.spawn",
        "gpu-out-of-memory",
        'torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 3 terminated with the following error:\nTraceback (most recent call last):\n  File "/home/k.meyer/proj/work.py", line 18, in run\n    y = net(x)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 39.39 GiB of which 201.94 MiB is free.',
        rank=0,
        prefix="",
    ),
    failing(
        "cublas-not-initialised",
        "cublas",
        "gpu-out-of-memory|exception|bad-gpu",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        rank=1,
    ),
    failing(
        "power-brake-is-not-the-fault",
        "nvidia-smi throttle reasons",
        "exception",
        "IndexError: list index out of range",
        rank=4,
        node_logs={
            1: "power: GPU 2 Clocks Event Reasons: SW Power Cap: Active, HW Power Brake Slowdown: Active\n"
        },
        forbid="broken|exclude",
    ),
]
