"""Ends in native code: aborts of glibc, uncaught C++ exceptions, signals, with what was printed before them."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

DUMP = """\
Fatal Python error: {what}

Thread 0x00007f1c2d7fe640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/opt/venv/lib/python3.11/site-packages/tensorboard/summary/writer/event_file_writer.py", line 269 in _run
  File "/opt/venv/lib/python3.11/site-packages/tensorboard/summary/writer/event_file_writer.py", line 244 in run
  File "/usr/lib/python3.11/threading.py", line 1038 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

Thread 0x00007f1c3effd640 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/tqdm/_monitor.py", line 60 in run
  File "/usr/lib/python3.11/threading.py", line 1038 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f1d5b12a740 (most recent call first):
{stack}
Extension modules: numpy.core._multiarray_umath, numpy.core._multiarray_tests, numpy.linalg._umath_linalg, torch._C, torch._C._fft, torch._C._linalg, yaml._yaml (total: 7)
"""

CASES = [
    Case(
        name="glibc-invalid-pointer-at-exit",
        source="https://sourceware.org/git/?p=glibc.git;a=blob;f=malloc/malloc.c",
        nodes=1,
        gpus=8,
        step=5000,
        ranks={
            0: Rank(
                out="step 5000/5000 loss 2.310\nsaved final checkpoint to out/final\nTraining finished.\n",
                err="free(): invalid pointer\n",
                status=134,
            ),
        },
        others=Rank(out="Training finished.\n", status=0),
        want=Want(
            frozenset({"exception", "done"}),
            "exception",
            rank=0,
            node="node1",
            forbid=r"out of memory|batch size|--mem\b",
        ),
    ),
    Case(
        name="glibc-double-free",
        source="https://sourceware.org/git/?p=glibc.git;a=blob;f=malloc/malloc.c",
        nodes=2,
        gpus=8,
        ranks={
            9: Rank(
                err="[W1116 11:21:10.202 Module.cpp:178] symbolizing C++ stack trace for exception; if this hangs, rerun with TORCH_DISABLE_ADDR2LINE=1...\ndouble free or corruption (!prev)\n"
                + DUMP.format(
                    what="Aborted",
                    stack='  File "/opt/venv/lib/python3.11/site-packages/decord/video_reader.py", line 77 in __del__\n  Garbage-collecting\n',
                ),
                status=134,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=9,
            node="node2",
            forbid=r"out of memory|--mem\b|\bhang\b",
            retry="crash",
        ),
    ),
    Case(
        name="glibc-corrupted-top-size",
        source="https://sourceware.org/git/?p=glibc.git;a=blob;f=malloc/malloc.c",
        nodes=4,
        gpus=2,
        ranks={3: Rank(err="malloc(): corrupted top size\n", status=134)},
        others=Rank(
            err="[rank0]:[W1116 11:21:10.202 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\n",
            status=1,
            after_s=3.0,
        ),
        batch="srun: error: node2: task 1: Exited with exit code 1\n",
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=3,
            node="node2",
            forbid=r"out of memory|--mem\b|batch size",
            retry="crash",
        ),
    ),
    Case(
        name="glibc-stack-smashing",
        source="https://sourceware.org/git/?p=glibc.git;a=blob;f=debug/stack_chk_fail.c",
        nodes=1,
        gpus=8,
        ranks={
            6: Rank(
                err="tokenising with libfasttok 0.3\n*** stack smashing detected ***: terminated\n",
                status=134,
            )
        },
        want=Want(frozenset({"exception"}), "exception", rank=6, node="node1", retry="crash"),
    ),
    Case(
        name="cpp-out-of-range",
        source="https://gcc.gnu.org/onlinedocs/libstdc++/manual/termination.html",
        nodes=2,
        gpus=4,
        ranks={
            4: Rank(
                err="terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check: __n (which is 18446744073709551615) >= this->size() (which is 0)\n"
                + DUMP.format(
                    what="Aborted",
                    stack='  File "/home/ada/graph/sample.py", line 44 in neighbours\n  File "/home/ada/graph/train.py", line 120 in <module>\n',
                ),
                status=134,
            )
        },
        want=Want(frozenset({"exception"}), "exception", rank=4, node="node2", retry="crash"),
    ),
    Case(
        name="segfault-after-a-hint-about-memory",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=2,
        gpus=4,
        ranks={
            2: Rank(
                err="If you see CUDA out of memory, lower --micro-batch or turn on activation checkpointing.\n"
                "WARNING: NCCL_P2P_DISABLE is set; you may see Connection reset by peer on slow links\n"
                + DUMP.format(
                    what="Segmentation fault",
                    stack='  File "/opt/venv/lib/python3.11/site-packages/flash_attn/flash_attn_interface.py", line 91 in _flash_attn_forward\n  File "/home/ada/lm/model.py", line 133 in forward\n  File "/home/ada/lm/train.py", line 188 in main\n',
                ),
                status=139,
            )
        },
        others=Rank(
            err="If you see CUDA out of memory, lower --micro-batch or turn on activation checkpointing.\n"
        ),
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=2,
            node="node1",
            forbid=r"out of memory|micro.?batch|check the (network|connection)|firewall",
            retry="crash",
        ),
    ),
    Case(
        name="bus-error-in-a-memory-map",
        source="https://man7.org/linux/man-pages/man2/mmap.2.html",
        nodes=4,
        gpus=2,
        ranks={
            5: Rank(
                err=DUMP.format(
                    what="Bus error",
                    stack='  File "/opt/venv/lib/python3.11/site-packages/numpy/core/memmap.py", line 334 in __getitem__\n  File "/home/ada/lm/data.py", line 52 in tokens\n  File "/home/ada/lm/train.py", line 150 in main\n',
                ),
                status=135,
            )
        },
        want=Want(
            frozenset({"exception", "storage", "data-missing"}),
            "exception",
            rank=5,
            node="node3",
            forbid=r"/dev/shm|out of memory|batch size",
        ),
    ),
    Case(
        name="illegal-instruction-on-the-older-cpu",
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=DUMP.format(
                    what="Illegal instruction",
                    stack='  File "/opt/venv/lib/python3.11/site-packages/deepspeed/ops/adam/cpu_adam.py", line 94 in __init__\n  File "/home/ada/lm/train.py", line 61 in main\n',
                ),
                status=132,
                after_s=0.1 * (r - 4),
            )
            for r in (4, 5, 6, 7)
        },
        want=Want(
            frozenset({"exception", "version-mismatch"}),
            "exception",
            rank="any",
            node="node2",
            forbid=r"out of memory|GPU is broken",
        ),
    ),
    Case(
        name="floating-point-exception-in-an-extension",
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
        nodes=1,
        gpus=8,
        ranks={7: Rank(out="bucket sizes: [0, 0, 0, 512]\n", err="", status=136)},
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=7,
            node="node1",
            forbid=r"\bNaN\b|loss is|loss became|out of memory",
            retry="crash",
        ),
    ),
    Case(
        name="undefined-symbol-after-an-upgrade",
        source="https://github.com/Dao-AILab/flash-attention/issues/931",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="Traceback (most recent call last):\n"
                '  File "/home/ada/lm/train.py", line 9, in <module>\n    from flash_attn import flash_attn_func\n'
                '  File "/home/ada/.conda/envs/lm/lib/python3.10/site-packages/flash_attn/__init__.py", line 3, in <module>\n    from flash_attn.flash_attn_interface import (\n'
                '  File "/home/ada/.conda/envs/lm/lib/python3.10/site-packages/flash_attn/flash_attn_interface.py", line 10, in <module>\n    import flash_attn_2_cuda as flash_attn_cuda\n'
                "ImportError: /home/ada/.conda/envs/lm/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi\n",
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"import-error", "version-mismatch"}),
            "version-mismatch",
            rank="any",
            node="any",
            forbid=r"script.*not (found|visible)",
        ),
    ),
    Case(
        name="glibc-too-old-on-one-node",
        source="https://man7.org/linux/man-pages/man8/ld.so.8.html",
        nodes=4,
        gpus=2,
        ranks={
            r: Rank(
                err="Traceback (most recent call last):\n"
                '  File "/home/ada/lm/train.py", line 4, in <module>\n    import sentencepiece as spm\n'
                '  File "/home/ada/lm/.venv/lib/python3.11/site-packages/sentencepiece/__init__.py", line 10, in <module>\n    from . import _sentencepiece\n'
                "ImportError: /lib64/libm.so.6: version `GLIBC_2.29' not found (required by /home/ada/lm/.venv/lib/python3.11/site-packages/sentencepiece/_sentencepiece.cpython-311-x86_64-linux-gnu.so)\n",
                status=1,
            )
            for r in (4, 5)
        },
        want=Want(
            frozenset({"import-error", "version-mismatch"}),
            "version-mismatch",
            rank="any",
            node="node3",
        ),
    ),
    Case(
        name="abort-of-a-tokenizer-in-rust",
        source="https://github.com/huggingface/tokenizers/issues/821",
        nodes=1,
        gpus=8,
        ranks={
            1: Rank(
                err="thread '<unnamed>' panicked at src/models/unigram/trainer.rs:212:53:\ncalled `Result::unwrap()` on an `Err` value: Internal\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
                "Traceback (most recent call last):\n"
                '  File "/home/ada/lm/make_vocab.py", line 40, in <module>\n    tok.train_from_iterator(lines(), trainer)\n'
                "pyo3_runtime.PanicException: called `Result::unwrap()` on an `Err` value: Internal\n",
                status=1,
            )
        },
        want=Want(frozenset({"exception"}), "exception", rank=1, node="node1", retry="crash"),
    ),
]

CASES = finish(CASES)
