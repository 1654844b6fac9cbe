"""Failures of the script itself: every way in which a Python program ends, with and without a last word."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

JOIN = "[rank{r}]:[W1117 09:41:20.881 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to ensure that any pending NCCL operations have finished in this process.\n"

CASES = [
    Case(
        name="assertion-without-a-word",
        source="https://docs.python.org/3/reference/simple_stmts.html#the-assert-statement",
        nodes=2,
        gpus=4,
        step=12,
        ranks={
            6: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 209, in main\n    assert batch["labels"].min() >= -100\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nAssertionError\n',
                status=1,
                record="AssertionError: ",
                callstack='Traceback (most recent call last):\n  File "/home/ada/lm/.venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper\n    return f(*args, **kwargs)\n  File "/home/ada/lm/train.py", line 209, in main\n    assert batch["labels"].min() >= -100\nAssertionError\n',
            )
        },
        want=Want(frozenset({"exception"}), "exception", rank=6, node="node2", retry="crash"),
    ),
    Case(
        name="bare-exception",
        source="https://docs.python.org/3/library/exceptions.html#Exception",
        nodes=8,
        gpus=8,
        ranks={
            52: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/rl/learner.py", line 71, in <module>\n    learner.loop()\n  File "/home/ada/rl/learner.py", line 58, in loop\n    raise Exception\nException\n',
                status=1,
            )
        },
        want=Want(frozenset({"exception"}), "exception", rank=52, node="node7", retry="crash"),
    ),
    Case(
        name="exit-with-a-message",
        source="https://docs.python.org/3/library/sys.html#sys.exit",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err="refusing to overwrite runs/ablation-7: pass --resume or choose another name\n",
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"exception", "settings"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"out of memory|NCCL (timeout|fail|cannot)|NCCL_|check the network|firewall",
        ),
    ),
    Case(
        name="os-exit-three-in-silence",
        source="https://docs.python.org/3/library/os.html#os._exit",
        nodes=4,
        gpus=2,
        ranks={3: Rank(out="round 17 done\n", status=3)},
        others=Rank(out="round 17 done\n"),
        batch="srun: error: node2: task 1: Exited with exit code 1\n",
        want=Want(
            frozenset({"exception", "unknown"}),
            "exception",
            rank=3,
            node="node2",
            forbid=r"out of memory|NCCL (timeout|fail|cannot)|NCCL_|check the network|firewall|disk is full|free (disk )?space",
        ),
    ),
    Case(
        name="said-on-standard-output-only",
        source="https://docs.python.org/3/library/logging.html",
        nodes=2,
        gpus=4,
        ranks={
            7: Rank(
                out="2025-11-17 09:40:58 INFO  step 300 loss 1.82\n2025-11-17 09:41:19 ERROR unhandled error in training loop\nTraceback (most recent call last):\n"
                '  File "/home/ada/seg/run.py", line 55, in guarded\n    loop(cfg)\n  File "/home/ada/seg/run.py", line 132, in loop\n    crop = image[:, y : y + s, x : x + s].reshape(3, s, s)\n'
                "RuntimeError: shape '[3, 512, 512]' is invalid for input of size 745472\n2025-11-17 09:41:19 INFO  shutting down\n",
                err="",
                status=1,
            )
        },
        others=Rank(out="2025-11-17 09:40:58 INFO  step 300 loss 1.82\n"),
        want=Want(frozenset({"exception"}), "exception", rank=7, node="node2", retry="crash"),
    ),
    Case(
        name="warnings-and-nothing-else",
        source="https://docs.python.org/3/library/warnings.html",
        nodes=1,
        gpus=8,
        ranks={
            4: Rank(
                err="/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:90: UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n  warnings.warn(\n"
                "/opt/venv/lib/python3.11/site-packages/torch/optim/lr_scheduler.py:224: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.\n  warnings.warn(\n",
                status=1,
            )
        },
        others=Rank(
            err="/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:90: UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n  warnings.warn(\n"
        ),
        want=Want(
            frozenset({"exception", "unknown"}),
            "exception",
            rank=4,
            node="node1",
            forbid=r"out of memory|\bNaN\b|disk is full|free (disk )?space|check the network|firewall",
        ),
    ),
    Case(
        name="keyboard-interrupt-of-the-user",
        source="https://slurm.schedmd.com/scancel.html",
        nodes=2,
        gpus=4,
        step=410,
        ranks={
            r: Rank(
                err=f'[rank{r}]: Traceback (most recent call last):\n[rank{r}]:   File "/home/ada/lm/train.py", line 140, in <module>\n[rank{r}]:     loss.backward()\n[rank{r}]: KeyboardInterrupt\n',
                status=130,
                after_s=0.01 * r,
            )
            for r in range(8)
        },
        batch="srun: error: node1: task 0: Exited with exit code 130\nsrun: error: node2: task 1: Exited with exit code 130\n",
        slurm="FAILED|130:0",
        want=Want(
            frozenset({"cancelled", "exception"}),
            "cancelled",
            rank="any",
            node="any",
            forbid=r"out of memory|NCCL (timeout|fail|cannot)|NCCL_|time limit",
        ),
    ),
    Case(
        name="recursion-in-a-collate-function",
        source="https://docs.python.org/3/library/exceptions.html#RecursionError",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err="Traceback (most recent call last):\n"
                + '  File "/home/ada/tree/train.py", line 99, in <module>\n    main()\n'
                + '  File "/home/ada/tree/collate.py", line 14, in flatten\n    return [x for c in node for x in flatten(c)]\n'
                * 3
                + "  [Previous line repeated 987 more times]\nRecursionError: maximum recursion depth exceeded while calling a Python object\n"
                + JOIN.format(r=0),
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"out of memory|--mem\b",
            retry="crash",
        ),
    ),
    Case(
        name="bytes-that-are-no-text-on-rank-thirty-seven",
        source="https://docs.python.org/3/library/exceptions.html#UnicodeDecodeError",
        nodes=8,
        gpus=8,
        step=8120,
        ranks={
            37: Rank(
                err="Traceback (most recent call last):\n"
                '  File "/home/ada/lm/train.py", line 166, in <module>\n    for batch in stream:\n'
                '  File "/home/ada/lm/stream.py", line 52, in __iter__\n    line = handle.readline()\n'
                '  File "<frozen codecs>", line 322, in decode\n'
                "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xb5 in position 4102: invalid start byte\n",
                status=1,
            ),
            **{
                r: Rank(
                    err=f"[rank{r}]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, NCCL version 2.21.5\n"
                    f"[rank{r}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n[rank{r}]: Last error:\n[rank{r}]: socketProgress: Connection closed by remote peer node5<{40000 + r}>\n",
                    status=1,
                    after_s=1.2 + r / 100,
                )
                for r in (32, 36, 38, 45)
            },
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=37,
            node="node5",
            forbid=r"check the network|firewall",
            retry="crash",
        ),
    ),
    Case(
        name="group-of-exceptions",
        source="https://docs.python.org/3/library/exceptions.html#exception-groups",
        nodes=2,
        gpus=4,
        ranks={
            4: Rank(
                err="  + Exception Group Traceback (most recent call last):\n"
                '  |   File "/home/ada/rl/train.py", line 88, in <module>\n  |     asyncio.run(main())\n'
                '  |   File "/usr/lib/python3.11/asyncio/runners.py", line 190, in run\n  |     return runner.run(main)\n'
                "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
                '    |   File "/home/ada/rl/rollout.py", line 41, in episode\n    |     reward = score(reply)["value"]\n    |              ~~~~~~~~~~~~^^^^^^^^^\n'
                "    | TypeError: 'NoneType' object is not subscriptable\n    +------------------------------------\n",
                status=1,
            )
        },
        want=Want(frozenset({"exception"}), "exception", rank=4, node="node2", retry="crash"),
    ),
    Case(
        name="division-by-zero-everywhere",
        source="https://docs.python.org/3/library/exceptions.html#ZeroDivisionError",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 31, in <module>\n    accumulate = args.global_batch // (args.micro_batch * world // args.tp)\nZeroDivisionError: integer division or modulo by zero\n',
                status=1,
                record="ZeroDivisionError: integer division or modulo by zero",
                callstack='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 31, in main\n    accumulate = args.global_batch // (args.micro_batch * world // args.tp)\nZeroDivisionError: integer division or modulo by zero\n',
                after_s=0.03 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"exception", "settings"}), "exception", rank="any", node="any", retry="any"
        ),
    ),
    Case(
        name="settings-that-pydantic-refuses",
        source="https://docs.pydantic.dev/latest/errors/validation_errors/",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 22, in <module>\n    cfg = TrainConfig.model_validate(yaml.safe_load(open(args.config)))\n'
                "pydantic_core._pydantic_core.ValidationError: 2 validation errors for TrainConfig\noptim.lr\n  Input should be a valid number, unable to parse string as a number [type=float_parsing, input_value='3e-4 ', input_type=str]\n"
                "    For further information visit https://errors.pydantic.dev/2.9/v/float_parsing\ndata.timeout\n  Field required [type=missing, input_value={'path': '/data/c4'}, input_type=dict]\n    For further information visit https://errors.pydantic.dev/2.9/v/missing\n",
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"settings", "exception"}),
            "settings",
            rank="any",
            node="any",
            forbid=r"no internet|cannot reach|time limit|\bhang\b",
        ),
    ),
    Case(
        name="training-files-that-are-not-there",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 57, in <module>\n    data = np.memmap(os.path.join(args.data, "train.bin"), dtype=np.uint16, mode="r")\n'
                '  File "/home/ada/lm/.venv/lib/python3.11/site-packages/numpy/core/memmap.py", line 229, in __new__\n    f_ctx = open(\n            ^^^^^\n'
                "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/ada/openwebtext/train.bin'\n",
                status=1,
                after_s=0.01 * r,
            )
            for r in range(8)
        },
        want=Want(frozenset({"data-missing"}), "data-missing", rank="any", node="any"),
    ),
    Case(
        name="output-directory-of-somebody-else",
        source="strerror(3)",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 40, in <module>\n    os.makedirs(out, exist_ok=True)\n  File "<frozen os>", line 225, in makedirs\n'
                "PermissionError: [Errno 13] Permission denied: '/projects/grace/checkpoints/ada'\n"
                + JOIN.format(r=0),
                status=1,
            )
        },
        want=Want(
            frozenset({"exception", "storage", "settings"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"disk is full|quota|no space|free space",
        ),
    ),
    Case(
        name="preparation-in-a-subprocess",
        source="https://docs.python.org/3/library/subprocess.html#subprocess.CalledProcessError",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err="make: *** No rule to make target 'helpers.cpp', needed by 'helpers.so'.  Stop.\n"
                'Traceback (most recent call last):\n  File "/home/ada/megatron/pretrain_gpt.py", line 210, in <module>\n    compile_helpers()\n'
                '  File "/home/ada/megatron/megatron/core/datasets/utils.py", line 33, in compile_helpers\n    subprocess.run(command, check=True)\n'
                "subprocess.CalledProcessError: Command '['make', '-C', '/home/ada/megatron/megatron/core/datasets']' returned non-zero exit status 2.\n",
                status=1,
            ),
            3: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/megatron/pretrain_gpt.py", line 212, in <module>\n    torch.distributed.barrier(group=gloo)\n'
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.11]:50124\n",
                status=1,
                after_s=0.4,
            ),
        },
        want=Want(
            frozenset({"exception", "environment-missing"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"check the network|firewall|check the (network|connection)",
            retry="any",
        ),
    ),
    Case(
        name="numpy-without-float",
        source="https://numpy.org/doc/stable/release/1.20.0-notes.html",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/speech/train.py", line 8, in <module>\n    from espnet.utils import fill\n  File "/home/ada/speech/espnet/utils.py", line 19, in <module>\n    EPS = np.float(1e-8)\n'
                '  File "/opt/venv/lib/python3.11/site-packages/numpy/__init__.py", line 305, in __getattr__\n    raise AttributeError(__former_attrs__[attr])\n'
                "AttributeError: module 'numpy' has no attribute 'float'.\n`np.float` was a deprecated alias for the builtin `float`. To avoid this error in existing code, use `float` by itself.\n",
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"version-mismatch", "exception"}), "version-mismatch", rank="any", node="any"
        ),
    ),
    Case(
        name="unknown-argument",
        source="https://docs.python.org/3/library/argparse.html",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="usage: train.py [-h] --data DATA [--lr LR] [--micro-batch N] [--cuda-out-of-memory {retry,fail}]\n                [--on-nan {skip,stop}] [--timeout S]\ntrain.py: error: unrecognized arguments: --warmup-step 2000\n",
                status=2,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"settings"}),
            "settings",
            rank="any",
            node="any",
            forbid=r"(free|less|more|reduce) GPU memory|NaN loss|time limit",
        ),
    ),
    Case(
        name="override-that-hydra-does-not-know",
        source="https://hydra.cc/docs/advanced/override_grammar/basic/",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err="Could not override 'optim.lrr'.\nTo append to your config use +optim.lrr=0.0003\nKey 'lrr' is not in struct\n    full_key: optim.lrr\n    object_type=dict\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(frozenset({"settings", "exception"}), "settings", rank="any", node="any"),
    ),
    Case(
        name="handled-error-and-then-the-real-one",
        source="https://docs.python.org/3/tutorial/errors.html#exception-chaining",
        nodes=2,
        gpus=4,
        ranks={
            1: Rank(
                err="Traceback (most recent call last):\n  File \"/home/ada/lm/cache.py\", line 20, in lookup\n    return self.index[key]\nKeyError: 'No space left on device'\n\nDuring handling of the above exception, another exception occurred:\n\n"
                "Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 90, in <module>\n    main()\n  File \"/home/ada/lm/cache.py\", line 23, in lookup\n    return self.rebuild(key).vector\nAttributeError: 'NoneType' object has no attribute 'vector'\n"
                'Exception ignored in: <function Cache.__del__ at 0x7f6f18cb7f40>\nTraceback (most recent call last):\n  File "/home/ada/lm/cache.py", line 60, in __del__\n    self.lock.release()\nRuntimeError: release unlocked lock\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=1,
            node="node1",
            forbid=r"disk is full|free (disk )?space|quota|free space",
            retry="crash",
        ),
    ),
    Case(
        name="script-without-its-own-module",
        source="https://docs.python.org/3/library/exceptions.html#ModuleNotFoundError",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 3, in <module>\n    from lm.model import Decoder\nModuleNotFoundError: No module named 'lm'\n",
                status=1,
                after_s=0.02 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"import-error"}),
            "import-error",
            rank="any",
            node="any",
            forbid=r"container image|(update|newer|install)[^.]*\bdriver",
        ),
    ),
    Case(
        name="package-missing-on-one-node-only",
        source="https://docs.python.org/3/library/exceptions.html#ModuleNotFoundError",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err="Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 5, in <module>\n    import einops\nModuleNotFoundError: No module named 'einops'\n",
                status=1,
                after_s=0.02 * (r - 6),
            )
            for r in (6, 7)
        },
        want=Want(
            frozenset({"import-error", "environment-missing", "version-mismatch"}),
            "import-error",
            rank="any",
            node="node4",
        ),
    ),
]

CASES = finish(CASES)
