"""What goes wrong in the ranks: exceptions, collectives, hangs, memory, numbers, data, GPUs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.trial import Trial

from .stage import HOLD_AT, STOP, Stage, scenario

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 5 has a total capacity of 23.43 GiB of "
    "which 210.06 MiB is free. Including non-PyTorch memory, this process has 0 bytes memory in "
    "use. Of the allocated memory 22.41 GiB is allocated by PyTorch, and 206.09 MiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ECC = (
    "CUDA error: uncorrectable ECC error encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
XID = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"
NCCL_RESET = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited "
    "or there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\n"
    "Last error:\n"
    "socketProgressOpt: Call to recv from {MASTER_ADDR}<33759> failed : Connection reset by peer"
)
NCCL_WATCHDOG = (
    "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, "
    "NumelOut=9801523, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    "[rank1]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) "
    "Rank 1] Exception (either an error or timeout) detected by watchdog at work: 808, last "
    "enqueued NCCL work: 811, last completed NCCL work: 807."
)
AT = {"ranks": [1], "step": HOLD_AT}


def raising(error: str, message: str) -> dict[str, object]:
    return {**AT, "break": "raise", "error": error, "message": message}


# Exceptions


@scenario("exception", "exception", rank=1, node="node2")
def exception(stage: Stage) -> Trial:
    """Rank 1 of T5 raises at step 3; started again, it does so again."""
    return stage.t5(raising("RuntimeError", "a sample that cannot be read"))


@scenario("exception-without-record", "exception", rank=3, node="node2")
def exception_without_record(stage: Stage) -> Trial:
    """A trainer without torchelastic's @record, so that there is no error file."""
    return stage.linear("--break", "exception", "--ranks", "3", gpus=2, sets=STOP)


@scenario("exception-everywhere", "exception", undecided=("rank", "node"))
def exception_everywhere(stage: Stage) -> Trial:
    """All ranks raise at the same step."""
    ranks = ("--ranks", "0", "1", "2", "3")
    return stage.linear("--break", "exception", *ranks, gpus=2, sets=STOP)


@scenario("exception-segfault", "exception", rank=2, node="node2")
def segfault(stage: Stage) -> Trial:
    """Rank 2 ends by SIGSEGV, as a broken extension does."""
    return stage.linear("--break", "segfault", "--ranks", "2", gpus=2, sets=STOP)


# Memory


@scenario(
    "gpu-out-of-memory",
    "gpu-out-of-memory",
    rank=1,
    node="node2",
    source="https://github.com/meta-pytorch/torchtune/issues/2071",
)
def gpu_out_of_memory(stage: Stage) -> Trial:
    """T5 in which rank 1 raises torch.OutOfMemoryError with the words of a real one."""
    return stage.t5(raising("OutOfMemoryError", OUT_OF_MEMORY))


# GPUs


@scenario(
    "bad-gpu",
    "bad-gpu",
    rank=1,
    node="node2",
    source="https://github.com/kohya-ss/sd-scripts/issues/1434",
)
def bad_gpu(stage: Stage) -> Trial:
    """T5 in which rank 1 raises CUDA's error of a broken memory cell."""
    return stage.t5(raising("RuntimeError", ECC), sets=STOP)


@scenario(
    "bad-gpu-fallen-off",
    "bad-gpu",
    rank=3,
    node="node2",
    source="https://github.com/NVIDIA/NVSentinel/issues/155",
)
def fallen_off(stage: Stage) -> Trial:
    """A rank that aborts after the driver's line about a GPU that is gone."""
    variables = {"ERROR_TEXT": XID}
    words = ("--break", "abort", "--ranks", "3")
    return stage.linear(*words, gpus=2, sets=STOP, variables=variables)


# Connections


@scenario("connection-reset", "connection-reset", undecided=("rank", "node"))
def connection_reset(stage: Stage) -> Trial:
    """The ranks' connections are cut while all processes are well."""
    trial = stage.t5({"hold": HOLD_AT}, sets=STOP)
    return stage.strike(trial, lambda _: reset_connections(stage, trial))


def reset_connections(stage: Stage, trial: Trial) -> None:
    """Those of rank 1's process that go to the other node, and no other."""
    node = "node2"
    pid = trial.rank(1).pid
    told = stage.cluster.node_exec(node, ["ss", "-Htnp", "state", "established"]).stdout
    for line in told.splitlines():
        # ss may show the number outside the node's namespace or the one inside.
        if f'"{trial.rank(1).name()}"' not in line and f"pid={pid}," not in line:
            continue
        _, _, own, other = line.split()[:4]
        if other.rpartition(":")[2] == rendezvous_port(trial):
            continue
        address, _, port = own.rpartition(":")
        stage.cluster.node_exec(node, ["ss", "-K", "src", address, "sport", "=", f":{port}"])


def rendezvous_port(trial: Trial) -> str:
    """`head node1 at 10.99.7.1:10007` in the batch shell's log."""
    return trial.batch_log().splitlines()[0].rpartition(":")[2].strip()


@scenario(
    "connection-reset-nccl",
    "connection-reset",
    undecided=("rank", "node"),
    source="https://github.com/NVIDIA/nccl/issues/2076",
)
def nccl_reset(stage: Stage) -> Trial:
    """All ranks raise what NCCL says after an InfiniBand fault between the nodes."""
    variables = {"ERROR_TEXT": NCCL_RESET.replace("\n", "\\n")}
    words = ("--break", "reset", "--ranks", "0", "1", "2", "3")
    return stage.linear(*words, gpus=2, sets=STOP, variables=variables)


# Collectives


@scenario("collective-mismatch", "collective-mismatch", undecided=("rank", "node"))
def mismatch(stage: Stage) -> Trial:
    """One rank's tensor has another shape; TORCH_DISTRIBUTED_DEBUG=DETAIL compares them."""
    variables = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    return stage.linear("--break", "shape", "--ranks", "1", variables=variables, sets=STOP)


@scenario("collective-mismatch-operation", "collective-mismatch", undecided=("rank", "node"))
def mismatch_operation(stage: Stage) -> Trial:
    """One rank broadcasts while the others reduce; TORCH_DISTRIBUTED_DEBUG=DETAIL compares them."""
    variables = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    return stage.linear("--break", "operation", "--ranks", "1", variables=variables, sets=STOP)


@scenario("collective-mismatch-gloo", "collective-mismatch", undecided=("rank", "node"))
def mismatch_gloo(stage: Stage) -> Trial:
    """The same other shape with plain gloo, which only notices that the sizes differ."""
    return stage.linear("--break", "shape", "--ranks", "1", "--timeout-s", "15", sets=STOP)


# Hangs


@scenario("hang", "hang", rank=1, node="node2")
def hang(stage: Stage) -> Trial:
    """Rank 1 is stopped by SIGSTOP: the process is there and does nothing."""
    trial = stage.t5({"hold": HOLD_AT}, sets=(*STOP, "retry.hang_s=8"))
    return stage.strike(trial, lambda _: trial.rank(1).suspend())


@scenario("hang-reading", "hang", rank=1, node="node2")
def hang_reading(stage: Stage) -> Trial:
    """Rank 1 waits for a sample that never comes; its stack says so."""
    return stage.t5({**AT, "break": "stall"}, sets=(*STOP, "retry.hang_s=8"))


@scenario("hang-timeout", "hang", rank=1, node="node2")
def hang_timeout(stage: Stage) -> Trial:
    """Rank 1 of a trainer without a heartbeat sleeps; gloo's time-out ends rank 0."""
    return stage.linear("--break", "sleep", "--ranks", "1", "--timeout-s", "10", sets=STOP)


@scenario(
    "hang-watchdog",
    "hang",
    undecided=("rank", "node"),
    source="https://github.com/XPixelGroup/BasicSR/issues/737",
)
def hang_watchdog(stage: Stage) -> Trial:
    """Ranks abort with the words of NCCL's watchdog when an all-reduce timed out."""
    variables = {"ERROR_TEXT": NCCL_WATCHDOG.replace("\n", "\\n")}
    words = ("--break", "abort", "--ranks", "1")
    return stage.linear(*words, sets=STOP, variables=variables)


# Numbers and data


@scenario("nan-loss", "nan-loss", undecided=("rank", "node"))
def nan_loss(stage: Stage) -> Trial:
    """The loss of rank 1 is no number at step 3, and so the gradient is none anywhere."""
    return stage.t5({**AT, "break": "poison"}, sets=STOP)


def corpus(stage: Stage) -> Path:
    """A small data set in a directory of its own."""
    place = stage.directory / f"data-{stage.count}"
    place.mkdir()
    file = place / "corpus.jsonl"
    rows = ({"source": f"say {n} in words", "target": f"number {n}"} for n in range(400))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def reading(file: Path) -> tuple[str, ...]:
    return (f"training.data.source={file}", "training.data.task=pairs", *STOP)


@scenario("data-missing", "data-missing", undecided=("rank", "node"))
def data_missing(stage: Stage) -> Trial:
    """The data set is deleted while the job is pending."""
    file = corpus(stage)
    with stage.held_back():
        trial = stage.t5(sets=reading(file))
        file.unlink()
    return trial


@scenario("data-missing-on-one-node", "data-missing", rank=1, node="node2")
def data_missing_on_one_node(stage: Stage) -> Trial:
    """The second node does not see the directory of the data set."""
    file = corpus(stage)
    stage.hide("node2", file.parent)
    return stage.t5(sets=reading(file))


# A run that is well


@scenario("done", "done")
def done(stage: Stage) -> Trial:
    """Nothing happens."""
    return stage.t5()
