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

from fsdpkit.errors import ConfigError, NotFoundError, UsageError

_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Layer:
    """One place to look: its name for people and its directory."""

    name: str
    dir: Path


def packaged_dir() -> Path:
    """The directory that holds `templates/`, `jobs/`, `site/` and `examples/`."""
    shared = _PACKAGE / "_shared"
    return shared if shared.is_dir() else _PACKAGE.parent


def user_dir() -> Path:
    """`$FSDPKIT_CONFIG_DIR`, else `fsdpkit` in the user's XDG configuration directory."""
    if explicit := os.environ.get("FSDPKIT_CONFIG_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "fsdpkit"


def layers() -> list[Layer]:
    """All places, weakest first: packaged, the centre's (last listed weakest), the user's.

    Raises UsageError if a centre's directory is missing: without its profile a job would be sent
    off with other limits and addresses than the centre meant.
    """
    listed = os.environ.get("FSDPKIT_SITE_PATH", "").split(os.pathsep)
    centre = [Layer("centre", Path(d).expanduser().absolute()) for d in listed if d]
    for layer in centre:
        if not layer.dir.is_dir():
            raise UsageError(
                f"FSDPKIT_SITE_PATH names {layer.dir}, which is not a directory; correct the "
                "variable, or unset it to use what comes with fsdpkit"
            )
    return [Layer("packaged", packaged_dir()), *reversed(centre), Layer("user", user_dir())]


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
