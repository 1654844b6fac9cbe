"""Addresses, ports and fabrics: how ranks fail to find or to reach each other, or the world."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    FRAMES,
    INIT,
    QUIET,
    STEPS,
    TOP,
    by,
    closed,
    on_record,
    raised,
)

_STORE = (
    INIT
    + """  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 278, in _env_rendezvous_handler
    store = _create_c10d_store(
            ^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 198, in _create_c10d_store
    return TCPStore(
           ^^^^^^^^^
"""
)

CASES = [
    Case(
        name="gloo-interface-not-there",
        source="https://github.com/NVIDIA/Megatron-LM/issues/436",
        nodes=2,
        gpus=4,
        ranks={
            rank: raised(
                rank,
                INIT
                + """  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2016, in _new_process_group_helper
    backend_class = ProcessGroupGloo(
                    ^^^^^^^^^^^^^^^^^
RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: bond1
""",
                after_s=0.02 * (rank % 4),
            )
            for rank in range(8)
        },
        want=wanted("network-setup", rank="any", node="any"),
    ),
    Case(
        name="gloo-resolves-itself-to-loopback",
        source="https://github.com/aws-samples/aws-do-eks/pull/50",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                INIT
                + "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error. timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14215\n",
                before=ADDRESS
                + f"[rank{rank}]:[W1122 00:31:04.210011 ProcessGroupGloo.cpp:514] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())\n",
                after_s=0.05 * rank,
            )
            for rank in range(4)
        },
        want=wanted("network-setup", "head-address", rank="any", node="any"),
    ),
    Case(
        name="ucx-destination-unreachable",
        source="https://github.com/openucx/ucx/issues/4742",
        nodes=4,
        gpus=2,
        ranks={
            rank: Rank(
                err=f"""[1795307910.288391] [gpu{rank // 2 + 1:02}:{4100 + rank % 2} :0]         select.c:649  UCX  ERROR   no active messages transport to <no debug data>: rc_verbs/mlx5_0:1 - Destination is unreachable, rc_mlx5/mlx5_0:1 - Destination is unreachable, self/memory - Destination is unreachable
[gpu{rank // 2 + 1:02}:{4100 + rank % 2}] pml_ucx.c:424  Error: ucp_ep_create(proc=2) failed: Destination is unreachable
--------------------------------------------------------------------------
MPI_INIT has failed because at least one MPI process is unreachable
from another.  This *usually* means that an underlying communication
plugin -- such as a BTL or an MTL -- has either not loaded or not
allowed itself to be used.  Your MPI job will now abort.
--------------------------------------------------------------------------
""",
                status=1,
                after_s=0.02 * (rank % 2),
            )
            for rank in range(8)
        },
        want=wanted("network-setup", rank="any", node="any"),
    ),
    Case(
        name="store-port-in-use-on-head",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
        nodes=2,
        gpus=4,
        ranks={
            0: raised(
                0,
                _STORE
                + "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
                record="DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
                prefixed=False,
            ),
            **{
                rank: raised(
                    rank,
                    _STORE
                    + "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?\n",
                    record="DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
                    prefixed=False,
                    after_s=0.4,
                )
                for rank in range(4, 8)
            },
        },
        others=QUIET,
        want=wanted("port-taken", rank=0, node="node1"),
    ),
    Case(
        name="debugger-port-in-use",
        source="strerror(3) EADDRINUSE; https://docs.python.org/3/library/socketserver.html",
        nodes=1,
        gpus=4,
        ranks={
            2: raised(
                2,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 117, in main
    start_http_server(9400)
  File "/opt/venv/lib/python3.11/site-packages/prometheus_client/exposition.py", line 220, in start_wsgi_server
    httpd = make_server(addr, port, app, TmpServer, handler_class=_SilentHandler)
  File "/opt/venv/lib/python3.11/socketserver.py", line 472, in server_bind
    self.socket.bind(self.server_address)
OSError: [Errno 98] Address already in use
""",
                prefixed=False,
            )
        },
        others=QUIET,
        want=wanted("port-taken", rank=2, node="node1"),
    ),
    Case(
        name="head-name-unknown-to-a-node",
        source="https://github.com/pytorch/pytorch/issues/74824",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _STORE
                + "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node1.cluster.internal, 29500).\n",
                before="[W1122 00:31:04.114 socket.cpp:764] [c10d] The IPv6 network addresses of (node1.cluster.internal, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n"
                * 5,
                prefixed=False,
                after_s=0.03 * (rank - 2),
            )
            for rank in (2, 3)
        },
        others=QUIET,
        want=wanted("head-address", "rendezvous-timeout", rank="any", node="node2"),
    ),
    Case(
        name="seven-of-eight-joined",
        source="https://github.com/pytorch/pytorch/pull/111805",
        nodes=2,
        gpus=4,
        ranks={
            0: raised(
                0,
                _STORE
                + "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.\n",
                prefixed=False,
            ),
            6: Rank(err="loading tokeniser from /archive/ada/tok (this may take a while)\n"),
        },
        others=QUIET,
        want=wanted("rendezvous-timeout", rank="any", node="any"),
    ),
    Case(
        name="path-missing-on-worker-head-times-out",
        source="https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/utils/_validators.py",
        nodes=2,
        gpus=2,
        ranks={
            2: raised(
                2,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 118, in main
    tokenizer = AutoTokenizer.from_pretrained("/local/ada/models/t5-base")
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/huggingface_hub/utils/_validators.py", line 154, in validate_repo_id
    raise HFValidationError(
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/local/ada/models/t5-base'. Use `repo_type` argument if needed.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/transformers/utils/hub.py", line 559, in cached_files
    raise OSError(
OSError: Incorrect path_or_model_id: '/local/ada/models/t5-base'. Please provide either the path to a local folder or the repo_id of a model on the Hub.
""",
                prefixed=False,
            ),
        },
        others=QUIET,
        want=wanted(
            "data-missing",
            "exception",
            "checkpoint-unreadable",
            rank=2,
            node="node2",
            forbid="internet",
        ),
    ),
    Case(
        name="wrong-rank-count-in-store-barrier",
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py (_store_based_barrier)",
        nodes=4,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                INIT
                + f"torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank {rank}, for key: store_based_barrier_key:1 (world_size=8, num_workers_joined=6, timeout=0:10:00 error=wait timeout after 600000ms, keys: /default_pg/0//store_based_barrier_key:1:last_worker)\n",
                after_s=0.1 * (rank // 2),
            )
            for rank in range(6)
        },
        others=Rank(err=""),
        want=wanted("rendezvous-timeout", "hang", rank="any", node="any"),
    ),
    Case(
        name="license-server-not-reachable",
        source="FlexNet Publisher error -15,578",
        nodes=1,
        gpus=1,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/home/ada/cfd/train.py", line 51, in <module>
    mesh = solver.open(args.case)
           ^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: solver exited with status 10
""",
                prefixed=False,
                before="""Cannot connect to license server system.
 The license server manager (lmgrd) has not been started yet,
 the wrong port@host or license file is being used, or the
 port or hostname in the license file has been changed.
Feature:       solver_hpc
Server name:   10.4.0.17
License path:  27000@lic1.example.org:
FlexNet Licensing error:-15,578.  System Error: 115 "Operation now in progress"
""",
            )
        },
        want=wanted("no-internet", "exception", rank=0, node="node1"),
    ),
    Case(
        name="pip-install-at-start",
        source="https://pip.pypa.io/en/stable/ (Could not find a version)",
        nodes=1,
        gpus=4,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 9, in <module>
    subprocess.check_call([sys.executable, "-m", "pip", "install", "einops"])
  File "/opt/venv/lib/python3.11/subprocess.py", line 413, in check_call
    raise CalledProcessError(retcode, cmd)
subprocess.CalledProcessError: Command '['/opt/venv/bin/python', '-m', 'pip', 'install', 'einops']' returned non-zero exit status 1.
""",
                prefixed=False,
                before="WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f2>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/einops/\nERROR: Could not find a version that satisfies the requirement einops (from versions: none)\nERROR: No matching distribution found for einops\n",
            )
        },
        others=QUIET,
        want=wanted("no-internet", rank=0, node="node1"),
    ),
    Case(
        name="only-gloo-peers-lost",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
        nodes=2,
        gpus=2,
        ranks={0: closed(0, 0.0), 1: closed(1, 0.05), 2: closed(2, 0.02), 3: closed(3, 0.03)},
        want=wanted("connection-reset", "unknown", rank="any", node="any", forbid="memory|batch"),
    ),
    Case(
        name="ssh-known-hosts-innocent-then-attribute-error",
        source="made: words of the network before an error of the program",
        nodes=2,
        gpus=4,
        ranks={
            7: raised(
                7,
                TOP
                + "  File \"/home/ada/t5/train.py\", line 91, in train_step\n    loss = model.module.compute(batch)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^\nAttributeError: 'T5' object has no attribute 'module'\n",
                before=ADDRESS
                + "tensorboard: bind to 6006 failed: Address already in use; trying 6007\nport 6007 ok\n",
            ),
            0: Rank(
                err=ADDRESS
                + by(
                    0,
                    "note: Connection refused by metrics.example.org:8125, statistics are dropped",
                ),
                out=STEPS,
            ),
        },
        others=QUIET,
        want=wanted(
            "exception", rank=7, node="node2", forbid="port|refused|address", retry="crash"
        ),
    ),
    Case(
        name="broken-pipe-because-of-silent-segfault",
        source="signal(7)",
        nodes=2,
        gpus=2,
        ranks={
            1: Rank(err=ADDRESS, out=STEPS, status=139),
            2: raised(
                2,
                INIT.replace("line 141", "line 190")
                + "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL version 2.27.3\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to send to 10.99.7.1<40111> failed : Broken pipe\nException raised from checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2363 (most recent call first):\n"
                + FRAMES,
                after_s=0.2,
            ),
        },
        others=QUIET,
        want=wanted("exception", rank=1, node="node1", forbid="memory", retry="crash"),
    ),
]

CASES = on_record(
    CASES,
    "gloo-interface-not-there",
    "only-gloo-peers-lost",
)
