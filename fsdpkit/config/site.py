"""The site of a submission: as asked, or recognised by this machine's environment and name.

`site/profiles/<centre>/<cluster>.toml`, laid over one another: packaged, the centre's, the user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.config.loading import Layered, build, read_toml
from fsdpkit.config.profile import Identify, SiteProfile
from fsdpkit.config.secrets import refuse_secrets
from fsdpkit.errors import UsageError


@dataclass(frozen=True)
class LoadedSite:
    """A profile under its id, with the files it was read from."""

    id: str
    profile: SiteProfile
    files: tuple[Path, ...]
    read: Mapping[Path, bytes] = field(default_factory=dict)
    """What was read of each."""


def load_site(name: str) -> LoadedSite:
    """The profile with this id, its layers merged, or that of one .toml file.

    Raises NotFoundError or ConfigError.
    """
    layered = Layered()
    if name.endswith(".toml"):
        path = Path(name)
        layered.overlay(read_toml(path), name)
        name, files = path.stem, [path.resolve()]
    else:
        found = assets.find("site", name)
        for layer, path in found:
            layered.overlay(read_toml(path), f"{layer.name} {path.name}")
        files = [path for _, path in found]
    refuse_secrets(layered, f"site {name}")
    return LoadedSite(
        name, build(SiteProfile, layered, f"site {name}"), tuple(files), layered.files
    )


def choose_site(name: str | None) -> tuple[LoadedSite, str]:
    """The site to use and why, in a few words.

    `name` wins; then `FSDPKIT_CLUSTER`; then the profile whose variable, else whose host name, is
    this machine's; then `generic` where sbatch is on PATH, else `local`.
    """
    if name or (name := os.environ.get("FSDPKIT_CLUSTER")):
        return load_site(name), "as asked"
    import shutil
    import socket

    if shutil.which("sbatch") is None:
        return load_site("local"), "no sbatch on this machine"
    profiles = [load_site(n) for n in assets.available("site")]
    if by_env := [s for s in profiles if _env_matches(s.profile.identify)]:
        return _only(by_env, "variables"), "recognised by its environment variables"
    # The full name may need an answer from the name service, so the short one is tried first.
    for host_name in (socket.gethostname, socket.getfqdn):
        host = host_name()
        if by_host := [s for s in profiles if _host_matches(s.profile.identify, host)]:
            return _only(by_host, f"host name {host}"), "recognised by its host name"
    return load_site("generic"), "no profile matches this machine"


def _env_matches(identify: Identify) -> bool:
    return any(os.environ.get(k) == v for k, v in identify.env.items())


def _host_matches(identify: Identify, host: str) -> bool:
    return identify.hostname is not None and re.fullmatch(identify.hostname, host) is not None


def _only(found: list[LoadedSite], what: str) -> LoadedSite:
    if len(found) > 1:
        names = ", ".join(s.id for s in found)
        raise UsageError(f"the {what} of this machine match several sites ({names}); use --cluster")
    return found[0]
