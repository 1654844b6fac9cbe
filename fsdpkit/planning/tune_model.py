"""`fsdpkit plan --tune --model …`: the search of `tune.py` for a model of one's own.

What is searched is what the job's script can be told (`tune_recorded.py`). A script that reads no
[training] has its settings in its own source, and `submit` would refuse a `--set` of them: then
only the number of nodes is for the command line, and the rest is told as what to write there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import msgspec

from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.outside import SAFE
from fsdpkit.planning.plans import plan
from fsdpkit.planning.speed_calibration import SpeedCalibration
from fsdpkit.planning.tape import Tape
from fsdpkit.planning.tune import Aim, Tuned, tune
from fsdpkit.planning.tune_recorded import Allowed, allowed_by, recorded, to_record
from fsdpkit.planning.tune_space import BATCH

_SECONDS, _LEAST_S = 95.0, 20.0
"""For all of it, and for asking about memory at the least."""


def tune_model(
    asked: AskedStep, nodes: Sequence[int], aim: Aim, calibration: SpeedCalibration
) -> Tuned:
    """The fastest settings of the model that fit. Raises FsdpkitError where its step cannot be
    followed, for then no two settings can be compared."""
    began = time.monotonic()
    allowed = allowed_by(asked.entry.path)
    whole = _tape(asked, None)
    batch = whole.samples
    several = whole if batch > 1 else _tape(asked, 2)
    one, selective = _tape(asked, 1), None
    with suppress(FsdpkitError):  # a model without blocks, or with units inside them, has none
        selective = _tape(asked, 1, "selective")
    layers = recorded(one, several, selective, *_shape(asked))
    base = msgspec.structs.replace(asked.settings, batch_size=batch)

    def memory_of(settings: TrainingSettings, count: int, gpus: int) -> int:
        rows = settings.batch_size
        each = replace(asked, settings=settings, nodes=count, gpus=gpus, rows=rows)
        made = plan(each)
        if made.is_lower_bound:
            raise FsdpkitError(f"not all of its step could be followed: {made.tape.lacking[0]}")
        return made.total

    found = tune(
        base,
        nodes=nodes,
        gpus=asked.gpus,
        base_nodes=asked.nodes,
        calibration=calibration,
        memory_of=memory_of,
        room_bytes=int(asked.card.memory * SAFE),
        work_of=layers.work,
        aim=aim,
        seconds=max(_LEAST_S, _SECONDS - (time.monotonic() - began)),
        keys=allowed.keys,
        parameters=layers.parameters,
    )
    return _told(found, allowed, several=len({*nodes}) > 1)


def _shape(asked: AskedStep) -> tuple[int, int]:
    """Ranks that the layers are recorded on: of one rank alone no unit gathers anything."""
    return (asked.ranks, asked.gpus) if asked.ranks > 1 else (2, 2)


def _tape(
    asked: AskedStep, rows: int | None, checkpointing: Literal["none", "selective"] = "none"
) -> Tape:
    from fsdpkit.planning.apart import tape_apart

    ranks, gpus = _shape(asked)
    settings = to_record(asked.settings, checkpointing)
    if rows is not None:
        settings = msgspec.structs.replace(settings, batch_size=rows)
    each = replace(asked, settings=settings, nodes=ranks // gpus, gpus=gpus, rows=rows)
    return tape_apart(each)[0]


def _told(found: Tuned, allowed: Allowed, *, several: bool) -> Tuned:
    """The answer with what its script has to say to it."""
    notes = list(found.notes)
    if not allowed.reads:
        found = msgspec.structs.replace(found, sets=(), in_script=found.sets)
    if several and BATCH not in allowed.keys:
        notes.append(
            f"the batch of a rank is {allowed.name}'s own and stays, so that more nodes train with "
            "a larger batch"
        )
    return msgspec.structs.replace(found, notes=tuple(notes))
