"""More of what issue trackers hold: clusters, data, adapters, compilers and containers."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.seventh.common import (
    BANNER,
    BARS,
    CODE,
    DEEPSPEED,
    ENV,
    HF_TRAIN,
    LIGHTNING,
    MAIN,
    TF,
    TRAIN,
    TRANSFORMERS,
    WANDB,
    around,
    seen,
)
from tests.reporting.unseen.seventh.trackers import HUB
from tests.reporting.unseen.third.common import before, stack
from tests.reporting.unseen.words import ADDRESS, PROGRESS, by, remote_error

SAVE = (
    *HF_TRAIN,
    f"{ENV}/transformers/trainer.py:3157 _save_checkpoint | os.renames(output_dir, checkpoint_dir)",
)
STREAM = f"{ENV}/streaming/base/shared/prefix.py:192 get_shm_prefix | shm = SharedMemory(name, True, len(data))"
MCORE = f"{CODE}/megatron/training/training.py:1480 train | loss_dict, skipped_iter, grad_norm = train_step("

NETWORKS = [
    Case(
        name="completion-error-between-two-nodes",
        source=HUB + "NVIDIA/nccl/issues/1405",
        nodes=2,
        gpus=8,
        ranks={
            rank: Rank(
                err=ADDRESS
                + BARS
                + f"node{rank // 8 + 1}:3468:3905 [{rank % 8}] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.99.7.{2 - rank // 8}<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00:1148::ff22 remoteGidsfd00:1148::ff1f\n"
                + f"node{rank // 8 + 1}:3468:3905 [{rank % 8}] NCCL INFO transport/net.cc:1302 -> 6\n"
                + remote_error(rank, before=""),
                status=134,
                after_s=0.03 * (rank % 8),
            )
            for rank in range(16)
        },
        want=wanted("network-setup", "connection-reset", rank="any", node="any"),
    ),
    seen(
        "stream-of-the-hub-gave-up-at-last",
        HUB + "huggingface/datasets/issues/7440",
        "no-internet|data-missing|exception|connection-reset",
        "FileNotFoundError: hf://datasets/cerebras/SlimPajama-627B@2d0accdd58c5d5511943ca1f5ff0e3eb5e293543/train/chunk5/example_train_405.jsonl.zst",
        *HF_TRAIN,
        f"{ENV}/datasets/utils/file_utils.py:1380 xopen | raise FileNotFoundError(file)",
        rank=0,
        before=BARS
        + "[2026-11-22 00:26:08 WARNING] '(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), '(Request ID: 3b8321b9)')' thrown while requesting GET https://huggingface.co/datasets/cerebras/SlimPajama-627B/resolve/2d0a/train/chunk5/example_train_405.jsonl.zst\n[2026-11-22 00:26:08 WARNING] Retrying in 1s [Retry 1/5].\n[2026-11-22 00:30:27 WARNING] Retrying in 8s [Retry 5/5].\n",
    ),
]

SAVING = [
    seen(
        "two-ranks-rename-one-directory",
        HUB + "axolotl-ai-cloud/axolotl/issues/948",
        "exception|storage|data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: 'model/tmp-checkpoint-49' -> 'model/checkpoint-49'",
        *HF_TRAIN,
        f"{ENV}/transformers/trainer.py:2395 _save_checkpoint | os.rename(staging_output_dir, output_dir)",
        rank=2,
        shape="3x2",
        noise=BARS,
        peers="store",
    ),
    seen(
        "directory-of-the-checkpoint-is-not-empty",
        HUB + "huggingface/transformers/issues/36076",
        "exception|storage",
        "OSError: [Errno 39] Directory not empty: '/scratch/rlee/results/tmp-checkpoint-s0yubqtr' -> '/scratch/rlee/results/checkpoint-50'",
        *SAVE,
        rank=2,
        shape="1x8",
        noise=TRANSFORMERS + BARS,
    ),
    seen(
        "older-checkpoint-was-deleted-by-another",
        HUB + "huggingface/transformers/issues/20988",
        "exception|storage|data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: 'rng_state_3.pth'",
        *HF_TRAIN,
        f"{ENV}/transformers/trainer.py:1911 _inner_training_loop | shutil.rmtree(checkpoint)",
        "/usr/lib/python3.11/shutil.py:675 _rmtree_safe_fd | os.unlink(entry.name, dir_fd=topfd)",
        rank=4,
        noise="Deleting older checkpoint [out/checkpoint-9] due to args.save_total_limit\n",
    ),
    seen(
        "compiler-cache-in-a-full-home",
        HUB + "NOAA-EPIC/EAGLE/issues/121",
        "disk-full",
        "OSError: [Errno 122] Disk quota exceeded",
        *TRAIN,
        f"{ENV}/triton/compiler/compiler.py:314 compile | metadata_group[ir_filename] = fn_cache_manager.put(module, ir_filename)",
        f"{ENV}/triton/runtime/cache.py:116 put | with open(temp_path, mode) as f:",
        rank=1,
        shape="1x4",
    ),
    seen(
        "fonts-do-not-fit-in-the-home",
        HUB + "BSC-ES/autosubmit/issues/596",
        "disk-full",
        "OSError: [Errno 122] Disk quota exceeded: '/users/PAS1234/rlee/.cache/matplotlib/fontlist-v330.json.matplotlib-lock'",
        f"{CODE}/pretrain.py:17 <module> | import matplotlib.pyplot as plt",
        f"{ENV}/matplotlib/cbook.py:1822 _lock_path | with lock_path.open('xb'):",
        rank=3,
        prefix="",
    ),
    seen(
        "package-directory-is-read-only",
        HUB + "MouseLand/cellpose/issues/24",
        "storage|settings|exception|environment-missing",
        "OSError: [Errno 30] Read-only file system: '/usr/local/lib/python3.11/site-packages/cellpose/models/'",
        MAIN,
        "/usr/local/lib/python3.11/site-packages/cellpose/models.py:72 download_model_weights | os.mkdir(model_dir)",
        everyone=True,
        prefix="",
        shape="1x4",
    ),
    seen(
        "bound-file-may-not-be-read",
        HUB + "hermannsblum/fishyscapes/pull/40",
        "settings|storage|exception|data-missing|checkpoint-unreadable|script-not-visible|environment-missing",
        "PermissionError: [Errno 13] Permission denied: 'models/image-segmentation/cityscapes_best.pth'",
        MAIN,
        f"{CODE}/optimizer.py:69 restore_snapshot | checkpoint = torch.load(snapshot, map_location=torch.device('cpu'))",
        everyone=True,
        prefix="",
        shape="1x2",
    ),
]

MODELS = [
    seen(
        "empty-shard-on-the-meta-device",
        HUB + "pytorch/torchtitan/issues/1058",
        "exception",
        "NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() when moving module from meta to a different device.",
        MAIN,
        f"{CODE}/pretrain.py:327 main | model.to(device)",
        everyone=True,
    ),
    seen(
        "node-two-has-no-weights",
        HUB + "huggingface/transformers/issues/27166",
        "exception",
        "NotImplementedError: Cannot copy out of meta tensor; no data!",
        *HF_TRAIN,
        f"{ENV}/torch/distributed/fsdp/_init_utils.py:1089 _move_states_to_device | param.data = param.to(device)",
        rank=1,
        shape="2x1",
        noise=TRANSFORMERS,
    ),
    seen(
        "checkpointed-block-is-ready-twice",
        HUB + "huggingface/peft/issues/313",
        "exception|settings",
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a module parameter outside the `forward` function. Please make sure model parameters are not shared across multiple concurrent forward-backward passes. or try to use _set_static_graph() as a workaround if this module graph does not change during training loop.2) Reused parameters in multiple reentrant backward passes. For example, if you use multiple `checkpoint` functions to wrap the same part of your model, it would result in the same set of parameters been used by different reentrant backward passes multiple times, and hence marking a variable ready multiple times. DDP does not support such use cases in default. You can try to use _set_static_graph() as a workaround if your module graph does not change over iterations.\nParameter at index 55 with name base_model.model.model.layers.27.mlp.down_proj.lora_B.default.weight has been marked as ready twice. This means that multiple autograd engine  hooks have fired for this particular parameter during this iteration.",
        *HF_TRAIN,
        f"{ENV}/torch/utils/checkpoint.py:320 backward | torch.autograd.backward(outputs_with_grad, args_with_grad)",
        everyone=True,
        noise=TRANSFORMERS,
    ),
    seen(
        "gradient-is-no-number-on-one-rank",
        HUB + "alibaba/Pai-Megatron-Patch/issues/366",
        "nan-loss",
        "AssertionError: Rank 11: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 3, node: node3",
        f"{CODE}/pretrain_gpt.py:285 <module> | pretrain(train_valid_test_datasets_provider,",
        MCORE,
        rank=11,
        shape="4x4",
        peers="aborted",
        noise=" [2026-11-22 00:30:40] iteration      120/  250000 | consumed samples:        43408 | elapsed time per iteration (ms): 4247.9 | learning rate: 2.999E-04 | global batch size:   512 | lm loss: 2.117021E+00 | loss scale: 1.0 | grad norm: 0.884 | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
    ),
    seen(
        "state-machine-reran-the-iteration",
        HUB + "THUDM/slime/issues/795",
        "nan-loss|exception",
        "RuntimeError: Unexpected result nan (message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective')",
        f"{CODE}/pretrain_gpt.py:285 <module> | pretrain(train_valid_test_datasets_provider,",
        MCORE,
        f"{CODE}/megatron/core/rerun_state_machine.py:530 validate_result | raise RuntimeError(full_message)",
        rank=3,
        shape="1x8",
        before="ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2 (message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective')\n",
    ),
    seen(
        "probabilities-hold-no-numbers",
        HUB + "MakazhanAlpamys/Soup/issues/342",
        "nan-loss|exception",
        "torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n",
        f"{CODE}/grpo.py:201 <module> | trainer.train()",
        f"{ENV}/transformers/generation/utils.py:2810 _sample | next_tokens = torch.multinomial(probs, num_samples=1).squeeze(1)",
        rank=1,
        shape="1x8",
        before="{'loss': 0.0113, 'grad_norm': 0.21, 'reward': 0.88, 'epoch': 0.1}\n{'loss': 0.0, 'grad_norm': nan, 'reward': 0.86, 'epoch': 0.11}\n"
        + "".join(
            f"/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [{t},0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
            for t in (0, 1)
        ),
        forbid="GPU memory|broken GPU",
    ),
]

DATA = [
    seen(
        "shared-name-exists-from-a-run-before",
        HUB + "mosaicml/streaming/issues/717",
        "exception|settings|storage",
        "FileExistsError: [Errno 17] File exists: '/00000_locals'",
        MAIN,
        f"{CODE}/data.py:226 load_streams | self.set = StreamingDataset(streams=streams)",
        STREAM,
        rank=5,
        noise=DEEPSPEED,
    ),
    seen(
        "local-directory-is-used-twice",
        HUB + "mosaicml/streaming/issues/337",
        "settings|exception|storage",
        "ValueError: Reused local directory: ['/scratch/rlee/mds/c4'] vs ['/scratch/rlee/mds/c4']. Provide a different one. If using a unique local directory, try deleting the local directory and call `streaming.base.util.clean_stale_shared_memory()` only once in your script to clean up the stale shared memory before instantiation of `StreamingDataset`.",
        MAIN,
        f"{ENV}/streaming/base/shared/prefix.py:163 _check_and_find_retrying | raise ValueError(",
        everyone=True,
        prefix="",
    ),
]

MEMORY = [
    Case(
        name="thirteen-billion-on-a-small-host",
        source=HUB + "meta-llama/llama/issues/603",
        nodes=1,
        gpus=2,
        ranks={0: Rank(err=BANNER, out="> initializing model parallel with size 2\n", status=137)},
        others=Rank(err=BANNER),
        memory_share={0: 0.97},
        want=wanted("host-out-of-memory", rank="any", node="node1"),
    ),
    Case(
        name="saving-needs-more-than-the-host-has",
        source=HUB + "PKU-YuanGroup/Open-Sora-Plan/issues/512",
        nodes=1,
        gpus=8,
        ranks={0: Rank(err=BARS + "Saving the whole optimizer state to rank 0 ...\n", status=137)},
        others=Rank(err=BARS),
        batch="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\nsrun: error: node1: task 0: Out Of Memory\n",
        want=wanted("host-out-of-memory", rank="any", node="node1"),
    ),
    seen(
        "spawned-process-was-killed",
        HUB + "resistzzz/Prompt4NR/issues/3",
        "host-out-of-memory|unknown|exception",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
        f"{CODE}/main.py:422 <module> | mp.spawn(worker, nprocs=4, join=True)",
        f"{ENV}/torch/multiprocessing/spawn.py:184 join | raise ProcessExitedException(",
        rank=0,
        shape="1x1",
        prefix="",
        after="/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 15 leaked semaphore objects to clean up at shutdown\n",
        memory_share={0: 0.96},
    ),
]

SOFTWARE = [
    seen(
        "numpy-of-two-environments",
        HUB + "xiumingzhang/GenRe-ShapeHD/issues/40",
        "version-mismatch|import-error|environment-missing",
        "ImportError: numpy.core.multiarray failed to import",
        f"{CODE}/pretrain.py:6 <module> | import cv2",
        everyone=True,
        prefix="",
        before="RuntimeError: module compiled against API version 0x10 but this version of numpy is 0xe\n",
    ),
    seen(
        "algebra-library-of-the-module-first",
        HUB + "mees/calvin/issues/104",
        "version-mismatch|import-error",
        f"OSError: {ENV}/torch/lib/../../nvidia/cublas/lib/libcublas.so.12: undefined symbol: cublasLtGetStatusString, version libcublasLt.so.12",
        f"{CODE}/pretrain.py:5 <module> | import torch",
        f"{ENV}/torch/__init__.py:333 _load_global_deps | ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)",
        everyone=True,
        prefix="",
    ),
    seen(
        "library-of-the-other-cluster",
        HUB + "NCAR/miles-credit/issues/319",
        "environment-missing|import-error|version-mismatch",
        "OSError: libpmi.so.0: cannot open shared object file: No such file or directory",
        f"{CODE}/pretrain.py:5 <module> | import torch",
        f"{ENV}/torch/__init__.py:320 _load_global_deps | ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)",
        everyone=True,
        prefix="",
    ),
    seen(
        "graphs-library-is-not-found",
        HUB + "nvidia-cosmos/cosmos-transfer1/issues/128",
        "import-error|environment-missing",
        "ImportError: libcudnn_graph.so.9: cannot open shared object file: No such file or directory",
        f"{CODE}/pretrain.py:8 <module> | import transformer_engine.pytorch as te",
        everyone=True,
        prefix="",
        noise=TF,
    ),
    before(
        "module-needs-another-one-first",
        HUB + "ai4d-iasc/trixie/issues/70",
        "environment-missing|import-error",
        'Lmod has detected the following error: The following module(s) are unknown:\n"miniconda3-4.7.12.1-gcc-9.2.0-j2idqxp"\n\nPlease check the spelling or version number. Also try "module spider ..."\n\n/var/spool/slurm/d/job04711/slurm_script: line 37: activate: No such file or directory\n'
        + stack(f"{CODE}/run.py:12 <module> | import torch")
        + "ImportError: No module named torch\nsrun: error: node1: task 0: Exited with exit code 1\n",
    ),
    seen(
        "python-library-is-not-on-this-node",
        HUB + "google-deepmind/acme/issues/47",
        "environment-missing|import-error",
        "ImportError: libpython3.7m.so.1.0: cannot open shared object file: No such file or directory",
        f"{CODE}/train.py:4 <module> | from acme.agents.tf import dqn",
        everyone=True,
        prefix="",
        before="2026-11-22 00:15:57.289439: W tensorflow/stream_executor/platform/default/dso_loader.cc:59] Could not load dynamic library 'libcudart.so.10.1'; dlerror: libcudart.so.10.1: cannot open shared object file: No such file or directory\n",
    ),
]

LAUNCHING = [
    before(
        "image-name-was-taken-for-a-registry",
        HUB + "NVIDIA/pyxis/issues/127",
        "environment-missing|no-internet",
        "pyxis: importing docker image: torch-25.06.sqsh\nslurmstepd: error: pyxis: child 10028 failed with error code: 1\nslurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:     [INFO] Querying registry for permission grant\nslurmstepd: error: pyxis:     [INFO] Authenticating with user: <anonymous>\nslurmstepd: error: pyxis:     [ERROR] URL https://auth.docker.io/token?service=registry.docker.io returned error code: 401 Unauthorized\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: node1: task 0: Exited with exit code 1\n",
    ),
    before(
        "mount-that-the-user-may-not-see",
        HUB + "NVIDIA/enroot/issues/140",
        "environment-missing|settings|storage|script-not-visible",
        "slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:     enroot-mount: failed to mount: /fs/ess/PAS1234/set at /tmp/enroot-data/user-1000/pyxis_4711.0/data: Permission denied\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: node1: task 0: Exited with exit code 1\n",
    ),
    Case(
        name="quota-and-a-tracker-that-waits",
        source=HUB + "wandb/wandb/issues/1382",
        nodes=2,
        gpus=4,
        ranks={
            **around(8, {0}, 4, "aborted", ADDRESS + PROGRESS),
            0: Rank(
                err=ADDRESS
                + WANDB
                + by(
                    0,
                    stack(
                        MAIN,
                        f"{CODE}/pretrain.py:301 train | save(model, optimizer, step)",
                        f"{ENV}/torch/serialization.py:967 save | with _open_zipfile_writer(f) as opened_zipfile:",
                    )
                    + "OSError: [Errno 122] Disk quota exceeded\n",
                )
                + "wandb: \\ 0.018 MB of 0.018 MB uploaded\nwandb: ERROR Dropped streaming file chunk (see wandb/debug-internal.log)\n",
                status=1,
            ),
        },
        want=wanted("disk-full", rank=0, node="node1", forbid="internet"),
    ),
    seen(
        "callbacks-raise-what-a-rank-had",
        HUB + "Lightning-AI/pytorch-lightning/issues/14986",
        "network-setup|connection-reset|unknown",
        "RuntimeError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1191, unhandled system error, NCCL version 2.10.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. It can be also caused by unexpected exit of a remote peer, you can check NCCL warnings for failure reason and see if there is connection closure by a peer.",
        f"{CODE}/main.py:92 <module> | trainer.fit(model)",
        f"{ENV}/torch/distributed/distributed_c10d.py:2784 barrier | work = default_pg.barrier(opts=opts)",
        everyone=True,
        noise=LIGHTNING,
        prefix="",
    ),
]

CASES = [*NETWORKS, *SAVING, *MODELS, *DATA, *MEMORY, *SOFTWARE, *LAUNCHING]
