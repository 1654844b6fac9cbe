"""The single table of a comparison: one row per run, one column per figure that any run has."""

from __future__ import annotations

from fsdpkit.reporting.comparison.compared import Compared, Comparison
from fsdpkit.reporting.printable import printable
from fsdpkit.reporting.words import ABSENT, shown


def rows(told: Comparison) -> list[list[str]]:
    """The head and a row for each run; columns without any value are left out. Last come numbers
    that scripts logged by names of their own."""
    own = list(dict.fromkeys(name for one in told.runs for name in one.own))
    head = ["", "STATE", "STEPS", "LOSS", "EVAL", "BEST", "TOKENS/S", "PLANNED", "S/STEP", "MFU"]
    head += ["GiB", "HOURS", "TRAINED", *(printable(name)[:30] for name in own)]
    cells = [[*_cells(one), *(shown(one.own.get(name), 4) for name in own)] for one in told.runs]
    used = [c for c in range(len(head)) if c < 2 or any(row[c] != ABSENT for row in cells)]
    return [[row[c] for c in used] for row in [head, *cells]]


def _cells(one: Compared) -> list[str]:
    of = f"/{one.planned_steps}" if one.planned_steps else ""
    return [
        one.label,
        one.state.partition(":")[0].partition(",")[0],
        ABSENT if one.steps is None else f"{one.steps}{of}",
        shown(one.loss, 4),
        shown(one.eval_loss, 4),
        shown(one.best_eval_loss, 4),
        shown(one.tokens_per_s),
        shown(_planned(one)),
        shown(one.step_time_s),
        ABSENT if one.mfu is None else f"{one.mfu:.1%}",
        shown(None if one.memory_bytes is None else one.memory_bytes / 2**30),
        shown(one.granted_h),
        ABSENT if one.trained_share is None else f"{one.trained_share:.0%}",
    ]


def _planned(one: Compared) -> float | None:
    """Tokens/s as predicted of its newest job."""
    newest = one.predictions[-1].figure("tokens_per_s") if one.predictions else None
    return newest.predicted if newest else None
