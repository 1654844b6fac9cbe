"""What NCCL and torch's process groups say of each other."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    CALL,
    FRAMES,
    INIT,
    OMP,
    PROGRESS,
    QUIET,
    STEPS,
    TOP,
    aborted,
    by,
    closed,
    on_record,
    raised,
    remote_error,
    watchdog,
)

_BARRIER = """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 149, in main
    torch.distributed.barrier()
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4818, in barrier
    work = group.barrier(opts=opts)
           ^^^^^^^^^^^^^^^^^^^^^^^^
"""


def _dist_error(kind: str, name: str, usual: str, last: str) -> str:
    return (
        "torch.distributed.DistBackendError: NCCL error in: "
        f"/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {kind}, NCCL version 2.27.3\n"
        f"{name}: {usual}\nLast error:\n{last}\n"
    )


_SYSTEM = (
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "ncclSystemError",
    "System call (e.g. socket, malloc) or external library call failed or device error. ",
)
_USAGE = (
    "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "ncclInvalidUsage",
    "This usually reflects invalid usage of NCCL library.",
)
_INTERNAL = (
    "internal error - please report this issue to the NCCL developers",
    "ncclInternalError",
    "Internal check failed.",
)


def _fingerprint(seq: int, op: str, shape: str) -> str:
    return (
        f"CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, TensorShape=[{shape}], "
        "TensorDtypes=BFloat16, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda,"
        " layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), "
        "memory_format=(nullopt)))"
    )


def _mismatch(rank: int, other: int) -> str:
    mine, theirs = ("51123456", "195812480") if rank == 0 else ("195812480", "51123456")
    return (
        TOP
        + '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810, in all_reduce\n'
        "    work = group.allreduce([tensor], opts)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: "
        f"{_fingerprint(3104, 'ALLREDUCE', mine)}, but Rank {other} is running collective: "
        f"{_fingerprint(3104, 'ALLREDUCE', theirs)}.Collectives differ in the following aspects: \t Tensor Tensor shapes: {mine}vs {theirs}\n"
    )


CASES = [
    Case(
        name="shm-segment-full",
        source="https://github.com/pytorch/ci-infra/pull/490",
        nodes=1,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    *_SYSTEM,
                    f"Error while creating shared memory segment /dev/shm/nccl-WU88O{rank} (size 9637888), error: No space left on device (28)",
                ),
                before=ADDRESS
                + f"node1:{4100 + rank}:{4300 + rank} [{rank}] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88O{rank} to 9637892 bytes, error: No space left on device (28)\n\n"
                f"node1:{4100 + rank}:{4300 + rank} [{rank}] misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-WU88O{rank} (size 9637888), error: No space left on device (28)\n",
            )
            for rank in (0, 1, 2, 3)
        },
        others=QUIET,
        want=wanted(
            "disk-full",
            rank="any",
            node="node1",
            forbid="quota|remove checkpoints|old checkpoints|keep fewer",
        ),
    ),
    Case(
        name="duplicate-gpu",
        source="https://github.com/NVIDIA/Megatron-LM/issues/661",
        nodes=2,
        gpus=4,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    *_USAGE,
                    f"Duplicate GPU detected : rank {rank} and rank 4 both on CUDA device f000",
                ),
                before=ADDRESS
                + f"/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:4807: UserWarning: No device id is provided via `init_process_group` or `barrier `. Using the current device set by the user. \n  warnings.warn(  # warn only once\n"
                f"node2:{4100 + rank}:{4300 + rank} [0] init.cc:938 NCCL WARN Duplicate GPU detected : rank {rank} and rank 4 both on CUDA device f000\n",
            )
            for rank in (5, 6, 7)
        },
        others=QUIET,
        want=wanted(
            "network-setup", "settings", "exception", rank="any", node="any", forbid="broken"
        ),
    ),
    Case(
        name="memlock-too-small",
        source="https://github.com/NVIDIA/nccl-tests/issues/206",
        nodes=2,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    *_SYSTEM, "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
                ),
                before=ADDRESS
                + f"gpu12:{4100 + rank % 8}:4391 [{rank % 8}] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
                f"gpu12:{4100 + rank % 8}:4391 [{rank % 8}] NCCL INFO transport/net_ib.cc:1693 -> 2\n",
            )
            for rank in range(16)
        },
        want=wanted(
            "network-setup",
            rank="any",
            node="any",
            forbid="training.batch_size|more memory|resources.memory",
        ),
    ),
    Case(
        name="no-socket-interface",
        source="https://github.com/marin-community/marin/issues/6940",
        nodes=4,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _BARRIER + _dist_error(*_USAGE, "Bootstrap : no socket interface found"),
                before=ADDRESS
                + f"gpu{rank // 2 + 1:02}:4100:4100 [{rank % 2}] bootstrap.cc:138 NCCL WARN Bootstrap : no socket interface found\n",
            )
            for rank in range(8)
        },
        want=wanted("network-setup", rank="any", node="any"),
    ),
    Case(
        name="interface-missing-family-59936",
        source="https://github.com/NVIDIA/nccl/issues/1837",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    *_INTERNAL,
                    "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
                ),
                before=ADDRESS
                + f"gpu{rank // 2 + 1:02}:4100:4100 [{rank % 2}] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n",
            )
            for rank in range(4)
        },
        want=wanted("network-setup", rank="any", node="any"),
    ),
    Case(
        name="ib-completion-status-12",
        source="https://github.com/NVIDIA/nccl/issues/1405",
        nodes=8,
        gpus=8,
        ranks={
            rank: Rank(
                err=ADDRESS
                + f"gpu03:{4100 + rank % 8}:4391 [{rank % 8}] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.99.7.6<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::a288:c203:29:1a44 remoteGids fe80::a288:c203:29:1b10 hca mlx5_3\n"
                f"gpu03:{4100 + rank % 8}:4391 [{rank % 8}] NCCL INFO transport/net.cc:1302 -> 6\ngpu03:{4100 + rank % 8}:4391 [{rank % 8}] NCCL INFO proxy.cc:698 -> 6\n"
                + remote_error(rank, before=""),
                status=134,
                after_s=0.01 * rank,
            )
            for rank in (19, 20)
        },
        others=QUIET,
        want=wanted(
            "network-setup",
            "node-failure",
            "connection-reset",
            "bad-gpu",
            rank="any",
            node="any",
            forbid="batch size",
        ),
    ),
    Case(
        name="peer-access-not-supported",
        source="https://github.com/ray-project/ray_lightning/issues/24",
        nodes=1,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                    "ncclUnhandledCudaError",
                    "Call to CUDA function failed.",
                    "Cuda failure 217 'peer access is not supported between these two devices'",
                ),
                before=ADDRESS
                + f"node1:410{rank}:4388 [{rank}] transport/p2p.cc:288 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n",
                record="DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 217 'peer access is not supported between these two devices'",
            )
            for rank in range(2)
        },
        want=wanted("network-setup", rank="any", node="any"),
    ),
    Case(
        name="nvls-without-fabric-manager",
        source="https://github.com/NVIDIA/nccl/issues/1672",
        nodes=2,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                    "ncclUnhandledCudaError",
                    "Call to CUDA function failed.",
                    "Cuda failure 802 'system not yet initialized'",
                ),
                before=ADDRESS
                + f"gpu02:{4092 + rank}:4390 [{rank - 8}] transport/nvls.cc:245 NCCL WARN Cuda failure 802 'system not yet initialized'\n",
            )
            for rank in range(8, 16)
        },
        others=QUIET,
        want=wanted("bad-gpu", rank="any", node="node2"),
    ),
    Case(
        name="collective-shapes-differ",
        source="https://github.com/modelscope/ms-swift/pull/9443",
        nodes=2,
        gpus=4,
        ranks={
            0: raised(0, _mismatch(0, 1)),
            **{rank: raised(rank, _mismatch(rank, 0), after_s=0.02) for rank in range(1, 8)},
        },
        want=wanted("collective-mismatch", rank="any", node="any", retry="crash"),
    ),
    Case(
        name="collective-mismatch-hidden-in-watchdogs",
        source="https://pytorch.org/tutorials/prototype/flight_recorder_tutorial.html",
        nodes=2,
        gpus=2,
        ranks={
            0: Rank(err=watchdog(0, seq=901, op="ALLREDUCE", numel=4096), status=134),
            1: Rank(err=watchdog(1, seq=901, op="ALLREDUCE", numel=4096), status=134),
            2: Rank(
                err=watchdog(2, seq=901, op="_ALLGATHER_BASE", numel=16392192),
                status=134,
                after_s=0.4,
            ),
            3: Rank(err=watchdog(3, seq=901, op="ALLREDUCE", numel=4096), status=134, after_s=0.4),
        },
        want=wanted("collective-mismatch", "hang", rank="any", node="any"),
    ),
    Case(
        name="one-rank-left-the-loop-early",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=4,
        ranks={
            6: Rank(err=ADDRESS + OMP, out=STEPS + "epoch 3 is over, evaluating on 512 samples\n"),
            **{
                rank: Rank(err=watchdog(rank, seq=88123), status=134, after_s=0.02 * rank)
                for rank in range(4)
            },
            **{
                rank: Rank(err=watchdog(rank, seq=88123), status=134, after_s=0.03 * rank)
                for rank in (4, 5, 7)
            },
        },
        want=wanted("hang", "collective-mismatch", rank="any", node="any"),
    ),
    Case(
        name="heartbeat-monitor-of-watchdog",
        source="https://github.com/om-ai-lab/VLM-R1/issues/257",
        nodes=1,
        gpus=8,
        ranks={
            6: Rank(
                err=ADDRESS
                + "[rank6]:[E1122 13:55:49.384372190 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other deadlock-prone behaviors.If you suspect the watchdog is not actually stuck and a longer timeout would help, you can either increase the timeout (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC) to a larger value or disable the heartbeat monitor (TORCH_NCCL_ENABLE_MONITORING=0).If either of aforementioned helps, feel free to file an issue to PyTorch about the short timeout or false positive abort; otherwise, please attempt to debug the hang. \n"
                "[rank6]:[E1122 13:55:49.384620373 ProcessGroupNCCL.cpp:1533] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n"
                "[rank6]:[F1122 14:03:49.385461578 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank 6] [PG ID 0 PG GUID 0(default_pg) Rank 6] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n",
                status=134,
            )
        },
        others=QUIET,
        want=wanted("hang", rank="any", node="node1", retry="hang"),
    ),
    Case(
        name="only-remote-errors",
        source="https://github.com/hiyouga/LlamaFactory/issues/6849",
        nodes=4,
        gpus=2,
        ranks={
            rank: Rank(
                err=remote_error(rank, f"10.99.7.{4 - rank // 2}<49901>"),
                status=134,
                after_s=0.3 * (rank // 2),
            )
            for rank in range(8)
        },
        want=wanted(
            "connection-reset", "unknown", rank="any", node="any", forbid="batch size|broken"
        ),
    ),
    Case(
        name="exception-on-37-of-64-others-remote-error",
        source="https://github.com/NVIDIA/nccl/issues/2076",
        nodes=8,
        gpus=8,
        ranks={
            37: raised(
                37,
                TOP + CALL + '  File "/home/ada/t5/model.py", line 88, in forward\n'
                "    return self.table[bucket.item()]\n           ~~~~~~~~~~^^^^^^^^^^^^^^^\n"
                "KeyError: 4097\n",
                after_s=0.5,
            ),
            **{
                rank: Rank(
                    err=remote_error(rank, "10.99.7.5<43811>"),
                    status=134,
                    after_s=0.45 if rank == 8 else 1.2,
                )
                for rank in range(8, 16)
            },
            0: Rank(err=remote_error(0), out=STEPS, status=134, after_s=1.4),
        },
        others=Rank(err=ADDRESS),
        want=wanted("exception", rank=37, node="node5", retry="crash"),
    ),
    Case(
        name="gloo-closed-first-by-clock",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
        nodes=4,
        gpus=2,
        ranks={
            7: raised(
                7,
                TOP
                + '  File "/home/ada/t5/train.py", line 97, in train_step\n    assert grad_norm < args.blowup, f"gradient norm {grad_norm:.1f}"\n           ^^^^^^^^^^^^^^^^^^^^^^^\nAssertionError: gradient norm 81234.5\n',
                record="AssertionError: gradient norm 81234.5",
                after_s=0.4,
            ),
            0: closed(0, 0.0, record=True),
            2: closed(2, 0.3, record=True),
            4: closed(4, 0.5, record=True),
        },
        others=Rank(err=ADDRESS),
        want=wanted("exception", "nan-loss", rank=7, node="node4", retry="crash"),
    ),
    Case(
        name="monitored-barrier-names-the-rank",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
        nodes=2,
        gpus=4,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 203, in main
    dist.monitored_barrier(group=cpu_group, timeout=timedelta(minutes=5))
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4911, in monitored_barrier
    return group_to_use.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: Rank 6 failed to pass monitoredBarrier in 300000 ms
""",
                before=ADDRESS
                + "[E1122 00:31:40.102331 ProcessGroupGloo.cpp:145] Rank 6 failed to pass monitoredBarrier in 300000 ms\n",
            ),
            **{rank: closed(rank, 0.05) for rank in (1, 2, 3)},
            6: Rank(err=ADDRESS, out=STEPS),
        },
        others=QUIET,
        want=wanted("hang", rank="any", node="any"),
    ),
    Case(
        name="nccl-versions-differ",
        source="https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    *_USAGE,
                    "Mismatched NCCL version detected : rank 0 version 22703 rank 2 version 22105",
                ),
                before=ADDRESS
                + f"gpu{rank // 2 + 1:02}:4100:4388 [{rank % 2}] init.cc:1032 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 2 version 22105\n",
            )
            for rank in range(4)
        },
        want=wanted("version-mismatch", rank="any", node="any"),
    ),
    Case(
        name="ofi-finds-no-provider",
        source="https://github.com/aws/aws-ofi-nccl/issues/1020",
        nodes=2,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    *_SYSTEM,
                    "Error: network AWS Libfabric not found.",
                ),
                before=ADDRESS
                + f"[2026-11-22 00:16:08] gpu{rank // 8 + 1:02}:{4100 + rank % 8}:4390 [{rank % 8}] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n",
            )
            for rank in range(16)
        },
        want=wanted("network-setup", rank="any", node="any"),
    ),
    Case(
        name="nccl-connect-refused-by-firewall",
        source="https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _BARRIER
                + _dist_error(
                    *_SYSTEM,
                    "socketPollConnect: Connect to 10.99.7.1<41873> returned 113(No route to host) errno 115(Operation now in progress)",
                ),
                before=ADDRESS
                + f"gpu02:{4100 + rank}:4391 [{rank - 2}] misc/socket.cc:556 NCCL WARN socketPollConnect: Connect to 10.99.7.1<41873> returned 113(No route to host) errno 115(Operation now in progress)\n",
            )
            for rank in (2, 3)
        },
        others=QUIET,
        want=wanted("network-setup", "connection-reset", rank="any", node="any"),
    ),
    Case(
        name="watchdog-because-rank-5-raised-late",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=4,
        ranks={
            5: raised(
                5,
                TOP.replace(
                    "loss = train_step(model, batch)\n           ^^^^^^^^^^^^^^^^^^^^^^^^",
                    "save(model)",
                )
                + '  File "/home/ada/t5/train.py", line 60, in save\n    meta["git"] = subprocess.check_output(["git", "rev-parse", "HEAD"])\n'
                '  File "/opt/venv/lib/python3.11/subprocess.py", line 571, in run\n    raise CalledProcessError(retcode, process.args,\n'
                "subprocess.CalledProcessError: Command '['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128.\n",
                before=ADDRESS
                + "fatal: detected dubious ownership in repository at '/home/ada/t5'\nTo add an exception for this directory, call:\n\n\tgit config --global --add safe.directory /home/ada/t5\n",
                after=watchdog(5, before="", seq=77),
                after_s=0.9,
            ),
            **{
                rank: Rank(err=watchdog(rank, seq=77), status=134, after_s=0.5 + 0.01 * rank)
                for rank in range(4)
            },
        },
        others=QUIET,
        want=wanted("exception", rank=5, node="node2"),
    ),
    Case(
        name="store-get-timed-out-rank-0-crashed",
        source="https://github.com/pytorch/pytorch/issues/107177",
        nodes=2,
        gpus=2,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 131, in main
    tokenizer = build_tokenizer(args.vocab)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/ada/t5/tokens.py", line 19, in build_tokenizer
    raise ValueError(f"vocabulary size {size} is not a multiple of {align}")
ValueError: vocabulary size 32103 is not a multiple of 64
""",
            ),
            **{
                rank: raised(
                    rank,
                    _BARRIER
                    + "torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection was likely closed. Did the remote server shutdown or crash?\n"
                    "Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:678 (most recent call first):\n"
                    + FRAMES,
                    after_s=0.3,
                )
                for rank in (2, 3)
            },
        },
        others=QUIET,
        want=wanted("exception", rank=0, node="node1", retry="crash"),
    ),
    Case(
        name="tcpstore-noise-after-others-left",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        nodes=4,
        gpus=2,
        ranks={
            4: raised(
                4,
                TOP
                + '  File "/home/ada/t5/train.py", line 90, in train_step\n    mask = batch["attention_mask"]\n           ~~~~~^^^^^^^^^^^^^^^^^^\nKeyError: \'attention_mask\'\n',
            ),
            6: Rank(
                err=ADDRESS
                + "[rank6]:[W1122 00:31:44.310077115 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=94, addr=[gpu04]:50112, remote=[gpu01]:14711): failed to recv, got 0 bytes\nException raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:678 (most recent call first):\n"
                + FRAMES
                + '[rank6]:[W1122 00:31:44.314191222 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0(default_pg) Rank 6] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: failed to recv, got 0 bytes\n',
                status=134,
                after_s=0.9,
            ),
        },
        others=Rank(err=ADDRESS, out=PROGRESS),
        want=wanted("exception", rank=4, node="node3", retry="crash"),
    ),
    Case(
        name="init-process-group-port-in-use",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
        nodes=1,
        gpus=4,
        ranks={
            0: raised(
                0,
                INIT
                + '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 198, in _create_c10d_store\n    return TCPStore(\n           ^^^^^^^^^\n'
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
                before=ADDRESS
                + "[W1122 00:31:01.210191200 socket.cpp:764] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).\n",
                prefixed=False,
            ),
        },
        others=QUIET,
        want=wanted("port-taken", rank=0, node="node1"),
    ),
    Case(
        name="aborted-by-signal-handler-in-extension",
        source="abort(3)",
        nodes=2,
        gpus=2,
        ranks={
            3: Rank(
                err=ADDRESS
                + by(
                    3,
                    "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check: __n (which is 512) >= this->size() (which is 512)",
                ),
                status=134,
            ),
            0: aborted(0),
        },
        others=QUIET,
        want=wanted("exception", rank=3, node="node2", retry="crash"),
    ),
]

CASES = on_record(
    CASES,
    "shm-segment-full",
    "duplicate-gpu",
    "interface-missing-family-59936",
    "collective-shapes-differ",
    "exception-on-37-of-64-others-remote-error",
    "monitored-barrier-names-the-rank",
    "nccl-versions-differ",
    "watchdog-because-rank-5-raised-late",
    "tcpstore-noise-after-others-left",
)
