"""Where the viewer's credentials go, and what is written for them: never by another's word.

A run's files name a server and a team. They are followed if nobody but the viewer can change them;
otherwise the viewer's own settings say it, or the centre's. What opens a tracker's client takes a
`Destination`, and only `destination_of` makes one.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config import assets
from fsdpkit.config.loading import read_toml
from fsdpkit.config.ownership import first_unsafe, only_owner_makes, only_owner_writes
from fsdpkit.config.published.memory import state_dir
from fsdpkit.config.track import Track
from fsdpkit.errors import ConfigError
from fsdpkit.reporting.printable import one_line
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.store import is_mine
from fsdpkit.scheduling.run import Run

_MOST_SHOWN = 200


@dataclass(frozen=True)
class Destination:
    """What is sent by one person's words, and where the files are that go with it."""

    files: RunPaths
    """The run's own directory where that is the viewer's, else one in their state directory."""
    entity: str | None
    """W&B's team or user."""
    not_followed: str | None
    """What the run names that does not count, and why, in words."""
    _uri: str | None

    @property
    def uri(self) -> str:
        """MLflow's. Raises ConfigError where the run's does not count and there is no other."""
        if self._uri is not None:
            if "://" in self._uri:
                return self._uri
            return Path(os.path.expanduser(self._uri)).absolute().as_uri()
        raise ConfigError(
            f"{self.not_followed or 'the run is not yours, and names no server'}: set "
            "MLFLOW_TRACKING_URI, or give --uri, to send it to a server of yours"
        )


def destination_of(run: Run, said: Track, asked: Track) -> Destination:
    """said: the run's `[track]`; asked: the command line's. Raises ConfigError."""
    files = run.paths if is_mine(run.dir) else RunPaths(_directory_for(run))
    own_uri = asked.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if (unsafe := first_unsafe(run.paths.job)) is None:
        top = run.dir.parent if only_owner_makes(run.dir.parent) else state_dir() / "tracked"
        beside = f"sqlite:///{top / 'mlflow.db'}"
        return Destination(files, said.entity, None, asked.uri or said.uri or own_uri or beside)
    own, why = _own_settings(), None
    if names := [one_line(text)[:_MOST_SHOWN] for text in (said.uri, said.entity) if text]:
        why = f"{run.id} names {', '.join(names)}, but others than you can change {unsafe}"
    return Destination(files, own.entity, why, own_uri or own.uri)


def _directory_for(run: Run) -> Path:
    """Of the viewer's own, for a run of another's: the same for good."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(run.dir))).hexdigest()
    return state_dir() / "tracked" / f"{run.id}-{digest[:12]}"


def _own_settings() -> Track:
    """`[track]` of defaults.toml, the centre's and the viewer's."""
    said: dict[str, Any] = {}
    for layer, file in assets.defaults_files():
        found = read_toml(file).get("track")
        if isinstance(found, dict) and (layer.name == "centre" or only_owner_writes(file)):
            said |= found
    try:
        return msgspec.convert(said, Track)
    except msgspec.ValidationError as error:
        raise ConfigError(f"defaults.toml: track: {error}") from error
