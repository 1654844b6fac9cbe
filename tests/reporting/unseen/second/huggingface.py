"""Failures of the Hugging Face libraries: the hub, datasets, tokenizers, accelerate, transformers."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/home/ada/.conda/envs/hf/lib/python3.11/site-packages"


def everywhere(size: int, err: str, status: int = 1) -> dict[int, Rank]:
    return {r: Rank(err=err, status=status, after_s=0.03 * r) for r in range(size)}


CASES = [
    Case(
        name="hub-is-out-of-reach",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/utils/hub.py",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            "'[Errno 101] Network is unreachable' thrown while requesting HEAD https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json\n"
            f'Traceback (most recent call last):\n  File "{SITE}/urllib3/connection.py", line 198, in _new_conn\n    sock = connection.create_connection(\nOSError: [Errno 101] Network is unreachable\n\n'
            "The above exception was the direct cause of the following exception:\n\n"
            f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 51, in <module>\n    model = AutoModelForCausalLM.from_pretrained(args.model)\n  File "{SITE}/transformers/utils/hub.py", line 543, in cached_files\n    raise OSError(\n'
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\nCheck your internet connection or see how to run the library in offline mode at 'https://huggingface.co/docs/transformers/installation#offline-mode'.\n",
        ),
        want=Want(
            frozenset({"no-internet"}),
            "no-internet",
            rank="any",
            node="any",
            forbid=r"NCCL (timeout|fail|cannot)|NCCL_|firewall between nodes",
        ),
    ),
    Case(
        name="hub-switched-off-and-not-cached",
        source="https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/file_download.py",
        nodes=1,
        gpus=8,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/sft/eval.py", line 17, in <module>\n    path = hf_hub_download("allenai/c4", "en/c4-train.00000-of-01024.json.gz", repo_type="dataset")\n  File "{SITE}/huggingface_hub/file_download.py", line 1674, in _raise_on_head_call_error\n    raise LocalEntryNotFoundError(\n'
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been disabled. To enable hf.co look-ups and downloads online, set 'local_files_only' to False.\n",
        ),
        want=Want(
            frozenset({"no-internet", "data-missing"}), "no-internet", rank="any", node="any"
        ),
    ),
    Case(
        name="hub-gate-without-a-key",
        source="https://huggingface.co/docs/hub/models-gated",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "{SITE}/huggingface_hub/utils/_http.py", line 409, in hf_raise_for_status\n    response.raise_for_status()\nrequests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json\n\n'
            "The above exception was the direct cause of the following exception:\n\n"
            f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 51, in <module>\n    config = AutoConfig.from_pretrained(args.model)\n  File "{SITE}/transformers/utils/hub.py", line 481, in cached_files\n    raise OSError(\n'
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.\n401 Client Error. (Request ID: Root=1-673a-1f2c)\n\nCannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.\nAccess to model meta-llama/Llama-3.1-8B is restricted. You must have access to it and be authenticated to access it. Please log in.\n",
        ),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"no internet|cannot reach|set a proxy|offline",
        ),
    ),
    Case(
        name="hub-knows-no-such-model",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/utils/hub.py",
        nodes=1,
        gpus=8,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 51, in <module>\n    tok = AutoTokenizer.from_pretrained("gpt2-xxl")\n  File "{SITE}/transformers/utils/hub.py", line 456, in cached_files\n    raise OSError(\n'
            "OSError: gpt2-xxl is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token having permission to this repo either by logging in with `hf auth login` or by passing `token=<your_token>`\n",
        ),
        want=Want(
            frozenset({"exception", "settings", "data-missing"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"no internet|cannot reach|set a proxy",
        ),
    ),
    Case(
        name="hub-asked-by-sixty-four-at-once",
        source="https://huggingface.co/docs/hub/rate-limits",
        nodes=8,
        gpus=8,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 40, in <module>\n    ds = load_dataset("HuggingFaceFW/fineweb", streaming=True)\n  File "{SITE}/huggingface_hub/utils/_http.py", line 482, in hf_raise_for_status\n    raise _format(HfHubHTTPError, str(e), response) from e\n'
                "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/datasets/HuggingFaceFW/fineweb/tree/main (Request ID: Root=1-6904)\n\nWe had to rate limit your IP. To continue using our service, create a HF account or login to your existing account.\n",
                status=1,
                after_s=0.01 * r,
            )
            for r in (11, 12, 13, 29, 40)
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"no internet|cannot reach|offline node|set a proxy",
        ),
    ),
    Case(
        name="hub-behind-a-proxy-that-says-no",
        source="https://github.com/psf/requests/blob/main/src/requests/adapters.py",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 33, in <module>\n    snapshot_download("google/t5-v1_1-xl")\n  File "{SITE}/requests/adapters.py", line 694, in send\n    raise ProxyError(e, request=request)\n'
            "requests.exceptions.ProxyError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/google/t5-v1_1-xl/revision/main (Caused by ProxyError('Unable to connect to proxy', OSError('Tunnel connection failed: 403 Forbidden')))\"), '(Request ID: 2b0f)')\n",
        ),
        want=Want(frozenset({"no-internet"}), "no-internet", rank="any", node="any"),
    ),
    Case(
        name="datasets-without-locks",
        source="https://github.com/huggingface/datasets/issues/2618",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/sft/prepare.py", line 12, in <module>\n    ds = load_dataset("json", data_files="/work/ada/all.jsonl")\n  File "{SITE}/datasets/builder.py", line 913, in download_and_prepare\n    with FileLock(lock_path) if is_local else contextlib.nullcontext():\n  File "{SITE}/filelock/_unix.py", line 43, in _acquire\n    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\nOSError: [Errno 37] No locks available\n',
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"storage"}),
            "storage",
            rank="any",
            node="any",
            forbid=r"disk is full|quota|out of memory",
        ),
    ),
    Case(
        name="datasets-cache-fills-the-home",
        source="https://github.com/huggingface/datasets/blob/main/src/datasets/builder.py",
        nodes=1,
        gpus=8,
        ranks={
            0: Rank(
                err="\rGenerating train split:  37%|███▋      | 1347281/3640000 [04:11<07:05, 5391.20 examples/s]\n"
                f'Traceback (most recent call last):\n  File "{SITE}/datasets/builder.py", line 1854, in _prepare_split_single\n    writer.write_table(table)\n  File "{SITE}/datasets/arrow_writer.py", line 626, in write_table\n    self.pa_writer.write_table(pa_table, writer_batch_size)\n  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status\nOSError: [Errno 122] Error writing bytes to file. Detail: [errno 122] Disk quota exceeded\n\n'
                "The above exception was the direct cause of the following exception:\n\n"
                f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 44, in <module>\n    ds = load_dataset("bigcode/the-stack", split="train")\n  File "{SITE}/datasets/builder.py", line 1897, in _prepare_split_single\n    raise DatasetGenerationError("An error occurred while generating the dataset") from e\n'
                "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank=0,
            node="node1",
            forbid=r"/dev/shm|\bcorrupt",
            retry="storage",
        ),
    ),
    Case(
        name="datasets-split-sizes",
        source="https://github.com/huggingface/datasets/blob/main/src/datasets/utils/info_utils.py",
        nodes=1,
        gpus=8,
        ranks={
            2: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 44, in <module>\n    ds = load_dataset("/data/wiki.py")\n  File "{SITE}/datasets/utils/info_utils.py", line 77, in verify_splits\n    raise NonMatchingSplitsSizesError(str(bad_splits))\n'
                "datasets.exceptions.NonMatchingSplitsSizesError: [{'expected': SplitInfo(name='train', num_bytes=1343129, num_examples=8551), 'recorded': SplitInfo(name='train', num_bytes=0, num_examples=0)}]\n",
                status=1,
            )
        },
        want=Want(frozenset({"exception", "data-missing"}), "exception", rank=2, node="node1"),
    ),
    Case(
        name="tokenizers-fork-warning-before-a-value-error",
        source="https://github.com/huggingface/tokenizers/blob/main/bindings/python/src/lib.rs",
        nodes=2,
        gpus=4,
        ranks={
            3: Rank(
                err="huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...\nTo disable this warning, you can either:\n\t- Avoid using `tokenizers` before the fork if possible\n\t- Explicitly set the environment variable TOKENIZERS_PARALLELISM=(true | false)\n"
                f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 102, in <module>\n    batch = tok.pad(rows, return_tensors="pt")\n  File "{SITE}/transformers/tokenization_utils_base.py", line 775, in convert_to_tensors\n    raise ValueError(\n'
                "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True' 'truncation=True' to have batched tensors with the same length. Perhaps your features (`labels` in this case) have excessive nesting (inputs type `list` where type `int` is expected).\n",
                status=1,
            )
        },
        others=Rank(
            err="huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...\n"
        ),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=3,
            node="node1",
            forbid=r"TOKENIZERS_PARALLELISM|deadlock|\bhang\b|\bhung\b",
            retry="crash",
        ),
    ),
    Case(
        name="attention-package-not-installed",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_utils.py",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 51, in <module>\n    model = AutoModelForCausalLM.from_pretrained(args.model, attn_implementation="flash_attention_2")\n  File "{SITE}/transformers/modeling_utils.py", line 2240, in _check_and_enable_flash_attn_2\n    raise ImportError(\n'
            "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed. Please refer to the documentation of https://huggingface.co/docs/transformers/perf_infer_gpu_one#flashattention-2 to install Flash Attention 2.\n",
        ),
        want=Want(
            frozenset({"import-error", "environment-missing"}),
            "import-error",
            rank="any",
            node="any",
        ),
    ),
    Case(
        name="architecture-too-new",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/models/auto/configuration_auto.py",
        nodes=1,
        gpus=8,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "{SITE}/transformers/models/auto/configuration_auto.py", line 1131, in from_pretrained\n    config_class = CONFIG_MAPPING[config_dict["model_type"]]\nKeyError: \'qwen3_moe\'\n\nDuring handling of the above exception, another exception occurred:\n\n'
            f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 48, in <module>\n    config = AutoConfig.from_pretrained(args.model)\n  File "{SITE}/transformers/models/auto/configuration_auto.py", line 1133, in from_pretrained\n    raise ValueError(\n'
            "ValueError: The checkpoint you are trying to load has model type `qwen3_moe` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint, or because your version of Transformers is out of date.\n\nYou can update Transformers with the command `pip install --upgrade transformers`.\n",
        ),
        want=Want(
            frozenset({"version-mismatch", "exception"}),
            "version-mismatch",
            rank="any",
            node="any",
            forbid=r"\btorn\b|half-written|delete the checkpoint",
        ),
    ),
    Case(
        name="accelerate-too-old",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/training_args.py",
        nodes=1,
        gpus=8,
        ranks=everywhere(
            8,
            f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 60, in <module>\n    args = TrainingArguments(output_dir="out", fsdp="full_shard auto_wrap")\n  File "{SITE}/transformers/training_args.py", line 2227, in _setup_devices\n    raise ImportError(\n'
            "ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=0.26.0`: Please run `pip install transformers[torch]` or `pip install 'accelerate>=0.26.0'`\n",
        ),
        want=Want(
            frozenset({"import-error", "version-mismatch"}), "import-error", rank="any", node="any"
        ),
    ),
    Case(
        name="accelerate-eight-bit-on-another-device",
        source="https://github.com/huggingface/accelerate/blob/main/src/accelerate/accelerator.py",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/sft/sft.py", line 83, in <module>\n    trainer.train()\n  File "{SITE}/accelerate/accelerator.py", line 1503, in prepare_model\n    raise ValueError(\n'
                "ValueError: You can't train a model that has been loaded in 8-bit or 4-bit precision on a different device than the one you're training on. Make sure you loaded the model on the correct device using for example `device_map={'':torch.cuda.current_device()}` or `device_map={'':torch.xpu.current_device()}`\n",
                status=1,
                record="ValueError: You can't train a model that has been loaded in 8-bit or 4-bit precision on a different device than the one you're training on.",
                callstack=f'Traceback (most recent call last):\n  File "{SITE}/accelerate/accelerator.py", line 1503, in prepare_model\n    raise ValueError(\n',
                after_s=0.04 * r,
            )
            for r in range(1, 8)
        },
        want=Want(frozenset({"exception", "settings"}), "exception", rank="any", node="any"),
    ),
    Case(
        name="transformers-cache-attribute-gone",
        source="https://github.com/Comfy-Org/ComfyUI/issues/9691",
        nodes=2,
        gpus=4,
        ranks=everywhere(
            8,
            'Traceback (most recent call last):\n  File "/home/ada/rl/train.py", line 71, in <module>\n    reply = model.generate(**batch, max_new_tokens=64)\n  File "/home/ada/.cache/huggingface/modules/transformers_modules/phi/modeling_phi.py", line 1292, in prepare_inputs_for_generation\n    past_length = past_key_values.seen_tokens\n'
            "AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'\n",
        ),
        want=Want(
            frozenset({"version-mismatch", "exception"}), "exception", rank="any", node="any"
        ),
    ),
]

CASES = finish(CASES)
