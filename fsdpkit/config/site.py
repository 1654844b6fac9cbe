"""The site of a submission: as asked, or recognised by this machine's environment and name.

`site/profiles/<centre>/<cluster>.toml`, laid over one another: packaged, the centre's, the user's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

import fsdpkit
from fsdpkit.config import assets
from fsdpkit.config.key_changes import release_of
from fsdpkit.config.layers import Places
from fsdpkit.config.linear_regex import matches
from fsdpkit.config.loading import Layered, build, read_place, read_toml
from fsdpkit.config.profile import Identify, SiteProfile
from fsdpkit.config.secrets import refuse_secrets
from fsdpkit.errors import ConfigError, NotFoundError, UsageError


@dataclass(frozen=True)
class LoadedSite:
    """A profile under its id, with the files it was read from."""

    id: str
    profile: SiteProfile
    files: tuple[Path, ...]
    layered: Layered = field(default_factory=Layered)
    """What was read of each."""
    skipped: tuple[str, ...] = ()
    """Why profiles of other machines cannot be used, where this one was recognised among them."""


def load_site(name: str) -> LoadedSite:
    """The profile with this id, its layers merged, or that of one .toml file. Raises NotFoundError
    or ConfigError."""
    layered = Layered()
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise NotFoundError(f"there is no profile file {name}")
        assets.refuse_behind_the_index(path)
        layered.overlay(read_toml(path), name)
        name, files = path.stem, [path.resolve()]
    else:
        found = assets.find("site", name)
        for layer, path in found:
            version = f" version {layer.release.version}" if layer.release else ""
            layered.overlay(read_place(layer, path), f"{layer.name} {path.name}{version}")
        name = name.partition("@")[0]
        files = [path for _, path in found]
    _leave_out_newer(layered, name)
    refuse_secrets(layered, f"site {name}")
    return LoadedSite(name, build(SiteProfile, layered, f"site {name}"), tuple(files), layered)


def _leave_out_newer(layered: Layered, name: str) -> None:
    """Of a profile that says it is for a newer release: do without the keys that came with it."""
    requires = layered.values.get("requires")
    if not isinstance(requires, str) or release_of(requires) <= release_of(fsdpkit.__version__):
        return
    if keys := layered.leave_out_unknown(SiteProfile):
        layered.warnings.append(
            f"site {name} is written for fsdpkit {requires}; this is {fsdpkit.__version__}, which "
            f"does not know and does not use: {', '.join(keys)}"
        )


def choose_site(name: str | None) -> tuple[LoadedSite, str]:
    """The site to use and why, in a few words. `name` wins; then `FSDPKIT_CLUSTER`; then the
    profile whose variable, else whose host name, is this machine's; then `generic` where sbatch is
    on PATH, else `local`."""
    if name or (name := os.environ.get("FSDPKIT_CLUSTER")):
        return load_site(name), "as asked"
    import shutil
    import socket

    if shutil.which("sbatch") is None:
        return load_site("local"), "no sbatch on this machine"
    profiles, broken = load_sites()
    _refuse_if_this_machines(broken)
    if by_env := [s for s in profiles if _env_matches(s.profile.identify)]:
        found = _only(by_env, "variables")
        return _with(broken, found), "recognised by its environment variables"
    # The full name may need an answer from the name service, so the short one is tried first.
    for host_name in (socket.gethostname, socket.getfqdn):
        host = host_name()
        if by_host := [s for s in profiles if _host_matches(s.profile.identify, host)]:
            return _with(broken, _only(by_host, f"host name {host}")), "recognised by its host name"
    _refuse_unowned(broken)
    return _with(broken, load_site("generic")), "no profile matches this machine"


class BrokenSite(msgspec.Struct, frozen=True):
    """A profile that cannot be used, with the reason, which names the file."""

    id: str
    why: str
    identify: Identify
    """How its machine is recognised, as far as it can be read."""
    whole: bool
    """Whether that is all."""


def load_sites() -> tuple[list[LoadedSite], list[BrokenSite]]:
    """All profiles that can be used, and those that cannot."""
    profiles, broken = [], []
    for name, places in assets.available("site").items():
        try:
            profiles.append(load_site(name))
        except ConfigError as error:
            broken.append(BrokenSite(name, str(error), *_identify_of(places)))
    return profiles, broken


def _identify_of(places: Places) -> tuple[Identify, bool]:
    """How an unusable profile has its machine recognised, and whether that is known."""
    layered, whole = Layered(), True
    for layer, path in places:
        try:
            layered.overlay(read_place(layer, path), str(path))
        except ConfigError:
            whole = False
    try:
        known = msgspec.convert(layered.values.get("identify", {}), Identify)
    except msgspec.ValidationError:
        return Identify(), False
    return known, whole and bool(known.env or known.hostname)


def _with(broken: list[BrokenSite], site: LoadedSite) -> LoadedSite:
    return replace(site, skipped=tuple(b.why.partition("\n")[0] for b in broken))


def _refuse_if_this_machines(broken: list[BrokenSite]) -> None:
    """Raise ConfigError where the profile of this very machine is broken: another one, or none,
    would send jobs off with limits and addresses of somewhere else."""
    import socket

    mine = [b for b in broken if _env_matches(b.identify)]
    named = [b for b in broken if b.identify.hostname]
    for host_name in (socket.gethostname, socket.getfqdn) if named else ():
        mine += [b for b in named if _host_matches(b.identify, host_name())]
    if mine:
        raise ConfigError(
            f"{mine[0].why}\nThat is this machine's profile, so nothing else is used in its place: "
            "have it corrected, or choose another with --cluster"
        )


def _refuse_unowned(broken: list[BrokenSite]) -> None:
    """Raise ConfigError where no profile is this machine's and one that is broken may be."""
    unknown = [b for b in broken if not b.whole]
    if unknown:
        raise ConfigError(
            f"{unknown[0].why}\nNo other profile is this machine's, and this one may be: have it "
            "corrected, or choose one with --cluster (generic: a cluster that nobody described)"
        )


def may_be_here(profile: SiteProfile) -> bool:
    """Whether this machine may be its login node: the profile recognises it, or does not say."""
    import socket

    known = profile.identify
    if not known.env and known.hostname is None:
        return True
    names = (socket.gethostname, socket.getfqdn)
    return _env_matches(known) or any(_host_matches(known, name()) for name in names)


def _env_matches(identify: Identify) -> bool:
    return any(os.environ.get(k) == v for k, v in identify.env.items())


def _host_matches(identify: Identify, host: str) -> bool:
    return identify.hostname is not None and matches(identify.hostname, host)


def _only(found: list[LoadedSite], what: str) -> LoadedSite:
    if len(found) > 1:
        names = ", ".join(s.id for s in found)
        raise UsageError(f"the {what} of this machine match several sites ({names}); use --cluster")
    return found[0]


def site_on_record(name: str, file: str | None) -> LoadedSite:
    """A run's cluster by name, else by its profile's file. Raises NotFoundError, ConfigError."""
    try:
        return load_site(name)
    except NotFoundError:
        if file is None:
            raise
        return load_site(file)
