"""What is to be published, read from an administrator's folder and found fit to be used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.loading import Layered, build, read_place, read_toml
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.published.centre import read_file
from fsdpkit.config.published.index import (
    MOST_RELEASE_BYTES,
    File,
    IndexEntry,
    Kind,
    VersionManifest,
    is_inside,
    manifest_bytes,
    sha256,
)
from fsdpkit.config.secrets import refuse_secrets
from fsdpkit.config.template import template_in
from fsdpkit.config.trainers import OWN, job_type
from fsdpkit.errors import ConfigError, NotFoundError, RenderError, UsageError
from fsdpkit.publishing.personal import own_keys
from fsdpkit.rendering.environment import check_syntax

_MOST_FILES = 1000
_LEFT_OUT = ("__pycache__", ".git", ".DS_Store")


@dataclass(frozen=True)
class VersionDraft:
    """One thing to publish: its files by their path in the version's folder."""

    kind: Kind
    name: str
    version: str | None
    """A template's own; None: the next number."""
    files: Mapping[str, bytes]
    source: Path
    personal: tuple[str, ...] = ()
    """Of a job: keys that everybody who uses it gets, though they look like one person's."""

    def manifest(self, version: str) -> VersionManifest:
        files = {n: File(sha256=sha256(c), bytes=len(c)) for n, c in sorted(self.files.items())}
        return VersionManifest(kind=self.kind, name=self.name, version=version, files=files)

    def version_in(self, entry: IndexEntry | None) -> str:
        """The template's own; of a job or profile that of the version with these very files, else
        the number after the highest."""
        if self.version is not None:
            return self.version
        versions = entry.versions if entry else {}
        for version, published in versions.items():
            if sha256(manifest_bytes(self.manifest(version))) == published.sha256:
                return version
        return str(max(map(int, versions), default=0) + 1)


def drafts_of(source: Path) -> list[VersionDraft]:
    """What lies at `source`: a template's folder, a job's or a profile's file, or a folder with
    `templates`, `jobs` and `site/profiles`, or one of those. Raises NotFoundError, ConfigError."""
    source = Path(os.path.abspath(source))
    if not source.exists():
        raise NotFoundError(f"there is nothing at {source} to publish")
    if source.is_file():
        return [_file(source)]
    if (source / "template.toml").exists():
        return [_template(source)]
    found = list(_folder(source))
    if not found:
        raise UsageError(
            f"{source} holds nothing to publish: it is no template (template.toml), job or profile "
            "(.toml), and has no folder templates, jobs or site/profiles"
        )
    return found


def _folder(source: Path) -> Iterator[VersionDraft]:
    top = _top_of(source)
    templates = sorted((top / "templates").glob("*/template.toml"))
    profiles = top / "site" / "profiles"
    files = sorted(profiles.glob("*.toml")) + sorted(profiles.glob("*/*.toml"))
    jobs = sorted((top / "jobs").glob("*.toml"))
    for path in [*(path.parent for path in templates), *files, *jobs]:
        if path.is_relative_to(source):
            yield _template(path) if path.is_dir() else _file(path, profiles)


def _top_of(source: Path) -> Path:
    """The folder that `templates`, `jobs` or `site/profiles` lies in, where that was named."""
    for tail in ("templates", "jobs", "site/profiles"):
        parts = Path(tail).parts
        for depth in (0, 1):  # and site/profiles/osc
            whole = source.parts[: len(source.parts) - depth]
            if whole[-len(parts) :] == parts and (not depth or tail == "site/profiles"):
                return Path(*whole[: -len(parts)])
    return source.parent if source.name == "site" else source


def _template(directory: Path) -> VersionDraft:
    template = template_in(directory, AssetLayer("path", directory))
    try:
        check_syntax(template)
    except RenderError as error:
        raise ConfigError(str(error)) from error
    name = template.manifest.name
    files = {f"{name}/{path}": content for path, content in _files_below(directory).items()}
    return VersionDraft("template", name, template.manifest.version, files, directory)


def _files_below(directory: Path) -> dict[str, bytes]:
    """Every file of a folder. Raises ConfigError for links, and for what is no file."""
    found: dict[str, bytes] = {}
    left = MOST_RELEASE_BYTES
    for top, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted({*names, *(f for f in folders if os.path.islink(Path(top, f)))}):
            path = Path(top, name)
            if name in _LEFT_OUT:
                continue
            inner = path.relative_to(directory).as_posix()
            if len(found) == _MOST_FILES or not is_inside(inner):
                raise ConfigError(f"{path}: more than {_MOST_FILES} files, or a name of no text")
            found[inner] = _content(path, left)
            left -= len(found[inner])
    return found


def _content(path: Path, most: int) -> bytes:
    try:
        return read_file(path, most)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be published: {error.strerror}. A version holds plain files, no links, "
            f"and {MOST_RELEASE_BYTES} bytes at most"
        ) from error


def _file(path: Path, profiles: Path | None = None) -> VersionDraft:
    schema = read_toml(path).get("schema")
    if schema == "fsdpkit.site/1":
        return _profile(path, profiles)
    if schema == "fsdpkit.job/1":
        return _job(path)
    raise ConfigError(
        f"{path}: schema is {schema!r}: a job says fsdpkit.job/1, a profile fsdpkit.site/1"
    )


def _profile(path: Path, profiles: Path | None) -> VersionDraft:
    if profiles is None:
        depth = 1 if path.parent.parent.name == "profiles" else 0
        profiles = path.parent.parent if depth else path.parent
    name = assets.site_name(path, profiles)
    content = _content(path, MOST_RELEASE_BYTES)
    layered = _beneath("site", name)
    layered.overlay(read_toml(path), str(path))
    refuse_secrets(layered, f"site {name}")
    build(SiteProfile, layered, f"site {name}")
    return VersionDraft("site", name, None, {f"{name}.toml": content}, path)


def _job(path: Path) -> VersionDraft:
    """The job, and its script where that lies beside it."""
    name = path.stem
    files = {f"{name}.toml": _content(path, MOST_RELEASE_BYTES)}
    layered = _beneath("job", name)
    layered.overlay(read_toml(path), str(path))
    refuse_secrets(layered, f"job {name}")
    spec = build(job_type(layered.values.get("trainer", OWN)), layered, f"job {name}")
    beside = path.parent / spec.entry
    if not Path(spec.entry).is_absolute() and beside.is_file():
        if not is_inside(spec.entry):
            raise ConfigError(
                f"{path}: entry {spec.entry!r} leads out of the job's folder: lay the script "
                "beside the job, or name it by its whole path"
            )
        files[spec.entry] = _content(beside, MOST_RELEASE_BYTES)
    return VersionDraft("job", name, None, files, path, tuple(own_keys(spec)))


def _beneath(kind: str, name: str) -> Layered:
    """The packaged one of this name, over which a centre's is laid."""
    layered = Layered()
    for layer, path in assets.packaged(kind).get(name, []):
        layered.overlay(read_place(layer, path), f"{layer.name} {path.name}")
    return layered
