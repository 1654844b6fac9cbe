"""Failures that people have reported in issue trackers, in logs made anew.

The messages are those of the threads; paths, names, numbers and what stands around them are made.
"""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.seventh.common import (
    BANNER,
    BARS,
    CALL,
    CODE,
    DEEPSPEED,
    ENV,
    HF_TRAIN,
    LIGHTNING,
    LOADER,
    MAIN,
    TF,
    TITAN,
    TRAIN,
    TRANSFORMERS,
    WANDB,
    around,
    seen,
)
from tests.reporting.unseen.third.common import before, stack
from tests.reporting.unseen.third.slurm import state
from tests.reporting.unseen.words import ADDRESS, FRAMES, OMP, PROGRESS, by, watchdog

HUB = "https://github.com/"
LOAD = (
    MAIN,
    f"{CODE}/pretrain.py:331 main | start = resume(model, optimizer, cfg.resume)",
)
DCP = f"{ENV}/torch/distributed/checkpoint/utils.py:489 inner_func | return func(*args, **kwargs)"
ACCEL = f"{ENV}/accelerate/accelerator.py:1559 prepare | result = tuple("
FSDP_INIT = f"{ENV}/torch/distributed/fsdp/fully_sharded_data_parallel.py:509 __init__ | _init_param_handle_from_module("

CHECKPOINTS = [
    seen(
        "distributed-checkpoint-lacks-an-optimizer-key",
        HUB + "JinjieNi/dlms-are-super-data-learners/issues/4",
        "checkpoint-unreadable|exception|settings",
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3, 4, 5, 6, 7])\n"
        "Traceback (most recent call last): (RANK 0)\n"
        f'  File "{ENV}/torch/distributed/checkpoint/utils.py", line 191, in reduce_scatter\n'
        "    local_data = map_fun()\n                 ^^^^^^^^^\n"
        f'  File "{ENV}/torch/distributed/checkpoint/default_planner.py", line 471, in create_default_local_load_plan\n'
        '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")\n'
        "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.output_layer.weight.exp_avg.\n"
        "Traceback (most recent call last): (RANK 1)\n"
        f'  File "{ENV}/torch/distributed/checkpoint/utils.py", line 191, in reduce_scatter\n'
        "    local_data = map_fun()\n                 ^^^^^^^^^\n"
        '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")\n'
        "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.output_layer.weight.exp_avg.",
        *LOAD,
        DCP,
        everyone=True,
        noise=ADDRESS + TITAN,
    ),
    seen(
        "second-node-does-not-see-the-saved-model",
        HUB + "instructlab/training/issues/666",
        "data-missing|checkpoint-unreadable|script-not-visible|storage",
        "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/rlee/ckpt/full_state/epoch_1/pytorch_model_fsdp.bin'",
        f"{CODE}/sft.py:821 <module> | main(args)",
        f"{CODE}/sft.py:432 main | load_latest_full_state(args=args, accelerator=accelerator)",
        f"{ENV}/accelerate/accelerator.py:3685 load_state | load_fsdp_model(self.state.fsdp_plugin, self, model, input_dir, i)",
        f"{ENV}/accelerate/utils/fsdp_utils.py:197 load_fsdp_model | state_dict = torch.load(input_model_file, weights_only=True)",
        f"{ENV}/torch/serialization.py:759 __init__ | super().__init__(open(name_or_buffer, mode))",
        rank=4,
        also=(5, 6, 7),
        judged=False,
        prefix="",
        peers="store",
    ),
    seen(
        "clone-without-large-files",
        HUB + "microsoft/OmniParser/issues/34",
        "checkpoint-unreadable|data-missing",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        f"{CODE}/sft.py:71 <module> | model = AutoModelForCausalLM.from_pretrained(cfg.base)",
        f"{ENV}/transformers/modeling_utils.py:529 load_state_dict | with safe_open(checkpoint_file, framework='pt') as f:",
        everyone=True,
        noise=TF + "`torch_dtype` is deprecated! Use `dtype` instead!\n",
        prefix="",
    ),
    seen(
        "random-state-is-not-weights-only",
        HUB + "huggingface/transformers/issues/34631",
        "version-mismatch|checkpoint-unreadable|exception|settings",
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options, do those steps only if you trust the source of the checkpoint. \n"
        "\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load` from `False` to `True`. Re-running `torch.load` with `weights_only` set to `False` will likely succeed, but it can result in arbitrary code execution. Do it only if you got the file from a trusted source.\n"
        "\t(2) Alternatively, to load with `weights_only=True` please check the recommended steps in the following error message.\n"
        "\tWeightsUnpickler error: Unsupported global: GLOBAL numpy._core.multiarray._reconstruct was not an allowed global by default. Please use `torch.serialization.add_safe_globals([numpy._core.multiarray._reconstruct])` or the `torch.serialization.safe_globals([numpy._core.multiarray._reconstruct])` context manager to allowlist this global if you trust this class/function.\n"
        "\n"
        "Check the documentation of torch.load to learn more about types accepted by default with weights_only https://pytorch.org/docs/stable/generated/torch.load.html.",
        *HF_TRAIN,
        f"{ENV}/transformers/trainer.py:3098 _load_rng_state | checkpoint_rng_state = torch.load(rng_file)",
        f"{ENV}/torch/serialization.py:1529 load | raise pickle.UnpicklingError(_get_wo_message(str(e))) from None",
        everyone=True,
        noise=TRANSFORMERS,
    ),
    seen(
        "deepspeed-finds-no-list-of-checkpoints",
        HUB + "hiyouga/LlamaFactory/issues/6955",
        "exception|checkpoint-unreadable|data-missing",
        "AssertionError",
        *HF_TRAIN,
        f"{ENV}/transformers/integrations/deepspeed.py:489 deepspeed_load_checkpoint | load_path, _ = deepspeed_engine.load_checkpoint(",
        f"{ENV}/deepspeed/runtime/state_dict_factory.py:43 check_ckpt_list | assert len(self.ckpt_list) > 0",
        shape="1x8",
        everyone=True,
        noise=DEEPSPEED,
    ),
    seen(
        "deepspeed-partitions-are-on-the-other-node",
        HUB + "deepspeedai/DeepSpeed/issues/2319",
        "data-missing|checkpoint-unreadable|exception",
        "ValueError: [deepspeed] failed to resume from checkpoint /tmp/rlee/out/checkpoint-500",
        *HF_TRAIN,
        f'{ENV}/transformers/integrations/deepspeed.py:496 deepspeed_load_checkpoint | raise ValueError(f"[deepspeed] failed to resume from checkpoint {{checkpoint_path}}")',
        everyone=True,
        noise=DEEPSPEED
        + "[2026-11-22 00:16:01,112] [WARNING] [engine.py:2870:_get_all_zero_checkpoint_names] The following zero checkpoints paths are missing: ['/tmp/rlee/out/checkpoint-500/global_step500/bf16_zero_pp_rank_4_mp_rank_00_optim_states.pt', '/tmp/rlee/out/checkpoint-500/global_step500/bf16_zero_pp_rank_5_mp_rank_00_optim_states.pt']\n",
    ),
    seen(
        "optimizer-shards-of-another-world-size",
        HUB + "Lightning-AI/pytorch-lightning/issues/16815",
        "exception|checkpoint-unreadable|settings",
        "RuntimeError: The size of tensor a (56124554) must match the size of tensor b (14031139) at non-singleton dimension 0",
        f"{CODE}/main.py:168 <module> | trainer.fit(model, ckpt_path='last.ckpt')",
        f"{ENV}/torch/optim/adamw.py:375 _single_tensor_adamw | exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)",
        shape="4x4",
        everyone=True,
        noise=LIGHTNING + "Restoring states from the checkpoint path at /scratch/rlee/last.ckpt\n",
    ),
    seen(
        "no-state-dict-type",
        HUB + "huggingface/transformers/issues/26159",
        "exception|settings",
        "KeyError: None",
        *HF_TRAIN,
        f"{ENV}/torch/distributed/fsdp/fully_sharded_data_parallel.py:608 set_state_dict_type | state_dict_config_type = _state_dict_type_to_config[state_dict_type]",
        everyone=True,
        noise=TRANSFORMERS,
    ),
    seen(
        "file-of-the-checkpoint-ends-too-early",
        HUB + "meta-pytorch/torchforge/issues/568",
        "disk-full|storage|exception",
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598",
        MAIN,
        f"{CODE}/pretrain.py:301 train | save(model, optimizer, step)",
        f"{ENV}/torch/serialization.py:784 __exit__ | self.file_like.write_end_of_file()",
        rank=0,
        noise=ADDRESS + TITAN,
        after="",
        peers="aborted",
    ),
    seen(
        "module-to-be-synchronised-is-on-the-host",
        HUB + "huggingface/transformers/issues/25100",
        "exception|settings",
        "ValueError: The module has CPU parameters or buffers when `sync_module_states=True`, which requires them to be on GPU. Please specify the `device_id` argument or move the module to GPU before passing into FSDP.",
        *HF_TRAIN,
        ACCEL,
        FSDP_INIT,
        everyone=True,
        noise=TRANSFORMERS,
    ),
]

TRAINING = [
    seen(
        "bus-error-in-a-loaders-worker",
        HUB + "pytorch/pytorch/issues/108861",
        "host-out-of-memory|disk-full|settings|environment-missing",
        "RuntimeError: DataLoader worker (pid 4177) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        *LOADER,
        f"{ENV}/torch/utils/data/_utils/signal_handling.py:73 handler | _error_if_any_worker_fails()",
        rank=9,
        shape="4x4",
        before=OMP
        + "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n \x07",
        peers="aborted",
        forbid="GPU memory",
    ),
    seen(
        "space-of-dev-shm-and-a-bus-error",
        HUB + "NVIDIA/Megatron-LM/issues/878",
        "disk-full|host-out-of-memory|settings",
        "RuntimeError: DataLoader worker (pid 56811) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        *LOADER,
        rank=2,
        shape="1x8",
        before=stack(
            "/usr/lib/python3.11/multiprocessing/queues.py:244 _feed | obj = _ForkingPickler.dumps(obj)",
            f"{ENV}/torch/multiprocessing/reductions.py:618 reduce_storage | fd, size = storage._share_fd_cpu_()",
        )
        + "RuntimeError: unable to write to file </torch_4177_1381926127_912>: No space left on device (28)\n",
        forbid="GPU memory",
    ),
    seen(
        "compilers-cache-was-raced-for",
        HUB + "pytorch/pytorch/issues/134384",
        "exception|storage",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nFileNotFoundError: [Errno 2] No such file or directory: '/tmp/torchinductor_rlee/triton/4/5eba80077c5d5c6def3f812b8cccbc7d/triton_.cubin.tmp.pid_93828_100098'\n\nSet TORCH_LOGS=\"+dynamo\" and TORCHDYNAMO_VERBOSE=1 for more information\n\n\nYou can suppress this exception and fall back to eager by setting:\n    import torch._dynamo\n    torch._dynamo.config.suppress_errors = True\n",
        *TRAIN,
        rank=21,
        shape="8x4",
        peers="aborted",
    ),
    seen(
        "compilers-cache-on-a-network-file-system",
        HUB + "pytorch/pytorch/issues/173679",
        "storage|exception",
        "torch._inductor.exc.InductorError: OSError: [Errno 116] Stale file handle: '/users/PAS1234/rlee/.triton/cache/KX2QG7/cuda_utils.cpython-311-x86_64-linux-gnu.so.tmp.pid_4107_9f0d' -> '/users/PAS1234/rlee/.triton/cache/KX2QG7/cuda_utils.cpython-311-x86_64-linux-gnu.so'\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS=\"+dynamo\"\n",
        *TRAIN,
        f"{ENV}/torch/_inductor/compile_fx.py:1019 _compile_fx_inner | raise InductorError(e, currentframe()).with_traceback(",
        rank=19,
        shape="8x4",
        peers="aborted",
    ),
    seen(
        "kernel-wants-more-than-a-multiprocessor-has",
        HUB + "meta-pytorch/torchtune/issues/2572",
        "exception|settings|version-mismatch",
        'torch._inductor.exc.InductorError: RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_per_fused__softmax_backward_data_0 Required: 264224 Hardware limit:232448 Reducing block sizes or `num_stages` may help.\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you\'re reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"\n',
        *TRAIN,
        everyone=True,
    ),
    seen(
        "kernel-does-not-compile",
        HUB + "pytorch/torchtitan/issues/1640",
        "exception|version-mismatch",
        "torch._inductor.exc.InductorError: CompilationError: at 14:11:\n    xmask = xindex < xnumel\n    x0 = xindex\n    tmp0 = tl.load(in_ptr0 + (x0), xmask)\n           ^\nIncompatibleTypeErrorImpl('invalid operands of type pointer<fp32> and triton.language.float32')\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS=\"+dynamo\"\n",
        *TRAIN,
        everyone=True,
        shape="1x4",
        noise=TITAN,
    ),
    seen(
        "plain-tensors-among-distributed-ones",
        HUB + "pyg-team/pytorch_geometric/pull/10317",
        "exception|settings",
        "RuntimeError: aten._foreach_mul_.Tensor: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before calling distributed operators! Please see https://docs.pytorch.org/docs/main/distributed.tensor.html#mixed-tensor-and-dtensor-operations for more details.",
        *TRAIN,
        f"{ENV}/torch/nn/utils/clip_grad.py:190 _clip_grads_with_norm_ | torch._foreach_mul_(device_grads, clip_coef_clamped.to(device))",
        everyone=True,
        before=f"{ENV}/torch/distributed/tensor/_dispatch.py:439: UserWarning: Found a non-scalar tensor with numel=1 and ndim!=0, we are implicitly creating a replicated DTensor for it. However, please consider changing it to a scalar tensor or explicitly create a DTensor under distributed enviroment.\n  warnings.warn(\n",
    ),
    seen(
        "adapters-in-another-type",
        HUB + "axolotl-ai-cloud/axolotl/issues/1494",
        "exception|settings",
        "ValueError: Must flatten tensors with uniform dtype but got torch.float32 and torch.bfloat16",
        *HF_TRAIN,
        ACCEL,
        FSDP_INIT,
        f"{ENV}/torch/distributed/fsdp/_flat_param.py:787 _validate_tensors_to_flatten | raise ValueError(",
        everyone=True,
        noise=TRANSFORMERS,
    ),
    seen(
        "order-of-the-forward-differs",
        HUB + "mosaicml/diffusion/issues/44",
        "collective-mismatch|exception",
        "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 1 parameters while rank 4 is all-gathering -2142209024 parameters",
        *TRAIN,
        f"{ENV}/torch/distributed/fsdp/_exec_order_utils.py:243 _check_order | raise RuntimeError(",
        everyone=True,
    ),
    seen(
        "spawned-process-was-the-one",
        HUB + "eric-mitchell/direct-preference-optimization/issues/90",
        "exception",
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n"
        + stack(
            f"{ENV}/torch/multiprocessing/spawn.py:90 _wrap | fn(i, *args)",
            f"{CODE}/dpo.py:127 worker_main | trainer.train()",
            f"{CODE}/dpo.py:88 train | logps = batch['chosen_logps'] - batch['rejected_logps']",
        )
        + "KeyError: 'chosen_logps'\n",
        f"{CODE}/dpo.py:201 <module> | mp.spawn(worker_main, nprocs=world_size, args=(world_size, config), join=True)",
        f"{ENV}/torch/multiprocessing/spawn.py:215 join | raise ProcessRaisedException(msg, error_index, failed_process.pid)",
        rank=1,
        shape="2x1",
        prefix="",
    ),
    seen(
        "no-threads-for-the-algebra",
        HUB + "MIC-DKFZ/nnUNet/issues/1343",
        "settings|host-out-of-memory|exception",
        "KeyboardInterrupt",
        f"{CODE}/pretrain.py:3 <module> | import numpy as np",
        f"{ENV}/numpy/_core/multiarray.py:11 <module> | from . import _multiarray_umath, overrides",
        rank=4,
        also=(5, 6, 7),
        judged=False,
        prefix="",
        before="".join(
            f"OpenBLAS blas_thread_init: pthread_create failed for thread {n} of 64: Resource temporarily unavailable\nOpenBLAS blas_thread_init: ensure that your address space and process count limits are big enough (ulimit -a)\nOpenBLAS blas_thread_init: or set a smaller OPENBLAS_NUM_THREADS to fit into what you have available\nOpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 513046 max\n"
            for n in (33, 34, 35)
        ),
        forbid="cancel",
    ),
    seen(
        "no-new-thread-for-the-queue",
        HUB + "Project-MONAI/MONAI/issues/1328",
        "settings|host-out-of-memory|exception",
        "RuntimeError: can't start new thread",
        *LOADER,
        "/usr/lib/python3.11/multiprocessing/queues.py:192 _start_thread | self._thread.start()",
        "/usr/lib/python3.11/threading.py:971 start | _start_new_thread(self._bootstrap, ())",
        rank=13,
        shape="4x4",
        peers="aborted",
        before=OMP,
    ),
    seen(
        "card-of-the-generation-before",
        HUB + "Dao-AILab/flash-attention/issues/762",
        "version-mismatch|bad-gpu|settings|exception",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        *HF_TRAIN,
        CALL,
        f"{ENV}/flash_attn/flash_attn_interface.py:51 _flash_attn_forward | out, q, k, v, out_padded, softmax_lse, S_dmask, rng_state = flash_attn_cuda.fwd(",
        everyone=True,
        shape="1x4",
        noise=TRANSFORMERS,
    ),
    seen(
        "attention-built-against-another-torch",
        HUB + "Dao-AILab/flash-attention/issues/919",
        "version-mismatch|import-error",
        "RuntimeError: Failed to import transformers.models.llama.modeling_llama because of the following error (look up to see its traceback):\n"
        f"{ENV}/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        f"{CODE}/sft.py:71 <module> | model = AutoModelForCausalLM.from_pretrained(cfg.base)",
        f"{ENV}/transformers/utils/import_utils.py:1967 _get_module | raise RuntimeError(",
        everyone=True,
        prefix="",
        noise=TF,
    ),
    seen(
        "old-form-of-a-full-card",
        HUB + "huggingface/accelerate/issues/1519",
        "gpu-out-of-memory",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 39.59 GiB total capacity; 37.98 GiB already allocated; 19.19 MiB free; 38.31 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        *TRAIN,
        rank=4,
        prefix="",
        peers="store",
        noise=BANNER,
        retry="out-of-memory",
    ),
    seen(
        "algebra-library-has-no-handle",
        HUB + "mlcommons/algorithmic-efficiency/issues/185",
        "gpu-out-of-memory|bad-gpu|exception",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        *TRAIN,
        CALL,
        f"{ENV}/torch/nn/modules/linear.py:125 forward | return F.linear(input, self.weight, self.bias)",
        rank=3,
        shape="1x8",
    ),
    seen(
        "convolution-failed-on-one-card",
        HUB + "MIC-DKFZ/nnUNet/issues/1739",
        "bad-gpu|exception|gpu-out-of-memory|version-mismatch|unknown",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        *TRAIN,
        f"{ENV}/torch/autograd/graph.py:829 _engine_run_backward | return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass",
        rank=6,
        before=BARS,
        peers="aborted",
    ),
]

NETWORKS = [
    seen(
        "interface-that-this-node-lacks",
        HUB + "NVIDIA/nccl/issues/1837",
        "network-setup",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, internal error - please report this issue to the NCCL developers, NCCL version 2.27.7\nncclInternalError: Internal check failed.\nLast error:\nncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
        MAIN,
        f"{CODE}/pretrain.py:340 main | dist.barrier()",
        everyone=True,
        before="node2:1958:1958 [3] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n",
    ),
    seen(
        "bootstrap-finds-no-interface",
        HUB + "EvolvingLMMs-Lab/open-r1-multimodal/issues/7",
        "network-setup",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2588, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\nncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found",
        *HF_TRAIN,
        f"{ENV}/torch/distributed/distributed_c10d.py:2726 broadcast | work = group.broadcast([tensor], opts)",
        shape="1x4",
        everyone=True,
        noise=TRANSFORMERS,
    ),
    seen(
        "fabric-manager-is-not-ready",
        HUB + "hiyouga/LlamaFactory/issues/8968",
        "bad-gpu|version-mismatch|node-failure|environment-missing",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 802 'system not yet initialized'",
        *HF_TRAIN,
        f"{ENV}/torch/distributed/distributed_c10d.py:4635 barrier | work = group.barrier(opts=opts)",
        rank=8,
        shape="2x8",
        also=tuple(range(9, 16)),
        judged=False,
        prefix="",
        noise=BANNER,
    ),
    before(
        "agents-do-not-reach-the-store",
        HUB + "pytorch/pytorch/issues/121944",
        "rendezvous-timeout|head-address|network-setup",
        "[E1122 00:17:02.118 socket.cpp:1028] [c10d] The client socket has timed out after 60000ms while trying to connect to (10.99.7.1, 50125).\n"
        + stack(
            "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:155 _create_tcp_store | store = TCPStore("
        )
        + "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.99.7.1, 50125).\n\nThe above exception was the direct cause of the following exception:\n\n"
        + stack(
            "/opt/venv/bin/torchrun:8 <module> | sys.exit(main())",
            "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:183 _create_tcp_store | raise RendezvousConnectionError(",
        )
        + "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.\n"
        + "srun: error: node2: task 1: Exited with exit code 1\n",
    ),
    seen(
        "store-on-a-name-that-is-not-reached",
        HUB + "pytorch/pytorch/issues/79388",
        "rendezvous-timeout|head-address|network-setup",
        "TimeoutError: The client socket has timed out after 60s while trying to connect to (gpu-bm-13, 29500).",
        MAIN,
        f"{CODE}/pretrain.py:318 main | dist.init_process_group('nccl')",
        f"{ENV}/torch/distributed/rendezvous.py:185 _create_c10d_store | return TCPStore(",
        rank=4,
        also=(5, 6, 7),
        judged=False,
        prefix="",
        before="[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to (gpu-bm-13, 29500).\n",
    ),
    seen(
        "tracker-does-not-answer-in-time",
        HUB + "wandb/wandb/issues/10669",
        "no-internet",
        "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting: `wandb.init(settings=wandb.Settings(init_timeout=120))`.",
        MAIN,
        f"{CODE}/pretrain.py:322 main | wandb.init(project='llm', config=cfg)",
        f"{ENV}/wandb/sdk/wandb_init.py:1013 init | raise CommError(",
        rank=0,
        peers="store",
        before="wandb: Currently logged in as: rlee (osu-nlp). Use `wandb login --relogin` to force relogin\n",
    ),
    seen(
        "hub-says-too-many-requests",
        HUB + "allenai/OLMo/issues/550",
        "exception|no-internet|settings",
        "[2026-11-22 00:15:06] CRITICAL [olmo.util:158, rank=6] Uncaught HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/datasets/glue/paths-info/bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
        "-",
        everyone=True,
        shape="2x8",
        prefix="",
        before="[2026-11-22 00:14:50] INFO     [train:57, rank=6] Initializing process group\n",
        forbid="without internet|no internet access",
    ),
    seen(
        "evaluation-asks-the-hub-too-often",
        HUB + "EleutherAI/lm-evaluation-harness/issues/2202",
        "exception|no-internet|settings",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/datasets/Rowan/hellaswag/revision/main (Request ID: Root=1-69a)\n\nWe had to rate limit you, you hit the quota of 1000 api requests per 5 minutes period. Upgrade to a PRO user or Team/Enterprise organization account (https://hf.co/pricing) to get higher limits.",
        f"{CODE}/evaluate.py:66 <module> | results = lm_eval.simple_evaluate(model, tasks=tasks)",
        f"{ENV}/lm_eval/api/task.py:957 download | self.dataset = datasets.load_dataset(",
        f"{ENV}/huggingface_hub/utils/_http.py:482 hf_raise_for_status | raise _format(HfHubHTTPError, str(e), response) from e",
        rank=1,
        peers="store",
        forbid="without internet|no internet access",
    ),
    Case(
        name="saving-made-two-ranks-part",
        source=HUB + "huggingface/accelerate/issues/3250",
        nodes=1,
        gpus=2,
        ranks={
            0: Rank(
                err=watchdog(0, seq=122, op="_REDUCE_SCATTER_BASE", before=TRANSFORMERS + BARS),
                status=134,
            ),
            1: Rank(
                err=watchdog(1, seq=126, op="_ALLGATHER_BASE", before=BARS),
                status=134,
                after_s=0.05,
            ),
        },
        want=wanted("hang", "collective-mismatch", rank="any", node="any"),
    ),
    Case(
        name="one-rank-reduces-more-numbers",
        source=HUB + "pytorch/pytorch/issues/97191",
        nodes=1,
        gpus=8,
        ranks={
            rank: Rank(
                err=watchdog(
                    rank, seq=1, op="ALLREDUCE", numel=104857600 * (2 if rank == 0 else 1)
                ),
                status=134,
                after_s=0.005 * rank,
            )
            for rank in range(8)
        },
        want=wanted("collective-mismatch", "hang", rank="any", node="any"),
    ),
]

CARDS = [
    seen(
        "card-is-lost-after-a-launch-failure",
        HUB + "rwth-i6/returnn/issues/1486",
        "bad-gpu",
        "RuntimeError: CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        *TRAIN,
        rank=11,
        shape="4x4",
        peers="aborted",
        before=BARS,
        node_logs={2: "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n"},
    ),
    Case(
        name="kernel-says-over-three-lines-that-the-card-left",
        source=HUB + "NVIDIA/NVSentinel/issues/155",
        nodes=2,
        gpus=4,
        ranks={
            **around(8, {6}, 4, "aborted", ADDRESS + BARS),
            6: Rank(
                err=ADDRESS
                + BARS
                + by(
                    6,
                    stack(*TRAIN)
                    + "torch.AcceleratorError: CUDA error: unknown error\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n",
                ),
                status=1,
            ),
        },
        node_logs={
            1: "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n               NVRM: fallen off the bus and is not responding to commands.\n"
        },
        want=wanted("bad-gpu", rank=6, node="node2"),
    ),
]

LAUNCHING = [
    seen(
        "every-task-sees-one-card",
        HUB + "Lightning-AI/pytorch-lightning/issues/16828",
        "settings|bad-gpu|exception",
        "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0]",
        f"{CODE}/main.py:92 <module> | trainer = L.Trainer(devices=4, num_nodes=2, strategy='fsdp')",
        f"{ENV}/lightning/fabric/utilities/device_parser.py:134 _sanitize_gpu_ids | raise MisconfigurationException(",
        everyone=True,
        prefix="",
    ),
    seen(
        "wrong-way-to-ask-for-tasks",
        HUB + "Lightning-AI/pytorch-lightning/pull/15011",
        "settings|exception",
        "RuntimeError: You set `--ntasks=8` in your SLURM bash script, but this variable is not supported. HINT: Use `--ntasks-per-node=8` instead.",
        f"{CODE}/main.py:92 <module> | trainer = L.Trainer(devices=4, num_nodes=2)",
        f"{ENV}/lightning/fabric/plugins/environments/slurm.py:193 _validate_srun_variables | raise RuntimeError(",
        everyone=True,
        prefix="",
    ),
    seen(
        "tasks-per-node-are-not-a-number",
        HUB + "sehoffmann/dmlcloud/issues/39",
        "exception|settings",
        "ValueError: invalid literal for int() with base 10: '1(x2)'",
        MAIN,
        f"{CODE}/dist.py:21 init | local_world_size = int(os.environ['SLURM_STEP_TASKS_PER_NODE'])",
        everyone=True,
        shape="2x2",
        prefix="",
    ),
    seen(
        "checkpointer-of-the-recipe-lacks-a-key",
        HUB + "meta-pytorch/torchtune/issues/2907",
        "settings|exception",
        "omegaconf.errors.ConfigAttributeError: Missing key model_type\n    full_key: checkpointer.model_type\n    object_type=dict",
        f"{ENV}/recipes/full_finetune_distributed.py:955 <module> | sys.exit(recipe_main())",
        f"{ENV}/torchtune/config/_parse.py:99 wrapper | sys.exit(recipe_main(conf))",
        f'{ENV}/omegaconf/dictconfig.py:480 _get_node | raise ConfigKeyError(f"Missing key {{key!s}}")',
        shape="4x4",
        everyone=True,
    ),
    before(
        "shell-of-the-image-is-not-there",
        HUB + "NVIDIA/pyxis/issues/61",
        "environment-missing",
        "pyxis: importing docker image ...\nslurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing contents of log file ...\nslurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: pyxis: if the image has an unusual entrypoint, try using --no-container-entrypoint\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: node2: task 1: Exited with exit code 1\n",
    ),
    before(
        "hook-of-the-container-crashes-on-some-nodes",
        HUB + "NVIDIA/pyxis/issues/122",
        "environment-missing|node-failure|bad-gpu",
        "3: slurmstepd: error: pyxis: container start failed with error code: 1\n3: slurmstepd: error: pyxis: printing enroot log file:\n3: slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: process /sbin/ldconfig.real failed with error code: 1\n3: slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\n3: slurmstepd: error: pyxis: couldn't start container\n3: slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n3: slurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: node4: task 3: Exited with exit code 1\n",
        nodes=4,
    ),
    before(
        "credential-of-the-step-is-too-old",
        HUB + "ai4d-iasc/trixie/issues/58",
        "node-failure|refused",
        "srun: error: Task launch for StepId=4711.0 failed on node node2: Job credential expired\nsrun: error: Application launch failed: Job credential expired\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
        node="node2",
    ),
    before(
        "script-vanished-from-the-spool",
        HUB + "ArjunaCluster/ArjunaUsers/issues/21",
        "node-failure|script-not-visible|storage|environment-missing|disk-full",
        "slurmstepd: error: execve(): /var/spool/slurmd/job04711/slurm_script: No such file or directory\n",
    ),
    state(
        "signal-before-a-requeue",
        "PREEMPTED|0:15",
        "preemption",
        others=Rank(
            err="submitit WARNING (2026-11-22 00:30:58,453) - Caught signal SIGUSR2 on node1: this job is preempted.\nsubmitit WARNING (2026-11-22 00:31:02,299) - Bypassing signal SIGCONT\nsubmitit WARNING (2026-11-22 00:31:02,301) - Bypassing signal SIGTERM\n"
        ),
        batch="slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:02 DUE TO JOB REQUEUE ***\nslurmstepd: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-22T00:31:02 DUE TO JOB REQUEUE ***\nslurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\nsrun: error: node2: task 1: Exited with exit code 1\n",
    ),
    before(
        "wrapper-says-timed-out-and-not-checkpointable",
        HUB + "facebookincubator/submitit/issues/1776",
        "time-limit",
        "submitit WARNING (2026-11-22 00:30:58,453) - Caught signal SIGUSR2 on node1: this job is timed-out.\nsubmitit INFO (2026-11-22 00:30:58,460) - Job not requeued because: timed-out and not checkpointable.\nsubmitit ERROR (2026-11-22 00:30:58,461) - Submitted job triggered an exception\n"
        + stack(
            "/opt/venv/lib/python3.11/site-packages/submitit/core/submission.py:76 process_job | result = delayed.result()",
            "/opt/venv/lib/python3.11/site-packages/submitit/core/job_environment.py:226 checkpoint_and_try_requeue | raise utils.UncompletedJobError(message)",
        )
        + "submitit.core.utils.UncompletedJobError: Job not requeued because: timed-out and not checkpointable.\n",
    ),
    seen(
        "locks-are-not-implemented-on-this-mount",
        HUB + "ParaToolsInc/taucmdr/issues/180",
        "storage|settings|exception",
        "OSError: [Errno 38] Function not implemented",
        f"{CODE}/sft.py:58 <module> | data = load_dataset('json', data_files=cfg.files)",
        f"{ENV}/datasets/builder.py:883 download_and_prepare | with FileLock(lock_path) if is_local else contextlib.nullcontext():",
        f"{ENV}/filelock/_unix.py:42 _acquire | fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        everyone=True,
        prefix="",
    ),
    Case(
        name="table-without-a-word",
        source=HUB + "pytorch/examples/issues/1279",
        nodes=2,
        gpus=2,
        ranks={0: Rank(err=BANNER, status=1)},
        others=Rank(err=BANNER),
        node_logs={
            0: "E1122 00:30:51.240000 4000 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 4100) of binary: /opt/venv/bin/python\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============================================================\n/users/PAS1234/rlee/llm/pretrain.py FAILED\n------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-22_00:30:51\n  host      : node1\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 4100)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n============================================================\n"
        },
        want=wanted("unknown", "exception", rank="any", node="any", forbid="GPU|memory|network"),
    ),
    Case(
        name="segmentation-fault-and-nothing-else",
        source=HUB + "NVIDIA/Megatron-LM/issues/1880",
        nodes=2,
        gpus=4,
        ranks={
            **around(8, {5}, 4, "aborted", ADDRESS + PROGRESS),
            5: Rank(err=ADDRESS + PROGRESS, status=139),
        },
        want=wanted("unknown", "exception", rank="any", node="any", forbid="GPU memory|network"),
    ),
    Case(
        name="illegal-access-ends-in-the-watchdog",
        source=HUB + "deepspeedai/DeepSpeed/issues/6896",
        nodes=2,
        gpus=4,
        ranks={
            **around(8, {7}, 4, "aborted", DEEPSPEED),
            7: Rank(
                err=DEEPSPEED
                + "[rank7]:[E1122 00:30:51.901 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0(default_pg) Rank 7] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\nException raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):\n"
                + FRAMES
                + "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) Rank 7] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n",
                status=134,
            ),
        },
        want=wanted("exception", "bad-gpu", rank=7, node="node2", forbid="network"),
    ),
    Case(
        name="raised-first-and-did-not-end",
        source=HUB + "hiyouga/LlamaFactory/issues/6269",
        nodes=2,
        gpus=4,
        ranks={
            **{
                rank: Rank(
                    err=watchdog(rank, before=ADDRESS + BARS), status=134, after_s=0.02 * rank
                )
                for rank in range(8)
                if rank != 6
            },
            6: Rank(
                err=ADDRESS
                + BARS
                + by(
                    6,
                    stack(*LOADER)
                    + "ValueError: could not broadcast input array from shape (4097,) into shape (4096,)\n",
                )
                + WANDB
            ),
        },
        want=wanted("exception", rank=6, node="node2", forbid="network"),
    ),
]

CASES = [*CHECKPOINTS, *TRAINING, *NETWORKS, *CARDS, *LAUNCHING]
