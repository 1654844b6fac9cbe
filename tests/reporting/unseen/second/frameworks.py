"""Lightning, Megatron, DeepSpeed, FairScale, and how checkpoints of each refuse to load or to be written."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"


def everywhere(size: int, err: str, status: int = 1) -> dict[int, Rank]:
    return {r: Rank(err=err, status=status, after_s=0.03 * r) for r in range(size)}


def numbered(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


CASES = [
    Case(
        name="lightning-tasks-per-node",
        source="https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/plugins/environments/slurm.py",
        nodes=4,
        gpus=2,
        ranks=everywhere(
            8,
            "GPU available: True (cuda), used: True\nTPU available: False, using: 0 TPU cores\n"
            f'Traceback (most recent call last):\n  File "/home/ada/seg/main.py", line 40, in <module>\n    trainer = pl.Trainer(devices=2, num_nodes=4, strategy="fsdp")\n  File "{SITE}/lightning/fabric/plugins/environments/slurm.py", line 194, in validate_settings\n    raise ValueError(\n'
            "ValueError: You set `devices=2` in Lightning, but the number of tasks per node configured in SLURM `--ntasks-per-node=1` does not match. HINT: Set `devices=1`.\n",
        ),
        want=Want(
            frozenset({"settings", "exception"}),
            "settings",
            rank="any",
            node="any",
            forbid=r"hardware fault|broken hardware|(update|newer|install)[^.]*\bdriver",
        ),
    ),
    Case(
        name="lightning-gpus-that-the-node-has-not",
        source="https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/utilities/device_parser.py",
        nodes=1,
        gpus=8,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/seg/main.py", line 40, in <module>\n    trainer = pl.Trainer(devices=8, accelerator="gpu")\n  File "{SITE}/lightning/fabric/utilities/device_parser.py", line 136, in _sanitize_gpu_ids\n    raise MisconfigurationException(\n'
            "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3, 4, 5, 6, 7]\n But your machine only has: [0, 1, 2, 3]\n",
        ),
        want=Want(
            frozenset({"settings", "exception", "bad-gpu"}), "settings", rank="any", node="any"
        ),
    ),
    Case(
        name="lightning-dictionary-of-losses",
        source="https://lightning.ai/docs/pytorch/stable/common/lightning_module.html",
        nodes=2,
        gpus=4,
        ranks={
            5: Rank(
                err="\rEpoch 0:   2%|▏         | 20/1000 [00:31<25:19,  1.55s/it, v_num=0, val_loss=nan]\n"
                f'Traceback (most recent call last):\n  File "/home/ada/seg/main.py", line 44, in <module>\n    trainer.fit(model, data)\n  File "{SITE}/lightning/pytorch/loops/optimization/automatic.py", line 67, in from_training_step_output\n    raise MisconfigurationException(\n'
                "lightning.fabric.utilities.exceptions.MisconfigurationException: In automatic_optimization, when `training_step` returns a dict, the 'loss' key needs to be present\n",
                status=1,
            )
        },
        others=Rank(
            err="\rEpoch 0:   2%|▏         | 20/1000 [00:31<25:19,  1.55s/it, v_num=0, val_loss=nan]"
        ),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=5,
            node="node2",
            forbid=r"\bNaN\b|learning rate|diverge",
            retry="crash",
        ),
    ),
    Case(
        name="megatron-nan-in-the-gradient",
        source="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/distributed/param_and_grad_buffer.py",
        nodes=8,
        gpus=8,
        step=2210,
        ranks={
            29: Rank(
                err=numbered(
                    29,
                    'Traceback (most recent call last):\n  File "/workspace/megatron/pretrain_gpt.py", line 290, in <module>\n    pretrain(\n  File "/workspace/megatron/megatron/core/distributed/param_and_grad_buffer.py", line 153, in check_grads\n    rerun_state_machine.validate_result(\n'
                    '  File "/workspace/megatron/megatron/core/rerun_state_machine.py", line 498, in validate_result\n    raise RuntimeError(full_message)\n'
                    "RuntimeError: Rank 29, node node4, device 5, iteration 2210: Unexpected result nan (message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective')",
                ),
                status=1,
            )
        },
        others=Rank(
            out=" iteration     2200/   50000 | consumed samples:       563200 | lm loss: 2.713012E+00 | grad norm: 0.412 | number of nan iterations:   0 |\n"
        ),
        want=Want(
            frozenset({"nan-loss"}),
            "nan-loss",
            rank=29,
            node="node4",
            forbid=r"batch size too large|out of memory",
        ),
    ),
    Case(
        name="megatron-world-not-divisible",
        source="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            'Traceback (most recent call last):\n  File "/workspace/megatron/pretrain_gpt.py", line 290, in <module>\n    pretrain(\n  File "/workspace/megatron/megatron/training/arguments.py", line 371, in validate_args\n    assert args.world_size % total_model_size == 0, (\n'
            "AssertionError: world size (8) is not divisible by total_model_size (encoder_model_size=0 + decoder_model_size=6)\n",
        ),
        want=Want(
            frozenset({"settings", "exception"}),
            "settings",
            rank="any",
            node="any",
            forbid=r"\bbad GPU\b|node (is|was) lost",
        ),
    ),
    Case(
        name="deepspeed-loss-scale-at-its-minimum",
        source="https://github.com/hiyouga/LlamaFactory/issues/251",
        nodes=2,
        gpus=4,
        step=17,
        ranks={
            r: Rank(
                err=(
                    f"[2025-11-17 15:19:2{r},960] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank {r} Skipping step. Attempted loss scale: 2, but hysteresis is 2. Reducing hysteresis to 1\n"
                    if r == 0
                    else ""
                )
                + f'Traceback (most recent call last):\n  File "/home/ada/sft/train_ds.py", line 120, in <module>\n    engine.step()\n  File "{SITE}/deepspeed/runtime/engine.py", line 2213, in step\n    self._take_model_step(lr_kwargs)\n  File "{SITE}/deepspeed/runtime/zero/stage3.py", line 2111, in _update_scale\n    self.loss_scaler.update_scale(has_overflow)\n  File "{SITE}/deepspeed/runtime/fp16/loss_scaler.py", line 175, in update_scale\n    raise Exception(\n'
                "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n",
                status=1,
                after_s=0.05 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"nan-loss", "exception"}),
            "nan-loss",
            rank="any",
            node="any",
            forbid=r"out of memory|hardware fault|broken hardware",
        ),
    ),
    Case(
        name="deepspeed-overflow-is-not-the-end",
        source="https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/fp16/loss_scaler.py",
        nodes=2,
        gpus=4,
        step=36,
        ranks={
            0: Rank(
                err="[2025-11-17 15:19:24,960] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
                "[2025-11-17 15:19:28,112] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32768, reducing to 16384\n"
                'Traceback (most recent call last):\n  File "/home/ada/sft/train_ds.py", line 131, in <module>\n    writer.add_scalar("loss", losses[step])\nIndexError: list index out of range\n'
                "[rank0]:[W1117 15:19:31.000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"\bNaN\b|overflowed|loss scale|learning rate",
            retry="crash",
        ),
    ),
    Case(
        name="deepspeed-batch-arithmetic",
        source="https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/config.py",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/sft/train_ds.py", line 77, in <module>\n    engine, *_ = deepspeed.initialize(args=args, model=model)\n  File "{SITE}/deepspeed/runtime/config.py", line 962, in _batch_assertion\n    assert train_batch == micro_batch * grad_acc * self.world_size, (\n'
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 4 * 4 * 8\n",
        ),
        want=Want(
            frozenset({"settings", "exception"}),
            "settings",
            rank="any",
            node="any",
            forbid=r"out of memory|(free|less|more|reduce) GPU memory",
        ),
    ),
    Case(
        name="deepspeed-without-a-toolkit",
        source="https://github.com/deepspeedai/DeepSpeed/blob/master/op_builder/builder.py",
        nodes=1,
        gpus=8,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/sft/train_ds.py", line 5, in <module>\n    import deepspeed\n  File "{SITE}/deepspeed/ops/op_builder/builder.py", line 51, in installed_cuda_version\n    raise MissingCUDAException("CUDA_HOME does not exist, unable to compile CUDA op(s)")\n'
            "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)\n",
        ),
        want=Want(
            frozenset({"environment-missing", "import-error", "exception"}),
            "environment-missing",
            rank="any",
            node="any",
            forbid=r"\bbad GPU\b|driver update",
        ),
    ),
    Case(
        name="fairscale-state-dict-outside-of-summon",
        source="https://github.com/facebookresearch/fairscale/blob/main/fairscale/nn/data_parallel/fully_sharded_data_parallel.py",
        nodes=2,
        gpus=4,
        ranks={
            4: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/mt/train.py", line 150, in <module>\n    loss.backward()\n  File "{SITE}/fairscale/nn/data_parallel/fully_sharded_data_parallel.py", line 1558, in _post_backward_hook\n    self.assert_state([TrainingState.BACKWARD_PRE, TrainingState.BACKWARD_POST])\n'
                "ValueError: expected to be in states [<TrainingState.BACKWARD_PRE: 3>, <TrainingState.BACKWARD_POST: 4>] but current state is TrainingState.IDLE\n",
                status=1,
            )
        },
        want=Want(frozenset({"exception"}), "exception", rank=4, node="node2", retry="crash"),
    ),
    Case(
        name="state-dict-of-another-width",
        source="https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 88, in <module>\n    model.load_state_dict(torch.load(args.resume, map_location="cpu")["model"])\n  File "{SITE}/torch/nn/modules/module.py", line 2584, in load_state_dict\n    raise RuntimeError(\n'
            'RuntimeError: Error(s) in loading state_dict for Transformer:\n\tMissing key(s) in state_dict: "layers.24.attn.wq.weight", "layers.24.attn.wk.weight". \n\tUnexpected key(s) in state_dict: "rope.freqs". \n'
            "\tsize mismatch for tok_embeddings.weight: copying a param with shape torch.Size([32000, 2048]) from checkpoint, the shape in current model is torch.Size([32128, 2560]).\n",
        ),
        want=Want(
            frozenset({"exception", "settings", "checkpoint-unreadable"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"half-written|\btorn\b|delete the checkpoint|\btruncated\b",
        ),
    ),
    Case(
        name="weights-only-refuses-a-class",
        source="https://github.com/pytorch/pytorch/blob/main/torch/serialization.py",
        nodes=1,
        gpus=8,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/lm/finetune.py", line 30, in <module>\n    state = torch.load("base.pt")\n  File "{SITE}/torch/serialization.py", line 1470, in load\n    raise pickle.UnpicklingError(_get_wo_message(str(e))) from None\n'
            "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options, \x1b[1mdo those steps only if you trust the source of the checkpoint\x1b[0m. \n"
            "\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load` from `False` to `True`. Re-running `torch.load` with `weights_only` set to `False` will likely succeed, but it can result in arbitrary code execution. Do it only if you got the file from a trusted source.\n"
            "\t(2) Alternatively, to load with `weights_only=True` please check the recommended steps in the following error message.\n\tWeightsUnpickler error: Unsupported global: GLOBAL argparse.Namespace was not an allowed global by default. Please use `torch.serialization.add_safe_globals([argparse.Namespace])` or the `torch.serialization.safe_globals([argparse.Namespace])` context manager to allowlist this global if you trust this class/function.\n\n"
            "Check the documentation of torch.load to learn more about types accepted by default with weights_only https://pytorch.org/docs/stable/generated/torch.load.html.\n",
        ),
        want=Want(
            frozenset({"exception", "version-mismatch", "checkpoint-unreadable"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"\btorn\b|half-written|damaged|\bcorrupt|older checkpoint",
        ),
    ),
    Case(
        name="zip-archive-without-its-directory",
        source="https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 88, in <module>\n    state = torch.load(last, map_location="cpu", weights_only=True)\n  File "{SITE}/torch/serialization.py", line 772, in __init__\n    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))\n'
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
        ),
        want=Want(
            frozenset({"checkpoint-unreadable"}),
            "checkpoint-unreadable",
            rank="any",
            node="any",
            forbid=r"bad GPU|check the network|firewall",
        ),
    ),
    Case(
        name="safetensors-cut-short",
        source="https://github.com/huggingface/safetensors/blob/main/safetensors/src/tensor.rs",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err="\rLoading checkpoint shards:  75%|███████▌  | 3/4 [00:12<00:04,  4.1s/it]\n"
                f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 51, in <module>\n    model = AutoModelForCausalLM.from_pretrained("/scratch/ada/llama3")\n  File "{SITE}/transformers/modeling_utils.py", line 508, in load_state_dict\n    with safe_open(checkpoint_file, framework="pt") as f:\n'
                "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n",
                status=1,
                after_s=0.2 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"checkpoint-unreadable"}), "checkpoint-unreadable", rank="any", node="any"
        ),
    ),
    Case(
        name="dcp-without-its-metadata",
        source="https://github.com/huggingface/accelerate/issues/3010",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=numbered(
                    r,
                    f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 97, in <module>\n    dcp.load(state, checkpoint_id=args.resume)\n  File "{SITE}/torch/distributed/checkpoint/utils.py", line 200, in reduce_scatter\n    raise result\n'
                    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([4, 5, 6, 7])\nTraceback (most recent call last): (RANK 4)\n"
                    f'  File "{SITE}/torch/distributed/checkpoint/filesystem.py", line 810, in read_metadata\n    with self.fs.create_stream(path, "rb") as metadata_file:\n'
                    "FileNotFoundError: [Errno 2] No such file or directory: '/local/ada/ckpt/step-9000/.metadata'",
                ),
                status=1,
                after_s=0.05 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"checkpoint-unreadable", "data-missing"}),
            "checkpoint-unreadable",
            rank="any",
            node="any",
        ),
    ),
    Case(
        name="dcp-one-shard-cannot-be-read",
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/checkpoint/api.py",
        nodes=8,
        gpus=8,
        ranks={
            r: Rank(
                err=numbered(
                    r,
                    f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 97, in <module>\n    dcp.load(state, checkpoint_id=args.resume)\n  File "{SITE}/torch/distributed/checkpoint/utils.py", line 257, in all_gather\n    raise CheckpointException(step, node_failures)\n'
                    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([50])\nTraceback (most recent call last): (RANK 50)\n"
                    f'  File "{SITE}/torch/distributed/checkpoint/state_dict_loader.py", line 241, in read_data\n    all_reads = storage_reader.read_data(final_local_plan, planner)\n  File "{SITE}/torch/distributed/checkpoint/filesystem.py", line 768, in read_data\n    torch.load(cast(IO[bytes], bytes_io), map_location="cpu", weights_only=True)\n'
                    "RuntimeError: PytorchStreamReader failed reading file data/0: file read failed",
                ),
                status=1,
                after_s=0.02 * r,
            )
            for r in range(64)
        },
        want=Want(
            frozenset({"checkpoint-unreadable", "storage"}),
            "checkpoint-unreadable",
            rank="any",
            node="any",
        ),
    ),
    Case(
        name="dcp-save-on-a-full-disk",
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/checkpoint/filesystem.py",
        nodes=2,
        gpus=4,
        step=4000,
        ranks={
            r: Rank(
                err=numbered(
                    r,
                    f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 171, in <module>\n    dcp.save(state, checkpoint_id=f"{{out}}/step-{{step}}")\n  File "{SITE}/torch/distributed/checkpoint/utils.py", line 257, in all_gather\n    raise CheckpointException(step, node_failures)\n'
                    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3, 6])\nTraceback (most recent call last): (RANK 3)\n"
                    f'  File "{SITE}/torch/distributed/checkpoint/filesystem.py", line 411, in _write_files_from_queue\n    os.fsync(stream.fileno())\n'
                    "OSError: [Errno 28] No space left on device\nTraceback (most recent call last): (RANK 6)\n"
                    f'  File "{SITE}/torch/serialization.py", line 944, in _save\n    zip_file.write_record(name, storage, num_bytes)\n'
                    "RuntimeError: [enforce fail at inline_container.cc:626] . unexpected pos 448 vs 342",
                ),
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank="any",
            node="any",
            forbid=r"/dev/shm",
            retry="storage",
        ),
    ),
    Case(
        name="optimizer-state-that-was-never-saved",
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/checkpoint/default_planner.py",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=numbered(
                    r,
                    f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 97, in <module>\n    dcp.load(state, checkpoint_id=args.resume)\n  File "{SITE}/torch/distributed/checkpoint/default_planner.py", line 471, in create_default_local_load_plan\n    raise RuntimeError(f"Missing key in checkpoint state_dict: {{fqn}}.")\n'
                    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3, 4, 5, 6, 7])\nRuntimeError: Missing key in checkpoint state_dict: optimizer.param_groups.layers.0.attn.wq.weight.decoupled_weight_decay.",
                ),
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"exception", "checkpoint-unreadable", "version-mismatch"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"\btorn\b|half-written|\btruncated\b",
        ),
    ),
    Case(
        name="pickle-that-ends-too-early",
        source="https://docs.python.org/3/library/pickle.html",
        nodes=4,
        gpus=2,
        ranks={
            6: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/rl/train.py", line 30, in <module>\n    state = torch.load(f"ckpt/rank{rank}.pt")\n  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1619, in _legacy_load\n    magic_number = pickle_module.load(f, **pickle_load_args)\nEOFError: Ran out of input\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"checkpoint-unreadable"}), "checkpoint-unreadable", rank=6, node="node4"
        ),
    ),
]

CASES = finish(CASES)
