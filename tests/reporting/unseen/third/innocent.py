"""Words of failures that were none: quoted, configured, retried, generated, echoed."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.third.common import failing, stack

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.9 GiB is free."
CASES = [
    failing(
        "configuration-names-an-error",
        "made",
        "exception",
        "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
        before="config:\n  on_error:\n    match: 'CUDA out of memory|No space left on device'\n    action: retry\n  nccl: {abort_on: 'remote process exited'}\n",
        forbid="memory|room",
    ),
    failing(
        "a-metric-called-error",
        "made",
        "exception",
        "IndexError: list index out of range",
        before="\r 12%|#2   | 120/1000 [00:41<05:01, error=nan, nan_count=3, oom=0]\n" * 6,
        forbid="overflow",
    ),
    failing(
        "retried-reads-that-succeeded",
        "made",
        "exception",
        "ValueError: labels are empty",
        before="WARNING data: OSError: [Errno 5] Input/output error: '/lustre/set/3.bin' (attempt 1 of 3)\nWARNING data: OSError: [Errno 5] Input/output error: '/lustre/set/3.bin' (attempt 2 of 3)\nINFO data: read '/lustre/set/3.bin' on attempt 3\n",
        forbid="file system",
    ),
    failing(
        "data-that-hold-a-whole-traceback",
        "made",
        "exception",
        "ZeroDivisionError: float division by zero",
        before="sample 3:\n    "
        + stack("/srv/app.py:3 f | x.cuda()").replace("\n", "\n    ")
        + OOM
        + "\nlabel: 1\nstep 41 loss 2.10\nstep 42 loss 2.09\n",
        forbid="GPU memory",
    ),
    failing(
        "self-tests-that-passed",
        "made",
        "exception",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        before="selftest: expecting OSError: [Errno 28] No space left on device ... raised as expected\nselftest: 12 passed\n",
        forbid="room",
    ),
    failing(
        "help-that-lists-failures",
        "made",
        "exception",
        "KeyError: 'mask'",
        before="Exit codes: 3 = NCCL error: remote process exited, 4 = Bus error, 5 = Killed, 6 = ECC error\n",
        forbid="broken",
    ),
    failing(
        "a-warning-about-resets",
        "made",
        "exception",
        "KeyError: 'mask'",
        before="/home/k.meyer/proj/net.py:14: UserWarning: fetch() may raise ConnectionResetError: [Errno 104] Connection reset by peer\n  warnings.warn(\n",
        forbid="connection",
    ),
    failing(
        "tail-of-an-earlier-run",
        "made",
        "exception",
        "AssertionError: step 400 was done already",
        before='resuming; the previous log ended so:\n| Traceback (most recent call last):\n|   File "train.py", line 260, in save\n| OSError: [Errno 122] Disk quota exceeded\nresumed at step 400\n',
        forbid="room",
    ),
    failing(
        "generated-program-text",
        "made",
        "exception",
        "RuntimeError: The size of tensor a (512) must match the size of tensor b (513) at non-singleton dimension 1",
        before="generation 0: 'import numpyy'  ->  ModuleNotFoundError: No module named 'numpyy'\ngeneration 1: 'os.listdir(\"/x\")'  ->  FileNotFoundError: [Errno 2] No such file or directory: '/x'\n",
        forbid="module|did not find",
    ),
    failing(
        "caught-and-lowered",
        "made",
        "exception",
        "TypeError: 'int' object is not iterable",
        before="ERROR train: batch does not fit\n"
        + stack("/home/k.meyer/proj/train.py:201 main | loss.backward()")
        + OOM
        + "\nINFO train: micro batch 8 -> 4\n"
        + "".join(f"step {n} loss 2.{n}\n" for n in range(10, 30)),
        forbid="GPU memory",
    ),
    failing(
        "trace-of-a-shell",
        "bash -x",
        "exception",
        "KeyError: 'mask'",
        batch="+ command -v conda\n+ [[ -n '' ]]\n+ trap 'echo conda: command not found; echo No space left on device' ERR\n",
        forbid="environment|room",
    ),
    failing(
        "unavailable-and-available-again",
        "made",
        "exception",
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f1c (most recent call first):\n  File "/home/k.meyer/proj/ops.py", line 31 in fused',
        "-",
        status=139,
        prefix="",
        before="urllib3.connectionpool WARNING Retrying (Retry(total=2)) after connection broken by 'NewConnectionError': Failed to establish a new connection: [Errno 111] Connection refused\nINFO tracker: connected\n",
        forbid="outside the cluster",
    ),
    failing(
        "table-of-known-failures",
        "made",
        "exception",
        "NotImplementedError: scheduler 'wsd2'",
        before="| signature | seen |\n| Watchdog caught collective operation timeout | 0 |\n| uncorrectable ECC error encountered | 0 |\n| DUE TO TIME LIMIT | 0 |\n",
        forbid="broken|time was over|no progress",
    ),
    failing(
        "environment-dump",
        "made",
        "exception",
        "KeyError: 'mask'",
        before="ENV NCCL_DEBUG=WARN\nENV TORCH_NCCL_DUMP_ON_TIMEOUT=1\nENV MOTD=Scheduled maintenance: jobs are preempted, node failure possible, quota exceeded warnings may be ignored\n",
        forbid="preempt|room",
    ),
    failing(
        "healthy-gpu-report",
        "nvidia-smi -q",
        "exception",
        "KeyError: 'mask'",
        before="    ECC Errors\n        Volatile\n            SRAM Uncorrectable Parity             : 0\n            DRAM Uncorrectable                    : 0\n    Remapped Rows\n        Uncorrectable Error                       : 0\n        Remapping Failure Occurred                : No\n",
        forbid="broken|exclude",
    ),
    failing(
        "compiler-falls-back",
        "torch._dynamo",
        "exception",
        "ValueError: too many values to unpack (expected 2)",
        before='W1122 00:16:00.1 torch/_dynamo/convert_frame.py:1358] WON\'T CONVERT forward model.py line 12 \nW1122 due to: \nW1122 Traceback (most recent call last):\nW1122   File "triton/runtime/build.py", line 37, in _build\nW1122 RuntimeError: Failed to find C compiler. Please specify via CC environment variable.\nfalling back to eager\nstep 10 loss 3.1\nstep 11 loss 3.0\n',
        forbid="environment",
    ),
]
