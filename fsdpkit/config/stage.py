"""`[stage]` of a job: what is copied to the disks of its nodes before it starts, and back from them
when it ends.
"""

import os
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import Text
from fsdpkit.errors import ConfigError

_WILD = frozenset("*?[")


class StagedItem(NamedTuple):
    """One entry of `stage.data`."""

    name: str
    """Below $FSDPKIT_STAGE."""
    pattern: str
    """A whole path, maybe with wildcards."""


def item_name(pattern: str) -> str:
    """The name that a pattern's files have below $FSDPKIT_STAGE.

    That of the last directory before a wildcard, or of the file or directory itself; empty for what
    has none, such as `/`.
    """
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    return next(reversed([*takewhile(_WILD.isdisjoint, parts)]), "")


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies on each node's own disk (`storage.local` of the profile), each file read once for the
    whole job and handed on from node to node."""

    environment: Annotated[
        bool, Meta(description="Copy the job's Python environment, and run from the copy.")
    ] = False
    data: Annotated[
        list[Text],
        Meta(
            description="Files, directories or patterns (`*`, `?`); each is found below "
            "$FSDPKIT_STAGE, under the name of its last directory before a wildcard."
        ),
    ] = []
    share: Annotated[
        Literal["each", "sharded"],
        Meta(description="`each`: a node gets all data; `sharded`: the files that its ranks read."),
    ] = "each"
    back: Annotated[
        list[Text],
        Meta(
            description="Files or directories below $FSDPKIT_STAGE that are copied from each node "
            "to attempt-N/back/node-I/ when the job ends."
        ),
    ] = []

    @property
    def is_asked(self) -> bool:
        """Whether anything of it is."""
        return bool(self.environment or self.data or self.back)

    @property
    def has_directory(self) -> bool:
        """Whether scripts have a use for $FSDPKIT_STAGE, and so for {stage}."""
        return bool(self.data or self.back)

    def __post_init__(self) -> None:
        for pattern in self.data:
            if pattern.startswith("/") and not item_name(pattern):
                raise ValueError(f"data: {pattern!r} is no directory to copy: name one below it")
        for path in self.back:
            parts = [part for part in path.split("/") if part not in ("", ".")]
            if path.startswith(("/", "~")) or ".." in parts or not parts:
                raise ValueError(f"back: {path!r} must be a path below $FSDPKIT_STAGE, as in logs/")

    def items(self, work_dir: Path) -> list[StagedItem]:
        """What is copied, by whole paths. Raises ConfigError for names that are none, or alike."""
        whole = [os.path.join(work_dir, os.path.expanduser(text)) for text in self.data]
        patterns = ["/" + os.path.normpath(path).lstrip("/") for path in whole]
        items = [StagedItem(item_name(pattern), pattern) for pattern in patterns]
        for name, count in Counter(item.name for item in items).items():
            alike = ", ".join(item.pattern for item in items if item.name == name)
            if name in ("", ".staged.json"):  # which lists the items, beside them
                raise ConfigError(f"stage.data: {alike} has no name to be copied under")
            if count > 1:
                raise ConfigError(
                    f"stage.data: {alike} would all be {name} below $FSDPKIT_STAGE: name a "
                    "directory above them, or one pattern for all"
                )
        return items
