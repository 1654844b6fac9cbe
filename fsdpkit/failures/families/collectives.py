"""Causes: ranks that do not do the same, or that do nothing any more."""

from __future__ import annotations

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern
from fsdpkit.runs.failures import Level

COLLECTIVE_MISMATCH = Cause(
    "collective-mismatch",
    "The ranks called different collectives, or with different shapes: {words}",
    waited="{who} left while other ranks still waited for it: {words}",
    patterns=(
        pattern(
            "Detected mismatch between collectives on ranks",
            "torch with TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
        pattern(
            "op.preamble.length <= op.nbytes",
            "gloo, when a peer sends more than was to be received",
        ),
        pattern(
            ("Mismatched ", ": collective mismatch"),
            "NCCL, Horovod",
            line=r"(?i)mismatched collective detected|: collective mismatch|"
            r"mismatched [\w ]+: One rank \w+ ",
        ),
        pattern(
            "message truncated", "NCCL over sockets, MPI", line=r" : receiving |MPI_ERR_TRUNCATE"
        ),
        pattern(
            ("across ranks", "across all ranks", "in process 0"),
            "FSDP and DDP, which compare the ranks' models and the order of their layers",
            by=("rank",),
            line=r"differs? across (?:all )?ranks|same model across all ranks, but |"
            r"not to match (?:sizes|strides) of the same param in process",
        ),
    ),
)

HANG = Cause(
    "hang",
    "{who} stopped making progress: {words}",
    statuses=frozenset({124}),
    retry="hang",
    waited="{who} timed out waiting for another rank; which one is unknown: {words}",
    patterns=(
        pattern(
            "monitoredBarrier",
            "gloo's monitored barrier, which names the missing rank",
            line=r"(?i)ranks?(?:\(s\))? (?P<rank>\d+)(?:, \d+)* failed to (?:pass|reach) m",
        ),
        pattern(
            (
                *("Watchdog caught collective operation timeout", "Timed out waiting "),
                *(
                    "watchdog got stuck",
                    "watchdog hang",
                    "eartbeat monitor",
                    "watchdog stuck",
                ),
                *(
                    "ollective operation timed out",
                    "monitoredBarrier",
                    "collective timeout",
                ),
                *("Timeout at NCCL work", "timed out in a collective"),
            ),
            "NCCL's watchdog and gloo, in a rank waiting for another",
            Level.WAITED,
            line=r"(?i)waiting \d+ms|watchdog|heartbeat|barrier|collective|NCCL work",
        ),
        pattern(
            "failed to pass monitoredBarrier",
            "torch, on rank 0",
            Level.WAITED,
        ),
    ),
)
