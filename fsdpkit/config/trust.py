"""Whose word a job, a site profile and a template are, and what a person or a centre trusts.

The package's files are trusted, the centre's (`FSDPKIT_SITE_PATH`), and a person's own: those that
nobody else can write to, nor exchange in a directory above them. Anything else is named by the
checksum of what was read, and trusted once somebody has said so; `trusted` in the user's directory
remembers it. A centre may say in `trust.toml` which checksums are allowed at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config import assets
from fsdpkit.config.fields import Text
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.loading import Layered, build, read_toml
from fsdpkit.config.ownership import only_owner_writes
from fsdpkit.config.private_files import replace_private
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import ConfigError

Kind = Literal["job", "site", "template"]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Item(msgspec.Struct, frozen=True):
    """Something that was read: a job's or a site's file, or a template with all its parts."""

    kind: Kind
    name: str
    path: Path
    digest: str
    files: Mapping[str, bytes]
    """What was read, by name."""
    limited: bool = True
    """Whether a centre's list applies; to a person's own defaults it does not."""
    signed: bool = False
    """Whether a centre published it, and what was read is what was signed."""

    def __str__(self) -> str:
        return printable(f"{self.kind} {self.name} ({self.path})")


class AllowedKinds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`trust.toml` of a centre. A kind that it does not name is not limited."""

    schema: Annotated[Literal["fsdpkit.trust/1"], Meta(description="Format of this file.")]
    message: Annotated[Text, Meta(description="The centre's words to whoever is refused.")]
    job: Annotated[list[Digest] | None, Meta(description="Jobs allowed, by checksum.")] = None
    site: Annotated[list[Digest] | None, Meta(description="Profiles allowed.")] = None
    template: Annotated[list[Digest] | None, Meta(description="Templates allowed.")] = None


def items_of(job: LoadedJob, site: LoadedSite, template: Template) -> Iterator[Item]:
    """Everything that a submission is made of, besides its command line."""
    defaults = {path for _, path in assets.defaults_files()}
    for path, content in job.layered.files.items():
        limited = path not in defaults
        signed = path in job.layered.releases
        yield Item("job", path.stem, path, _sha256(content), {path.name: content}, limited, signed)
    for path, content in site.read.items():
        signed = path in site.releases
        yield Item("site", site.id, path, _sha256(content), {path.name: content}, signed=signed)
    files = {"template.toml": template.manifest_file, **template.parts}
    signed = template.release is not None
    name = template.manifest.name
    yield Item("template", name, template.dir, template.sha256, files, signed=signed)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def strangers(items: Iterable[Item]) -> list[Item]:
    """Those that are neither the package's nor the centre's, nor the user's own, nor trusted
    before."""
    unknown = [item for item in items if not _is_provided(item) and not _is_own(item)]
    known = remembered() if unknown else set()
    return [item for item in unknown if item.digest not in known]


def forbidden(items: Iterable[Item]) -> tuple[Item, str] | None:
    """The first item that a centre does not allow, with its words. Raises ConfigError if the
    centre's file is wrong."""
    rules = rules_of_centres()
    for item in items if rules else ():
        if not item.limited or _is_provided(item):
            continue
        for rule in rules:
            allowed: list[str] | None = getattr(rule, item.kind)
            if allowed is not None and item.digest not in allowed:
                return item, rule.message
    return None


def rules_of_centres() -> list[AllowedKinds]:
    """What their `trust.toml` say. Raises ConfigError."""
    return [rule for layer in assets.centre_layers() if (rule := _rule(layer))]


def refuse_forbidden(items: Iterable[Item]) -> None:
    """Raises ConfigError, with the centre's words, for what a centre does not allow."""
    if found := forbidden(items):
        item, message = found
        raise ConfigError(
            f"{item} (sha256 {item.digest}) is not among those that the centre allows: {message}"
        )


def refuse_strangers(items: Sequence[Item]) -> None:
    """Raises ConfigError for what is not trusted, where nobody can be asked."""
    refuse_forbidden(items)
    for item in strangers(items):
        raise not_trusted(item)


def not_trusted(item: Item) -> ConfigError:
    """The refusal, with the flag to add."""
    return ConfigError(
        f"{item} is not trusted: others than you can write to it, or to a directory above it. "
        f"Look at it, then submit from a terminal, which asks, or add --trust {item.digest}"
    )


def printable(text: str) -> str:
    """Without what a terminal would obey: the text is a stranger's."""
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in text)


def _rule(layer: AssetLayer) -> AllowedKinds | None:
    path = layer.dir / "trust.toml"
    if not os.path.lexists(path):
        return None
    assets.refuse_exposed(layer, path)
    layered = Layered()
    layered.overlay(read_toml(path), str(path))
    return build(AllowedKinds, layered, f"the centre's {path}")


# ---- Whose is it?


def _is_provided(item: Item) -> bool:
    """Whether it lies in what comes with the package, or is a centre's: in its directory or, where
    it publishes, in its signed index."""
    if item.signed:
        return True
    packaged = assets.packaged_dir()
    tops = [packaged / name for name in ("templates", "jobs", "site")]
    signed = [layer.dir for layer in assets.signed_layers()]
    tops += [layer.dir for layer in assets.centre_layers() if layer.dir not in signed]
    tops += [
        directory / "defaults.toml" for directory in signed
    ]  # which was looked at as it was read
    if ".." in item.path.parts:
        return False  # behind a link it leads elsewhere
    where = Path(os.path.abspath(item.path))
    return any(where.is_relative_to(os.path.abspath(top)) for top in tops)


def _is_own(item: Item) -> bool:
    if item.kind != "template":
        return only_owner_writes(item.path)
    return all(only_owner_writes(item.path / name) for name in item.files)


# ---- What was trusted before


def _memory() -> Path:
    return assets.user_dir() / "trusted"


def remembered() -> set[str]:
    """The checksums that the user has trusted; none if somebody else could have written them."""
    path = _memory()
    try:
        if not path.is_file() or not only_owner_writes(path):
            return set()
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {line.split()[0] for line in lines if line.strip()}


def remember(items: Iterable[Item]) -> None:
    """Trust these from now on. Raises OSError."""
    path = _memory()
    known = remembered()
    before = path.read_text(encoding="utf-8", errors="replace") if known else ""
    added = [f"{i.digest} {i.kind} {str(i.path)!r}\n" for i in items if i.digest not in known]
    replace_private(path, (before + "".join(added)).encode())
