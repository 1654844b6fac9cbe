"""Types of values that jobs, sites and templates share."""

from typing import Annotated

from msgspec import Meta

Scalar = bool | int | float | str

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
