"""What the families share: records of torchelastic, noise that a script printed earlier, and what lost ranks print."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

import dataclasses
import re

from tests.reporting.unseen.case import Case, Rank

CASES: list[Case] = []

NOISE = {
    "memory-hint": "Hint: if you run into CUDA out of memory, lower --batch or turn on --checkpoint-activations.\n",
    "port": "WARNING store: port 29500 in use (Address already in use), retrying with 29501\nINFO store: listening on 29501\n",
    "weights": "WARNING data: 3 samples whose loss weight is NaN were dropped\n",
    "dashboard": "INFO dashboard: Connection refused (attempt 1/5), retrying\nINFO dashboard: connected on attempt 2\n",
    "cache": "INFO cache: miss, building anew\nTraceback (most recent call last):\n"
    '  File "/home/ada/lib/cache.py", line 31, in open_cache\n    return pickle.load(open(path, "rb"))\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/cache-ada/vocab.pkl'\nINFO cache: built in 3.1 s\n",
    "watchdog": "INFO dist: timeout 1800 s; if you see 'Watchdog caught collective operation timeout' read docs/hang.md\n",
    "gpu-check": "[gpu-check] node ok: Xid none, ECC volatile 0, remapped rows pending no, fallen off the bus: no\n",
    "apex": "INFO optim: apex is not installed (ModuleNotFoundError: No module named 'apex'), using torch's AdamW\n",
    "preemption": "INFO signals: SIGTERM handler installed for preemption and time limit, last checkpoint 600 s before the end\n",
    "hub": "WARNING hub: https://huggingface.co is unreachable, using the cached snapshot (offline mode)\n",
    "scratch": "INFO writer: 'No space left on device' is retried three times on /scratch, then the run stops\n",
    "oom-killer": "INFO memory: cgroup limit 480 GiB, used 61 GiB; the oom-killer would act at 480 GiB\n",
}

NOISY: dict[str, tuple[str, ...]] = {
    "triton-out-of-shared-memory": ("memory-hint",),
    "cuda-token-id-past-the-vocabulary": ("port",),
    "cuda-illegal-address-and-its-xid": ("weights",),
    "cuda-fell-off-the-bus": (
        "dashboard",
        "hub",
    ),
    "cudnn-two-versions": ("cache",),
    "cuda-unknown-error-on-node-three": ("watchdog",),
    "cuda-out-of-memory-beside-another-process": ("gpu-check",),
    "deepspeed-loss-scale-at-its-minimum": (
        "apex",
        "port",
    ),
    "deepspeed-overflow-is-not-the-end": (
        "preemption",
        "weights",
    ),
    "deepspeed-batch-arithmetic": ("hub",),
    "zip-archive-without-its-directory": (
        "scratch",
        "cache",
    ),
    "dcp-without-its-metadata": (
        "oom-killer",
        "watchdog",
    ),
    "sizes-differ-on-the-wire": ("memory-hint",),
    "barrier-that-names-who-is-missing": (
        "port",
        "apex",
    ),
    "heartbeat-monitor-of-everybody": (
        "weights",
        "preemption",
    ),
    "watchdogs-because-one-rank-raised": (
        "dashboard",
        "hub",
    ),
    "hub-switched-off-and-not-cached": (
        "watchdog",
        "oom-killer",
    ),
    "hub-behind-a-proxy-that-says-no": (
        "gpu-check",
        "memory-hint",
    ),
    "datasets-without-locks": ("apex",),
    "datasets-cache-fills-the-home": ("preemption",),
    "datasets-split-sizes": ("hub",),
    "architecture-too-new": ("scratch",),
    "worker-cannot-read-an-image": (
        "oom-killer",
        "watchdog",
    ),
    "lambda-that-cannot-be-pickled": (
        "memory-hint",
        "gpu-check",
    ),
    "array-that-does-not-fit": ("port",),
    "memory-error-without-a-word": ("weights",),
    "slurm-detected-oom-kills": (
        "dashboard",
        "hub",
    ),
    "killed-and-nobody-says-by-whom": ("cache",),
    "no-threads-left": ("watchdog",),
    "glibc-invalid-pointer-at-exit": (
        "gpu-check",
        "memory-hint",
    ),
    "bus-error-in-a-memory-map": (
        "apex",
        "port",
    ),
    "illegal-instruction-on-the-older-cpu": ("preemption",),
    "floating-point-exception-in-an-extension": ("hub",),
    "undefined-symbol-after-an-upgrade": ("scratch",),
    "nccl-no-socket-interface": ("oom-killer",),
    "nccl-remote-error-of-sixty-three": ("memory-hint",),
    "nccl-no-route-to-host": ("weights",),
    "dashboard-client-refused-and-a-shape-wrong": ("dashboard",),
    "gloo-interface-that-is-not-there": ("cache",),
    "ucx-no-such-device": ("watchdog",),
    "keyboard-interrupt-of-the-user": ("gpu-check",),
    "group-of-exceptions": ("apex",),
    "settings-that-pydantic-refuses": (
        "preemption",
        "weights",
    ),
    "output-directory-of-somebody-else": ("hub",),
    "preparation-in-a-subprocess": (
        "scratch",
        "cache",
    ),
    "unknown-argument": (
        "oom-killer",
        "watchdog",
    ),
    "package-missing-on-one-node-only": ("memory-hint",),
    "out-of-memory-step-and-another-guilty-node": ("port",),
    "root-file-system-full-on-one-node": (
        "weights",
        "preemption",
    ),
    "stream-writer-alone": ("dashboard",),
    "input-output-error-while-importing": ("cache",),
    "wandb-never-answers": ("watchdog",),
    "wandb-without-a-key": ("gpu-check",),
    "every-rank-killed-in-silence": (
        "apex",
        "port",
    ),
    "terminated-by-somebody": ("hub",),
    "reset-by-peer-everywhere": ("scratch",),
}

RECORDED = {
    "inductor-without-a-compiler",
    "triton-cache-race",
    "triton-launcher-on-a-stale-handle",
    "inductor-cache-of-somebody-else",
    "dynamo-graph-break-not-allowed",
    "recompile-limit-is-only-a-warning",
    "ptxas-does-not-know-the-gpu",
    "linker-without-libcuda",
    "inductor-fills-tmp",
    "extension-on-a-tmp-without-exec",
    "cublas-cannot-allocate-its-handle",
    "cudnn-two-versions",
    "cuda-out-of-memory-beside-another-process",
    "cuda-exclusive-gpu-still-taken",
    "lightning-tasks-per-node",
    "megatron-world-not-divisible",
    "deepspeed-overflow-is-not-the-end",
    "deepspeed-batch-arithmetic",
    "fairscale-state-dict-outside-of-summon",
    "weights-only-refuses-a-class",
    "zip-archive-without-its-directory",
    "dcp-without-its-metadata",
    "pickle-that-ends-too-early",
    "fingerprints-differ",
    "sizes-differ-on-the-wire",
    "barrier-that-names-who-is-missing",
    "watchdog-wording-in-a-warning-only",
    "hub-switched-off-and-not-cached",
    "hub-gate-without-a-key",
    "hub-asked-by-sixty-four-at-once",
    "hub-behind-a-proxy-that-says-no",
    "datasets-without-locks",
    "datasets-cache-fills-the-home",
    "datasets-split-sizes",
    "tokenizers-fork-warning-before-a-value-error",
    "architecture-too-new",
    "accelerate-too-old",
    "transformers-cache-attribute-gone",
    "worker-segfault",
    "worker-misses-a-file",
    "too-many-open-files",
    "memory-error-without-a-word",
    "pinned-memory-that-cuda-refuses",
    "undefined-symbol-after-an-upgrade",
    "abort-of-a-tokenizer-in-rust",
    "nccl-registered-memory-on-one-node",
    "nccl-shared-memory-segment",
    "nccl-no-socket-interface",
    "nccl-remote-error-of-sixty-three",
    "nccl-two-versions",
    "nccl-fabric-not-ready-on-node-three",
    "nccl-peer-access",
    "nccl-no-route-to-host",
    "nccl-wrong-gid-index",
    "nccl-libfabric-domain",
    "nccl-nobody-says-why",
    "port-of-the-second-group-taken",
    "dashboard-client-refused-and-a-shape-wrong",
    "gloo-at-the-loopback",
    "nccl-told-to-use-infiniband-that-is-down",
    "store-of-a-head-that-died-of-a-typo",
    "bare-exception",
    "recursion-in-a-collate-function",
    "bytes-that-are-no-text-on-rank-thirty-seven",
    "settings-that-pydantic-refuses",
    "training-files-that-are-not-there",
    "handled-error-and-then-the-real-one",
    "package-missing-on-one-node-only",
    "root-file-system-full-on-one-node",
    "no-usable-temporary-directory",
    "quota-while-saving",
    "stream-writer-alone",
    "stale-handle-of-a-log",
    "file-system-turned-read-only",
    "lustre-client-evicted",
    "gpfs-not-mounted-any-more",
    "no-inodes-left",
    "a-log-of-data-about-full-disks",
    "wandb-never-answers",
    "wandb-retries-while-a-label-is-wrong",
    "mlflow-server-refuses",
    "licence-server-silent",
    "bucket-without-credentials",
    "package-index-from-within-a-rank",
    "empty-split-and-then-a-type-error",
    "anomaly-detection-names-nan",
    "reset-by-peer-everywhere",
    "out-of-memory-in-the-name-of-a-class",
    "two-ranks-of-two-nodes-in-the-same-second",
}

LOST = {
    "cuda-uncorrectable-ecc-of-sixty-four",
    "lightning-dictionary-of-losses",
    "megatron-nan-in-the-gradient",
    "sizes-differ-on-the-wire",
    "watchdog-wording-in-a-warning-only",
    "worker-misses-a-file",
    "too-many-open-files",
    "bus-error-in-a-memory-map",
    "dashboard-port-taken-and-a-key-missing",
    "dashboard-client-refused-and-a-shape-wrong",
    "os-exit-three-in-silence",
    "step-cancelled-because-a-rank-failed",
    "out-of-memory-step-and-another-guilty-node",
    "root-file-system-full-on-one-node",
    "a-log-of-data-about-full-disks",
    "wandb-never-answers",
    "wandb-retries-while-a-label-is-wrong",
    "mlflow-server-refuses",
    "terminated-by-somebody",
}


def exception_of(err: str) -> tuple[str, str] | None:
    """The message and the callstack that torchelastic's error file would hold of this standard error."""
    text = re.sub(r"^\[rank\d+\]: ?", "", err, flags=re.M)
    lines = text.splitlines()
    starts = [
        i
        for i, line in enumerate(lines)
        if line == "Traceback (most recent call last):"
        and not (i and lines[i - 1].startswith("Exception "))
    ]
    if not starts:
        return None
    first = last = starts.pop()
    while starts and any(
        "exception" in line and line.startswith(("During", "The above"))
        for line in lines[starts[-1] : first]
    ):
        first = starts.pop()
    said = next(
        (i for i in range(last + 1, len(lines)) if lines[i] and not lines[i].startswith(" ")), None
    )
    if said is None:
        return None
    end = next(
        (
            i
            for i in range(said + 1, len(lines))
            if re.match(
                r"\[rank|wandb:|\[[WE]\d|Exception ignored|terminate called|WARNING |INFO|resource_tracker",
                lines[i],
            )
        ),
        len(lines),
    )
    message = "\n".join(lines[said:end])
    kind, colon, rest = message.partition(":")
    return (
        f"{kind.rpartition('.')[2]}:{rest}" if colon else f"{message.rpartition('.')[2]}: ",
        "\n".join(lines[first:end]) + "\n",
    )


def recorded(case: Case) -> Case:
    """The case as a script with @record leaves it: an error file of the first rank that ended on each node."""
    ranks = dict(case.ranks)
    first: dict[int, int] = {}
    for rank, left in sorted(ranks.items(), key=lambda item: item[1].after_s):
        if left.status == 1:
            first.setdefault(rank // case.gpus, rank)
    for rank in first.values():
        found = exception_of(ranks[rank].err)
        if found and ranks[rank].record is None:
            ranks[rank] = dataclasses.replace(ranks[rank], record=found[0], callstack=found[1])
    return dataclasses.replace(case, ranks=ranks)


def noisy(case: Case, keys: tuple[str, ...]) -> Case:
    """The case of a script that printed innocent words when it started, on every rank."""
    words = "".join(NOISE[key] for key in keys)
    ranks = {
        rank: dataclasses.replace(left, err=words + left.err) for rank, left in case.ranks.items()
    }
    return dataclasses.replace(
        case, ranks=ranks, others=dataclasses.replace(case.others, err=words + case.others.err)
    )


def lost(case: Case) -> Case:
    """The case with what the ranks of the other nodes print a second after a rank was gone."""
    culprit = min(case.ranks, key=lambda rank: case.ranks[rank].after_s)
    ranks = dict(case.ranks)
    for rank in range(case.nodes * case.gpus):
        if rank in ranks or rank // case.gpus == culprit // case.gpus:
            continue
        peer = f"node{culprit // case.gpus + 1}<{39000 + rank}>"
        ranks[rank] = Rank(
            err=case.others.err
            + f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/home/ada/train.py", line 140, in <module>\n[rank{rank}]:     loss.backward()\n'
            f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, NCCL version 2.21.5\n"
            f"[rank{rank}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n[rank{rank}]: Last error:\n"
            f"[rank{rank}]: socketProgress: Connection closed by remote peer {peer}\n",
            out=case.others.out,
            status=1,
            after_s=1.0 + rank / 100,
        )
    return dataclasses.replace(case, ranks=ranks)


def numbered_from_zero(case: Case) -> Case:
    """The case with nodes numbered as in SLURM_NODEID; the modules number them as their names do."""
    return dataclasses.replace(
        case,
        node_logs={node - 1: text for node, text in case.node_logs.items()},
        lost=tuple(node - 1 for node in case.lost),
        memory_share={node - 1: share for node, share in case.memory_share.items()},
    )


def finish(cases: list[Case]) -> list[Case]:
    """The cases as they are measured."""
    made = []
    for case in map(numbered_from_zero, cases):
        if case.name in LOST:
            case = lost(case)
        if case.name in RECORDED:
            case = recorded(case)
        if case.name in NOISY:
            case = noisy(case, NOISY[case.name])
        made.append(case)
    return made
