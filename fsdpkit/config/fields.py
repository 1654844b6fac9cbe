"""Types of values that jobs, sites and templates share, and marks beside a job's keys."""

from typing import Annotated, Any

from msgspec import Meta

ARRAY = "array"
"""In `Meta.extra`: what config/array_tasks.py asks a key and the tables around it."""


def doc(sentence: str, **limits: Any) -> Meta:
    """A key's sentence for help, schema and messages, and limits of its values as in `Meta`."""
    return Meta(description=sentence, **limits)


PER_TASK = Meta(extra={ARRAY: None})
"""Beside a key that is read in the task, and so may differ between the tasks of one array."""


def once(why: str) -> Meta:
    """Beside a key that all tasks of an array share; `why` says so and what to do instead, with
    {key} for the key itself."""
    return Meta(extra={ARRAY: why})


A_SWEEP_EACH = "for each value start a sweep of its own, with --set {key}=VALUE"
RENDERED_ONCE = once(f"they share one sbatch script, which is made with it: {A_SWEEP_EACH}")


Scalar = bool | int | float | str

Count = Annotated[int, Meta(ge=1)]

Text = Annotated[str, Meta(min_length=1)]
"""Text that says something: an empty value would become an empty option of sbatch."""

# Not those that the script itself sets, and not those that bash forbids to set.
VariableName = Annotated[
    str,
    Meta(
        pattern=r"^(?!(?:FSDPKIT|RDZV|SUBMITIT)_"
        r"|(?:BASHOPTS|BASH_VERSINFO|EUID|IFS|PPID|SHELLOPTS|UID)$)[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of an environment variable that the script does not own.",
    ),
]
