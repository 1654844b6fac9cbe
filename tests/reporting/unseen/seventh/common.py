"""The ordinary noise of a training log, and what other ranks print when one of them is gone."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.reporting.unseen.case import Case, Rank
from tests.reporting.unseen.third.common import failing
from tests.reporting.unseen.words import ADDRESS, FUTURE, remote_error, watchdog

ENV = "/users/PAS1234/rlee/.conda/envs/llm/lib/python3.11/site-packages"
CODE = "/users/PAS1234/rlee/llm"
MAIN = f"{CODE}/pretrain.py:412 <module> | main()"
TRAIN = (
    MAIN,
    f"{CODE}/pretrain.py:355 main | train(cfg, model, optimizer, loader)",
    f"{CODE}/pretrain.py:287 train | loss = step(model, batch)",
)
CALL = f"{ENV}/torch/nn/modules/module.py:1773 _wrapped_call_impl | return self._call_impl(*args, **kwargs)"
HF_TRAIN = (
    f"{CODE}/sft.py:168 <module> | trainer.train(resume_from_checkpoint=last)",
    f"{ENV}/transformers/trainer.py:2325 train | return inner_training_loop(",
)
LOADER = (
    MAIN,
    f"{CODE}/pretrain.py:270 train | for batch in loader:",
    f"{ENV}/torch/utils/data/dataloader.py:734 __next__ | data = self._next_data()",
)
BANNER = (
    "W1122 00:15:01.114000 4000 torch/distributed/run.py:774] \n"
    "W1122 00:15:01.114000 4000 torch/distributed/run.py:774] *****************************************\n"
    "W1122 00:15:01.114000 4000 torch/distributed/run.py:774] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded, please further tune the variable for optimal performance in your application as needed. \n"
    "W1122 00:15:01.114000 4000 torch/distributed/run.py:774] *****************************************\n"
)
NCCL_INFO = (
    "node1:4102:4102 [2] NCCL INFO Bootstrap: Using ib0:10.99.7.1<0>\n"
    "node1:4102:4102 [2] NCCL INFO cudaDriverVersion 12080\n"
    "node1:4102:4188 [2] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
    "node1:4102:4188 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.99.7.1<0>\n"
    "node1:4102:4188 [2] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
    "node1:4102:4188 [2] NCCL INFO ncclCommInitRankConfig comm 0x5581f3a0 rank 2 nranks 8 - Init COMPLETE\n"
)
TF = (
    "2026-11-22 00:14:58.114019: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered\n"
    "2026-11-22 00:14:58.117233: I tensorflow/core/platform/cpu_feature_guard.cc:182] This TensorFlow binary is optimized to use available CPU instructions in performance-critical operations.\n"
    "2026-11-22 00:14:59.001873: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT\n"
)
TRANSFORMERS = (
    "`torch_dtype` is deprecated! Use `dtype` instead!\n"
    "The tokenizer has new PAD/BOS/EOS tokens that differ from the model config and generation config. The model config and generation config were aligned accordingly, being updated with the tokenizer's values. Updated tokens: {'bos_token_id': None, 'pad_token_id': 151643}.\n"
    "\rLoading checkpoint shards:   0%|          | 0/4 [00:00<?, ?it/s]\rLoading checkpoint shards: 100%|██████████| 4/4 [00:06<00:00,  1.61s/it]\n"
    "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.\n"
)
DEEPSPEED = (
    "[2026-11-22 00:15:03,118] [INFO] [real_accelerator.py:254:get_accelerator] Setting ds_accelerator to cuda (auto detect)\n"
    "[2026-11-22 00:15:07,402] [INFO] [comm.py:669:init_distributed] cdb=None\n"
    "[2026-11-22 00:15:31,220] [WARNING] [lr_schedules.py:683:get_lr] Attempting to get learning rate from scheduler before it has started\n"
)
BARS = (
    "\r  8%|▊         | 410/5000 [12:01<2:14:37,  1.76s/it]{'loss': 1.6231, 'grad_norm': 0.71, 'learning_rate': 1.9e-05, 'epoch': 0.16}\n"
    "\r  8%|▊         | 420/5000 [12:19<2:14:18,  1.76s/it]{'loss': 1.6104, 'grad_norm': 0.68, 'learning_rate': 1.9e-05, 'epoch': 0.17}\n"
)
TITAN = (
    "[titan] 2026-11-22 00:15:20,431 - root - INFO - Applied FSDP to the model\n"
    "[titan] 2026-11-22 00:15:20,902 - root - INFO - CUDA memory usage for model: 3.77GiB(4.77%)\n"
    "[titan] 2026-11-22 00:15:21,103 - root - WARNING - model.safetensors.index.json not found at hf_assets_path: ./assets/hf/. Defaulting to saving a single safetensors file if checkpoint is saved in HF format\n"
    "[titan] 2026-11-22 00:16:02,517 - root - INFO - step: 100  loss:  6.3021  grad_norm:  0.9120  memory: 41.55GiB(52.45%)  tps: 6,921  tflops: 121.44  mfu: 38.90%\n"
)
LIGHTNING = (
    "GPU available: True (cuda), used: True\n"
    "TPU available: False, using: 0 TPU cores\n"
    "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8\n"
    "/users/PAS1234/rlee/.conda/envs/llm/lib/python3.11/site-packages/lightning/pytorch/trainer/connectors/data_connector.py:433: The 'train_dataloader' does not have many workers which may be a bottleneck. Consider increasing the value of the `num_workers` argument` to `num_workers=31` in the `DataLoader` to improve performance.\n"
)
WANDB = (
    "wandb: Currently logged in as: rlee (osu-nlp). Use `wandb login --relogin` to force relogin\n"
    "wandb: Tracking run with wandb version 0.22.1\n"
    "wandb: Run data is saved locally in /users/PAS1234/rlee/llm/wandb/run-20261122_001512-8k2mv1qd\n"
    "wandb: Syncing run lucky-plasma-91\n"
)


def store_gone(rank: int) -> str:
    """What torch's heartbeat monitor warns of when the store's host is gone: harmless by itself."""
    head = f"[rank{rank}]:[W1122 00:31:02.551"
    return (
        f"{head}218 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=68, addr=[node2.cluster]:44{rank:03d}, remote=[node1.cluster]:14711): Connection reset by peer\n"
        "Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:679 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f0d31f6eeb0 in /opt/venv/lib/libc10.so)\n\n"
        f'{head}901 ProcessGroupNCCL.cpp:1771] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Connection reset by peer\n'
    )


def around(size: int, failed: set[int], gpus: int, kind: str, noise: str) -> dict[int, Rank]:
    """The ranks that did not fail. kind: what those of other nodes print and do."""
    nodes = {rank // gpus for rank in failed}
    found: dict[int, Rank] = {}
    for rank in set(range(size)) - failed:
        if kind == "quiet" or rank // gpus in nodes:
            found[rank] = Rank(err=noise)
        elif kind == "store":
            found[rank] = Rank(err=noise + store_gone(rank))
        elif kind == "aborted":
            found[rank] = Rank(err=remote_error(rank, before=noise), status=134, after_s=1.2)
        elif kind == "watchdog":
            found[rank] = Rank(err=watchdog(rank, before=noise), status=134, after_s=0.6)
        else:
            raise ValueError(kind)
    return found


def seen(
    name: str,
    source: str,
    causes: str,
    end: str,
    *frames: str,
    rank: int = 5,
    shape: str = "2x4",
    peers: str = "quiet",
    noise: str = ADDRESS + FUTURE,
    also: tuple[int, ...] = (),
    everyone: bool = False,
    **fields: Any,
) -> Case:
    """A case in which `rank` (and those of `also`) raised. shape: nodes x GPUs a node."""
    nodes, gpus = map(int, shape.split("x"))
    failed = set(range(nodes * gpus)) if everyone else {rank, *also}
    case = failing(
        name,
        source,
        causes,
        end,
        *(frames or TRAIN),
        rank=rank,
        nodes=nodes,
        gpus=gpus,
        everyone=everyone,
        more=around(nodes * gpus, failed, gpus, peers, noise),
        before=fields.pop("before", noise),
        **fields,
    )
    return replace(case, ranks={**case.ranks, **dict.fromkeys(also, case.ranks.get(rank))})
