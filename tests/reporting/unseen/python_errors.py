"""Programs that fail by themselves, in the ways that Python and its libraries tell of it."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    CALL,
    FUTURE,
    LOADER,
    LOADER_DEL,
    NOT_DESTROYED,
    PROGRESS,
    QUIET,
    RESOURCE_TRACKER,
    STEPS,
    TOP,
    WANDB_END,
    WORKER,
    aborted,
    closed,
    on_record,
    raised,
)

CASES = [
    Case(
        name="loader-worker-key-error",
        source="https://github.com/pytorch/pytorch/blob/main/torch/_utils.py (ExceptionWrapper)",
        nodes=2,
        gpus=4,
        ranks={
            2: raised(
                2,
                TOP
                + LOADER
                + "KeyError: Caught KeyError in DataLoader worker process 3.\n"
                + WORKER
                + '  File "/home/ada/t5/corpus.py", line 71, in __getitem__\n    return self.encode(row["abstract"])\n                       ~~~^^^^^^^^^^^^\nKeyError: \'abstract\'\n',
                after=LOADER_DEL * 3 + RESOURCE_TRACKER + NOT_DESTROYED.format(rank=2),
            ),
        },
        others=QUIET,
        want=wanted("exception", rank=2, node="node1", forbid="can only join", retry="crash"),
    ),
    Case(
        name="loader-worker-file-not-found",
        source="https://github.com/open-mmlab/mmcv/issues/2894",
        nodes=4,
        gpus=2,
        ranks={
            5: raised(
                5,
                TOP
                + LOADER
                + "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 2.\n"
                + WORKER
                + '  File "/home/ada/t5/images.py", line 40, in __getitem__\n    image = Image.open(self.root / name)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n'
                '  File "/opt/venv/lib/python3.11/site-packages/PIL/Image.py", line 3469, in open\n    fp = builtins.open(filename, "rb")\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n'
                "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/ada/imagenet/train/n01440764/n01440764_10026.JPEG'\n",
                after=LOADER_DEL + WANDB_END,
            ),
        },
        others=QUIET,
        want=wanted("data-missing", rank=5, node="node3"),
    ),
    Case(
        name="exception-group-of-tasks",
        source="https://docs.python.org/3/library/exceptions.html#exception-groups",
        nodes=1,
        gpus=4,
        ranks={
            3: raised(
                3,
                """  + Exception Group Traceback (most recent call last):
  |   File "/home/ada/t5/train.py", line 241, in <module>
  |     asyncio.run(main())
  |   File "/opt/venv/lib/python3.11/asyncio/runners.py", line 190, in run
  |     return runner.run(main)
  |            ^^^^^^^^^^^^^^^^
  |   File "/home/ada/t5/prefetch.py", line 52, in fill
  |     async with asyncio.TaskGroup() as group:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/ada/t5/prefetch.py", line 66, in decode
    |     values = struct.unpack_from("<4096H", buffer, offset)
    |              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    | struct.error: unpack_from requires a buffer of at least 8200 bytes for unpacking 8192 bytes at offset 8 (actual buffer size is 4104)
    +------------------------------------
""",
                prefixed=False,
            )
        },
        others=QUIET,
        want=wanted("exception", rank=3, node="node1", retry="crash"),
    ),
    Case(
        name="multi-line-message-of-state-dict",
        source="https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py (load_state_dict)",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 162, in main
    model.load_state_dict(torch.load(args.init, map_location="cpu"))
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 2593, in load_state_dict
    raise RuntimeError(
RuntimeError: Error(s) in loading state_dict for T5:
\tMissing key(s) in state_dict: "decoder.block.11.layer.2.DenseReluDense.wi_1.weight".
\tUnexpected key(s) in state_dict: "decoder.block.11.layer.2.DenseReluDense.wi.weight".
\tsize mismatch for shared.weight: copying a param with shape torch.Size([32128, 768]) from checkpoint, the shape in current model is torch.Size([32100, 768]).
""",
                after_s=0.01 * rank,
            )
            for rank in range(4)
        },
        want=wanted(
            "exception",
            "checkpoint-unreadable",
            "settings",
            rank="any",
            node="any",
            forbid="torn|half-written|damaged",
        ),
    ),
    Case(
        name="chain-direct-cause-is-the-cause",
        source="https://docs.python.org/3/library/exceptions.html#exception-context",
        nodes=2,
        gpus=4,
        ranks={
            1: raised(
                1,
                """Traceback (most recent call last):
  File "/home/ada/t5/store.py", line 31, in read
    return self.file.read(size)
           ^^^^^^^^^^^^^^^^^^^^
OSError: [Errno 5] Input/output error

The above exception was the direct cause of the following exception:

"""
                + TOP.replace(
                    "loss = train_step(model, batch)\n           ^^^^^^^^^^^^^^^^^^^^^^^^",
                    "batch = next(batches)\n            ^^^^^^^^^^^^^",
                )
                + '  File "/home/ada/t5/store.py", line 34, in read\n    raise ShardError(f"shard {self.number} of {self.name} cannot be read") from error\n'
                "store.ShardError: shard 118 of c4-en cannot be read\n",
                record="ShardError: shard 118 of c4-en cannot be read",
            )
        },
        others=QUIET,
        want=wanted("storage", rank=1, node="node1"),
    ),
    Case(
        name="nan-loss-raised",
        source="https://lightning.ai/docs/pytorch/stable (detect_nan_parameters)",
        nodes=1,
        gpus=8,
        ranks={
            rank: raised(
                rank,
                TOP
                + '  File "/opt/venv/lib/python3.11/site-packages/lightning/pytorch/utilities/finite_checks.py", line 38, in detect_nan_parameters\n    raise ValueError(\n'
                "ValueError: Detected nan and/or inf values in `decoder.final_layer_norm.weight`. Check your forward pass for numerically unstable operations.\n",
                before=ADDRESS + PROGRESS,
                after_s=0.01 * rank,
            )
            for rank in range(8)
        },
        want=wanted("nan-loss", "exception", rank="any", node="node1"),
    ),
    Case(
        name="nan-in-eval-is-innocent",
        source="made: a warning that names another failure",
        nodes=1,
        gpus=2,
        ranks={
            0: Rank(
                err=ADDRESS
                + "/opt/venv/lib/python3.11/site-packages/numpy/_core/fromnumeric.py:3596: RuntimeWarning: Mean of empty slice.\n  return _methods._mean(a, axis=axis, dtype=dtype,\n",
                out=STEPS
                + "eval split 'dev-empty': 0 samples, eval loss nan\neval split 'dev': 812 samples, eval loss 2.0113\n",
            ),
            1: raised(
                1,
                TOP
                + '  File "/home/ada/t5/train.py", line 211, in train_step\n    writer.add_scalar("eval/" + split, float(value), step)\nTypeError: can only concatenate str (not "NoneType") to str\n',
                before=ADDRESS + "eval loss nan for empty split 'dev-empty', ignored\n",
            ),
        },
        want=wanted("exception", rank=1, node="node1", forbid="nan|learning rate", retry="crash"),
    ),
    Case(
        name="ddp-unused-parameters",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                TOP
                + CALL
                + "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by \n"
                "making sure all `forward` function outputs participate in calculating loss. \n"
                "If you already have done the above, then the distributed data parallel module wasn't able to locate the output tensors in the return value of your module's `forward` function. Please include the loss function and the structure of the return value of `forward` of your module when reporting this issue (e.g. list, dict, iterable).\n"
                f"Parameter indices which did not receive grad for rank {rank}: 46 47\n"
                " In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print out information about which particular parameters did not receive gradient on this rank as part of this error\n",
                record="RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
                if rank == 0
                else None,
                after_s=0.02 * rank,
            )
            for rank in range(4)
        },
        want=wanted("exception", rank="any", node="any", retry="crash", forbid="mismatch"),
    ),
    Case(
        name="tensors-on-two-devices",
        source="https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/TensorIterator.cpp",
        nodes=1,
        gpus=1,
        ranks={
            0: raised(
                0,
                TOP
                + CALL
                + '  File "/home/ada/t5/model.py", line 51, in forward\n    hidden = hidden + self.position(ids)\n             ~~~~~~~^~~~~~~~~~~~~~~~~~~~\n'
                "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!\n",
                prefixed=False,
                before=FUTURE,
                out=STEPS,
            )
        },
        want=wanted("exception", rank=0, node="node1", retry="crash"),
    ),
    Case(
        name="too-many-open-files",
        source="strerror(3); https://github.com/pytorch/pytorch/issues/973",
        nodes=1,
        gpus=4,
        ranks={
            2: raised(
                2,
                TOP
                + '  File "/opt/venv/lib/python3.11/site-packages/torch/multiprocessing/reductions.py", line 541, in rebuild_storage_fd\n    fd = df.detach()\n         ^^^^^^^^^^^\n'
                '  File "/opt/venv/lib/python3.11/multiprocessing/resource_sharer.py", line 86, in get_connection\n    c = Client(address, authkey=process.current_process().authkey)\n'
                "OSError: [Errno 24] Too many open files\n",
            )
        },
        others=QUIET,
        want=wanted(
            "exception", "settings", rank=2, node="node1", forbid="disk|storage|quota|administrat"
        ),
    ),
    Case(
        name="ancdata",
        source="https://github.com/pytorch/pytorch/issues/973",
        nodes=1,
        gpus=2,
        ranks={
            1: raised(
                1,
                TOP
                + "  File \"/opt/venv/lib/python3.11/multiprocessing/reduction.py\", line 164, in recvfds\n    raise RuntimeError('received %d items of ancdata' %\nRuntimeError: received 0 items of ancdata\n",
                after=LOADER_DEL,
                prefixed=False,
            )
        },
        others=QUIET,
        want=wanted("exception", rank=1, node="node1", forbid="can only join", retry="crash"),
    ),
    Case(
        name="pthread-create-failed-of-openblas",
        source="https://github.com/MIC-DKFZ/nnUNet/issues/1343",
        nodes=1,
        gpus=8,
        ranks={
            rank: Rank(
                err="".join(
                    f"OpenBLAS blas_thread_init: pthread_create failed for thread {i} of 64: Resource temporarily unavailable\nOpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 513046 max\n"
                    for i in range(50, 64)
                )
                + """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 3, in <module>
    import numpy as np
  File "/opt/venv/lib/python3.11/site-packages/numpy/__init__.py", line 114, in <module>
    from . import core
  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed
KeyboardInterrupt
""",
                status=1,
                after_s=0.01 * (rank - 3),
            )
            for rank in (3, 5)
        },
        others=QUIET,
        want=wanted(
            "exception", "settings", "host-out-of-memory", "import-error", rank="any", node="node1"
        ),
    ),
    Case(
        name="argparse-of-plain-script",
        source="https://docs.python.org/3/library/argparse.html#exiting-methods",
        nodes=2,
        gpus=4,
        others=Rank(
            err="usage: train.py [-h] [--data DATA] [--steps STEPS] [--lr LR] [--batch-size BATCH_SIZE]\ntrain.py: error: unrecognized arguments: --learning-rate 3e-4\n",
            status=2,
        ),
        want=wanted("settings", rank="any", node="any", retry="settings"),
    ),
    Case(
        name="hydra-override",
        source="https://hydra.cc/docs/advanced/override_grammar/basic/",
        nodes=2,
        gpus=2,
        others=Rank(
            err="""Could not override 'optim.betas2'.
To append to your config use +optim.betas2=0.95
Key 'betas2' is not in struct
    full_key: optim.betas2
    object_type=dict

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
""",
            status=1,
        ),
        want=wanted("settings", "exception", rank="any", node="any"),
    ),
    Case(
        name="hf-argument-parser",
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/hf_argparser.py",
        nodes=1,
        gpus=4,
        others=Rank(
            err="""Traceback (most recent call last):
  File "/home/ada/t5/run_clm.py", line 703, in <module>
    main()
  File "/home/ada/t5/run_clm.py", line 263, in main
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
  File "/opt/venv/lib/python3.11/site-packages/transformers/hf_argparser.py", line 352, in parse_args_into_dataclasses
    raise ValueError(f"Some specified arguments are not used by the HfArgumentParser: {remaining_args}")
ValueError: Some specified arguments are not used by the HfArgumentParser: ['--fsdp_min_params', '2000']
""",
            status=1,
        ),
        want=wanted("settings", "exception", rank="any", node="any"),
    ),
    Case(
        name="missing-environment-variable",
        source="https://docs.python.org/3/library/os.html#os.environ",
        nodes=1,
        gpus=2,
        others=Rank(
            err="""Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 112, in main
    root = Path(os.environ["DATA_ROOT"])
                ~~~~~~~~~~^^^^^^^^^^^^^
  File "<frozen os>", line 679, in __getitem__
KeyError: 'DATA_ROOT'
""",
            status=1,
        ),
        want=wanted("exception", "settings", "environment-missing", rank="any", node="any"),
    ),
    Case(
        name="module-not-found-on-one-node",
        source="https://docs.python.org/3/library/exceptions.html#ModuleNotFoundError",
        nodes=4,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 14, in <module>
    import sentencepiece as spm
ModuleNotFoundError: No module named 'sentencepiece'
""",
                prefixed=False,
                before="",
            )
            for rank in (6, 7)
        },
        others=QUIET,
        want=wanted("import-error", rank="any", node="node4"),
    ),
    Case(
        name="optional-import-warning-then-type-error",
        source="made: a handled ImportError printed whole, then an error of the program",
        nodes=2,
        gpus=4,
        ranks={
            3: raised(
                3,
                TOP
                + '  File "/home/ada/t5/train.py", line 95, in train_step\n    return scaler.scale(loss).item(detach=True)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nTypeError: Tensor.item() takes no keyword arguments\n',
                before="""Could not load fused kernels, going on without them:
Traceback (most recent call last):
  File "/home/ada/t5/fused/__init__.py", line 8, in <module>
    import apex
ModuleNotFoundError: No module named 'apex'
"""
                + ADDRESS
                + PROGRESS,
            ),
            **{rank: aborted(rank, "10.99.7.1<41222>") for rank in range(4, 8)},
        },
        others=Rank(
            err="Could not load fused kernels, going on without them:\nTraceback (most recent call last):\n  File \"/home/ada/t5/fused/__init__.py\", line 8, in <module>\n    import apex\nModuleNotFoundError: No module named 'apex'\n"
        ),
        want=wanted("exception", rank=3, node="node1", forbid="import|module|apex", retry="crash"),
    ),
    Case(
        name="glibc-too-old",
        source="https://man7.org/linux/man-pages/man8/ld.so.8.html",
        nodes=2,
        gpus=2,
        ranks={
            rank: raised(
                rank,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 11, in <module>
    import tokenizers
  File "/opt/venv/lib/python3.11/site-packages/tokenizers/__init__.py", line 78, in <module>
    from .tokenizers import (
ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /opt/venv/lib/python3.11/site-packages/tokenizers/tokenizers.abi3.so)
""",
                prefixed=False,
                before="",
            )
            for rank in range(4)
        },
        want=wanted("import-error", "version-mismatch", rank="any", node="any"),
    ),
    Case(
        name="numpy-abi",
        source="https://numpy.org/doc/stable/user/troubleshooting-importerror.html",
        nodes=1,
        gpus=2,
        others=Rank(
            err="""Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 8, in <module>
    import pandas as pd
  File "/opt/venv/lib/python3.11/site-packages/pandas/_libs/__init__.py", line 18, in <module>
    from pandas._libs.interval import Interval
  File "interval.pyx", line 1, in init pandas._libs.interval
ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject
""",
            status=1,
        ),
        want=wanted("import-error", "version-mismatch", rank="any", node="any"),
    ),
    Case(
        name="script-not-there-on-a-node",
        source="https://github.com/python/cpython/blob/main/Modules/main.c (pymain_run_file)",
        nodes=2,
        gpus=2,
        ranks={
            rank: Rank(
                err="/opt/venv/bin/python: can't open file '/local/ada/t5/train.py': [Errno 2] No such file or directory\n",
                status=2,
            )
            for rank in (2, 3)
        },
        others=QUIET,
        want=wanted("script-not-visible", rank="any", node="node2"),
    ),
    Case(
        name="json-decode-error-in-a-sample",
        source="https://docs.python.org/3/library/json.html#json.JSONDecodeError",
        nodes=8,
        gpus=8,
        ranks={
            50: raised(
                50,
                TOP
                + LOADER
                + "json.decoder.JSONDecodeError: Caught JSONDecodeError in DataLoader worker process 0.\n"
                + WORKER
                + '  File "/home/ada/t5/corpus.py", line 33, in __getitem__\n    return json.loads(self.lines[index])\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n'
                '  File "/opt/venv/lib/python3.11/json/decoder.py", line 340, in decode\n    raise JSONDecodeError("Extra data", s, end)\n'
                "json.decoder.JSONDecodeError: Extra data: line 1 column 4097 (char 4096)\n",
            ),
            **{rank: aborted(rank, "10.99.7.7<40001>", 2.0) for rank in (0, 8, 16)},
        },
        others=QUIET,
        want=wanted("exception", rank=50, node="node7", retry="crash"),
    ),
    Case(
        name="decisive-line-forty-lines-above-noise",
        source="https://docs.python.org/3/reference/datamodel.html#object.__del__",
        nodes=1,
        gpus=4,
        ranks={
            1: raised(
                1,
                TOP
                + '  File "/home/ada/t5/train.py", line 99, in train_step\n    optimizer.param_groups[2]["lr"] = lr\n    ~~~~~~~~~~~~~~~~~~~~~~^^^\nIndexError: list index out of range\n',
                after=LOADER_DEL
                * 8
                + 'Exception ignored in: <function Pool.__del__ at 0x7f2e7b0>\nTraceback (most recent call last):\n  File "/opt/venv/lib/python3.11/multiprocessing/pool.py", line 271, in __del__\n    self._change_notifier.put(None)\nOSError: [Errno 9] Bad file descriptor\n'
                'Error in sys.excepthook:\nTraceback (most recent call last):\n  File "/opt/venv/lib/python3.11/site-packages/wandb/sdk/lib/exit_hooks.py", line 52, in exc_handler\n    traceback.print_exception(exc_type, exc, tb)\nBrokenPipeError: [Errno 32] Broken pipe\n'
                + RESOURCE_TRACKER
                + WANDB_END,
            )
        },
        others=QUIET,
        want=wanted(
            "exception",
            rank=1,
            node="node1",
            forbid="[Bb]roken pipe|file descriptor",
            retry="crash",
        ),
    ),
    Case(
        name="traceback-on-stdout-only",
        source="https://docs.python.org/3/library/traceback.html (print_exc(file=sys.stdout))",
        nodes=2,
        gpus=2,
        ranks={
            2: Rank(
                err=ADDRESS,
                out=STEPS
                + "worker failed, leaving:\n"
                + TOP
                + '  File "/home/ada/t5/train.py", line 92, in train_step\n    logits = logits.float().reshape(batch, -1)\nRuntimeError: shape mismatch: value tensor of shape [8, 512] cannot be broadcast to indexing result of shape [8, 511]\n',
                status=1,
            ),
            0: closed(0, 0.4),
        },
        others=QUIET,
        want=wanted("exception", rank=2, node="node2", retry="crash"),
    ),
    Case(
        name="sys-exit-with-words",
        source="https://docs.python.org/3/library/sys.html#sys.exit",
        nodes=1,
        gpus=2,
        ranks={
            1: Rank(
                err=ADDRESS + "tokens per sample must divide 4096, not 1000\n", out=STEPS, status=1
            )
        },
        others=QUIET,
        want=wanted("exception", "settings", "unknown", rank=1, node="node1"),
    ),
    Case(
        name="silent-exit-status-3",
        source="exit(3)",
        nodes=2,
        gpus=2,
        ranks={3: Rank(err=ADDRESS, out=STEPS, status=3)},
        others=QUIET,
        want=wanted("unknown", "exception", rank=3, node="node2", forbid="memory|network|storage"),
    ),
    Case(
        name="recursion-in-deepcopy",
        source="https://docs.python.org/3/library/exceptions.html#RecursionError",
        nodes=1,
        gpus=1,
        ranks={
            0: raised(
                0,
                TOP
                + '  File "/opt/venv/lib/python3.11/copy.py", line 146, in deepcopy\n    y = copier(x, memo)\n        ^^^^^^^^^^^^^^^\n'
                * 3
                + "  [Previous line repeated 973 more times]\nRecursionError: maximum recursion depth exceeded while calling a Python object\n",
                record="RecursionError: maximum recursion depth exceeded while calling a Python object",
            )
        },
        want=wanted("exception", rank=0, node="node1", retry="crash"),
    ),
]

CASES = on_record(
    CASES,
    "loader-worker-key-error",
    "multi-line-message-of-state-dict",
    "nan-loss-raised",
    "ddp-unused-parameters",
    "json-decode-error-in-a-sample",
    "decisive-line-forty-lines-above-noise",
)
