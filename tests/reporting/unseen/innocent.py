"""Words that name a failure which was none, beside the failure that was one."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    FUTURE,
    LOADER_DEL,
    PROGRESS,
    QUIET,
    STEPS,
    TOP,
    WANDB_END,
    aborted,
    closed,
    on_record,
    raised,
    watchdog,
)

CASES = [
    Case(
        name="column-called-xid",
        source="made: data that carry the word Xid (X-ray identifiers)",
        nodes=2,
        gpus=4,
        ranks={
            5: raised(
                5,
                TOP
                + '  File "/home/ada/xray/frame.py", line 40, in train_step\n    return frame["Xid"].map(labels)\n           ~~~~~^^^^^^^\nKeyError: \'Xid\'\n',
                record="KeyError: 'Xid'",
            )
        },
        others=QUIET,
        want=wanted(
            "exception", rank=5, node="node2", forbid="GPU|broken|node out|exclude", retry="crash"
        ),
    ),
    Case(
        name="key-error-of-oxide",
        source="made: a word that has xid in its middle",
        nodes=1,
        gpus=4,
        ranks={
            2: raised(
                2,
                TOP
                + "  File \"/home/ada/materials/features.py\", line 21, in train_step\n    return self.radius[name]\n           ~~~~~~~~~~~^^^^^^\nKeyError: 'oxide'\n",
                record="KeyError: 'oxide'",
            )
        },
        others=QUIET,
        want=wanted("exception", rank=2, node="node1", forbid="GPU|broken", retry="crash"),
    ),
    Case(
        name="training-on-logs-of-clusters",
        source="made: samples of a corpus of cluster logs, printed before an error of the program",
        nodes=2,
        gpus=2,
        ranks={
            0: Rank(
                err=ADDRESS,
                out='sample 0: "slurmstepd: error: Detected 1 oom_kill event in StepId=99.0."\nsample 1: "RuntimeError: CUDA error: uncorrectable ECC error encountered"\nsample 2: "OSError: [Errno 28] No space left on device"\n'
                + STEPS,
            ),
            3: raised(
                3,
                TOP
                + '  File "/home/ada/logs/train.py", line 93, in train_step\n    assert ids.max() < vocab, (ids.max(), vocab)\n           ^^^^^^^^^^^^^^^^^\nAssertionError: (tensor(50304), 50257)\n',
                out='sample 0: "NCCL WARN NET/IB : Got completion with status=12"\nsample 1: "CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT"\n',
            ),
        },
        others=QUIET,
        want=wanted(
            "exception",
            rank=3,
            node="node2",
            forbid="oom|ECC|space|time limit|memory",
            retry="crash",
        ),
    ),
    Case(
        name="retried-port-then-value-error",
        source="made: a port in use that was tried again",
        nodes=1,
        gpus=2,
        ranks={
            1: raised(
                1,
                TOP + "ValueError: optimizer got an empty parameter list\n",
                before=ADDRESS
                + "[I1122] port 29500 in use (EADDRINUSE), retrying with 29501\n[I1122] listening on 29501\n",
            )
        },
        others=QUIET,
        want=wanted("exception", rank=1, node="node1", forbid="port", retry="crash"),
    ),
    Case(
        name="checkpoint-fallback-then-type-error",
        source="made: a damaged checkpoint that was skipped",
        nodes=2,
        gpus=4,
        ranks={
            4: raised(
                4,
                TOP
                + "  File \"/home/ada/t5/train.py\", line 77, in train_step\n    return schedule(step, warmup=args.warmup)\nTypeError: cosine() got an unexpected keyword argument 'warmup'\n",
                before=ADDRESS
                + "resume: step-400 cannot be read (PytorchStreamReader failed reading zip archive: failed finding central directory), trying step-300\nresume: step-300 ok\n"
                + PROGRESS,
            ),
            0: closed(0, 0.3),
        },
        others=QUIET,
        want=wanted("exception", rank=4, node="node2", forbid="checkpoint|archive", retry="crash"),
    ),
    Case(
        name="keyboard-interrupt-handled-eviction",
        source="https://docs.python.org/3/library/exceptions.html#KeyboardInterrupt",
        nodes=1,
        gpus=4,
        ranks={
            3: raised(
                3,
                """Traceback (most recent call last):
  File "/home/ada/t5/train.py", line 241, in <module>
    main()
  File "/home/ada/t5/train.py", line 190, in main
    time.sleep(args.pause)
KeyboardInterrupt
""",
                prefixed=False,
                out=STEPS,
            )
        },
        others=QUIET,
        want=wanted("exception", "cancelled", "unknown", rank="any", node="node1"),
    ),
    Case(
        name="caught-oom-everywhere-then-one-assertion",
        source="https://pytorch.org/docs/stable/notes/faq.html (out of memory in an except clause)",
        nodes=4,
        gpus=2,
        ranks={
            3: raised(
                3,
                TOP
                + '  File "/home/ada/t5/train.py", line 130, in train_step\n    assert lengths.min() > 0, "an empty row"\n           ^^^^^^^^^^^^^^^^^\nAssertionError: an empty row\n',
                before=ADDRESS
                + 'skipping a batch of 9211 tokens:\nTraceback (most recent call last):\n  File "/home/ada/t5/train.py", line 101, in train_step\n    loss.backward()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.02 GiB is free.\n'
                + PROGRESS * 3,
                after=WANDB_END,
            ),
            0: aborted(0, "10.99.7.2<41999>"),
        },
        others=Rank(
            err=ADDRESS
            + 'skipping a batch of 9100 tokens:\nTraceback (most recent call last):\n  File "/home/ada/t5/train.py", line 101, in train_step\n    loss.backward()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.11 GiB is free.\n'
            + PROGRESS
        ),
        want=wanted("exception", rank=3, node="node2", forbid="memory|batch_size", retry="crash"),
    ),
    Case(
        name="warnings-of-nccl-then-plain-error",
        source="https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib.cc (async event)",
        nodes=2,
        gpus=2,
        ranks={
            2: raised(
                2,
                TOP + "ZeroDivisionError: float division by zero\n",
                before=ADDRESS
                + "gpu02:4100:4311 [0] transport/net_ib.cc:206 NCCL WARN NET/IB : mlx5_0:1 Got async event : GID table change\ngpu02:4100:4311 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.\n",
            )
        },
        others=QUIET,
        want=wanted(
            "exception", rank=2, node="node2", forbid="NCCL|network|InfiniBand", retry="crash"
        ),
    ),
    Case(
        name="old-watchdog-words-in-a-resumed-log",
        source="made: a program that prints the end of its previous log",
        nodes=1,
        gpus=2,
        ranks={
            0: raised(
                0,
                TOP
                + '  File "/home/ada/t5/train.py", line 55, in train_step\n    raise SystemError("tokeniser and model disagree about <pad>")\nSystemError: tokeniser and model disagree about <pad>\n',
                before=ADDRESS
                + "previous run ended with:\n"
                + "".join(f"  | {line}\n" for line in watchdog(0).splitlines()[1:5])
                + "  (end of the previous run)\n",
            )
        },
        others=QUIET,
        want=wanted("exception", rank=0, node="node1", forbid="watchdog|collective", retry="crash"),
    ),
    Case(
        name="deprecation-noise-and-import-warning",
        source="made: handled imports on every rank, then an error of one loader",
        nodes=8,
        gpus=8,
        ranks={
            61: raised(
                61,
                TOP
                + '  File "/home/ada/t5/corpus.py", line 90, in train_step\n    raise ValueError(f"bucket {index} has no rows")\nValueError: bucket 61 has no rows\n',
                after=LOADER_DEL * 2,
            )
        },
        others=Rank(
            err="No module named 'transformer_engine'; falling back to torch\n" + FUTURE + ADDRESS
        ),
        want=wanted(
            "exception", rank=61, node="node8", forbid="module|import|can only join", retry="crash"
        ),
    ),
    Case(
        name="handled-connection-reset-of-download",
        source="https://github.com/urllib3/urllib3 (Retrying ... after connection broken)",
        nodes=2,
        gpus=2,
        ranks={
            1: raised(
                1,
                TOP
                + "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte\n",
                before=ADDRESS
                + "WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken by 'ConnectionResetError(104, 'Connection reset by peer')': /c4/shard-17.json\nINFO: shard-17.json fetched on attempt 2\n",
                record="UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte",
            )
        },
        others=QUIET,
        want=wanted("exception", rank=1, node="node1", forbid="reset|peer|internet", retry="crash"),
    ),
]

CASES = on_record(
    CASES,
    "training-on-logs-of-clusters",
    "checkpoint-fallback-then-type-error",
    "caught-oom-everywhere-then-one-assertion",
    "old-watchdog-words-in-a-resumed-log",
)
