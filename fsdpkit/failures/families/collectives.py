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
            "Detected mismatch between collectives on ranks | op.preamble.length <= op.nbytes | "
            "ismatched collective detected | : collective mismatch | ismatched …: One rank  | "
            "message truncated : receiving  | MPI_ERR_TRUNCATE | differs across ranks | "
            "differ across ranks | differs across all ranks | same model across all ranks, but  | "
            "not to match …of the same param in process",
            "torch with TORCH_DISTRIBUTED_DEBUG=DETAIL, gloo, NCCL, Horovod, MPI; FSDP and DDP, "
            "which compare the ranks' models and the order of their layers",
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
            "Watchdog caught collective operation timeout | Timed out waiting …ms | "
            "watchdog got stuck | watchdog hang | watchdog stuck | eartbeat monitor | "
            "ollective operation timed out | monitoredBarrier | collective timeout | "
            "Timeout at NCCL work | timed out in a collective",
            "NCCL's watchdog and gloo, in a rank waiting for another",
            Level.WAITED,
        ),
    ),
)
