"""Tickets of other languages and programs, of Slurm's releases, and of logs that mislead.

The facts are those that the named programs print; paths, names and numbers are made.
"""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.third.common import HOME, SITE, STEP, before, failing, stack
from tests.reporting.unseen.third.slurm import state
from tests.reporting.unseen.words import (
    ADDRESS,
    DEVICE_SIDE,
    FUTURE,
    LOADER_DEL,
    NOT_DESTROYED,
    PROGRESS,
    QUIET,
    STEPS,
    WANDB_END,
    aborted,
    by,
    remote_error,
)

GONE = aborted(0)
MAIN = f"{HOME}/train.py:312 <module> | main(parse())"
JAX = (
    f"{HOME}/train_jax.py:88 <module> | app.run(main)",
    f"{HOME}/train_jax.py:61 main | state, loss = train_step(state, batch)",
)
JAX_INIT = (
    f"{HOME}/train_jax.py:88 <module> | app.run(main)",
    f"{HOME}/train_jax.py:40 main | jax.distributed.initialize()",
    f"{SITE}/jax/_src/distributed.py:276 initialize | global_state.initialize(coordinator_address, num_processes, process_id,",
)
JULIA = (
    "Stacktrace:\n"
    " [1] train!(model::Chain, data::DataLoader)\n"
    "   @ Main ~/proj/src/train.jl:118\n"
    " [2] top-level scope\n"
    "   @ ~/proj/train.jl:12\n"
    "in expression starting at /home/k.meyer/proj/train.jl:12"
)

GPUS = [
    failing(
        "jax-cannot-allocate-on-the-device",
        "openxla bfc_allocator",
        "gpu-out-of-memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 3.52GiB (3779067904B) on device ordinal 0",
        *JAX,
        rank=2,
        prefix="",
    ),
    failing(
        "julia-device-is-full",
        "CUDA.jl",
        "gpu-out-of-memory",
        "ERROR: LoadError: Out of GPU memory trying to allocate 4.000 GiB\nEffective GPU memory usage: 99.12% (39.216 GiB/39.564 GiB)\nMemory pool usage: 37.804 GiB (38.125 GiB reserved)\n"
        + JULIA,
        "-",
        rank=6,
        prefix="",
    ),
    failing(
        "tensorflow-cannot-place-a-tensor",
        "tensorflow",
        "gpu-out-of-memory",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\nOOM when allocating tensor with shape[64,1024,4096] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{node gradient_tape/model/dense_7/MatMul}}]]\nHint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions for current allocation info.",
        f"{HOME}/keras_train.py:70 <module> | model.fit(train, epochs=3)",
        rank=1,
        prefix="",
    ),
    failing(
        "cupy-pool-is-full",
        "cupy",
        "gpu-out-of-memory",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 70,866,960,384 bytes).",
        *STEP,
        rank=7,
        prefix="",
        others=GONE,
    ),
    failing(
        "serving-engine-has-no-room-for-its-cache",
        "vllm",
        "gpu-out-of-memory|settings",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        MAIN,
        f"{SITE}/vllm/v1/core/kv_cache_utils.py:560 check_enough_kv_cache_memory | raise ValueError(",
        rank=0,
        gpus=2,
        prefix="",
    ),
    failing(
        "cupy-built-for-other-cards",
        "cupy",
        "version-mismatch|bad-gpu",
        "cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device",
        *STEP,
        everyone=True,
        prefix="",
    ),
    failing(
        "hip-function-of-another-card",
        "rocm",
        "version-mismatch|bad-gpu",
        "torch.AcceleratorError: HIP error: invalid device function\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing AMD_SERIALIZE_KERNEL=3",
        *STEP,
        everyone=True,
    ),
    failing(
        "uncontained-memory-error",
        "NVRM Xid 95",
        "bad-gpu",
        "torch.AcceleratorError: CUDA error: unknown error\n" + DEVICE_SIDE,
        rank=5,
        others=GONE,
        judged=True,
        node_logs={
            1: "[990214.551] NVRM: Xid (PCI:0000:88:00): 95, pid=4102, name=python, Uncontained: L1 TEX. RST: Yes, D-RST: No\n"
        },
    ),
    failing(
        "julia-driver-and-library-disagree",
        "CUDA.jl",
        "version-mismatch|bad-gpu",
        "ERROR: LoadError: CUDA error: system has unsupported display driver / cuda driver combination (code 803, ERROR_SYSTEM_DRIVER_MISMATCH)\n"
        + JULIA,
        "-",
        rank=4,
        prefix="",
    ),
]

MEMORY = [
    failing(
        "r-cannot-allocate-a-vector",
        "R memory.c",
        "host-out-of-memory",
        "Error: cannot allocate vector of size 37.3 Gb\nExecution halted",
        "-",
        rank=3,
        prefix="",
        forbid="GPU",
    ),
    failing(
        "go-heap-cannot-grow",
        "go runtime",
        "host-out-of-memory",
        "runtime: out of memory: cannot allocate 67108864-byte block (64424509440 in use)\nfatal error: out of memory\n\nruntime stack:\nruntime.throw({0x6f2c11?, 0x4000000?})\n\t/usr/local/go/src/runtime/panic.go:1023 +0x5c",
        "-",
        rank=5,
        status=2,
        prefix="",
        forbid="GPU",
    ),
    failing(
        "go-cannot-make-a-thread",
        "go runtime",
        "settings|host-out-of-memory|exception",
        "runtime: failed to create new OS thread (have 772 already; errno=11)\nruntime: may need to increase max user processes (ulimit -u)\nfatal error: newosproc",
        "-",
        rank=5,
        status=2,
        prefix="",
        forbid="GPU",
    ),
    failing(
        "mapping-of-a-file-without-memory",
        "aten MapAllocator.cpp",
        "host-out-of-memory",
        "RuntimeError: unable to mmap 34359738368 bytes from file </scratch/ada/set/tokens.bin>: Cannot allocate memory (12)",
        *STEP,
        rank=2,
    ),
    failing(
        "duckdb-over-its-limit",
        "duckdb",
        "host-out-of-memory|settings|exception",
        "duckdb.duckdb.OutOfMemoryException: Out of Memory Error: failed to allocate data of size 4.0 GiB (63.9 GiB/64.0 GiB used)",
        *STEP,
        rank=0,
        forbid="GPU",
    ),
    state(
        "step-over-the-limit-in-an-old-slurm",
        "OUT_OF_MEMORY|0:125",
        "host-out-of-memory",
        others=Rank(err=PROGRESS),
        batch="slurmstepd: error: Step 4711.0 exceeded memory limit (530579456 > 524288000), being killed\nslurmstepd: error: Exceeded job memory limit at some point.\nsrun: error: node2: task 1: Out Of Memory\n",
    ),
    Case(
        name="kernel-line-of-a-cgroup-with-a-loader",
        source="mm/oom_kill.c",
        nodes=2,
        gpus=4,
        ranks={6: Rank(err=ADDRESS + PROGRESS, status=137)},
        others=Rank(err=remote_error(0), status=134, after_s=1.4),
        node_logs={
            1: "[77120.4] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/slurm/uid_1000/job_4711/step_0,task_memcg=/slurm/uid_1000/job_4711/step_0/task_1,task=pt_data_worker,pid=4177,uid=1000\n"
        },
        want=wanted("host-out-of-memory", rank="any", node="node2", retry="out-of-memory"),
    ),
    Case(
        name="launcher-in-the-script-reports-minus-nine",
        source="deepspeed/launcher/launch.py",
        nodes=2,
        gpus=1,
        ranks={
            1: Rank(
                err="[2026-11-22 00:30:51,879] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4188\n[2026-11-22 00:30:51,885] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', '--local_rank=0'] exits with return code = -9\n",
                status=247,
            )
        },
        memory_share={1: 0.99},
        want=wanted("host-out-of-memory", rank="any", node="node2"),
    ),
    state(
        "scancel-with-kill-on-a-full-node",
        "CANCELLED by 1000|0:9",
        "cancelled",
        others=Rank(err=PROGRESS),
        memory_share={0: 0.98, 1: 0.97},
        batch="slurmstepd: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-22T00:31:00 ***\nsrun: error: node1: task 0: Killed\nsrun: error: node2: task 1: Killed\n",
    ),
]

SOFTWARE = [
    failing(
        "mpi-library-of-another-release",
        "ld.so",
        "environment-missing|import-error|version-mismatch",
        "ImportError: libmpi.so.12: cannot open shared object file: No such file or directory",
        f"{HOME}/train.py:3 <module> | from mpi4py import MPI",
        everyone=True,
        prefix="",
    ),
    failing(
        "symbol-of-a-newer-library",
        "ld.so",
        "version-mismatch",
        "ImportError: /lustre/p7/env/lib/python3.12/site-packages/grouped_gemm_backend.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
        f"{HOME}/moe.py:4 <module> | import grouped_gemm",
        everyone=True,
        prefix="",
    ),
    failing(
        "numba-wants-an-older-numpy",
        "numba",
        "version-mismatch",
        "ImportError: Numba needs NumPy 2.1 or less. Got NumPy 2.3.",
        f"{HOME}/train.py:9 <module> | import librosa",
        f"{SITE}/numba/__init__.py:59 _ensure_critical_deps | raise ImportError(msg)",
        everyone=True,
        prefix="",
    ),
    failing(
        "module-compiled-against-an-older-numpy",
        "numpy",
        "version-mismatch",
        "RuntimeError: module compiled against ABI version 0x1000009 but this version of numpy is 0x2000000",
        f"{HOME}/train.py:6 <module> | import pycocotools.mask",
        everyone=True,
        prefix="",
    ),
    failing(
        "protobuf-generated-by-a-newer-one",
        "protobuf",
        "version-mismatch",
        "google.protobuf.runtime_version.VersionError: Detected incompatible Protobuf Gencode/Runtime versions when loading schema.proto: gencode 6.31.0 runtime 5.29.3. Runtime version cannot be older than the linked gencode version.",
        MAIN,
        everyone=True,
        prefix="",
    ),
    failing(
        "name-that-the-hub-client-dropped",
        "diffusers",
        "version-mismatch|import-error",
        "ImportError: cannot import name 'cached_download' from 'huggingface_hub' (/lustre/p7/env/lib/python3.12/site-packages/huggingface_hub/__init__.py)",
        f"{HOME}/train.py:8 <module> | from diffusers import UNet2DModel",
        everyone=True,
        prefix="",
    ),
    failing(
        "jax-with-an-older-cudnn",
        "jax",
        "version-mismatch",
        "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more details.",
        *JAX,
        everyone=True,
        prefix="",
        before="E1122 00:16:02.114 4102 cuda_dnn.cc:407] Loaded runtime CuDNN library: 8.5.0 but source was compiled with: 8.6.0.  CuDNN library needs to have matching major version and equal or higher minor version.\n",
    ),
    before(
        "lmod-exists-but-cannot-be-loaded",
        "lmod",
        "environment-missing",
        'Lmod has detected the following error: These module(s) or extension(s) exist but cannot be loaded as requested: "cuda/12.4"\n   Try: "module spider cuda/12.4" to see how to load the module(s).\n',
    ),
    before(
        "perl-finds-no-module",
        "perl",
        "environment-missing|import-error",
        "Can't locate JSON/XS.pm in @INC (you may need to install the JSON::XS module) (@INC contains: /usr/lib64/perl5) at /home/k.meyer/bin/stage.pl line 4.\nBEGIN failed--compilation aborted at /home/k.meyer/bin/stage.pl line 4.\n",
    ),
    before(
        "bash-in-italian",
        "bash, it",
        "environment-missing",
        "/var/spool/slurmd/job04711/slurm_script: riga 14: apptainer: comando non trovato\n",
    ),
    before(
        "container-misses-the-mount-point",
        "apptainer",
        "environment-missing|script-not-visible|settings",
        "FATAL:   container creation failed: mount hook function failure: mount /scratch->/scratch error: while mounting /scratch: destination /scratch doesn't exist in container\n",
    ),
]

STORAGE = [
    failing(
        "julia-stale-handle",
        "julia",
        "storage",
        'ERROR: LoadError: SystemError: opening file "/scratch/ada/set/part-0017.arrow": Stale file handle\n'
        + JULIA,
        "-",
        rank=6,
        prefix="",
    ),
    failing(
        "go-may-not-read",
        "go os",
        "exception|settings|data-missing|storage|script-not-visible",
        "panic: open /scratch/ada/set/vocab.txt: permission denied\n\ngoroutine 1 [running]:\nmain.main()\n\t/home/k.meyer/proj/main.go:41 +0x1d",
        "-",
        rank=5,
        status=2,
        prefix="",
    ),
    failing(
        "rust-says-quota",
        "rust std",
        "disk-full",
        'Error: Os { code: 122, kind: QuotaExceeded, message: "Disk quota exceeded" }',
        "-",
        rank=2,
        prefix="",
    ),
    failing(
        "netcdf-cannot-read",
        "netCDF4",
        "storage|data-missing|checkpoint-unreadable|exception",
        "OSError: [Errno -101] NetCDF: HDF error: '/scratch/ada/era5/2019-07.nc'",
        *STEP,
        rank=3,
    ),
    failing(
        "ceph-does-not-answer",
        "strerror(3), ceph",
        "storage",
        "TimeoutError: [Errno 110] Connection timed out: '/mnt/ceph/set/shard-0003.bin'",
        *STEP,
        f"{HOME}/data.py:44 read | with open(path, 'rb') as f:",
        rank=5,
        forbid="connection to another rank",
    ),
    failing(
        "nfs-without-its-lock-service",
        "nfs(5), errno 524",
        "storage|exception",
        "OSError: [Errno 524] Unknown error 524: '/mnt/nfs/ada/set/index.db'",
        *STEP,
        rank=1,
    ),
    failing(
        "lightning-checkpoint-has-the-model-only",
        "lightning",
        "checkpoint-unreadable|exception|settings",
        "KeyError: 'Trying to restore optimizer state but checkpoint contains only the model. This is probably due to `ModelCheckpoint.save_weights_only` being set to `True`.'",
        MAIN,
        f"{SITE}/lightning/pytorch/trainer/connectors/checkpoint_connector.py:362 restore_optimizers_and_schedulers | raise KeyError(",
        everyone=True,
        prefix="",
    ),
    failing(
        "deepspeed-states-are-not-there",
        "deepspeed zero_to_fp32",
        "data-missing|checkpoint-unreadable",
        "FileNotFoundError: can't find *_optim_states.pt files in directory '/scratch/ada/ckpt/global_step400'",
        MAIN,
        rank=0,
        prefix="",
    ),
    before(
        "zstd-over-quota",
        "zstd",
        "disk-full",
        "zstd: error 70 : Write error : cannot write block : Disk quota exceeded \n",
    ),
    before(
        "stdout-file-cannot-be-opened",
        "slurmstepd",
        "script-not-visible|storage|settings|data-missing",
        "slurmstepd: error: Could not open stdout file /scratch/ada/runs/logs/out-4711.txt: No such file or directory\nslurmstepd: error: IO setup failed: No such file or directory\n",
    ),
]

NETWORK = [
    Case(
        name="jax-peers-of-a-task-that-raised",
        source="jax distributed",
        nodes=2,
        gpus=4,
        ranks={
            3: Rank(
                err=stack(*JAX)
                + "TypeError: dot_general requires contracting dimensions to have the same shape, got (512,) and (1024,).\n",
                status=1,
            )
        },
        others=Rank(
            err="E1122 00:31:02.594 4102 coordination_service_agent.cc:332] Polled an error from coordination service (this can be an error from this or another task).\nF1122 00:31:02.594 4102 client.h:77] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task logs for more details. absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted unexpectedly or this task is experiencing network issues.\n",
            status=134,
            after_s=0.8,
        ),
        want=wanted("exception", rank=3, node="node1", forbid="preempt|network"),
    ),
    failing(
        "jax-coordinator-has-no-address",
        "grpc c-ares",
        "head-address",
        "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: DNS resolution failed for node1.cluster:8476: C-ares status is not ARES_SUCCESS qtype=A name=node1.cluster is_balancer=0: Domain name not found",
        *JAX_INIT,
        rank=4,
        prefix="",
    ),
    failing(
        "jax-coordinator-port-in-use",
        "grpc",
        "port-taken",
        "jaxlib.xla_extension.XlaRuntimeError: UNKNOWN: Could not start gRPC server",
        *JAX_INIT,
        rank=0,
        prefix="",
        before='E1122 00:16:01.02 chttp2_server.cc:1045] UNKNOWN:No address added out of total 1 resolved for \'[::]:8476\' {children:[UNKNOWN:Failed to add any wildcard listeners {children:[UNKNOWN:Unable to configure socket {fd:19, os_error:"Address already in use", errno:98, syscall:"bind"}]}]}\n',
    ),
    failing(
        "go-listener-in-use",
        "go net",
        "port-taken",
        "2026/11/22 00:16:01 listen tcp :29512: bind: address already in use",
        "-",
        rank=0,
        prefix="",
    ),
    failing(
        "mpich-finds-no-provider",
        "mpich ofi",
        "network-setup",
        "Abort(1014586895) on node 5 (rank 5 in comm 0): Fatal error in internal_Init_thread: Other MPI error, error stack:\ninternal_Init_thread(67): MPI_Init_thread(argc=(nil), argv=(nil), required=3) failed\nMPIDI_OFI_mpi_init_hook(1624): OFI addrinfo() failed (ofi_init.c:1624:MPIDI_OFI_mpi_init_hook:No data available)",
        "-",
        rank=5,
        status=143,
        prefix="",
    ),
    failing(
        "ucx-retries-are-over",
        "ucx ib_mlx5_log.c",
        "network-setup|connection-reset",
        "[node2:4102 :0:4102] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n[node2:4102 :0:4102] ib_mlx5_log.c:177  RC QP 0x1a2b wqe[42]: SEND s-e [inl len 26] [rqpn 0x3c4d dlid 17 sl 0 port 1 src_path_bits 0]",
        "-",
        rank=5,
        status=134,
        prefix="",
    ),
    before(
        "openmpi-lost-a-daemon",
        "open-mpi orte",
        "node-failure|connection-reset|network-setup",
        "--------------------------------------------------------------------------\nORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[53923,0],0] on node node1\n  Remote daemon: [[53923,0],1] on node node2\n\nThis is usually due to either a failure of the TCP network\nconnection to the node, or possibly an internal failure of\nthe daemon itself. We cannot recover from this failure, and\ntherefore will terminate the job.\n--------------------------------------------------------------------------\n",
    ),
    before(
        "ssh-of-a-launcher-is-refused",
        "pdsh",
        "network-setup|node-failure|connection-reset|rendezvous-timeout|settings",
        "node2: ssh: connect to host node2 port 22: Connection refused\npdsh@node1: node2: ssh exited with exit code 255\n",
    ),
    Case(
        name="cable-pulled-on-the-second-node",
        source="mlx5_core, nccl net_ib.cc",
        nodes=2,
        gpus=4,
        ranks={
            rank: Rank(
                err=ADDRESS
                + f"node2:41{rank:02d}:4188 [{rank - 4}] transport/net_ib.cc:130 NCCL WARN NET/IB : mlx5_2:1 Got async error event: port error\n"
                + f"node2:41{rank:02d}:4190 [{rank - 4}] transport/net_ib.cc:2451 NCCL WARN NET/IB: Got completion from peer 10.99.7.1<38081> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_2\n"
                + remote_error(rank, before=""),
                status=134,
                after_s=0.1 * (rank - 4),
            )
            for rank in range(4, 8)
        },
        others=aborted(0),
        node_logs={
            1: "[881230.1] mlx5_core 0000:0c:00.0: Port module event[error]: module 0, Cable error, Cable is unplugged\n"
        },
        want=wanted("network-setup", "connection-reset", "node-failure", rank="any", node="node2"),
    ),
    failing(
        "hub-token-is-expired",
        "huggingface_hub",
        "settings|exception|no-internet",
        'huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/whoami-v2 (Request ID: Root=1-68ad)\n\nUser Access Token "cluster" is expired',
        MAIN,
        f"{SITE}/huggingface_hub/utils/_http.py:482 hf_raise_for_status | raise _format(HfHubHTTPError, str(e), response) from e",
        rank=0,
        forbid="no internet|without internet",
    ),
    failing(
        "bucket-grant-was-revoked",
        "google-auth",
        "settings|exception|no-internet",
        "google.auth.exceptions.RefreshError: ('invalid_grant: Token has been expired or revoked.', {'error': 'invalid_grant', 'error_description': 'Token has been expired or revoked.'})",
        *STEP,
        rank=1,
        forbid="no internet|without internet",
    ),
    failing(
        "dashboard-project-of-somebody-else",
        "wandb",
        "settings|exception|no-internet",
        'wandb.errors.errors.CommError: Error uploading run: returned error 403: {"data":{"upsertBucket":null},"errors":[{"message":"permission denied","path":["upsertBucket"]}]}',
        MAIN,
        rank=0,
        forbid="no internet|without internet|file system",
    ),
    before(
        "julia-registry-out-of-reach",
        "julia Pkg",
        "no-internet",
        "  Installing known registries into `~/.julia`\nERROR: could not download https://pkg.julialang.org/registries\nException: RequestError: Could not resolve host: pkg.julialang.org while requesting https://pkg.julialang.org/registries\n",
    ),
    before(
        "go-proxy-out-of-reach",
        "go",
        "no-internet",
        'go: github.com/apache/arrow/go/v17@v17.0.0: Get "https://proxy.golang.org/github.com/apache/arrow/go/v17/@v/v17.0.0.mod": dial tcp: lookup proxy.golang.org on 10.0.0.2:53: no such host\n',
    ),
]

CODE = [
    failing(
        "hydra-config-group-unknown",
        "hydra",
        "settings",
        "In 'config': Could not find 'model/t5_xxl'\n\nAvailable options in 'model':\n\tt5_base\n\tt5_large\nConfig search path:\n\tprovider=hydra, path=pkg://hydra.conf\n\tprovider=main, path=file:///home/k.meyer/proj/conf\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        "-",
        everyone=True,
        prefix="",
    ),
    failing(
        "hydra-interpolation-of-nothing",
        "omegaconf",
        "settings|exception",
        "omegaconf.errors.InterpolationKeyError: Interpolation key 'paths.root' not found\n    full_key: data.dir\n    object_type=dict",
        MAIN,
        everyone=True,
        before="Error executing job with overrides: ['data=c4']\n",
        prefix="",
    ),
    failing(
        "lightning-strategy-unknown",
        "lightning",
        "settings|exception",
        "ValueError: You selected an invalid strategy name: `strategy='fsdp_native'`. It must be either a string or an instance of `lightning.pytorch.strategies.Strategy`. Example choices: auto, ddp, ddp_spawn, deepspeed, ...",
        MAIN,
        f"{SITE}/lightning/pytorch/trainer/connectors/accelerator_connector.py:221 _check_config_and_set_final_flags | raise ValueError(",
        everyone=True,
        prefix="",
    ),
    failing(
        "deepspeed-offload-with-an-own-optimiser",
        "deepspeed",
        "settings|exception",
        "deepspeed.runtime.zero.utils.ZeRORuntimeException: You are using ZeRO-Offload with a client provided optimizer (<class 'torch.optim.adamw.AdamW'>) which in most cases will yield poor performance. Please either use deepspeed.ops.adam.DeepSpeedCPUAdam or set an optimizer in your ds-config.",
        MAIN,
        everyone=True,
    ),
    failing(
        "precision-that-the-card-lacks",
        "transformers training_args.py",
        "settings|exception|version-mismatch",
        "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train the model on CPU.",
        MAIN,
        f"{SITE}/transformers/training_args.py:1698 __post_init__ | raise ValueError(error_message)",
        everyone=True,
        prefix="",
    ),
    failing(
        "julia-index-out-of-bounds",
        "julia",
        "exception",
        "ERROR: LoadError: BoundsError: attempt to access 10-element Vector{Int64} at index [11]\n"
        + JULIA,
        "-",
        rank=2,
        prefix="",
    ),
    failing(
        "go-index-out-of-range",
        "go",
        "exception",
        "panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:\nmain.batch(...)\n\t/home/k.meyer/proj/loader.go:88\nmain.main()\n\t/home/k.meyer/proj/main.go:41 +0x1d\nexit status 2",
        "-",
        rank=6,
        status=2,
        prefix="",
    ),
    failing(
        "r-object-not-found",
        "R",
        "exception",
        "Error in step(model, lr) : object 'lr' not found\nCalls: train -> step\nExecution halted",
        "-",
        rank=1,
        prefix="",
        forbid="file that it needs",
    ),
    failing(
        "fortran-end-of-file",
        "libgfortran",
        "exception|data-missing|checkpoint-unreadable|storage",
        "At line 42 of file solve.f90 (unit = 10, file = 'restart.dat')\nFortran runtime error: End of file\n\nError termination. Backtrace:\n#0  0x7f2c1a2d6b in ???",
        "-",
        rank=3,
        status=2,
        prefix="",
    ),
    failing(
        "jax-debug-nans",
        "jax",
        "nan-loss",
        "FloatingPointError: invalid value (nan) encountered in jit(train_step). Because jax_config.debug_nans.value is set, the de-optimized function was executed to find it.",
        *JAX,
        everyone=True,
        prefix="",
    ),
    failing(
        "lightning-terminate-on-nan",
        "lightning nan check",
        "nan-loss",
        "ValueError: The loss returned in `training_step` is nan.",
        *STEP,
        f"{SITE}/lightning/pytorch/utilities/finite_checks.py:30 detect_nan_parameters | raise ValueError(",
        everyone=True,
    ),
    failing(
        "horovod-shapes-differ",
        "horovod",
        "collective-mismatch",
        "horovod.common.exceptions.HorovodInternalError: Mismatched allreduce tensor shapes: One rank sent a tensor of shape [512, 256], but another rank sent a tensor of shape [512, 128].",
        *STEP,
        everyone=True,
    ),
    failing(
        "mpi-message-truncated",
        "open-mpi",
        "collective-mismatch|exception",
        "[node2:04102] *** An error occurred in MPI_Bcast\n[node2:04102] *** reported by process [3210870785,5]\n[node2:04102] *** on communicator MPI_COMM_WORLD\n[node2:04102] *** MPI_ERR_TRUNCATE: message truncated\n[node2:04102] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n[node2:04102] ***    and potentially your MPI job)",
        "-",
        rank=5,
        status=15,
        prefix="",
    ),
]

MISLEADING = [
    failing(
        "tip-about-memory-and-a-type-error",
        "made",
        "exception",
        "TypeError: forward() missing 1 required positional argument: 'labels'",
        *STEP,
        rank=0,
        before="tip: should a run ever end with 'CUDA out of memory', lower --micro-batch; on 'Disk quota exceeded' move --out\n"
        + PROGRESS,
        forbid="GPU memory|space left",
    ),
    failing(
        "row-with-a-traceback-of-a-refusal",
        "made",
        "exception",
        "KeyError: 'completion'",
        *STEP,
        rank=1,
        prefix="",
        before='{"row": 17, "prompt": "why do I get this?\\nTraceback (most recent call last):\\n  File \\"a.py\\", line 3\\nConnectionRefusedError: [Errno 111] Connection refused"}\nrow 18:\nTraceback (most recent call last):\n  File "b.py", line 9, in <module>\nModuleNotFoundError: No module named \'torch\'\nrow 19: ok\n'
        + STEPS,
        others=GONE,
        forbid="refused|module",
    ),
    failing(
        "retried-links-and-a-missing-shard",
        "made",
        "data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/p7/set/shard-0912.bin'",
        *STEP,
        rank=6,
        before="node2:4102:4188 [2] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.99.7.1<38201> failed : Connection refused, retrying\nnode2:4102:4188 [2] NCCL INFO Connected all rings\n"
        + PROGRESS,
        others=GONE,
        forbid="network|refused",
    ),
    failing(
        "words-of-a-scheduler-in-a-config-dump",
        "made",
        "exception",
        "AssertionError: sequence length 513 is not a multiple of 8",
        *STEP,
        rank=2,
        before="config: {'on_timeout': 'CANCELLED DUE TO TIME LIMIT', 'on_preempt': 'PREEMPTED', 'note': 'slurmstepd: error: Detected 1 oom_kill event'}\n",
        others=GONE,
        forbid="time limit|preempt|out of memory",
    ),
    failing(
        "cut-within-the-traceback",
        "made",
        "unknown|exception",
        'Traceback (most recent call last):\n  File "/home/k.meyer/proj/train.py", line 312, in <module>\n    main(parse())\n  File "/home/k.meyer/proj/train.py", line 201, in main\n    loss = step(mo',
        "-",
        rank=5,
        prefix="",
        others=Rank(err=FUTURE),
    ),
    failing(
        "cut-within-the-last-line",
        "made",
        "gpu-out-of-memory|exception",
        "torch.OutOfMemoryError: CUDA out of mem",
        *STEP,
        rank=5,
        others=Rank(err=FUTURE),
    ),
    Case(
        name="a-full-card-and-then-a-full-quota",
        source="made: two independent failures",
        nodes=2,
        gpus=4,
        ranks={
            1: Rank(
                err=by(
                    1,
                    stack(*STEP)
                    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n",
                ),
                status=1,
            ),
            6: Rank(
                err=by(
                    6,
                    stack(*STEP)
                    + "OSError: [Errno 122] Disk quota exceeded: '/scratch/ada/out/rank6.log'\n",
                ),
                status=1,
                after_s=0.5,
            ),
        },
        others=QUIET,
        want=wanted("gpu-out-of-memory", rank=1, node="node1"),
    ),
    Case(
        name="a-missing-shard-and-then-a-bad-card",
        source="made: two independent failures",
        nodes=2,
        gpus=2,
        ranks={
            0: Rank(
                err=by(
                    0,
                    stack(*STEP)
                    + "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/p7/set/a.bin'\n",
                ),
                status=1,
            ),
            3: Rank(
                err=by(
                    3,
                    stack(*STEP)
                    + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
                    + DEVICE_SIDE,
                ),
                status=1,
                after_s=0.3,
            ),
        },
        others=QUIET,
        want=wanted("data-missing", "bad-gpu", rank="any", node="any"),
    ),
    Case(
        name="corrupt-memory-of-the-host",
        source="mm/memory-failure.c",
        nodes=2,
        gpus=4,
        ranks={6: Rank(err=ADDRESS + PROGRESS, status=135)},
        others=Rank(err=remote_error(0), status=134, after_s=1.4),
        node_logs={
            1: "[55121.0] mce: [Hardware Error]: Machine check events logged\n[55121.1] Memory failure: 0x1d3a2c: Sending SIGBUS to python:4102 due to hardware memory corruption\n"
        },
        want=wanted("node-failure", rank="any", node="node2", forbid="out of .*memory"),
    ),
    Case(
        name="a-lock-file-that-nobody-gives-back",
        source="filelock",
        nodes=2,
        gpus=2,
        step=12,
        hung=(0, 1, 2, 3),
        stacks={
            rank: "Thread 0x00007f0 (most recent call first):\n"
            + (
                f'  File "{SITE}/filelock/_api.py", line 340 in acquire\n  File "{HOME}/data.py", line 51 in shard\n'
                if rank == 2
                else f'  File "{SITE}/torch/distributed/distributed_c10d.py", line 2810 in all_reduce\n  File "{HOME}/train.py", line 201 in main\n'
            )
            for rank in range(4)
        },
        others=Rank(err=PROGRESS),
        want=wanted("hang", rank=2, node="node2", retry="hang"),
    ),
]

INNOCENT = [
    Case(
        name="done-though-xla-retried-an-allocation",
        source="openxla bfc_allocator",
        nodes=2,
        gpus=2,
        others=Rank(
            err="2026-11-22 00:16:02.1: W external/xla/xla/tsl/framework/bfc_allocator.cc:310] Allocator (GPU_0_bfc) ran out of memory trying to allocate 4.00GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.\n"
            + PROGRESS,
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=wanted("done"),
    ),
    Case(
        name="done-though-the-file-system-reconnected",
        source="lustre ptlrpc",
        nodes=2,
        gpus=2,
        others=Rank(err=PROGRESS, out=STEPS, status=0),
        node_logs={
            1: "[612.1] LustreError: 11-0: p7-OST0003-osc: operation ost_read to node 10.0.3.4@o2ib failed: rc = -107\n[655.9] Lustre: p7-OST0003-osc: Connection restored to 10.0.3.4@o2ib\n"
        },
        slurm="COMPLETED|0:0",
        want=wanted("done"),
    ),
    Case(
        name="done-though-closing-was-ugly",
        source="multiprocessing, torch",
        nodes=1,
        gpus=4,
        others=Rank(
            err=LOADER_DEL
            + NOT_DESTROYED
            + "Error in atexit._run_exitfuncs:\nTraceback (most recent call last):\n  File \"/opt/venv/lib/python3.11/shutil.py\", line 738, in rmtree\nOSError: [Errno 39] Directory not empty: '/tmp/pymp-x1'\nwandb: ERROR Error while calling W&B API: run ada/t5/3c9v2kqz not found (<Response [404]>)\n"
            + WANDB_END,
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=wanted("done"),
    ),
    Case(
        name="done-though-the-evaluation-runs-wrong-programs",
        source="made: an evaluation of programs that a model wrote",
        nodes=2,
        gpus=2,
        others=Rank(
            out="problem 3: failed\n"
            + stack("<string>:1 <module> | print(f(3))")
            + "RecursionError: maximum recursion depth exceeded\nproblem 4: failed\n"
            + stack("<string>:2 <module> | import pandas")
            + "ModuleNotFoundError: No module named 'pandas'\nproblem 5: passed\npass@1 0.62\n",
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=wanted("done"),
    ),
    Case(
        name="running-though-a-download-was-retried",
        source="urllib3",
        nodes=2,
        gpus=2,
        step=310,
        others=Rank(
            err=stack(
                f"{SITE}/urllib3/connectionpool.py:787 urlopen | response = self._make_request("
            )
            + "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))\nretrying in 2 s (1 of 5)\n"
            + PROGRESS
        ),
        slurm="RUNNING|0:0",
        want=wanted("running"),
    ),
]

SLURM = [
    state("deadline-of-the-job", "DEADLINE|0:0", "time-limit"),
    state("node-did-not-boot", "BOOT_FAIL|0:0", "node-failure"),
    state("held-by-the-administrators", "PENDING|0:0|JobHeldAdmin", "pending-forever"),
    state("begins-later", "PENDING|0:0|BeginTime", "pending"),
    state(
        "longer-than-its-qos-allows",
        "PENDING|0:0|QOSMaxWallDurationPerJobLimit",
        "pending-forever",
    ),
    state("waits-for-a-job-that-failed", "PENDING|0:0|DependencyNeverSatisfied", "pending-forever"),
    before(
        "submit-plugin-wants-an-account",
        "job_submit/lua",
        "refused|settings",
        "sbatch: error: Please specify a project with --account (see 'sacctmgr show assoc').\nsbatch: error: Batch job submission failed: Unspecified error\n",
    ),
    before(
        "policy-says-no",
        "srun",
        "refused|settings",
        "srun: error: Unable to allocate resources: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
    ),
    before(
        "node-does-not-answer-the-launch",
        "srun",
        "node-failure",
        "srun: error: slurm_receive_msgs: [[node2]:6818] failed: Socket timed out on send/recv operation\nsrun: error: Task launch for StepId=4711.0 failed on node node2: Socket timed out on send/recv operation\nsrun: error: Application launch failed: Socket timed out on send/recv operation\n",
        node="node2",
    ),
    Case(
        name="somebody-signals-the-step",
        source="slurmstepd",
        nodes=2,
        gpus=4,
        others=Rank(err=PROGRESS, status=143),
        batch="slurmstepd: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-22T00:31:00 DUE to SIGNAL Terminated ***\n",
        want=wanted("cancelled", rank="any", node="any"),
    ),
]

CASES = [
    *GPUS,
    *MEMORY,
    *SOFTWARE,
    *STORAGE,
    *NETWORK,
    *CODE,
    *MISLEADING,
    *INNOCENT,
    *SLURM,
]
