"""Runs that are no failures, that nobody can explain, or whose loudest words are not the cause."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"

CASES = [
    Case(
        name="done-with-noise",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=4,
        step=2000,
        ranks={},
        others=Rank(
            out="step 2000/2000 loss 2.2\n",
            err="[rank0]:[W1117 09:41:20.881 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\nException ignored in atexit callback: <function shutdown at 0x7f6f18cb7f40>\nConnectionResetError: [Errno 104] Connection reset by peer\n",
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=Want(
            frozenset({"done"}),
            "done",
            rank=None,
            node=None,
            forbid=r"reset by peer|check the network|firewall",
        ),
    ),
    Case(
        name="done-after-an-eval-without-data",
        source="https://numpy.org/doc/stable/reference/generated/numpy.mean.html",
        nodes=1,
        gpus=8,
        step=500,
        ranks={},
        others=Rank(
            out="eval loss nan for empty split 'dev2'\nstep 500/500 loss 1.1\n",
            err=f"{SITE}/numpy/_core/fromnumeric.py:3596: RuntimeWarning: Mean of empty slice.\n  return _methods._mean(a, axis=axis, dtype=dtype,\n",
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=Want(frozenset({"done"}), "done", rank=None, node=None, forbid=r"\bNaN\b|diverge"),
    ),
    Case(
        name="empty-split-and-then-a-type-error",
        source="https://docs.python.org/3/library/exceptions.html#TypeError",
        nodes=2,
        gpus=4,
        step=300,
        ranks={
            0: Rank(
                err="WARNING eval loss nan for empty split 'dev2', skipping\nstep 300 loss 2.8\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 177, in <module>\n    json.dump(summary, handle)\n  File "/usr/lib/python3.11/json/encoder.py", line 180, in default\n    raise TypeError(f\'Object of type {o.__class__.__name__} \'\nTypeError: Object of type float32 is not JSON serializable\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"\bNaN\b|learning rate|diverge",
            retry="crash",
        ),
    ),
    Case(
        name="loss-is-nan-and-the-script-stops",
        source="https://pytorch.org/docs/stable/generated/torch.isfinite.html",
        nodes=8,
        gpus=8,
        step=7410,
        ranks={
            r: Rank(
                out="step 7408 loss 3.1\nstep 7409 loss 11.7\nstep 7410 loss nan\n"
                if r == 0
                else "",
                err="loss is nan at step 7410, stopping\n" if r == 0 else "",
                status=1,
                after_s=0.01 * r,
            )
            for r in range(64)
        },
        want=Want(
            frozenset({"nan-loss"}),
            "nan-loss",
            rank="any",
            node="any",
            forbid=r"out of memory|hardware fault",
        ),
    ),
    Case(
        name="anomaly-detection-names-nan",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/engine.cpp",
        nodes=2,
        gpus=4,
        step=61,
        ranks={
            2: Rank(
                err=f'{SITE}/torch/autograd/graph.py:823: UserWarning: Error detected in PowBackward0. Traceback of forward call that caused the error:\n  File "/home/ada/phys/train.py", line 71, in <module>\n    r = (x**2).sum(-1) ** 0.5\n (Triggered internally at ../torch/csrc/autograd/python_anomaly_mode.cpp:122.)\n  return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass\n'
                "Traceback (most recent call last):\n  File \"/home/ada/phys/train.py\", line 80, in <module>\n    loss.backward()\nRuntimeError: Function 'PowBackward0' returned nan values in its 0th output.\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"nan-loss", "exception"}),
            "nan-loss",
            rank=2,
            node="node1",
            forbid=r"out of memory|hardware fault",
        ),
    ),
    Case(
        name="every-rank-killed-in-silence",
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
        nodes=2,
        gpus=4,
        step=77,
        ranks={r: Rank(out="step 77 loss 2.0\n", status=137, after_s=0.01 * r) for r in range(8)},
        memory_share={1: 0.22, 2: 0.21},
        want=Want(
            frozenset({"unknown", "exception", "host-out-of-memory", "cancelled"}),
            "unknown",
            rank="any",
            node="any",
            forbid=r"CUDA out of memory|\bNaN\b|disk is full|free (disk )?space",
        ),
    ),
    Case(
        name="terminated-by-somebody",
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
        nodes=2,
        gpus=4,
        step=77,
        ranks={4: Rank(out="step 77 loss 2.0\n", status=143)},
        others=Rank(out="step 77 loss 2.0\n"),
        want=Want(
            frozenset({"unknown", "exception", "cancelled", "connection-reset"}),
            "unknown",
            rank=4,
            node="node2",
            forbid=r"out of memory|\bNaN\b|disk is full|free (disk )?space|NCCL (timeout|fail|cannot)|NCCL_",
        ),
    ),
    Case(
        name="reset-by-peer-everywhere",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc",
        nodes=4,
        gpus=2,
        step=12,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/cpu/train.py", line 40, in <module>\n    dist.all_reduce(grad)\nRuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer [10.1.0.1{r // 2 + 1}]:5012{r}\n',
                status=1,
                after_s=0.01 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"connection-reset", "unknown"}),
            "connection-reset",
            rank="any",
            node="any",
            forbid=r"out of memory|firewall",
        ),
    ),
    Case(
        name="out-of-memory-in-the-name-of-a-class",
        source="https://docs.python.org/3/library/exceptions.html",
        nodes=2,
        gpus=4,
        step=9,
        ranks={
            3: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/sim/train.py", line 31, in <module>\n    agent.act(state)\n  File "/home/ada/sim/agent.py", line 12, in act\n    raise OutOfMemoryTokens(f"agent {self.id} has no memory tokens left (0 of 16)")\nagent.OutOfMemoryTokens: agent 3 has no memory tokens left (0 of 16)\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=3,
            node="node1",
            forbid=r"(free|less|more|reduce) GPU memory|CUDA out of memory|PYTORCH_CUDA|micro.?batch|--mem\b|more memory",
            retry="crash",
        ),
    ),
    Case(
        name="handled-memory-error-of-a-request",
        source="https://docs.python.org/3/library/logging.html#logging.exception",
        nodes=2,
        gpus=4,
        step=44,
        ranks={
            7: Rank(
                err='ERROR:sampler:sample 3301 skipped\nTraceback (most recent call last):\n  File "/home/ada/gen/sampler.py", line 70, in sample\n    image = decode(raw)\nMemoryError: image of 91000x91000 pixels\nINFO:sampler:continuing with sample 3302\n'
                "step 44 loss 1.3\n"
                'Traceback (most recent call last):\n  File "/home/ada/gen/train.py", line 99, in <module>\n    ema.update(model)\n  File "/home/ada/gen/ema.py", line 18, in update\n    self.shadow[name].lerp_(param, 1 - self.decay)\nKeyError: \'blocks.11.norm.weight\'\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=7,
            node="node2",
            forbid=r"out of memory|more memory|--mem\b",
            retry="crash",
        ),
    ),
    Case(
        name="two-ranks-of-two-nodes-in-the-same-second",
        source="https://docs.python.org/3/library/exceptions.html#StopIteration",
        nodes=2,
        gpus=4,
        step=1000,
        ranks={
            r: Rank(
                err='Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 97, in <module>\n    batch = next(batches)\nStopIteration\n',
                status=1,
                after_s=0.001 * r,
            )
            for r in (1, 6)
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"check the network|firewall|out of memory",
            retry="crash",
        ),
    ),
    Case(
        name="still-compiling-when-cancelled",
        source="https://slurm.schedmd.com/scancel.html",
        nodes=8,
        gpus=8,
        ranks={},
        others=Rank(
            err="W1117 09:41:20.881000 88120 torch/_inductor/utils.py:1250] [0/0] Not enough SMs to use max_autotune_gemm mode\n"
        ),
        batch="slurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2025-11-17T09:41:20 DUE to SIGNAL Terminated ***\n",
        slurm="CANCELLED by 0|0:15",
        want=Want(
            frozenset({"cancelled"}),
            "cancelled",
            rank=None,
            node="any",
            forbid=r"Not enough SMs|compilation|\bhang\b",
        ),
    ),
]

CASES = finish(CASES)
