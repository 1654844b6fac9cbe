"""Runs that stood still: watchdogs, heartbeat monitors, barriers that name who did not come, and collectives that differ."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"


def timed_out(
    rank: int, seq: int, op: str, numel: int, *, last: int | None = None, size: int = 1800000
) -> str:
    """The watchdog's report of one rank: the work `seq` timed out, `last` was enqueued last."""
    done = seq - 1
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)={size})"
    said = f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {size + 33 + rank} milliseconds before timing out."
    return (
        f"[rank{rank}]:[E602 11:17:52.489301002 ProcessGroupNCCL.cpp:632] {said}\n"
        f"[rank{rank}]:[E602 11:17:52.489401002 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {last or seq + 2}, last completed work: {done}\n"
        f"[rank{rank}]:[E602 11:17:52.489461777 ProcessGroupNCCL.cpp:670] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.\n"
        f"[rank{rank}]:[E602 11:18:52.531176265 ProcessGroupNCCL.cpp:684] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
        f"[rank{rank}]:[E602 11:18:52.531247012 ProcessGroupNCCL.cpp:698] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.\n"
        f"[rank{rank}]:[E602 11:18:52.536602063 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {said}\n"
        "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635 (most recent call first):\n"
        f"frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7eff96c86446 in {SITE}/torch/lib/libc10.so)\nframe #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x282 (0x7eff5241e772 in {SITE}/torch/lib/libtorch_cuda.so)\nframe #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7eff52425bb3 in {SITE}/torch/lib/libtorch_cuda.so)\n\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {said}\n"
    )


def dump_signal(rank: int, source: int) -> str:
    return (
        f"[rank{rank}]:[E602 11:17:52.600 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Observed flight recorder dump signal from another rank via TCPStore.\n"
        f"[rank{rank}]:[E602 11:17:52.600 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from rank {source} and we will try our best to dump the debug info. Last enqueued NCCL work: 811, last completed NCCL work: 811.This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, this can be caused by GIL deadlock or other reasons such as network errors or bugs in the communications library (e.g. NCCL), etc. \n"
        f"[rank{rank}]:[E602 11:17:52.601 ProcessGroupNCCL.cpp:1533] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n"
    )


STUCK = (
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other deadlock-prone behaviors."
    "If you suspect the watchdog is not actually stuck and a longer timeout would help, you can either increase the timeout (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC) to a larger value or disable the heartbeat monitor (TORCH_NCCL_ENABLE_MONITORING=0).If either of aforementioned helps, feel free to file an issue to PyTorch about the short timeout or false positive abort; otherwise, please attempt to debug the hang. "
)

CASES = [
    Case(
        name="one-rank-did-not-come",
        source="https://github.com/XPixelGroup/BasicSR/issues/737",
        nodes=2,
        gpus=4,
        ranks={
            **{
                r: Rank(err=timed_out(r, 812, "ALLREDUCE", 9801523), status=134, after_s=0.1 * r)
                for r in range(8)
                if r != 6
            },
            6: Rank(err="reading shard 0091 …\n" + dump_signal(6, 0)),
        },
        want=Want(
            frozenset({"hang"}),
            "hang",
            rank=6,
            node="node2",
            forbid=r"out of memory|firewall",
            retry="hang",
        ),
    ),
    Case(
        name="one-rank-of-sixty-four-is-a-collective-behind",
        source="https://github.com/hiyouga/LlamaFactory/issues/8261",
        nodes=8,
        gpus=8,
        step=90,
        ranks={
            **{
                r: Rank(
                    err=timed_out(r, 4410, "_ALLGATHER_BASE", 16384000, last=4412),
                    status=134,
                    after_s=0.02 * r,
                )
                for r in range(64)
            },
            27: Rank(
                err=timed_out(27, 4409, "_REDUCE_SCATTER_BASE", 131072000, last=4409),
                status=134,
                after_s=1.4,
            ),
        },
        want=Want(
            frozenset({"hang", "collective-mismatch"}),
            "hang",
            rank=27,
            node="node4",
            forbid=r"out of memory",
            retry="any",
        ),
    ),
    Case(
        name="the-same-number-and-another-operation",
        source="https://github.com/NVIDIA/nccl/issues/296",
        nodes=2,
        gpus=4,
        ranks={
            **{
                r: Rank(
                    err=timed_out(r, 57, "ALLREDUCE", 2048, size=600000),
                    status=134,
                    after_s=0.05 * r,
                )
                for r in range(8)
            },
            0: Rank(err=timed_out(0, 57, "BROADCAST", 1, size=600000), status=134),
        },
        want=Want(
            frozenset({"collective-mismatch", "hang"}),
            "collective-mismatch",
            rank="any",
            node="any",
            forbid=r"out of memory|firewall|hardware fault|broken hardware",
        ),
    ),
    Case(
        name="fingerprints-differ",
        source="https://github.com/aurekaresearch/OpenDDE/issues/23",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err=f'[rank{r}]: Traceback (most recent call last):\n[rank{r}]:   File "/home/ada/fold/train.py", line 82, in <module>\n[rank{r}]:     dist.all_gather_into_tensor(out, x)\n'
                f"[rank{r}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {r} is running collective: CollectiveFingerPrint(SequenceNumber=14, OpType=_ALLGATHER_BASE, TensorShape=[359, 1, 1435, 16], TensorDtypes=BFloat16, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))), but Rank 3 is running collective: CollectiveFingerPrint(SequenceNumber=14, OpType=_ALLGATHER_BASE, TensorShape=[359, 1, 1436, 16], TensorDtypes=BFloat16, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))).Collectives differ in the following aspects: \t Tensor Tensor shapes: 359 1 1435 16vs 359 1 1436 16\n",
                status=1,
                after_s=0.02 * r,
            )
            for r in (0, 1, 2, 4, 5, 6, 7)
        },
        want=Want(
            frozenset({"collective-mismatch"}),
            "collective-mismatch",
            rank="any",
            node="any",
            forbid=r"(two|different) versions|(update|newer|install)[^.]*\bdriver|out of memory",
        ),
    ),
    Case(
        name="sizes-differ-on-the-wire",
        source="https://github.com/NVIDIA/nccl/issues/969",
        nodes=2,
        gpus=4,
        ranks={
            5: Rank(
                err="node2:1307367:1307586 [1] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.10.23.6<58683> collective mismatch error, local size 496640 remote size 65536\n"
                '[rank5]: Traceback (most recent call last):\n[rank5]:   File "/home/ada/moe/train.py", line 200, in <module>\n[rank5]:     dist.all_to_all_single(out, inp, splits_out, splits_in)\n[rank5]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.19.3\n[rank5]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank5]: Last error:\n[rank5]: NET/IB : req 0/1 tag 0 peer 10.10.23.6<58683> collective mismatch error, local size 496640 remote size 65536\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"collective-mismatch"}),
            "collective-mismatch",
            rank="any",
            node="any",
            forbid=r"InfiniBand is down|firewall|(update|newer|install)[^.]*\bdriver",
        ),
    ),
    Case(
        name="barrier-that-names-who-is-missing",
        source="https://github.com/NVIDIA/nccl/issues/849",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 58, in <module>\n    dist.monitored_barrier(timeout=timedelta(minutes=30), wait_all_ranks=True)\n'
                "RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 1800000 ms\n",
                status=1,
            ),
            **{
                r: Rank(
                    err=f"[E ProcessGroupGloo.cpp:138] Rank {r} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
                    f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 58, in <module>\n    dist.monitored_barrier(timeout=timedelta(minutes=30), wait_all_ranks=True)\nRuntimeError: Rank {r} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.11]:50124\n',
                    status=1,
                    after_s=0.3,
                )
                for r in (1, 2, 3)
            },
        },
        others=Rank(out="building the index of 4.1M samples …\n"),
        want=Want(
            frozenset({"hang", "rendezvous-timeout"}),
            "hang",
            rank="any",
            node="node2",
            forbid=r"rank 0 (is at fault|failed because of itself)|out of memory",
        ),
    ),
    Case(
        name="heartbeat-monitor-of-everybody",
        source="https://github.com/hiyouga/LlamaFactory/issues/8549",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err=f"[rank{r}]:[E704 13:48:58.260494728 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {r}] {STUCK}\n"
                f"[rank{r}]:[E704 13:48:58.260694728 ProcessGroupNCCL.cpp:1536] [PG ID 0 PG GUID 0(default_pg) Rank {r}] ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n"
                f"[rank{r}]:[F704 13:56:58.261494728 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank {r}] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n",
                status=134,
                after_s=0.01 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"hang"}),
            "hang",
            rank="any",
            node="any",
            forbid=r"out of memory|disk is full|free (disk )?space",
            retry="hang",
        ),
    ),
    Case(
        name="no-progress-and-a-stack",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=2,
        gpus=4,
        step=1200,
        ranks={},
        others=Rank(out="step 1200 loss 2.7\n"),
        hung=(0, 1, 2, 3, 4, 5, 6, 7),
        stacks={
            3: 'Thread 0x00007f1d5b12a740 (most recent call first):\n  File "/opt/venv/lib/python3.11/site-packages/requests/adapters.py", line 667 in send\n  File "/home/ada/lm/track.py", line 20 in push\n  File "/home/ada/lm/train.py", line 141 in <module>\n',
            **{
                r: f'Thread 0x00007f1d5b12a74{r} (most recent call first):\n  File "{SITE}/torch/distributed/distributed_c10d.py", line 2810 in all_reduce\n  File "/home/ada/lm/train.py", line 133 in <module>\n'
                for r in (0, 1, 2, 4, 5, 6, 7)
            },
        },
        want=Want(
            frozenset({"hang"}),
            "hang",
            rank=3,
            node="node1",
            forbid=r"out of memory|\bNaN\b",
            retry="hang",
        ),
    ),
    Case(
        name="everybody-in-the-same-collective",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=2,
        gpus=4,
        step=31,
        ranks={},
        others=Rank(out="step 31 loss 6.1\n"),
        hung=(0, 1, 2, 3, 4, 5, 6, 7),
        stacks={
            r: f'Thread 0x00007f1d5b12a74{r} (most recent call first):\n  File "{SITE}/torch/distributed/distributed_c10d.py", line 4551 in barrier\n  File "/home/ada/lm/train.py", line 150 in <module>\n'
            for r in range(8)
        },
        want=Want(
            frozenset({"hang"}),
            "hang",
            rank="any",
            node="any",
            forbid=r"out of memory|\bNaN\b",
            retry="hang",
        ),
    ),
    Case(
        name="watchdogs-because-one-rank-raised",
        source="https://github.com/pytorch/pytorch/issues/118369",
        nodes=2,
        gpus=4,
        ranks={
            **{
                r: Rank(
                    err=timed_out(r, 880, "BROADCAST", 131137536, size=600000),
                    status=134,
                    after_s=0.1 * r,
                )
                for r in range(8)
                if r != 5
            },
            5: Rank(
                err='Exception in thread Thread-3 (prefetch):\nTraceback (most recent call last):\n  File "/usr/lib/python3.11/threading.py", line 1038, in _bootstrap_inner\n    self.run()\n  File "/home/ada/lm/prefetch.py", line 41, in prefetch\n    self.queue.put(decode(blob))\n  File "/home/ada/lm/prefetch.py", line 12, in decode\n    return msgpack.unpackb(blob)\nmsgpack.exceptions.ExtraData: unpack(b) received extra data.\n',
            ),
        },
        want=Want(
            frozenset({"exception", "hang"}),
            "exception",
            rank=5,
            node="node2",
            forbid=r"check the network|firewall|out of memory|longer timeout",
        ),
    ),
    Case(
        name="watchdog-wording-in-a-warning-only",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        nodes=4,
        gpus=2,
        step=5,
        ranks={
            1: Rank(
                err="note: if you meet `Watchdog caught collective operation timeout`, raise --dist-timeout\n"
                'Traceback (most recent call last):\n  File "/home/ada/det/train.py", line 102, in <module>\n    boxes = targets["boxes"][keep]\nIndexError: The shape of the mask [12] at index 0 does not match the shape of the indexed tensor [11, 4] at index 0\n',
                status=1,
            )
        },
        others=Rank(
            err="note: if you meet `Watchdog caught collective operation timeout`, raise --dist-timeout\n"
        ),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=1,
            node="node1",
            forbid=r"\bhang\b|\bhung\b|longer timeout|raise.*timeout|\bstuck\b",
            retry="crash",
        ),
    ),
]

CASES = finish(CASES)
