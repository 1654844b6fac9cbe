"""What to do about the training itself: its code, its settings, its numbers."""

from __future__ import annotations

from fsdpkit.failures.advice.entry import Advice

_CODE = ("exception", "settings", "collective-mismatch")

ENTRIES = (
    Advice(
        "The ranks built different models",
        (
            "The ranks built different models, or went through them in another order: look for "
            "what depends on the rank, on a file that only some see, or on a random seed.",
        ),
        ("across ranks", "across all ranks", "same model across", "param in process"),
        causes=("collective-mismatch",),
    ),
    Advice(
        "FSDP flattens parameters of which some are frozen",
        (
            "Parameters that are frozen and others are flattened together: use_orig_params=True, "
            "FSDP2 (fully_shard), or wrap the frozen ones by themselves.",
        ),
        ("uniform `requires_grad`", "uniform requires_grad"),
    ),
    Advice(
        "DDP hears of a parameter twice",
        (
            "A parameter is used twice in one backward pass, most often with activation "
            "checkpointing: use_reentrant=False, static_graph=True, or no shared parameters; "
            "find_unused_parameters=True does not go with it.",
        ),
        ("mark a variable ready only once", "marked as ready twice"),
    ),
    Advice(
        "DDP misses gradients",
        (
            "Some parameters took no part in the loss: find_unused_parameters=True, or leave "
            "them out of the model or of the backward pass on no rank alone. "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL names them.",
        ),
        ("expected to have finished reduction in the prior iteration",),
    ),
    Advice(
        "Samples of different length stand in a batch",
        (
            "The samples of a batch have different lengths: pad and truncate in the collator "
            "(padding=True, truncation=True, max_length), and look at the sample that has no or "
            "nested values.",
        ),
        ("unable to create tensor, you should", "stack expects each tensor to be equal size"),
    ),
    Advice(
        "A sample is longer than what it meets",
        (
            "Two lengths differ, which most often one sample of the data brings: look for one "
            "that was not cut or padded to the model's length ({place}), on that rank's data.",
            "[else] Two lengths differ, which most often one sample of the data brings: look for "
            "one that was not cut or padded to the model's length, in that rank's data.",
        ),
        ("must match the size of tensor b", "sequence length is longer than"),
        scopes=("rank",),
    ),
    Advice(
        "An operation got another data type",
        (
            "Two operands have different types, often of a model in bfloat16 and values made in "
            "float32: cast one (.to(x.dtype)), or compute within torch.autocast.",
        ),
        (
            *("expected dtype…got dtype", "must have the same dtype", "expected scalar type"),
            *("only support fp16 and bf16", "only supports fp16 and bf16"),
        ),
    ),
    Advice(
        "Tensors are on different devices",
        (
            "One of the tensors was not moved: batch and model belong on the rank's own GPU, "
            "which torch.cuda.set_device(LOCAL_RANK) chooses.",
        ),
        ("expected all tensors to be on the same device",),
    ),
    Advice(
        "WebDataset does not split its shards",
        (
            "Let WebDataset give each node and worker its shards: "
            "nodesplitter=wds.split_by_node (or resampled=True), and wds.split_by_worker.",
        ),
        ("reconfigured for multinode",),
    ),
    Advice(
        "A process was forked after CUDA had started",
        (
            "CUDA does not survive fork(): multiprocessing_context='spawn' for the DataLoader, or "
            "nothing of CUDA before and in the workers.",
        ),
        ("re-initialize cuda in forked subprocess",),
    ),
    Advice(
        "What is sent to a worker cannot be pickled",
        (
            "What goes to another process must be importable: a function at the top of a file "
            "in place of a lambda or a local one, and no open file, lock or generator in it.",
        ),
        ("can't pickle", "cannot pickle", "can't get local object"),
    ),
    Advice(
        "The batch size of DeepSpeed does not fit the ranks",
        (
            "train_batch_size is micro batch times accumulation times ranks: with another number "
            'of ranks leave one of the three out ("auto" in transformers).',
        ),
        ("train_batch_size is not equal",),
    ),
    Advice(
        "An embedding has no such row",
        (
            "A token, position or label is not below the size of its table: compare the "
            "tokenizer's size with the model's (resize_token_embeddings) and lengths with the "
            "number of positions.",
        ),
        ("index out of range in self",),
    ),
    Advice(
        "Nothing in the loss wants gradients",
        (
            "No parameter is trained, or checkpointing cuts the graph where the first layers are "
            "frozen: model.enable_input_require_grads(), or use_reentrant=False.",
        ),
        ("does not require grad and does not have a grad_fn",),
    ),
    Advice(
        "A model in float16 meets a gradient scaler",
        (
            "The scaler wants float32 weights: load the model in float32 and let autocast "
            "compute in float16, or use bfloat16 without a scaler.",
        ),
        ("unscale fp16 gradients",),
    ),
    Advice(
        "A tokenizer cannot pad",
        ("Give it a token to pad with: tokenizer.pad_token = tokenizer.eos_token.",),
        ("does not have a padding token",),
    ),
    Advice(
        "Tied weights are saved twice",
        (
            "Weights that share memory do not go into safetensors as they are: "
            "safetensors.torch.save_model, or safe_serialization=False.",
        ),
        ("tensors share memory",),
    ),
    Advice(
        "Lightning takes the job for one whose ranks Slurm starts",
        (
            "Let Lightning follow torchrun, which starts the ranks here: "
            'Trainer(plugins=[TorchElasticEnvironment()]), devices="auto" and num_nodes as in '
            "the job.",
        ),
        ("in your slurm bash script", "tasks per node configured in slurm"),
    ),
    Advice(
        "A value of Hydra's configuration is missing",
        ("Give it a value: `KEY=VALUE` among the arguments, or in the configuration file.",),
        ("missing mandatory value", "mandatoryvalue"),
    ),
    Advice(
        "Hydra does not know a key",
        (
            "The configuration has no such key: correct its name, or add it with a `+` in front "
            "(+KEY=VALUE).",
        ),
        ("is not in struct", "could not override", "key is not in struct"),
    ),
    Advice(
        "Hydra does not find its configuration",
        (
            "Hydra does not find its configuration: config_path is meant from the script's own "
            "directory; give a whole path with --config-dir, or submit from where it lies.",
        ),
        ("primary config directory", "primary config module", "cannot find primary config"),
        around=True,
        causes=("settings", "exception", "data-missing"),
    ),
    Advice(
        "A watched process points to an earlier line",
        (
            "What it points to: `{earlier}`",
            "[else] The words that say why stand above: fsdpkit logs {run} --errors",
        ),
        ("not the actual error", "look further up", "see above for", "see error above"),
    ),
    Advice(
        "A line of the script did not hold",
        ("What did not hold: `{source}`",),
        ("assertionerror",),
        causes=("exception",),
    ),
    Advice(
        "A traceback is cut off",
        (
            "The exception itself was not written: see whether the file system is full, and what "
            "the other ranks say: fsdpkit logs {run} --errors",
        ),
        ("its log ends within a traceback",),
    ),
    Advice(
        "The loss is not a number",
        (
            "[trainer] Lower training.optimizer.lr, look at the data of that step, or skip such "
            "steps ({set:training.non_finite=skip}).",
            "[script] Lower the learning rate, clip the gradients "
            "(torch.nn.utils.clip_grad_norm_), or look at the data of that step.",
        ),
        causes=("nan-loss",),
    ),
    Advice(
        "Arguments or settings are refused",
        (
            "[trainer] Correct it where the job has it (args, [training]), and submit again.",
            "[script] Correct it where the job has it (args), and submit again.",
        ),
        causes=("settings",),
    ),
    Advice(
        "The ranks trained each by themselves",
        (
            "Let the script take rank, size and address from the variables that torchrun sets: "
            "init_process_group() without them; in Lightning, devices and num_nodes of the job, "
            'or devices="auto". For a script that starts its own workers: '
            "one rank a node ({set:launch.ranks_per_node=1}).",
            "[else] Let the script take rank, size and address from the variables that torchrun "
            "sets: init_process_group() without them.",
        ),
        causes=("wrong-world",),
    ),
    Advice(
        "An exception",
        ("All that it printed: fsdpkit logs {run} --errors",),
        causes=("exception", "settings", "unknown"),
        scopes=("rank", "node", "all", "only-node"),
    ),
)
