"""What NCCL says when it fails: its `Last error:` lines, its warnings, and the other side of the same failure."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish


def backend_error(
    rank: int, where: str, kind: str, told: str, last: str, version: str = "2.21.5"
) -> str:
    return f"""\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/ada/lm/train.py", line 412, in <module>
[rank{rank}]:     main()
[rank{rank}]:   File "/home/ada/lm/train.py", line 287, in main
[rank{rank}]:     {where}
[rank{rank}]:   File "/home/ada/lm/.venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank{rank}]:     return func(*args, **kwargs)
[rank{rank}]:            ^^^^^^^^^^^^^^^^^^^^^
[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384, {kind}, NCCL version {version}
[rank{rank}]: {told}
[rank{rank}]: Last error:
[rank{rank}]: {last}
"""


SYSTEM = (
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
)
CUDA = (
    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "ncclUnhandledCudaError: Call to CUDA function failed.",
)
REMOTE = (
    "remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
)
USAGE = (
    "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
)
INTERNAL = (
    "internal error - please report this issue to the NCCL developers",
    "ncclInternalError: Internal check failed.",
)

LOCKED = "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"

CASES = [
    Case(
        name="nccl-registered-memory-on-one-node",
        source="https://github.com/NVIDIA/nccl-tests/issues/206",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f"node2:{41200 + r}:{41377 + r} [{r - 4}] misc/ibvwrap.cc:278 NCCL WARN {LOCKED}\n"
                + backend_error(r, "dist.barrier(device_ids=[local_rank])", *SYSTEM, LOCKED),
                status=1,
                after_s=0.1 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        others=Rank(
            err="node1:30115:30302 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node2<51012>\n"
            "node1:30115:30302 [0] proxy.cc:1485 NCCL WARN [Service thread] Error encountered progressing operation=Connect, res=6, closing connection\n",
        ),
        want=Want(
            frozenset({"network-setup"}),
            "network-setup",
            rank="any",
            node="node2",
            forbid=r"batch size|--mem\b|more memory per node|larger nodes",
        ),
    ),
    Case(
        name="nccl-shared-memory-segment",
        source="https://github.com/NVIDIA/nccl-tests/issues/166",
        nodes=1,
        gpus=8,
        ranks={
            6: Rank(
                err="node1:9621:9691 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 33030532 bytes, error: No space left on device (28)\n\n"
                "node1:9621:9691 [6] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-fjwOOB (size 33030528), error: No space left on device (28)\n"
                + backend_error(
                    6,
                    "model = FSDP(model, sync_module_states=True, device_id=local_rank)",
                    *SYSTEM,
                    "Error while creating shared memory segment /dev/shm/nccl-fjwOOB (size 33030528), error: No space left on device (28)",
                    "2.26.2",
                ),
                status=1,
            ),
            4: Rank(
                err="node1:9619:9689 [4] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-oA7T4J to 33030532 bytes, error: No space left on device (28)\n\n"
                + backend_error(
                    4,
                    "model = FSDP(model, sync_module_states=True, device_id=local_rank)",
                    *SYSTEM,
                    "Error while creating shared memory segment /dev/shm/nccl-oA7T4J (size 33030528), error: No space left on device (28)",
                    "2.26.2",
                ),
                status=1,
                after_s=0.2,
            ),
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank="any",
            node="node1",
            forbid=r"quota|old checkpoints|output directory",
        ),
    ),
    Case(
        name="nccl-no-socket-interface",
        source="https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err="INFO: NCCL_SOCKET_IFNAME=hsn0 NCCL_DEBUG=WARN\n\n"
                f"node{r // 2 + 1}:{7712 + r}:{7712 + r} [{r % 2}] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found\n"
                + backend_error(
                    r,
                    "dist.all_reduce(torch.ones(1, device=device))",
                    *SYSTEM,
                    "Bootstrap : no socket interface found",
                ),
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(frozenset({"network-setup"}), "network-setup", rank="any", node="any"),
    ),
    Case(
        name="nccl-retry-exceeded-on-a-link",
        source="https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/p2p.cc",
        nodes=2,
        gpus=4,
        step=3120,
        ranks={
            2: Rank(
                err="step 3120 | loss 2.4113 | 41230 tok/s\n"
                "node1:30115:30302 [2] transport/net_ib.cc:2305 NCCL WARN NET/IB: Got completion from peer 10.12.4.7<48231> with status=12 opcode=32577 len=0 vendor err 129 (Recv) localGid fe80::b8ce:f603:0:2 remoteGidsfe80::b8ce:f603:0:6 hca mlx5_2\n"
                "[rank2]:[E1114 03:12:44.610331210 ProcessGroupNCCL.cpp:2057] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.26.2\n"
                "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
                "NET/IB: Got completion from peer 10.12.4.7<48231> with status=12 opcode=32577 len=0 vendor err 129 (Recv) localGid fe80::b8ce:f603:0:2 remoteGidsfe80::b8ce:f603:0:6 hca mlx5_2\n"
                "terminate called after throwing an instance of 'c10::DistBackendError'\n"
                "Fatal Python error: Aborted\n\nThread 0x00007f1c2d7fe640 (most recent call first):\n  <no Python frame>\n",
                status=134,
            ),
            6: Rank(
                err="node2:28110:28297 [2] transport/net_ib.cc:2305 NCCL WARN NET/IB: Got completion from peer 10.12.4.6<39120> with status=12 opcode=32577 len=0 vendor err 129 (Send) localGid fe80::b8ce:f603:0:6 remoteGidsfe80::b8ce:f603:0:2 hca mlx5_2\n"
                "terminate called after throwing an instance of 'c10::DistBackendError'\n",
                status=134,
                after_s=0.4,
            ),
        },
        want=Want(
            frozenset({"connection-reset", "network-setup", "unknown"}),
            "connection-reset",
            rank="any",
            node="any",
            forbid=r"out of memory|batch size|exceeded the time|\bNaN\b",
        ),
    ),
    Case(
        name="nccl-remote-error-of-sixty-three",
        source="https://github.com/NVIDIA/nccl/issues/795",
        nodes=8,
        gpus=8,
        ranks={
            **{
                r: Rank(
                    err=backend_error(
                        r,
                        "loss.backward()",
                        *REMOTE,
                        f"socketProgress: Connection closed by remote peer node5<{37000 + r}>",
                    ),
                    status=1,
                    after_s=1.5 + 0.01 * r,
                )
                for r in range(64)
            },
            37: Rank(
                err="epoch 2:  41%|####1     | 812/1980 [21:14<30:22,  1.56s/it]\r", status=139
            ),
        },
        batch="srun: error: node5: task 4: Exited with exit code 1\n",
        want=Want(frozenset({"exception"}), "exception", rank=37, node="node5", retry="crash"),
    ),
    Case(
        name="nccl-duplicate-gpu",
        source="https://github.com/NVIDIA/Megatron-LM/issues/661",
        nodes=1,
        gpus=8,
        ranks={
            1: Rank(
                err="/home/ada/lm/.venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:4631: UserWarning: No device id is provided via `init_process_group` or `barrier `. Using the current device set by the user. \n"
                "  warnings.warn(  # warn only once\n"
                + backend_error(
                    1,
                    "dist.barrier()",
                    *USAGE,
                    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
                ),
                status=1,
            ),
            **{
                r: Rank(
                    err=backend_error(
                        r,
                        "dist.barrier()",
                        *USAGE,
                        f"Duplicate GPU detected : rank {r} and rank {1 if r == 0 else 0} both on CUDA device 1b000",
                    ),
                    status=1,
                    after_s=0.1 + 0.01 * r,
                )
                for r in (0, 2, 3, 4, 5, 6, 7)
            },
        },
        want=Want(
            frozenset({"network-setup", "exception"}),
            "network-setup",
            rank="any",
            node="any",
            forbid=r"(update|newer|install)[^.]*\bdriver|hardware fault|broken hardware|drain the node",
        ),
    ),
    Case(
        name="nccl-two-versions",
        source="https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=backend_error(
                    r,
                    "dist.all_reduce(flag)",
                    *USAGE,
                    "Mismatched NCCL version detected : rank 0 version 22703 rank 4 version 22105",
                    "2.27.3" if r < 4 else "2.21.5",
                ),
                status=1,
                after_s=0.05 * r,
            )
            for r in range(8)
        },
        want=Want(frozenset({"version-mismatch"}), "version-mismatch", rank="any", node="any"),
    ),
    Case(
        name="nccl-no-gpu-memory-for-a-communicator",
        source="https://github.com/NVIDIA/nccl/blob/master/src/include/alloc.h",
        nodes=2,
        gpus=4,
        ranks={
            7: Rank(
                err="node2:5512:5790 [3] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n"
                + backend_error(
                    7,
                    "dist.all_gather_object(metrics, mine)",
                    *CUDA,
                    "Failed to CUDA calloc async 10485760 bytes",
                )
                + "[rank7]: Cuda failure 2 'out of memory'\n",
                status=1,
                record="DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
                callstack='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 287, in main\n    dist.all_gather_object(metrics, mine)\n',
            ),
        },
        want=Want(
            frozenset({"gpu-out-of-memory"}),
            "gpu-out-of-memory",
            rank=7,
            node="node2",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="nccl-fabric-not-ready-on-node-three",
        source="https://github.com/hiyouga/LlamaFactory/issues/8968",
        nodes=4,
        gpus=2,
        ranks={
            4: Rank(
                err=backend_error(
                    4,
                    "dist.broadcast(seed, src=0)",
                    *CUDA,
                    "Cuda failure 802 'system not yet initialized'",
                ),
                status=1,
            ),
            5: Rank(
                err=backend_error(
                    5,
                    "dist.broadcast(seed, src=0)",
                    *CUDA,
                    "Cuda failure 802 'system not yet initialized'",
                ),
                status=1,
                after_s=0.1,
            ),
        },
        want=Want(
            frozenset({"bad-gpu"}),
            "bad-gpu",
            rank="any",
            node="node3",
            forbid=r"batch size|out of memory",
        ),
    ),
    Case(
        name="nccl-peer-access",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        nodes=1,
        gpus=8,
        ranks={
            3: Rank(
                err="node1:1850304:1881110 [3] transport/p2p.cc:277 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n"
                + backend_error(
                    3,
                    "fsdp_model = fully_shard(model)",
                    *CUDA,
                    "Cuda failure 217 'peer access is not supported between these two devices'",
                ),
                status=1,
            ),
            2: Rank(
                err=backend_error(
                    2,
                    "fsdp_model = fully_shard(model)",
                    *CUDA,
                    "Cuda failure 217 'peer access is not supported between these two devices'",
                ),
                status=1,
                after_s=0.1,
            ),
        },
        want=Want(
            frozenset({"network-setup", "bad-gpu"}),
            "network-setup",
            rank="any",
            node="any",
            forbid=r"batch size|out of memory",
        ),
    ),
    Case(
        name="nccl-no-route-to-host",
        source="https://github.com/NVIDIA/nccl/issues/697",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="".join(
                    f"node2:{410 + r}:{520 + r} [{r - 4}] NCCL INFO misc/socket.cc:567 socketPollConnect: connect to 172.17.0.1<36229> returned No route to host, retrying (60/60) after sleep for 6000 msec\n"
                    for _ in range(2)
                )
                + backend_error(
                    r,
                    "dist.barrier()",
                    *SYSTEM,
                    "socketPollConnect: Connect to 172.17.0.1<36229> failed : No route to host",
                    "2.27.3",
                ),
                status=1,
                after_s=0.3 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        want=Want(
            frozenset({"network-setup", "head-address"}),
            "network-setup",
            rank="any",
            node="any",
            forbid=r"restart the job|submit (it )?again|rank crashed|traceback above",
        ),
    ),
    Case(
        name="nccl-remote-peer-killed-for-memory",
        source="https://github.com/NVIDIA/nccl/issues/1232",
        nodes=2,
        gpus=4,
        ranks={
            6: Rank(err="Tokenizing shard 00217 …\n", status=137),
            0: Rank(
                err=backend_error(
                    0,
                    "scaler.step(optimizer)",
                    *REMOTE,
                    "socketProgress: Connection closed by remote peer node2<42830>",
                ),
                status=1,
                after_s=0.8,
            ),
        },
        others=Rank(
            err="[rank1]:[W1114 10:01:02.113 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\n"
        ),
        node_logs={
            2: "slurmstepd-node2: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\n"
        },
        batch="srun: error: node2: task 1: Out Of Memory\n",
        slurm="OUT_OF_MEMORY|0:125",
        memory_share={2: 0.99},
        want=Want(
            frozenset({"host-out-of-memory"}),
            "host-out-of-memory",
            rank="any",
            node="node2",
            forbid=r"micro.?batch|activation checkpoint|(free|less|more|reduce) GPU memory",
            retry="out-of-memory",
        ),
    ),
    Case(
        name="nccl-wrong-gid-index",
        source="https://github.com/NVIDIA/nccl/blob/master/src/misc/ibvwrap.cc",
        nodes=4,
        gpus=2,
        ranks={
            3: Rank(
                err="node2:880:1012 [1] misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_bond_0:1, curr state INIT, next state RTR, local GID index 0, local GID fe80::5aa2:e1ff:fe2c:91aa, remote GID fe80::5aa2:e1ff:fe2c:8c0e\n"
                + backend_error(
                    3,
                    "dist.barrier()",
                    *SYSTEM,
                    "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_bond_0:1, curr state INIT, next state RTR, local GID index 0, local GID fe80::5aa2:e1ff:fe2c:91aa, remote GID fe80::5aa2:e1ff:fe2c:8c0e",
                    "2.26.2",
                ),
                status=1,
            ),
            4: Rank(
                err=backend_error(
                    4,
                    "dist.barrier()",
                    *REMOTE,
                    "socketProgress: Connection closed by remote peer node2<55120>",
                ),
                status=1,
                after_s=0.5,
            ),
        },
        want=Want(frozenset({"network-setup"}), "network-setup", rank="any", node="any"),
    ),
    Case(
        name="nccl-libfabric-domain",
        source="https://github.com/aws/aws-ofi-nccl/issues/801",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f"libfabric:{507357 + r}:1741146011::cxi:fabric:cxip_nic_get_rgroup_vni():253<warn> node{r // 4 + 1}: Failed to find valid default rgroup and vni for cxi0\n"
                f"node{r // 4 + 1}:{507357 + r}:507601 [{r % 4}] nccl_net_ofi_create_domain:412 NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented\n"
                + backend_error(
                    r,
                    "dist.all_reduce(x)",
                    *SYSTEM,
                    "NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented",
                ),
                status=1,
                after_s=0.01 * r,
            )
            for r in range(8)
        },
        want=Want(frozenset({"network-setup"}), "network-setup", rank="any", node="any"),
    ),
    Case(
        name="nccl-root-of-it-is-a-typo",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/NCCLUtils.hpp",
        nodes=8,
        gpus=8,
        step=0,
        ranks={
            61: Rank(
                err="NCCL version 2.26.2+cuda12.4\n"
                "Hint: if this rank hangs in init, set NCCL_SOCKET_IFNAME to the interface of your InfiniBand card.\n"
                "Traceback (most recent call last):\n"
                '  File "/home/ada/lm/train.py", line 96, in shard_for\n'
                "    return self.shards[rank % len(self.shard)]\n"
                "                              ^^^^^^^^^^^^^^^^\n"
                "AttributeError: 'Corpus' object has no attribute 'shard'. Did you mean: 'shards'?\n"
                "[rank61]:[W1114 10:01:02.113 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group\n",
                status=1,
            ),
            12: Rank(
                err=backend_error(
                    12,
                    "dist.barrier()",
                    *REMOTE,
                    "socketProgress: Connection closed by remote peer node8<40022>",
                ),
                status=1,
                after_s=0.9,
            ),
        },
        others=Rank(
            err="NCCL version 2.26.2+cuda12.4\nHint: if this rank hangs in init, set NCCL_SOCKET_IFNAME to the interface of your InfiniBand card.\n"
        ),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=61,
            node="node8",
            forbid=r"NCCL_SOCKET_IFNAME|InfiniBand|firewall",
            retry="crash",
        ),
    ),
    Case(
        name="nccl-nobody-says-why",
        source="https://github.com/NVIDIA/nccl/issues/914",
        nodes=2,
        gpus=4,
        step=845,
        ranks={
            5: Rank(
                err=backend_error(
                    5,
                    "total_norm = model.clip_grad_norm_(1.0)",
                    *REMOTE,
                    "socketProgress: Connection closed by remote peer node1<37877>",
                ),
                status=1,
            ),
            **{
                r: Rank(
                    err=backend_error(
                        r,
                        "total_norm = model.clip_grad_norm_(1.0)",
                        *INTERNAL,
                        f"Socket recv failed while polling for opId=0x7f6f18cb{r}f40",
                    ),
                    status=1,
                    after_s=0.1 + 0.01 * r,
                )
                for r in (0, 1, 3, 4, 6, 7)
            },
            2: Rank(
                err=backend_error(
                    2,
                    "total_norm = model.clip_grad_norm_(1.0)",
                    *REMOTE,
                    "socketProgress: Connection closed by remote peer node2<51104>",
                ),
                status=1,
                after_s=0.02,
            ),
        },
        want=Want(
            frozenset({"connection-reset", "unknown"}),
            "connection-reset",
            rank="any",
            node="any",
            forbid=r"out of memory|batch size|NCCL_SOCKET_IFNAME",
        ),
    ),
]

CASES = finish(CASES)
