"""T5 v1.1-large and -xl in bfloat16: sequences a second, step by step, each kept if it pays.

In one process, compiled from the beginning, as a user would train; uncompiled comes last. The
settings that were fastest are those that the later parts look at.
"""

from __future__ import annotations

import functools

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.steps import (
    BATCH,
    COMMON,
    DROPOUT,
    FIRST,
    PAYS,
    START,
    STEPS,
    UNCOMPILED,
    best_words,
)
from benchmarks.gpu_parts.trial import Make, Plan, Trial, fastest, plan, report, time_steps

COMPILING_S = 75
"""What a row of compiled blocks takes at most, nothing of it compiled before; a guess."""


def run_large(part: Part) -> None:
    best = plan("t5-v1.1-large", *COMMON, *START, dry=part.dry)
    rows = 2 if part.dry else BATCH
    row = at_batch(part, f"large, {FIRST}", best, rows)
    if row["status"] == "failed":  # 64 rows may not fit
        row = searched(part, f"large, {FIRST}, what fits", best, rows // 2)
    fastest_yet, rows = row.get("sequences_per_s", 0.0), row.get("rows", rows)
    for step in STEPS:
        tried, name = best.and_(*step.words), f"large, + {step.name}"
        if step.searches:
            row = searched(part, name, tried, rows)
        else:
            row = at_batch(part, name, tried, rows)
        # In a dry run speeds mean nothing.
        if row["status"] == "measured" and (
            part.dry or row["sequences_per_s"] >= PAYS * fastest_yet
        ):
            best, rows, fastest_yet = tried, row["rows"], row["sequences_per_s"]
    dropout = best.and_("model.dropout_rate=0.1")
    at_batch(part, f"large, all that paid, {DROPOUT}", dropout, rows)
    at_batch(part, f"large, all that paid, {UNCOMPILED}", best.and_("compile=false"), rows)


def run_xl(part: Part) -> None:
    """The settings that paid for large, with as little recomputation as the memory allows."""
    best = plan("t5-v1.1-xl", *best_words(part.context), dry=part.dry)
    for recompute in ("none", "selective", "full"):
        tried = best.and_(f"sharding.activation_checkpointing={recompute}")
        name = f"xl, activation checkpointing {recompute}"
        if searched(part, name, tried, 2 if part.dry else 8)["status"] == "measured":
            break


def needs_s(task: Plan) -> float:
    return COMPILING_S if task.settings.compile else 20


def at_batch(part: Part, name: str, tried: Plan, rows: int) -> Row:
    def action() -> Row:
        part.device.free()
        found = time_steps(Trial(tried, part.ranks), part.device, rows)
        part.device.free()
        return report(tried, found, part.device)

    settings = tried.settings
    lacks = part.device.lacks(settings.model.attention, settings.precision.param)
    return part.measure(name, action, needs_s=needs_s(tried), lacks=lacks)


def searched(part: Part, name: str, tried: Plan, rows: int) -> Row:
    """At the largest batch that is foreseen to fit, or that of `rows` if it is faster."""

    def make(task: Plan) -> Trial:
        return Trial(task, part.ranks)

    return part.measure(
        name, functools.partial(search, part, tried, rows, make), needs_s=1.5 * needs_s(tried)
    )


def search(part: Part, tried: Plan, rows: int, make: Make) -> Row:
    most = 2 * rows if part.dry else 1024
    best, tries = fastest(make, tried, part.device, rows, most=most, until=part.deadline)
    return {**report(tried, best, part.device), "tries": tries}
