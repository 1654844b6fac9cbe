"""What stands around a failure's own words: of ranks that lost their peer, of libraries that close.

The words are those that the programs print (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
gloo/transport/tcp/pair.cc, nccl/src/misc/socket.cc, multiprocessing/resource_tracker.py, …).
"""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from tests.reporting.unseen.case import Case, Rank

ADDRESS = (
    "[W1122 00:15:11.664368917 socket.cpp:207] [c10d] The hostname of the client socket cannot be "
    "retrieved. err=-3\n"
)
OMP = (
    "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:624: UserWarning: This "
    "DataLoader will create 16 worker processes in total. Our suggested max number of worker in "
    "current system is 12, which is smaller than what this DataLoader is going to create. Please "
    "be aware that excessive worker creation might get DataLoader running slow or even freeze, "
    "lower the worker number to avoid potential slowness/freeze if necessary.\n"
    "  warnings.warn(\n"
)
FUTURE = (
    "/home/ada/t5/train.py:88: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. "
    "Please use `torch.amp.autocast('cuda', args...)` instead.\n"
    "  with torch.cuda.amp.autocast(dtype=torch.bfloat16):\n"
)
NOT_DESTROYED = (
    "[rank{rank}]:[W1122 00:31:02.118327116 ProcessGroupNCCL.cpp:1538] Warning: WARNING: "
    "destroy_process_group() was not called before program exit, which can leak resources. For "
    "more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function "
    "operator())\n"
)
RESOURCE_TRACKER = (
    "/opt/venv/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: "
    "resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown\n"
    "  warnings.warn('resource_tracker: There appear to be %d '\n"
)
LOADER_DEL = (
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f21b2f3e0c0>\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1618, in '
    "__del__\n"
    "    self._shutdown_workers()\n"
    '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1582, in '
    "_shutdown_workers\n"
    "    w.join(timeout=_utils.MP_STATUS_CHECK_INTERVAL)\n"
    '  File "/opt/venv/lib/python3.11/multiprocessing/process.py", line 149, in join\n'
    "    res = self._popen.wait(timeout)\n"
    "AssertionError: can only join a child process\n"
)
WANDB_END = (
    "wandb: \n"
    "wandb: \U0001f680 View run dashing-frog-12 at: https://wandb.ai/ada/t5/runs/3c9v2kqz\n"
    "wandb: Find logs at: wandb/run-20261122_001502-3c9v2kqz/logs\n"
)
PROGRESS = (
    "\rEpoch 0:  12%|#2        | 120/1000 [00:41<05:01,  2.92it/s, loss=2.31]"
    "\rEpoch 0:  13%|#3        | 130/1000 [00:44<04:58,  2.92it/s, loss=2.29]"
    "\rEpoch 0:  14%|#4        | 140/1000 [00:48<04:54,  2.92it/s, loss=2.27]\n"
)
SHARDS = "\rLoading checkpoint shards:  50%|#####     | 2/4 [00:08<00:08,  4.02s/it]\n"
STEPS = "".join(
    f"step {step:5d} | loss {3.1 - step / 400:.4f} | grad norm 1.{step % 97:02d} | 41,{step:03d} "
    "tokens/s\n"
    for step in range(100, 180, 10)
)
FRAMES = """frame #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, \
std::char_traits<char>, std::allocator<char> >) + 0x96 (0x7f8a4396c446 in \
/opt/venv/lib/python3.11/site-packages/torch/lib/libc10.so)
frame #1: <unknown function> + 0xe0dd78 (0x7f89f5fcad78 in \
/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so)
frame #2: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f89f5a3a6ed in \
/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so)
frame #3: <unknown function> + 0x145c0 (0x7f8a43d1f5c0 in \
/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch.so)
frame #4: <unknown function> + 0x89134 (0x7f8a4a0a8134 in /lib/x86_64-linux-gnu/libc.so.6)
frame #5: <unknown function> + 0x1097dc (0x7f8a4a1287dc in /lib/x86_64-linux-gnu/libc.so.6)

"""


def by(rank: int, text: str) -> str:
    """As torch's excepthook prints it once the process group is there."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.removesuffix("\n").split("\n"))


def raised(
    rank: int,
    traceback: str,
    *,
    record: str | None = None,
    before: str = ADDRESS + FUTURE,
    after: str = "",
    out: str = "",
    after_s: float = 0.0,
    prefixed: bool = True,
) -> Rank:
    """A rank that an exception ended. record: the exception, if the script uses `record`."""
    return Rank(
        err=before + (by(rank, traceback) if prefixed else traceback) + after,
        out=out,
        status=1,
        record=record,
        callstack=traceback if record is not None else "",
        after_s=after_s,
    )


def watchdog(
    rank: int,
    *,
    seq: int = 4711,
    op: str = "_ALLGATHER_BASE",
    numel: int = 16392192,
    timeout_ms: int = 600000,
    before: str = ADDRESS,
) -> str:
    """NCCL's watchdog ends the process after a collective that did not come to an end."""
    head = f"[rank{rank}]:[E1122 06:24:44.903881913 ProcessGroupNCCL.cpp"
    words = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        f"OpType={op}, NumelIn={numel}, NumelOut={numel * 8}, Timeout(ms)={timeout_ms}) ran for "
        f"{timeout_ms + 37} milliseconds before timing out."
    )
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    terminated = f"{group} Process group watchdog thread terminated with exception: {words}\n"
    raised_from = (
        "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/"
        "ProcessGroupNCCL.cpp:618 (most recent call first):\n"
    )
    return (
        f"{before}{head}:616] {words}\n"
        f"{head}:1785] {group} Exception (either an error or timeout) detected by watchdog at "
        f"work: {seq}, last enqueued NCCL work: {seq + 2}, last completed NCCL work: {seq - 1}.\n"
        f"{head}:1834] {group} Timeout at NCCL work: {seq}, last enqueued NCCL work: {seq + 2}, "
        f"last completed NCCL work: {seq - 1}.\n"
        f"{head}:630] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the "
        "asynchronous nature of CUDA kernels, subsequent GPU operations might run on "
        "corrupted/incomplete data.\n"
        f"{head}:636] [Rank {rank}] To avoid data inconsistency, we are taking the entire process "
        f"down.\n{head}:1595] {terminated}{raised_from}{FRAMES}"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  {terminated}{raised_from}{FRAMES}"
    )


def remote_error(rank: int, peer: str = "10.99.7.2<43811>", before: str = ADDRESS) -> str:
    """NCCL's watchdog ends the process because a peer's connection broke."""
    head = f"[rank{rank}]:[E1122 00:37:09.983540349 ProcessGroupNCCL.cpp"
    words = (
        "NCCL error: remote process exited or there was a network error, NCCL version 2.27.3\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.\nLast error:\n"
        f"socketProgressOpt: Call to recv from {peer} failed : Connection reset by peer\n"
        "Exception raised from checkForNCCLErrorsInternal at "
        "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2363 (most recent call first):\n"
    )
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    terminated = f"{group} Process group watchdog thread terminated with exception: {words}"
    return (
        f"{before}{head}:681] [Rank {rank}] Some NCCL operations have failed or timed out. Due to "
        "the asynchronous nature of CUDA kernels, subsequent GPU operations might run on "
        "corrupted/incomplete data.\n"
        f"{head}:695] [Rank {rank}] To avoid data inconsistency, we are taking the entire process "
        f"down.\n{head}:1895] {terminated}{FRAMES}"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  {terminated}{FRAMES}"
    )


def lost_peer(rank: int, peer: str = "10.99.7.2") -> str:
    """gloo's connection to a peer was closed."""
    return ADDRESS + by(
        rank,
        f"""Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 188, in main
    dist.all_reduce(flags, group=cpu_group)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in \
wrapper
    return func(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, \
in all_reduce
    work.wait()
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer \
[{peer}]:38211. This is typically caused by a remote worker crashing. Check the logs of the remote \
worker before reporting an error. GLHF! \U0001f3d6\ufe0f
""",
    )


def aborted(rank: int, peer: str = "10.99.7.2<43811>", after_s: float = 1.5) -> Rank:
    """A rank of another node that NCCL's watchdog ended because its peer was gone."""
    return Rank(err=remote_error(rank, peer), status=134, after_s=after_s)


def closed(rank: int, after_s: float = 0.06, record: bool = False) -> Rank:
    """A rank that gloo's lost connection ended."""
    text = lost_peer(rank)
    told = text.strip().splitlines()[-1].partition(": ")[2]
    return Rank(err=text, status=1, record=told if record else None, after_s=after_s)


QUIET = Rank(err=ADDRESS + FUTURE)
"""A rank that its agent ended before it could say anything."""


TOP = """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 188, in main
    loss = train_step(model, batch)
           ^^^^^^^^^^^^^^^^^^^^^^^^
"""
CALL = """  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in \
_wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1762, in _call_impl
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
LOADER = """  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 733, in \
__next__
    data = self._next_data()
           ^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1515, in \
_next_data
    return self._process_data(data, worker_id)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1550, in \
_process_data
    data.reraise()
  File "/opt/venv/lib/python3.11/site-packages/torch/_utils.py", line 750, in reraise
    raise exception
"""
WORKER = """Original Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in \
_worker_loop
    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]
           ^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 52, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
            ~~~~~~~~~~~~^^^^^
"""
INIT = """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 141, in main
    dist.init_process_group("nccl", timeout=timedelta(minutes=10))
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in \
wrapper
    return func(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^
"""
DEVICE_SIDE = """CUDA kernel errors might be asynchronously reported at some other API call, so the \
stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


def on_record(cases: Iterable[Case], *names: str) -> list[Case]:
    """The same cases, those named as of a script that uses torchelastic's `record`."""
    found = list(cases)
    unknown = set(names) - {case.name for case in found}
    assert not unknown, unknown
    return [_recording(case) if case.name in names else case for case in found]


def _recording(case: Case) -> Case:
    ranks = {rank: _recorded(rank, one) for rank, one in case.ranks.items()}
    return dataclasses.replace(case, ranks=ranks)


def _recorded(rank: int, one: Rank) -> Rank:
    """What torch's excepthook printed stands in the error file, too."""
    mark = f"[rank{rank}]: "
    lines = [line.removeprefix(mark) for line in one.err.split("\n") if line.startswith(mark)]
    if one.status != 1 or not lines:
        return one
    last = max(i for i, line in enumerate(lines) if line.startswith("Traceback ("))
    after = lines[last + 1 :]
    first = next(i for i, line in enumerate(after) if not line.startswith(" "))
    kind, colon, message = "\n".join(after[first:]).partition(":")
    named = re.sub(r"^[\w.]*\.", "", kind)
    stack = "\n".join(lines) + "\n"
    return dataclasses.replace(one, record=f"{named}{colon}{message}", callstack=stack)
