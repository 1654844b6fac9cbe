"""`[metrics]` of a job: how the step and loss of a script are read from what it prints."""

from typing import Annotated

import msgspec

from fsdpkit.bounded import PATTERN
from fsdpkit.config.fields import Text, doc
from fsdpkit.config.linear_regex import LinearRegex

GROUPS = ("step", "total", "epoch", "loss", "rate")


class PrintedMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For a script that does not call fsdpkit.log and prints in no common format."""

    pattern: Annotated[
        Text,
        doc(
            "Regular expression for a line of the output, with at least one of the "
            "groups (?P<step>…), total, epoch, loss and rate; no lookaround, no references.",
            max_length=PATTERN,
        ),
    ]

    def __post_init__(self) -> None:
        try:
            groups = LinearRegex(self.pattern).groups
        except ValueError as error:
            raise ValueError(f"pattern: {error}") from None
        known = "(?P<step>…), total, epoch, loss, rate"
        if other := [name for name in groups if name not in GROUPS]:
            raise ValueError(f"pattern: the group {other[0]} has no meaning; there are {known}")
        if not groups:
            raise ValueError(f"pattern: it names no group; there are {known}")
