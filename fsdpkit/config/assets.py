"""Where jobs, templates and sites are found.

Look-up order, nearest to the person first: a path on the command line, the user's directory, the
centre's directories (`FSDPKIT_SITE_PATH`), what travels with the package. In a checkout the last
are the top-level folders; in a wheel they lie in `fsdpkit/_shared`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.config import surroundings
from fsdpkit.errors import ConfigError, NotFoundError, UsageError

_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Layer:
    """One place to look: its name for people and its directory."""

    name: str
    dir: Path


def package_dir() -> Path:
    """The directory of fsdpkit's own modules."""
    return _PACKAGE


def packaged_dir() -> Path:
    """The directory that holds `templates/`, `jobs/`, `site/`, `skills/` and `examples/`."""
    return surroundings.packaged_dir()


_NO_HOME = Path("/nonexistent")
"""The home of those who have none, as Debian has it."""


def user_dir() -> Path:
    """`$FSDPKIT_CONFIG_DIR`, else `fsdpkit` in the user's XDG configuration directory."""
    if explicit := os.environ.get("FSDPKIT_CONFIG_DIR"):
        return Path(explicit)
    home = Path(os.path.expanduser("~"))
    base = (
        os.environ.get("XDG_CONFIG_HOME") or (home if home.is_absolute() else _NO_HOME) / ".config"
    )
    return Path(base) / "fsdpkit"


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


def centre_layers() -> list[Layer]:
    """The centre's directories, last listed weakest, and weakest first.

    Raises UsageError if one is missing: without its profile a job would be sent off with other
    limits and addresses than the centre meant.
    """
    listed = os.environ.get("FSDPKIT_SITE_PATH", "").split(os.pathsep)
    centre = [Layer("centre", Path(os.path.expanduser(d)).absolute()) for d in listed if d]
    for layer in centre:
        if not layer.dir.is_dir():
            raise UsageError(
                f"FSDPKIT_SITE_PATH names {layer.dir}, which is not a directory; correct the "
                "variable, or unset it to use what comes with fsdpkit"
            )
    return centre[::-1]


def layers() -> list[Layer]:
    """All places, weakest first: packaged, the centre's, the user's where it can be read.

    Raises UsageError.
    """
    own = [] if why_not_read() else [Layer("user", user_dir())]
    return [Layer("packaged", packaged_dir()), *centre_layers(), *own]


def nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing if no known word is close."""
    import difflib  # only to explain a mistake

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def _job_files(layer: Layer) -> dict[str, Path]:
    return {p.stem: p for p in sorted((layer.dir / "jobs").glob("*.toml"))}


def _site_files(layer: Layer) -> dict[str, Path]:
    """Profiles by id: `osc/ascend.toml` is `osc-ascend`, `local.toml` is `local`."""
    top = layer.dir / "site" / "profiles"
    files = sorted(top.glob("*.toml")) + sorted(top.glob("*/*.toml"))
    found: dict[str, Path] = {}
    for path in files:
        name = "-".join(path.relative_to(top).with_suffix("").parts)
        if name in found:
            raise ConfigError(f"{found[name]} and {path} are both the profile {name!r}; keep one")
        found[name] = path
    return found


def _template_dirs(layer: Layer) -> dict[str, Path]:
    found = sorted((layer.dir / "templates").glob("*/template.toml"))
    return {p.parent.name: p.parent for p in found}


_FINDERS = {"job": _job_files, "site": _site_files, "template": _template_dirs}


def available(kind: str) -> dict[str, list[tuple[Layer, Path]]]:
    """Every known `job`, `site` or `template` by name, with its places, weakest first."""
    found: dict[str, list[tuple[Layer, Path]]] = {}
    for layer in layers():
        for name, path in _FINDERS[kind](layer).items():
            found.setdefault(name, []).append((layer, path))
    return dict(sorted(found.items()))


def find(kind: str, name: str) -> list[tuple[Layer, Path]]:
    """The places of one `job`, `site` or `template`, weakest first.

    Raises NotFoundError with what exists and the nearest spelling.
    """
    known = available(kind)
    if name in known:
        return known[name]
    places = ", ".join(str(layer.dir) for layer in reversed(layers()))
    raise NotFoundError(
        f"there is no {kind} named {name!r}.{nearest(name, known)} "
        f"Known: {', '.join(known) or 'none'}. Looked in: {places}."
    )


def defaults_files() -> list[tuple[Layer, Path]]:
    """`defaults.toml` of the centre and the user: values that lie beneath every job's own."""
    files = ((layer, layer.dir / "defaults.toml") for layer in layers()[1:])
    return [(layer, path) for layer, path in files if path.is_file()]
