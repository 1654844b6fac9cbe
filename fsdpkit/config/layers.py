"""A place where jobs, templates and sites are looked for; assets.py says which there are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.errors import ConfigError

if TYPE_CHECKING:
    from fsdpkit.config.published.centre import Release


@dataclass(frozen=True)
class AssetLayer:
    """One place to look: its name for people and its directory."""

    name: str
    dir: Path
    release: Release | None = None
    """Of something found in a centre that publishes: which version, to be read by `content_of`."""
    refusal: str | None = None
    """Of something found: why it must not be read."""

    def refuse(self) -> None:
        """Raises ConfigError for what must not be read."""
        if self.refusal is not None:
            raise ConfigError(self.refusal)


Places = list[tuple[AssetLayer, Path]]
