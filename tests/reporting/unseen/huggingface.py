"""Hugging Face's libraries, Lightning, DeepSpeed, Megatron and those who track experiments."""

# ruff: noqa: E501, W291, W293 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    FUTURE,
    PROGRESS,
    QUIET,
    RESOURCE_TRACKER,
    SHARDS,
    STEPS,
    TOP,
    WANDB_END,
    aborted,
    on_record,
    raised,
)

_MAIN = """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 128, in main
"""
_URLLIB = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/urllib3/connection.py", line 198, in _new_conn
    sock = connection.create_connection(
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/urllib3/util/connection.py", line 85, in create_connection
    raise err
OSError: [Errno 101] Network is unreachable

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/urllib3/connectionpool.py", line 787, in urlopen
    response = self._make_request(
               ^^^^^^^^^^^^^^^^^^^
urllib3.exceptions.NewConnectionError: <urllib3.connection.HTTPSConnection object at 0x7f5d1c0e4d50>: Failed to establish a new connection: [Errno 101] Network is unreachable

The above exception was the direct cause of the following exception:

"""

CASES = [
    Case(
        name="hub-not-reachable-cached-nothing",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/utils/hub.py",
        nodes=2,
        gpus=4,
        ranks={
            rank: raised(
                rank,
                _URLLIB
                + """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/huggingface_hub/file_download.py", line 1546, in _get_metadata_or_catch_error
    metadata = get_hf_file_metadata(
               ^^^^^^^^^^^^^^^^^^^^^
requests.exceptions.ConnectionError: (MaxRetryError("HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /google/t5-v1_1-base/resolve/main/config.json (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f5d1c0e4d50>: Failed to establish a new connection: [Errno 101] Network is unreachable'))"), '(Request ID: 5b3f0a19-9f4e-4e7a-8a39-d0a7b1a5c3ef)')

The above exception was the direct cause of the following exception:

"""
                + _MAIN
                + """    config = AutoConfig.from_pretrained(args.model)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/transformers/utils/hub.py", line 543, in cached_files
    raise OSError(
OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.
Check your internet connection or see how to run the library in offline mode at 'https://huggingface.co/docs/transformers/installation#offline-mode'.
""",
                prefixed=False,
                after_s=0.03 * (rank % 4),
            )
            for rank in range(8)
        },
        want=wanted("no-internet", rank="any", node="any"),
    ),
    Case(
        name="hub-name-resolution-on-record",
        source="https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/_snapshot_download.py",
        nodes=1,
        gpus=8,
        ranks={
            0: raised(
                0,
                _MAIN
                + """    snapshot_download("allenai/c4", repo_type="dataset")
  File "/opt/venv/lib/python3.11/site-packages/huggingface_hub/_snapshot_download.py", line 245, in snapshot_download
    raise LocalEntryNotFoundError(
huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the files on the Hub and we cannot find the appropriate snapshot folder for the specified revision on the local disk. Please check your internet connection and try again.
""",
                record="LocalEntryNotFoundError: An error happened while trying to locate the files on the Hub and we cannot find the appropriate snapshot folder for the specified revision on the local disk. Please check your internet connection and try again.",
                before="'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/datasets/allenai/c4/revision/main (Caused by NameResolutionError(\\\"<urllib3.connection.HTTPSConnection object at 0x14d1>: Failed to resolve 'huggingface.co' ([Errno -3] Temporary failure in name resolution)\\\"))\")' thrown while requesting HEAD\nRetrying in 1s [Retry 1/5].\n",
            )
        },
        others=QUIET,
        want=wanted("no-internet", rank=0, node="node1"),
    ),
    Case(
        name="gated-repository",
        source="https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/errors.py",
        nodes=1,
        gpus=4,
        others=raised(
            0,
            _MAIN
            + """    model = AutoModelForCausalLM.from_pretrained(args.model)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
OSError: You are trying to access a gated repo.
Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.
401 Client Error. (Request ID: Root=1-6741-4d2f)

Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.
Access to model meta-llama/Llama-3.1-8B is restricted. You must have access to it and be authenticated to access it. Please log in.
""",
            prefixed=False,
        ),
        want=wanted(
            "exception",
            "settings",
            "data-missing",
            "environment-missing",
            rank="any",
            node="any",
            forbid="compute node.*internet|offline",
        ),
    ),
    Case(
        name="datasets-generation-no-space",
        source="https://github.com/jquesnelle/yarn/issues/18",
        nodes=2,
        gpus=4,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/datasets/builder.py", line 1870, in _prepare_split_single
    writer.write_table(table)
  File "/opt/venv/lib/python3.11/site-packages/datasets/arrow_writer.py", line 643, in write_table
    self.pa_writer.write_table(pa_table, writer_batch_size)
  File "pyarrow/ipc.pxi", line 529, in pyarrow.lib._CRecordBatchWriter.write_table
  File "/opt/venv/lib/python3.11/site-packages/fsspec/implementations/local.py", line 426, in write
    return self.f.write(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/datasets/builder.py", line 1886, in _prepare_split_single
    num_examples, num_bytes = writer.finalize()
                              ^^^^^^^^^^^^^^^^^
OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

"""
                + _MAIN
                + """    raw = load_dataset("json", data_files=args.data, cache_dir="/tmp/hf")
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/datasets/builder.py", line 1897, in _prepare_split_single
    raise DatasetGenerationError("An error occurred while generating the dataset") from e
datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset
""",
                before=ADDRESS
                + "\rGenerating train split: 1187104 examples [02:11, 9034.41 examples/s]\n",
                record="DatasetGenerationError: An error occurred while generating the dataset",
            )
        },
        others=QUIET,
        want=wanted("disk-full", rank=0, node="node1", retry="storage"),
    ),
    Case(
        name="safetensors-header-cut-off",
        source="https://github.com/invoke-ai/InvokeAI/issues/7009",
        nodes=1,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                _MAIN
                + """    model = AutoModel.from_pretrained(args.resume)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/transformers/modeling_utils.py", line 508, in load_state_dict
    with safe_open(checkpoint_file, framework="pt") as f:
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer
""",
                before=ADDRESS + SHARDS,
                after_s=0.01 * rank,
            )
            for rank in range(8)
        },
        want=wanted("checkpoint-unreadable", rank="any", node="node1"),
    ),
    Case(
        name="git-lfs-pointer-unpickled",
        source="https://github.com/pytorch/pytorch/blob/main/torch/serialization.py; git-lfs(1)",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _MAIN
                + """    state = torch.load(args.init, map_location="cpu", weights_only=False)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1495, in load
    return _legacy_load(
           ^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1744, in _legacy_load
    magic_number = pickle_module.load(f, **pickle_load_args)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
_pickle.UnpicklingError: invalid load key, 'v'.
""",
                after_s=0.02 * rank,
            )
            for rank in range(4)
        },
        want=wanted("checkpoint-unreadable", rank="any", node="any"),
    ),
    Case(
        name="pytorch-archive-without-directory",
        source="https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
        nodes=4,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                _MAIN
                + """    resume(model, optimizer, args.resume)
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 804, in __init__
    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))
RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory
""",
                record="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
                after_s=0.02 * rank,
            )
            for rank in range(8)
        },
        want=wanted("checkpoint-unreadable", rank="any", node="any"),
    ),
    Case(
        name="tokenizers-made-by-newer-release",
        source="https://github.com/kvcache-ai/ktransformers/issues/433",
        nodes=1,
        gpus=2,
        others=raised(
            0,
            _MAIN
            + """    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/transformers/tokenization_utils_fast.py", line 115, in __init__
    fast_tokenizer = TokenizerFast.from_file(fast_tokenizer_file)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
Exception: data did not match any variant of untagged enum ModelWrapper at line 757443 column 3
""",
            prefixed=False,
        ),
        want=wanted("version-mismatch", "exception", "data-missing", rank="any", node="any"),
    ),
    Case(
        name="wandb-without-api-key",
        source="https://docs.wandb.ai/support/ (api_key not configured (no-tty))",
        nodes=2,
        gpus=2,
        ranks={
            0: raised(
                0,
                _MAIN
                + """    run = wandb.init(project="t5")
          ^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/wandb/sdk/wandb_login.py", line 187, in prompt_api_key
    raise UsageError("api_key not configured (no-tty). call wandb.login(key=[your_api_key])")
wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])
""",
                prefixed=False,
            )
        },
        others=QUIET,
        want=wanted(
            "exception",
            "settings",
            "environment-missing",
            rank=0,
            node="node1",
            forbid="reach.*internet",
        ),
    ),
    Case(
        name="wandb-run-initialisation-timed-out",
        source="https://github.com/momentum-robotics-lab/deformgs/issues/7",
        nodes=2,
        gpus=8,
        ranks={
            0: raised(
                0,
                _MAIN
                + """    run = wandb.init(project="t5")
          ^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", line 1013, in init
    raise CommError(
wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting: `wandb.init(settings=wandb.Settings(init_timeout=120))`.
""",
                before="wandb: Network error (ConnectTimeout), entering retry loop.\nwandb: ERROR Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting: `wandb.init(settings=wandb.Settings(init_timeout=120))`.\n",
            ),
        },
        others=QUIET,
        want=wanted("no-internet", rank=0, node="node1"),
    ),
    Case(
        name="mlflow-proxy",
        source="https://requests.readthedocs.io/en/latest/api/#requests.exceptions.ProxyError",
        nodes=1,
        gpus=4,
        ranks={
            0: raised(
                0,
                _MAIN
                + """    mlflow.set_experiment("t5")
  File "/opt/venv/lib/python3.11/site-packages/mlflow/utils/rest_utils.py", line 189, in http_request
    raise MlflowException(f"API request to {url} failed with exception {e}")
mlflow.exceptions.MlflowException: API request to https://mlflow.example.org/api/2.0/mlflow/experiments/get-by-name failed with exception HTTPSConnectionPool(host='mlflow.example.org', port=443): Max retries exceeded with url: /api/2.0/mlflow/experiments/get-by-name?experiment_name=t5 (Caused by ProxyError('Unable to connect to proxy', OSError('Tunnel connection failed: 403 Forbidden')))
""",
                prefixed=False,
            )
        },
        others=QUIET,
        want=wanted("no-internet", rank=0, node="node1"),
    ),
    Case(
        name="nltk-data-missing",
        source="https://www.nltk.org/data.html",
        nodes=1,
        gpus=2,
        ranks={
            0: raised(
                0,
                """Traceback (most recent call last):
  File "/home/ada/t5/metrics.py", line 12, in rouge
    sentences = nltk.sent_tokenize(text)
                ^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/nltk/data.py", line 579, in find
    raise LookupError(resource_not_found)
LookupError: 
**********************************************************************
  Resource punkt_tab not found.
  Please use the NLTK Downloader to obtain the resource:

  >>> import nltk
  >>> nltk.download('punkt_tab')
  
  For more information see: https://www.nltk.org/data.html

  Attempted to load tokenizers/punkt_tab/english/

  Searched in:
    - '/home/ada/nltk_data'
    - '/usr/share/nltk_data'
**********************************************************************

""",
                prefixed=False,
                out=STEPS,
            )
        },
        others=QUIET,
        want=wanted("data-missing", rank=0, node="node1"),
    ),
    Case(
        name="torch-load-weights-only",
        source="https://github.com/pytorch/pytorch/blob/main/torch/_weights_only_unpickler.py",
        nodes=1,
        gpus=4,
        others=raised(
            0,
            _MAIN
            + """    state = torch.load(args.resume)
            ^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1524, in load
    raise pickle.UnpicklingError(_get_wo_message(str(e))) from None
_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options, do those steps only if you trust the source of the checkpoint. 
\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load` from `False` to `True`. Re-running `torch.load` with `weights_only` set to `False` will likely succeed, but it can result in arbitrary code execution. Do it only if you got the file from a trusted source.
\t(2) Alternatively, to load with `weights_only=True` please check the recommended steps in the following error message.
\tWeightsUnpickler error: Unsupported global: GLOBAL argparse.Namespace was not an allowed global by default. Please use `torch.serialization.add_safe_globals([argparse.Namespace])` or the `torch.serialization.safe_globals([argparse.Namespace])` context manager to allowlist this global if you trust this class/function.

Check the documentation of torch.load to learn more about types accepted by default with weights_only https://pytorch.org/docs/stable/generated/torch.load.html.
""",
            prefixed=False,
        ),
        want=wanted(
            "exception",
            "checkpoint-unreadable",
            rank="any",
            node="any",
            forbid="damaged|torn|earlier checkpoint|half",
        ),
    ),
    Case(
        name="lightning-misconfiguration",
        source="https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/plugins/environments/slurm.py",
        nodes=2,
        gpus=4,
        others=raised(
            0,
            _MAIN
            + """    trainer = L.Trainer(devices=8, num_nodes=2, strategy="fsdp")
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/lightning/fabric/utilities/device_parser.py", line 129, in _check_unique
    raise MisconfigurationException(
lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3, 4, 5, 6, 7]
 But your machine only has: [0, 1, 2, 3]
""",
            prefixed=False,
        ),
        want=wanted("exception", "settings", rank="any", node="any"),
    ),
    Case(
        name="deepspeed-cuda-home",
        source="https://github.com/deepspeedai/DeepSpeed/blob/master/op_builder/builder.py",
        nodes=2,
        gpus=2,
        others=raised(
            0,
            """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 13, in <module>
    import deepspeed
  File "/opt/venv/lib/python3.11/site-packages/deepspeed/__init__.py", line 25, in <module>
    from . import ops
  File "/opt/venv/lib/python3.11/site-packages/deepspeed/ops/op_builder/builder.py", line 51, in installed_cuda_version
    raise MissingCUDAException("CUDA_HOME does not exist, unable to compile CUDA op(s)")
deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)
""",
            prefixed=False,
            before="[2026-11-22 00:30:21,118] [INFO] [real_accelerator.py:254:get_accelerator] Setting ds_accelerator to cuda (auto detect)\n",
        ),
        want=wanted("environment-missing", "import-error", "exception", rank="any", node="any"),
    ),
    Case(
        name="megatron-checkpoint-not-found",
        source="https://github.com/NVIDIA/Megatron-LM/issues/185",
        nodes=2,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                """Traceback (most recent call last):
  File "/home/ada/megatron/pretrain_gpt.py", line 310, in <module>
    pretrain(
  File "/home/ada/megatron/megatron/training/checkpointing.py", line 1021, in _load_base_checkpoint
    state_dict = torch.load(checkpoint_name, map_location="cpu")
                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
FileNotFoundError: [Errno 2] No such file or directory: '/scratch/ada/megatron/ckpt/iter_0006000/mp_rank_00/model_optim_rng.pt'
""",
                before=ADDRESS
                + " loading checkpoint from /scratch/ada/megatron/ckpt at iteration 6000\n",
                after_s=0.02 * (rank % 8),
            )
            for rank in range(16)
        },
        want=wanted("checkpoint-unreadable", "data-missing", rank="any", node="any"),
    ),
    Case(
        name="fsdp-uniform-dtype",
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/fsdp/_flat_param.py",
        nodes=1,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                _MAIN
                + """    model = FSDP(model, auto_wrap_policy=policy, device_id=local_rank)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/fsdp/_flat_param.py", line 808, in _validate_tensors_to_flatten
    raise ValueError(
ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32
""",
                record="ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
                after_s=0.01 * rank,
            )
            for rank in range(8)
        },
        want=wanted("exception", rank="any", node="node1", retry="crash"),
    ),
    Case(
        name="evaluation-hub-retried-then-real-error",
        source="made: a dashboard's refused connection that was retried, then an error of the program",
        nodes=4,
        gpus=2,
        ranks={
            6: raised(
                6,
                TOP
                + '  File "/home/ada/t5/train.py", line 94, in train_step\n    loss = criterion(logits.view(-1, vocab), labels.view(-1))\n'
                '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 3458, in cross_entropy\n    return torch._C._nn.cross_entropy_loss(\n'
                "ValueError: Expected input batch_size (4096) to match target batch_size (4088).\n",
                before=ADDRESS
                + "wandb: WARNING Retrying (Retry(total=2)) after connection broken by 'NewConnectionError: [Errno 111] Connection refused': /graphql\nwandb: Network error resolved after 0:00:21.118\n"
                + PROGRESS,
                after=WANDB_END,
            ),
            0: aborted(0, "10.99.7.4<50001>"),
        },
        others=QUIET,
        want=wanted(
            "exception", rank=6, node="node4", forbid="internet|refused|network", retry="crash"
        ),
    ),
    Case(
        name="hub-warning-then-oom-killed-by-nothing",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_utils.py",
        nodes=1,
        gpus=4,
        ranks={
            2: raised(
                2,
                _MAIN
                + """    model.to(device)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1329, in convert
    raise NotImplementedError(
NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() when moving module from meta to a different device.
""",
                before=FUTURE
                + "`low_cpu_mem_usage` was None, now default to True since model is quantized.\nIf you run out of memory, set `device_map='auto'`.\n"
                + SHARDS,
                after=RESOURCE_TRACKER,
            )
        },
        others=QUIET,
        want=wanted("exception", rank=2, node="node1", forbid="out of memory", retry="crash"),
    ),
]

CASES = on_record(
    CASES,
    "safetensors-header-cut-off",
    "wandb-run-initialisation-timed-out",
    "evaluation-hub-retried-then-real-error",
    "megatron-checkpoint-not-found",
)
