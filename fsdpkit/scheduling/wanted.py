"""What a person asks of a submission beside the job itself: one list, for the command line, Python
and `resume`. Each is short for a key of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsdpkit.config.loading import FileTables

_KEYS = {"snapshot": "source.snapshot"}
"""Those of another table than [resources]."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Unchecked. None and empty: not said."""

    nodes: int | None = None
    gpus: int | None = None
    """Per node."""
    account: str | None = None
    partition: str | None = None
    time: str | None = None
    spare: int | None = None
    sets: Sequence[str] = ()
    """`KEY=VALUE` each; what is said above is stronger."""
    said_in: Sequence[FileTables] = ()
    """Files that some of `sets` were read from, so that trust is asked in them, too."""

    @property
    def options(self) -> dict[str, Any]:
        """By key of the job, what was said."""
        return {
            key: value
            for one in fields(self)
            if (key := key_of(one.name)) and (value := getattr(self, one.name)) is not None
        }


_OF_RESOURCES = tuple(one.name for one in fields(Wanted) if one.name not in ("sets", "said_in"))


def key_of(name: str) -> str | None:
    """The key of the job that `name` is short for: `resources.nodes`; None: for none."""
    return f"resources.{name}" if name in _OF_RESOURCES else _KEYS.get(name)
