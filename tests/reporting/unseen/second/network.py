"""Names, addresses, interfaces and fabrics: stores that nobody reaches, gloo, UCX, MPI, InfiniBand."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"


def init(error: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 33, in <module>\n    dist.init_process_group(backend="nccl")\n  File "{SITE}/torch/distributed/c10d_logger.py", line 95, in wrapper\n    func_return = func(*args, **kwargs)\n'
        f'  File "{SITE}/torch/distributed/rendezvous.py", line 189, in _create_c10d_store\n    return TCPStore(\n{error}\n'
    )


CASES = [
    Case(
        name="store-times-out-on-one-node",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="[W1117 15:43:02.707 socket.cpp:767] [c10d] The client socket has failed to connect to [node1]:31277 (errno: 110 - Connection timed out).\n"
                * 2
                + "[E1117 15:53:02.707 socket.cpp:1023] [c10d] The client socket has timed out after 600000ms while trying to connect to (node1, 31277).\n"
                + init(
                    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node1, 31277)."
                ),
                status=1,
                after_s=0.1 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        want=Want(
            frozenset({"rendezvous-timeout", "network-setup"}),
            "rendezvous-timeout",
            rank="any",
            node="any",
            forbid=r"out of memory|batch size",
        ),
    ),
    Case(
        name="head-name-that-nobody-resolves",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err="[W1117 15:43:02.707 socket.cpp:462] [c10d] The IPv6 network addresses of (gpu-head.cluster.lan, 29501) cannot be retrieved (gai error: -2 - Name or service not known).\n"
                * 3
                + init(
                    "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (gpu-head.cluster.lan, 29501)."
                ),
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"head-address"}),
            "head-address",
            rank="any",
            node="any",
            forbid=r"out of memory|no internet|cannot reach",
        ),
    ),
    Case(
        name="port-of-the-second-group-taken",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err="[W1117 15:43:02.707 socket.cpp:460] [c10d] The server socket has failed to bind to [::]:29600 (errno: 98 - Address already in use).\n[E1117 15:43:02.707 socket.cpp:496] [c10d] The server socket has failed to listen on any local network address.\n"
                + init(
                    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29600, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
                ),
                status=1,
            )
        },
        want=Want(frozenset({"port-taken"}), "port-taken", rank=0, node="node1"),
    ),
    Case(
        name="dashboard-port-taken-and-a-key-missing",
        source="https://github.com/tensorflow/tensorboard/blob/master/tensorboard/program.py",
        nodes=2,
        gpus=4,
        step=4,
        ranks={
            0: Rank(
                err="TensorBoard could not bind to port 6006, it was already in use\nport 6006 in use, retrying with 6007\nTensorBoard 2.17.0 at http://node1:6007/ (Press CTRL+C to quit)\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 77, in <module>\n    tokens += batch["n_tokens"]\nKeyError: \'n_tokens\'\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"another port|\bport (is )?(already )?(taken|in use)|another address",
            retry="crash",
        ),
    ),
    Case(
        name="dashboard-client-refused-and-a-shape-wrong",
        source="https://github.com/urllib3/urllib3/blob/main/src/urllib3/connectionpool.py",
        nodes=4,
        gpus=2,
        step=18,
        ranks={
            6: Rank(
                err="WARNING dashboard: [Errno 111] Connection refused, will retry in 60 s\nWARNING dashboard: [Errno 111] Connection refused, will retry in 60 s\n"
                f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 80, in <module>\n    out = model(x)\n  File "{SITE}/torch/nn/modules/linear.py", line 125, in forward\n    return F.linear(input, self.weight, self.bias)\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (512x1024 and 4096x1024)\n'
                "WARNING dashboard: giving up: [Errno 111] Connection refused\n",
                status=1,
            )
        },
        others=Rank(err="WARNING dashboard: [Errno 111] Connection refused, will retry in 60 s\n"),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=6,
            node="node4",
            forbid=r"check the (network|connection)|firewall|check the network|another port|\bport (is )?(already )?(taken|in use)",
            retry="crash",
        ),
    ),
    Case(
        name="gloo-interface-that-is-not-there",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/device.cc",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 35, in <module>\n    cpu_group = dist.new_group(backend="gloo")\n  File "{SITE}/torch/distributed/distributed_c10d.py", line 2067, in _new_process_group_helper\n    backend_class = ProcessGroupGloo(\nRuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ib0\n',
                status=1,
                after_s=0.05 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        want=Want(frozenset({"network-setup"}), "network-setup", rank="any", node="node2"),
    ),
    Case(
        name="gloo-at-the-loopback",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err='[E1117 15:43:02.707 ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\nTraceback (most recent call last):\n  File "/home/ada/lm/train.py", line 35, in <module>\n    cpu_group = dist.new_group(backend="gloo")\n'
                "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:41873\n",
                status=1,
                after_s=0.05 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        want=Want(
            frozenset({"network-setup", "head-address"}),
            "network-setup",
            rank="any",
            node="any",
            forbid=r"out of memory|restart the job",
        ),
    ),
    Case(
        name="ucx-locked-memory",
        source="https://github.com/openucx/ucx/issues/8229",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f"[1668693503.4730{r}] [node{r // 4 + 1}:1188443:0]          ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq(cqe=4096) failed: Cannot allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)\n"
                f'Traceback (most recent call last):\n  File "/home/ada/gnn/train.py", line 18, in <module>\n    ucp.init()\n  File "ucp/_libs/ucx_context.pyx", line 88, in ucp._libs.ucx_api.UCXContext.__init__\nucp._libs.exceptions.UCXError: <initialize>: Out of memory\n',
                status=1,
                after_s=0.05 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"network-setup"}),
            "network-setup",
            rank="any",
            node="any",
            forbid=r"--mem\b|batch size|(free|less|more|reduce) GPU memory|fewer workers",
        ),
    ),
    Case(
        name="ucx-no-such-device",
        source="https://github.com/openucx/ucx/blob/master/src/ucp/core/ucp_context.c",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="[1668693503.4730] [node2:1188443:0]     ucp_context.c:774  UCX  WARN  network device 'mlx5_4:1' is not available, please use one or more of: 'eno1'(tcp), 'lo'(tcp)\n[1668693503.4736] [node2:1188443:0]      select.c:630  UCX  ERROR   no active messages transport to <no debug data>: Unsupported operation\n"
                "[node2:1188443] pml_ucx.c:424  Error: ucp_ep_create(proc=0) failed: Destination is unreachable\n--------------------------------------------------------------------------\nMPI_INIT has failed because at least one MPI process is unreachable\nfrom another.  This *usually* means that an underlying communication\nplugin -- such as a BTL or an MTL -- has either not loaded or not\nallowed itself to be used.\n--------------------------------------------------------------------------\n*** An error occurred in MPI_Init_thread\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and potentially your MPI job)\n",
                status=14,
                after_s=0.1 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        want=Want(frozenset({"network-setup"}), "network-setup", rank="any", node="node2"),
    ),
    Case(
        name="nccl-told-to-use-infiniband-that-is-down",
        source="https://github.com/NVIDIA/nccl/blob/master/src/plugin/net.cc",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err=f"node3:{5100 + r}:{5100 + r} [{r % 2}] NCCL INFO NET/IB : No device found.\nnode3:{5100 + r}:{5100 + r} [{r % 2}] plugin/net.cc:349 NCCL WARN Failed to initialize any NET plugin\n"
                f'[rank{r}]: Traceback (most recent call last):\n[rank{r}]:   File "/home/ada/lm/train.py", line 40, in <module>\n[rank{r}]:     dist.barrier()\n[rank{r}]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.25.1\n[rank{r}]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank{r}]: Last error:\n[rank{r}]: Failed to initialize any NET plugin\n',
                status=1,
                after_s=0.05 * (r - 4),
            )
            for r in (4, 5)
        },
        want=Want(frozenset({"network-setup"}), "network-setup", rank="any", node="node3"),
    ),
    Case(
        name="store-of-a-head-that-died-of-a-typo",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp",
        nodes=8,
        gpus=8,
        ranks={
            0: Rank(
                err="Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 61, in <module>\n    logger.info(f\"{params / 1e9:.2f}B parameters on {wrold} ranks\")\nNameError: name 'wrold' is not defined. Did you mean: 'world'?\n",
                status=1,
            ),
            **{
                r: Rank(
                    err=f"[rank{r}]:[W1117 09:41:20.881 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=41, addr=[node{r // 8 + 1}]:50112, remote=[node1]:29500): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?\n"
                    f'[rank{r}]: Traceback (most recent call last):\n[rank{r}]:   File "/home/ada/lm/train.py", line 64, in <module>\n[rank{r}]:     dist.barrier()\n[rank{r}]: torch.distributed.DistNetworkError: failed to recv, got 0 bytes\n',
                    status=1,
                    after_s=0.4 + r / 50,
                )
                for r in range(8, 64)
            },
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"check the network|firewall|check the store",
            retry="crash",
        ),
    ),
]

CASES = finish(CASES)
