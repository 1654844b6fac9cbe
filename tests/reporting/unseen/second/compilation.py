"""torch.compile, dynamo, inductor, Triton and just-in-time extensions."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, Want
from tests.reporting.unseen.second.common import finish

SITE = "/opt/venv/lib/python3.11/site-packages"

CASES = [
    Case(
        name="inductor-without-a-compiler",
        source="https://github.com/triton-lang/triton/blob/main/python/triton/runtime/build.py",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 130, in <module>\n    loss = step(batch)\n  File "{SITE}/torch/_dynamo/eval_frame.py", line 749, in compile_wrapper\n    raise e.remove_dynamo_frames() from None\n  File "{SITE}/triton/runtime/build.py", line 32, in _build\n    raise RuntimeError(\n'
                "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.\n\n"
                'Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you\'re reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"\n',
                status=1,
                after_s=0.3 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"environment-missing", "exception"}),
            "environment-missing",
            rank="any",
            node="any",
            forbid=r"batch size|out of memory",
        ),
    ),
    Case(
        name="triton-cache-race",
        source="https://github.com/triton-lang/triton/issues/2688",
        nodes=2,
        gpus=8,
        ranks={
            13: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 130, in <module>\n    loss = step(batch)\n  File "{SITE}/triton/compiler/compiler.py", line 482, in compile\n    metadata_group[ir_filename] = fn_cache_manager.put(next_module, ir_filename)\n  File "{SITE}/triton/runtime/cache.py", line 109, in put\n    os.replace(temp_path, filepath)\n'
                "FileNotFoundError: [Errno 2] No such file or directory: '/home/ada/.triton/cache/cff628804055ab05f902072733c9ab2d/_rms_norm_bwd_dx_fused.ttir.tmp.pid_15735_304289' -> '/home/ada/.triton/cache/cff628804055ab05f902072733c9ab2d/_rms_norm_bwd_dx_fused.ttir'\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"exception", "storage"}),
            "exception",
            rank=13,
            node="node2",
            forbid=r"data set|training data|data ?set|input files",
        ),
    ),
    Case(
        name="triton-launcher-on-a-stale-handle",
        source="https://github.com/PrimeIntellect-ai/prime-rl/pull/2305",
        nodes=4,
        gpus=2,
        ranks={
            5: Rank(
                err=f'Traceback (most recent call last):\n  File "{SITE}/triton/backends/nvidia/driver.py", line 71, in compile_module_from_src\n    spec.loader.exec_module(mod)\n'
                "ImportError: /home/ada/.triton/cache/X7BKQ3/__triton_launcher.cpython-311-x86_64-linux-gnu.so: cannot stat shared object: Stale file handle\n",
                status=1,
            ),
        },
        want=Want(
            frozenset({"storage", "import-error", "exception"}),
            "storage",
            rank=5,
            node="node3",
            forbid=r"pip install|install the package|watchdog",
        ),
    ),
    Case(
        name="inductor-cache-of-somebody-else",
        source="https://github.com/pytorch/pytorch/blob/main/torch/_inductor/runtime/cache_dir_utils.py",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 130, in <module>\n    loss = step(batch)\n  File "{SITE}/torch/_inductor/codecache.py", line 480, in write_atomic\n    path.parent.mkdir(parents=True, exist_ok=True)\n'
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nPermissionError: [Errno 13] Permission denied: '/tmp/torchinductor_shared/fxgraph/ab'\n\nSet TORCH_LOGS=\"+dynamo\" and TORCHDYNAMO_VERBOSE=1 for more information\n\n\nYou can suppress this exception and fall back to eager by setting:\n    import torch._dynamo\n    torch._dynamo.config.suppress_errors = True\n\n",
                status=1,
                after_s=0.2 * r,
            )
            for r in (0, 3, 6)
        },
        want=Want(
            frozenset({"exception", "storage"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"disk is full|quota",
        ),
    ),
    Case(
        name="dynamo-graph-break-not-allowed",
        source="https://github.com/pytorch/pytorch/blob/main/torch/_dynamo/exc.py",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 130, in <module>\n    loss = step(batch)\n  File "{SITE}/torch/_dynamo/eval_frame.py", line 663, in _fn\n    raise e.with_traceback(None) from None\n'
                "torch._dynamo.exc.Unsupported: Data-dependent branching\n  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`). Dynamo does not support tracing dynamic control flow.\n  Hint: This graph break is fundamental - it is unlikely that Dynamo will ever be able to trace through your code. Consider finding a workaround.\n  Hint: Use `torch.cond` to express dynamic control flow.\n\n"
                '  Developer debug context: attempted to jump with TensorVariable()\n\n\nfrom user code:\n   File "/home/ada/lm/model.py", line 77, in forward\n    if gate.max() > self.limit:\n',
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(frozenset({"exception"}), "exception", rank="any", node="any", retry="any"),
    ),
    Case(
        name="recompile-limit-is-only-a-warning",
        source="https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        nodes=2,
        gpus=4,
        step=77,
        ranks={
            4: Rank(
                err="W1117 09:41:20.881000 88120 torch/_dynamo/convert_frame.py:964] [3/8] torch._dynamo hit config.recompile_limit (8)\nW1117 09:41:20.881000 88120 torch/_dynamo/convert_frame.py:964] [3/8]    function: 'forward' (/home/ada/lm/model.py:70)\n"
                'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 141, in <module>\n    scheduler.step(metric)\nTypeError: LambdaLR.step() takes from 1 to 1 positional arguments but 2 were given\n',
                status=1,
            )
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank=4,
            node="node2",
            forbid=r"recompilation|disable.*compile",
            retry="crash",
        ),
    ),
    Case(
        name="ptxas-does-not-know-the-gpu",
        source="https://github.com/triton-lang/triton/issues/8539",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err=f"Traceback (most recent call last):\n  File \"{SITE}/triton/backends/nvidia/compiler.py\", line 356, in make_cubin\n    subprocess.run(ptxas_cmd, check=True, close_fds=False, stderr=flog)\nsubprocess.CalledProcessError: Command '['{SITE}/triton/backends/nvidia/bin/ptxas', '-lineinfo', '--gpu-name=sm_100a', '/tmp/tmpq3.ptx', '-o', '/tmp/tmpq3.ptx.o']' returned non-zero exit status 255.\n\n"
                "During handling of the above exception, another exception occurred:\n\n"
                f"Traceback (most recent call last):\n  File \"/home/ada/lm/train.py\", line 130, in <module>\n    loss = step(batch)\nRuntimeError: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal   : Value 'sm_100a' is not defined for option 'gpu-name'\n",
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"version-mismatch", "exception"}), "version-mismatch", rank="any", node="any"
        ),
    ),
    Case(
        name="triton-out-of-shared-memory",
        source="https://github.com/triton-lang/triton/blob/main/python/triton/runtime/errors.py",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 130, in <module>\n    loss = step(batch)\n  File "{SITE}/triton/compiler/compiler.py", line 451, in raise_\n    raise err\n'
                "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n",
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"exception"}),
            "exception",
            rank="any",
            node="any",
            forbid=r"/dev/shm|CUDA out of memory|micro.?batch|more host memory|--mem\b",
        ),
    ),
    Case(
        name="linker-without-libcuda",
        source="https://github.com/pytorch/pytorch/issues/107960",
        nodes=2,
        gpus=4,
        ranks={
            r: Rank(
                err="/usr/bin/ld: cannot find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status\n"
                f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 130, in <module>\n    loss = step(batch)\n  File "{SITE}/triton/runtime/build.py", line 48, in _build\n    ret = subprocess.check_call(cc_cmd)\n'
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nCalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpd6/main.c', '-O3', '-I/usr/include/python3.11', '-shared', '-fPIC', '-lcuda', '-o', '/tmp/tmpd6/cuda_utils.so']' returned non-zero exit status 1.\n",
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"environment-missing", "exception"}),
            "environment-missing",
            rank="any",
            node="any",
        ),
    ),
    Case(
        name="inductor-fills-tmp",
        source="https://github.com/pytorch/pytorch/blob/main/torch/_inductor/codecache.py",
        nodes=2,
        gpus=4,
        ranks={
            7: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/lm/train.py", line 130, in <module>\n    loss = step(batch)\n  File "{SITE}/torch/_inductor/codecache.py", line 489, in write_atomic\n    f.write(content)\n'
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nOSError: [Errno 28] No space left on device: '/tmp/torchinductor_ada/qf/.88120.1394.tmp'\n",
                status=1,
            )
        },
        want=Want(
            frozenset({"disk-full"}),
            "disk-full",
            rank=7,
            node="node2",
            forbid=r"/dev/shm|fewer checkpoints|keep.*checkpoints",
            retry="storage",
        ),
    ),
    Case(
        name="extension-on-a-tmp-without-exec",
        source="https://github.com/pytorch/pytorch/issues/91005",
        nodes=1,
        gpus=8,
        ranks={
            r: Rank(
                err=f'Traceback (most recent call last):\n  File "/home/ada/pc/train.py", line 8, in <module>\n    ext = load(name="voxel", sources=["voxel.cpp", "voxel_kernel.cu"], build_directory="/tmp/ext")\n  File "{SITE}/torch/utils/cpp_extension.py", line 2549, in _import_module_from_library\n    module = importlib.util.module_from_spec(spec)\n'
                "ImportError: /tmp/ext/voxel.so: failed to map segment from shared object: Operation not permitted\n",
                status=1,
                after_s=0.1 * r,
            )
            for r in range(8)
        },
        want=Want(
            frozenset({"import-error", "exception", "storage"}),
            "import-error",
            rank="any",
            node="any",
            forbid=r"pip install|out of memory",
        ),
    ),
]

CASES = finish(CASES)
