"""Plans of steps whose blocks are compiled, beside real ranks: `plan.py --only compiled`.

Whole steps of two gloo ranks, whose blocks are really compiled, against plans of them
(compiled_ranks.py). Bytes alone are measured. `fsdpkit plan` follows compiled blocks so by
`--compiled`, uncompiled otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown, source
from benchmarks.measured import measured
from benchmarks.plan_parts.memory import peaks

RANKS = 2
ABOVE = 0.06
"""A plan of a step is never below what a rank holds, and at most this share above."""
SHAPES = {
    "tiny-byt5, 2 + 2 blocks, 8 × 128/64": (
        *("model.preset=tiny-byt5", "model.num_layers=2", "model.num_decoder_layers=2"),
        *("precision.param=bfloat16", "batch_size=8"),
        *("data.source_length=128", "data.target_length=64"),
    ),
    "t5-small in float32, 2 + 2 blocks, 4 × 128/64": (
        *("model.preset=t5-small", "model.num_layers=2", "model.num_decoder_layers=2"),
        *("model.vocab_size=512", "precision.param=float32", "batch_size=4"),
        *("data.source_length=128", "data.target_length=64"),
    ),
    "t5-v1.1-small, 3 + 3 blocks, 2 × 64/32": (
        *("model.preset=t5-v1.1-small", "model.num_layers=3", "model.num_decoder_layers=3"),
        *("model.vocab_size=512", "precision.param=bfloat16", "batch_size=2"),
        *("data.source_length=64", "data.target_length=32"),
    ),
}
"""Attention written out and no dropout: of both a CPU has other kernels outside of the blocks."""
STEPS = (
    ("tiny-byt5, 2 + 2 blocks, 8 × 128/64", "fsdp2", ("none", "selective", "full")),
    ("tiny-byt5, 2 + 2 blocks, 8 × 128/64", "fsdp1", ("selective",)),
    ("t5-small in float32, 2 + 2 blocks, 4 × 128/64", "fsdp2", ("full",)),
    ("t5-v1.1-small, 3 + 3 blocks, 2 × 64/32", "fsdp2", ("none", "full")),
)


_peaks = partial(peaks, script=Path(__file__).with_name("compiled_ranks.py"), ranks=RANKS)


def steps(quick: bool = False) -> list[dict[str, Any]]:
    """Real ranks hold, and plans say, these bytes; each case of real ranks in processes of its own.

    About a minute a case."""
    rows = [
        {"shape": shape, "engine": engine, "checkpointing": checkpointing}
        for shape, engine, several in STEPS
        for checkpointing in several
    ][: 1 if quick else None]
    cases = [
        [
            *SHAPES[row["shape"]],
            *("model.attention=math", "model.dropout_rate=0.0", "data.multiple=1", "compile=true"),
            f"sharding.engine={row['engine']}",
            f"sharding.activation_checkpointing={row['checkpointing']}",
        ]
        for row in rows
    ]
    held = [_peaks("real", [case])[0] for case in cases]
    sizes = zip(held, _peaks("planned", cases), _peaks("uncompiled", cases), strict=True)
    keys = ("held_bytes", "planned_bytes", "uncompiled_bytes")
    return [
        {**row, **dict(zip(keys, each, strict=True))} for row, each in zip(rows, sizes, strict=True)
    ]


def measure(quick: bool, _: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {
        "plan_compiled": "what steps with compiled blocks hold",
        "measured": measured("torch"),
        "steps": steps(quick),
    }


def all_within(result: Mapping[str, Any]) -> bool:
    errors = (row["planned_bytes"] / row["held_bytes"] - 1 for row in result["steps"])
    return all(-0.0001 <= error <= ABOVE for error in errors)


def table(result: Mapping[str, Any]) -> str:
    head = ("Step on two ranks, compiled", "Engine", "Checkpointing", "Held", "Planned", "Error",
            "Error uncompiled")  # fmt: skip
    lines = []
    for row in result["steps"]:
        held = row["held_bytes"]
        lines.append((
            *(row[key] for key in ("shape", "engine", "checkpointing")),
            f"{held / 2**20:.2f} MiB",
            f"{row['planned_bytes'] / 2**20:.2f} MiB",
            f"{100 * (row['planned_bytes'] / held - 1):+.2f} %",
            f"{100 * (row['uncompiled_bytes'] / held - 1):+.2f} %",
        ))  # fmt: skip
    closing = (
        f"Target: never below what is held, at most {ABOVE:.0%} above: "
        f"{'met' if all_within(result) else '**missed**'}. Peak bytes of a step on the "
        "first rank, read from the profiler, without the workspaces of collectives. The last "
        "column is the plan that follows the blocks uncompiled, which is the default."
    )
    return "\n\n".join([markdown(head, lines), closing, source(result["measured"])])
