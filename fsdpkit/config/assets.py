"""Where jobs, templates and sites are found.

Look-up order, nearest to the person first: a path on the command line, the user's directory, the
centre's directories (`FSDPKIT_SITE_PATH`), what travels with the package. In a checkout the last
are the top-level folders; in a wheel they lie in `fsdpkit/_shared`.

A centre that publishes (config/published) counts with what its signed index names, and nothing
else. What is found there and is not to be used is found all the same, with the reason: to leave it
out silently would be to use something else of its name.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.config import surroundings
from fsdpkit.config.layers import AssetLayer, Places
from fsdpkit.config.spelling import nearest
from fsdpkit.errors import ConfigError, NotFoundError, UsageError
from fsdpkit.listing import first_of

if TYPE_CHECKING:
    from fsdpkit.config.published.centre import Centre
    from fsdpkit.config.published.index import Kind

_PACKAGE = Path(__file__).resolve().parent.parent


def package_dir() -> Path:
    """The directory of fsdpkit's own modules."""
    return _PACKAGE


def packaged_dir() -> Path:
    """The directory that holds `templates/`, `jobs/`, `site/`, `skills/` and `examples/`."""
    return surroundings.packaged_dir()


def hold_script() -> Path:
    """What the job of `fsdpkit hold` runs."""
    return packaged_dir() / "jobs" / "hold.py"


_NO_HOME = Path("/nonexistent")
"""The home of those who have none, as Debian has it."""


def user_dir() -> Path:
    """`$FSDPKIT_CONFIG_DIR`, else `fsdpkit` in the user's XDG configuration directory."""
    if explicit := os.environ.get("FSDPKIT_CONFIG_DIR"):
        return Path(explicit)
    home, base = Path(os.path.expanduser("~")), Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # then it does not count, as its specification says
        base = (home if home.is_absolute() else _NO_HOME) / ".config"
    return base / "fsdpkit"


def why_not_read() -> str | None:
    """Why the user's own directory is left out, where it is; None if not."""
    directory = user_dir()
    lost = "jobs, templates, profiles and defaults of your own are left out"
    if directory.is_relative_to(_NO_HOME):
        return f"HOME is not set and user {os.geteuid()} has none on this machine, so {lost}"
    try:
        os.stat(directory / "defaults.toml")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{directory} cannot be read ({error.strerror}), so {lost}"
    return None


def centre_layers() -> list[AssetLayer]:
    """The centre's directories, last listed weakest, and weakest first. Raises UsageError if one is
    missing: without its profile a job would be sent off with other limits and addresses than the
    centre meant."""
    listed = os.environ.get("FSDPKIT_SITE_PATH", "").split(os.pathsep)
    centre = [AssetLayer("centre", Path(os.path.expanduser(d)).absolute()) for d in listed if d]
    for layer in centre:
        if not layer.dir.is_dir():
            raise UsageError(
                f"FSDPKIT_SITE_PATH names {layer.dir}, which is not a directory; correct the "
                "variable, or unset it to use what comes with fsdpkit"
            )
    return centre[::-1]


def layers() -> list[AssetLayer]:
    """All places, weakest first: packaged, the centre's, the user's where it can be read. Raises
    UsageError."""
    own = [] if why_not_read() else [AssetLayer("user", user_dir())]
    return [AssetLayer("packaged", packaged_dir()), *centre_layers(), *own]


def _job_files(layer: AssetLayer) -> list[tuple[str, Path]]:
    return [(p.stem, p) for p in sorted((layer.dir / "jobs").glob("*.toml"))]


def site_name(path: Path, top: Path) -> str:
    """A profile's id: `osc/ascend.toml` is `osc-ascend`, `local.toml` is `local`."""
    return "-".join(path.relative_to(top).with_suffix("").parts)


def _site_files(layer: AssetLayer) -> list[tuple[str, Path]]:
    top = layer.dir / "site" / "profiles"
    files = sorted(top.glob("*.toml")) + sorted(top.glob("*/*.toml"))
    return [(site_name(path, top), path) for path in files]


def _template_dirs(layer: AssetLayer) -> list[tuple[str, Path]]:
    found = sorted((layer.dir / "templates").glob("*/template.toml"))
    return [(p.parent.name, p.parent) for p in found]


_FINDERS = {"job": _job_files, "site": _site_files, "template": _template_dirs}


def closed_folders(kind: str, layer: AssetLayer) -> list[Path]:
    """Those that this kind is looked for in, and that this user may not list."""
    top = layer.dir / {"job": "jobs", "site": "site/profiles", "template": "templates"}[kind]
    inside = [path for path in top.glob("*") if path.is_dir()] if kind != "job" else []
    return [p for p in (top, *inside) if p.is_dir() and not os.access(p, os.R_OK | os.X_OK)]


def _plain(kind: str, layer: AssetLayer) -> dict[str, Places]:
    """What lies in a folder that does not publish."""
    found: dict[str, Places] = {}
    for name, path in _FINDERS[kind](layer):
        found.setdefault(name, []).append((layer, path))
    for name, places in found.items():
        if len(places) > 1:
            both = " and ".join(str(path) for _, path in places)
            why = f"{both} are both the {_WORDS[kind]} {name!r}; keep one"
            found[name] = [(replace(layer, refusal=why), path) for _, path in places]
    return found


_WORDS = {"job": "job", "site": "profile", "template": "template"}


def _in(kind: str, layer: AssetLayer) -> dict[str, Places]:
    """Everything of this kind in one place."""
    centre = _centre(layer)
    if centre is None and layer.name == "centre" and (shut := closed_folders(kind, layer)):
        raise ConfigError(
            f"the centre's {shut[0]} cannot be looked into, so what it says is not known; "
            "ask the centre's administrators to let you read it"
        )
    if centre is None:
        return _plain(kind, layer)
    unsigned = "is in no signed index, so it is not used; {}: fsdpkit publish {} --to {}"
    found = {
        name: [(replace(layer, refusal=f"{path} {unsigned.format(_ASK, path, layer.dir)}"), path)]
        for name, places in _plain(kind, layer).items()
        for _, path in places[:1]
    }
    entries = [entry for entry in centre.index.entries if entry.kind == kind]
    return found | {e.name: [_published(centre, layer, e.kind, e.name, None)] for e in entries}


_ASK = "whoever may sign publishes it"


def _centre(layer: AssetLayer) -> Centre | None:
    """The centre that publishes here. Raises ConfigError for one not to be believed."""
    if layer.name != "centre":
        return None
    from fsdpkit.config.published.centre import open_centre

    return open_centre(layer.dir)


def _published(
    centre: Centre, layer: AssetLayer, kind: Kind, name: str, pin: str | None
) -> tuple[AssetLayer, Path]:
    """The place of the version that the pin, or the user's channel, stands for; with a refusal
    where there is none. Raises NotFoundError where a pin matches no version."""
    from fsdpkit.config.published.choosing import channel_of_user, chosen, in_words, why_none
    from fsdpkit.config.published.index import main_file, published_dir, version_dir

    entry, channel = centre.index.entry(kind, name), channel_of_user()
    assert entry is not None
    somewhere = published_dir(layer.dir) / kind / name
    try:
        version = chosen(entry, pin, channel)
    except ConfigError as error:
        return replace(layer, refusal=str(error)), somewhere
    if version is None and pin is not None:
        raise NotFoundError(f"{layer.dir} has {why_none(entry, pin, channel)}")
    if version is None:
        why = f"{kind} {name} of {layer.dir} has no stable version; there is {in_words(entry)}"
        return replace(layer, refusal=why), somewhere
    reached = channel if pin is None else pin if pin in ("stable", "testing") else "pinned"
    release = centre.release(entry, version, reached)
    place = replace(layer, release=release, refusal=None)
    return place, version_dir(layer.dir, kind, name, version) / main_file(kind, name)


def available(kind: str) -> dict[str, Places]:
    """Every known `job`, `site` or `template` by name, with its places, weakest first."""
    found: dict[str, Places] = {}
    for layer in layers():
        for name, places in _in(kind, layer).items():
            found.setdefault(name, []).extend(places)
    return dict(sorted(found.items()))


def packaged(kind: str) -> dict[str, Places]:
    """What comes with fsdpkit."""
    return _plain(kind, AssetLayer("packaged", packaged_dir()))


def find(kind: str, name: str) -> Places:
    """The places of one `job`, `site` or `template`, weakest first; `name` may be `NAME@PIN`.
    Raises NotFoundError with what exists and the nearest spelling."""
    bare, at, pin = name.partition("@")
    known = available(kind)
    if bare in known:
        return known[bare] if not at else _pinned(kind, bare, pin, known[bare])
    places = ", ".join(str(layer.dir) for layer in reversed(layers()))
    some = f"Known: {first_of(known, 8) or 'none'}"
    if len(known) > 8:
        some += f" (fsdpkit {kind}s lists them)"
    raise NotFoundError(
        f"there is no {kind} named {bare!r}.{nearest(bare, known) or f' {some}.'} "
        f"Looked in: {places}."
    )


def _pinned(kind: str, name: str, pin: str, places: Places) -> Places:
    """Up to the nearest place that has such a version. Raises NotFoundError, UsageError."""
    from fsdpkit.config.published.choosing import check_pin, matches

    check_pin(name, pin)
    there_is = []
    for n, (layer, path) in reversed(list(enumerate(places))):
        if (centre := _centre(layer)) is not None:
            entry = centre.index.entry(kind, name)
            if entry is None:
                return [*places[:n], (layer, path)]  # with its refusal
            try:
                return [*places[:n], _published(centre, layer, entry.kind, name, pin)]
            except NotFoundError as error:
                there_is.append(str(error))
        elif (version := _version(kind, path)) is None:
            there_is.append(f"{path} has no version")
        elif pin[0].isdigit() and matches(version, pin):
            return places[: n + 1]
        else:
            there_is.append(f"{layer.dir} has {version}")
    raise NotFoundError(f"there is no {kind} {name}@{pin}: {'; '.join(there_is)}")


def _version(kind: str, path: Path) -> str | None:
    """Of a plain template its manifest's; jobs and profiles have none. Raises ConfigError."""
    if kind != "template":
        return None
    from fsdpkit.config.loading import read_toml

    version = str(read_toml(path / "template.toml").get("version"))
    return version if re.fullmatch(r"\d{1,9}\.\d{1,9}\.\d{1,9}", version) else None


def refuse_behind_the_index(path: Path) -> None:
    """Raise ConfigError for a path into a publishing centre's folder: nothing verifies it."""
    for layer in centre_layers():
        inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(layer.dir))
        if inside and _centre(layer) is not None:
            raise ConfigError(
                f"{path} lies in {layer.dir}, which publishes what is signed: use its name, such "
                "as torchrun or torchrun@2.1.0, or a copy in a directory of your own"
            )


def check_published(path: Path) -> None:
    """Raise ConfigError if the file is of a centre's version and not, or no longer, as signed."""
    for layer in centre_layers():
        if path.is_relative_to(layer.dir) and (centre := _centre(layer)) is not None:
            from fsdpkit.config.published.centre import check_path

            check_path(centre, path)


def signed_layers() -> list[AssetLayer]:
    """The centre's directories that publish. Raises ConfigError, UsageError."""
    return [layer for layer in centre_layers() if _centre(layer) is not None]


def refuse_exposed(layer: AssetLayer, path: Path) -> None:
    """Raise ConfigError for a file at the top of a centre that publishes, which no index covers,
    unless root and the centre's owner alone can change it."""
    if _centre(layer) is not None:
        from fsdpkit.config.published.centre import refuse_exposed

        refuse_exposed(layer.dir, path)


def defaults_files() -> Places:
    """`defaults.toml` of the centre and the user: values that lie beneath every job's own; without
    `defaults_not_taken`. Raises ConfigError for a centre's that publishes and leaves this one open
    to others."""
    found = [(layer, path) for layer, path in _all_defaults() if _is_vouched_for(layer, path)]
    for layer, path in found:
        refuse_exposed(layer, path)
    return found


def defaults_not_taken() -> list[Path]:
    """Unsigned ones in folders that are not their signers'. Raises ConfigError."""
    return [path for layer, path in _all_defaults() if not _is_vouched_for(layer, path)]


def _all_defaults() -> Places:
    files = [(layer, layer.dir / "defaults.toml") for layer in layers()[1:]]
    return [(layer, path) for layer, path in files if path.is_file()]


def _is_vouched_for(layer: AssetLayer, path: Path) -> bool:
    if _centre(layer) is None:
        return True
    from fsdpkit.config.published.centre import is_vouched_for

    return is_vouched_for(layer.dir, path)
