"""`plan.json`: what `fsdpkit plan` predicted for a job when it was submitted.

Submitting copies it from the stored plan, so a report needs no planning and shows what was known
before the run, not what would be predicted today. A run whose job was not planned has none. The
file is untrusted: it is decoded with limits, or ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.bounded import NOTE_BYTES
from fsdpkit.errors import storage_errors
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.reading import record_in
from fsdpkit.runs.record import Count, Time

Positive = Annotated[float, Meta(gt=0, le=1e30)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
Line = Annotated[str, Meta(max_length=300)]


class Span(msgspec.Struct, frozen=True):
    """A prediction of speed, with its 80% interval: `low` to `high`."""

    low: Positive
    middle: Positive
    high: Positive

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.middle * factor, self.high * factor)


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Of one job on so many GPUs. Bytes are of the fullest GPU; rates of the whole job."""

    schema: Literal["fsdpkit.predicted/1"] = "fsdpkit.predicted/1"
    name: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Of what the plan depends on: jobs of one name are one job to a plan."""
    made_s: Time
    """Unix time."""
    nodes: Count
    gpus: Count
    """Per node."""
    card: Line
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    tokens_per_s: Span | None = None
    """None where tokens are not known; then `samples_per_s` says how fast."""
    samples_per_s: Span | None = None
    step_s: Span | None = None
    mfu: Span | None = None
    """A share of the dense peak."""
    source: Literal["tape", "closed form"] | None = None
    """Where the speed's work is from; before 0.2 of T5 a closed form."""
    rests_on: Line = ""
    """What the speed rests on: `published figures only`, or runs."""


def save_predicted(paths: RunPaths, found: Predicted | None) -> None:
    """Keep it with the job; None: none, and an older job's is removed. Raises StorageError."""
    with storage_errors(paths.plan, "written"):
        if found is None:
            paths.plan.unlink(missing_ok=True)
        else:
            write_atomically(
                paths.plan, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
            )


def predicted_of(paths: RunPaths, job_id: str | None = None) -> Predicted | None:
    """Of the run's newest job, or of an earlier one by its id; None if nothing usable is there."""
    path = paths.plan
    if job_id is not None:
        if not re.fullmatch(r"\d{1,18}", job_id):
            return None
        path = path.with_name(f"{path.stem}.{job_id}{path.suffix}")
    if (found := record_in(path, Predicted, NOTE_BYTES)) is None:
        return None
    spans = (found.tokens_per_s, found.samples_per_s, found.step_s, found.mfu)
    in_order = all(s is None or s.low <= s.middle <= s.high for s in spans)
    return found if in_order else None
