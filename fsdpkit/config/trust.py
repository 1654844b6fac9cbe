"""Whose word a job, a site profile and a template are, and what a person or a centre trusts.

The package's files are trusted, the centre's (`FSDPKIT_SITE_PATH`) where not everybody can write
them, and a person's own: those that nobody else can write to, nor exchange in a directory above
them. Anything else is named by the checksum of what was read, and trusted once somebody has said
so; `trusted` in the user's directory remembers it. A centre may say in `trust.toml` which checksums
are allowed at all.

What would run, load or hand over what a file names takes a `TrustedJob` or a `TrustedScript`, and
these come from `Consent` alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NewType

import msgspec
from msgspec import Meta

from fsdpkit.config import assets
from fsdpkit.config.fields import Text
from fsdpkit.config.job_loading import LoadedJob
from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.loading import FileTables, Layered, build, read_toml
from fsdpkit.config.ownership import anybody_writes, only_owner_makes, only_owner_writes
from fsdpkit.config.private_files import replace_private
from fsdpkit.config.script_source import read_source
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.surroundings import stood_in
from fsdpkit.config.template import Template
from fsdpkit.errors import ConfigError, UsageError, storage_errors

Kind = Literal["job", "site", "template", "run", "sweep", "script"]
TrustedJob = NewType("TrustedJob", LoadedJob)
"""A job whose environment, script and steps may be started and loaded."""


@dataclass(frozen=True)
class TrustedScript:
    """A Python file that may be imported: as it was read, whatever lies there by then."""

    path: Path
    source: bytes


@dataclass(frozen=True)
class TrustedModel:
    """What describes a model: a script with the name of a function, or a directory of data."""

    name: str
    script: TrustedScript | None

    def __str__(self) -> str:
        return self.name


Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Item(msgspec.Struct, frozen=True):
    """Something that was read: a file of one of these kinds, or a template with all its parts."""

    kind: Kind
    name: str
    path: Path
    digest: str
    files: Mapping[str, bytes]
    """What was read, by name."""
    limited: bool = True
    """Whether a centre's list applies; not to a person's own defaults, nor to a run that began."""
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
    for path, tables in job.layered.files.items():
        yield _item(tables, limited=tables.kind == "job" and path not in defaults)
    for tables in site.layered.files.values():
        yield _item(tables, kind="site", name=site.id)
    files = {"template.toml": template.manifest_file, **template.parts}
    signed = template.release is not None
    name = template.manifest.name
    yield Item("template", name, template.dir, template.sha256, files, signed=signed)


def _item(
    tables: FileTables, *, kind: Kind | None = None, name: str = "", limited: bool = True
) -> Item:
    path = tables.path
    name = name or (path.parent.name if path.suffix == ".json" else path.stem)
    files, signed = {path.name: tables.content}, tables.release is not None
    return Item(kind or tables.kind, name, path, tables.sha256, files, limited, signed)


class Consent:
    """What may be run of what was read: the package's, the centre's, one's own, what was trusted
    before, and what the person at the terminal agrees to now.

    agreed: checksums that need no question. ask: shows a stranger's item and returns the answer;
    without it nobody can be asked, and the item is refused. agreed_to: is told of each item once
    there was a yes to all. look: for commands that start nothing: is told of each such item, which
    is then left alone.
    """

    def __init__(
        self,
        agreed: Collection[str] = (),
        *,
        ask: Callable[[Item], bool] | None = None,
        agreed_to: Callable[[Item], None] = lambda item: None,
        look: Callable[[Item], None] | None = None,
    ) -> None:
        self._agreed = {*agreed}
        self._ask = ask
        self._agreed_to = agreed_to
        self._look = look
        self._named = set[str]()

    def to(self, items: Iterable[Item]) -> bool:
        """Whether all of it may run. Raises ConfigError for what the centre does not allow, and,
        unless this only looks, for what is not trusted."""
        items = list(items)
        refuse_forbidden(items)
        if stood_in() is not None:
            return True  # who else can write to a file is seen, and asked, where it lies
        unknown = [
            one for one in strangers(items) if not {one.digest, _line_of(one)} & self._agreed
        ]
        for item in unknown:
            if self._look is not None:
                if item.digest not in self._named:
                    self._look(item)
                self._named.add(item.digest)
            elif self._ask is None:
                raise not_trusted(item)
            elif not self._ask(item):
                raise ConfigError(f"{item} is not trusted, so nothing was done with it")
        for item in unknown if self._look is None else ():
            self._agreed.add(_line_of(item))
            self._agreed_to(item)
        return not unknown or self._look is None

    def to_job(self, job: LoadedJob, site: LoadedSite, template: Template) -> TrustedJob | None:
        """None where this only looks and a stranger could have written a part of it. Raises
        ConfigError."""
        return TrustedJob(job) if self.to(items_of(job, site, template)) else None

    def to_site(self, site: LoadedSite) -> bool:
        """Whether a command that the profile names may run. Raises ConfigError."""
        tables = site.layered.files.values()
        return self.to(_item(each, kind="site", name=site.id) for each in tables)

    def to_script(self, path: Path) -> TrustedScript:
        """The file, and with it what lies beside it and can be imported. Raises ConfigError."""
        with storage_errors(path, "read", ConfigError):
            content = read_source(path)
        if content is None:
            raise ConfigError(f"{path}: is too large to be a script")
        assets.check_published(path)
        digest = hashlib.sha256(content).hexdigest()
        item = Item("script", path.stem, path, digest, {path.name: content})
        if not self.to([item]):
            raise not_trusted(item)
        return TrustedScript(path, content)

    def to_model(self, name: str) -> TrustedModel:
        """`FILE.py:FUNCTION`, or a directory, only read. Raises ConfigError, UsageError."""
        file, _, function = name.rpartition(":")
        if file and function and Path(file).is_file():
            return TrustedModel(name, self.to_script(Path(file)))
        if Path(name).is_dir():
            return TrustedModel(name, None)
        raise UsageError(
            f"--model {name}: expected FILE.py:FUNCTION or a directory with the model's "
            f"config.json, and {file or name} is neither"
        )


def strangers(items: Iterable[Item]) -> list[Item]:
    """Those that are neither the package's, the centre's nor the user's, nor trusted before."""
    unknown = [item for item in items if not _is_provided(item) and not _is_own(item)]
    known = remembered() if unknown else set()
    return [item for item in unknown if _line_of(item) not in known]


def is_of_strangers(tables: FileTables) -> bool:
    """Whether one file is such."""
    return bool(strangers([_item(tables)]))


def forbidden(items: Iterable[Item]) -> tuple[Item, str] | None:
    """The first item that a centre does not allow, with its words. Raises ConfigError."""
    rules = rules_of_centres()
    for item in items if rules else ():
        if not item.limited or _is_provided(item):
            continue
        for rule in rules:
            allowed: list[str] | None = getattr(rule, item.kind, None)
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


def not_trusted(item: Item) -> ConfigError:
    """The refusal, with the flag to add."""
    return ConfigError(
        f"{item} is not trusted: others than you can write to it, or to a directory above it. "
        "Look at it; at a terminal you are asked, if it is short enough to be shown, "
        f"else add --trust {item.digest}"
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
    """Whether it comes with the package, or is a centre's: in its directory or signed index."""
    if item.signed:
        return True
    packaged = assets.packaged_dir()
    tops = [packaged / name for name in ("templates", "jobs", "site", "examples")]
    signed = [layer.dir for layer in assets.signed_layers()]
    # Both were looked at as they were read.
    tops += [directory / "defaults.toml" for directory in signed]
    tops += [directory / "published" for directory in signed if item.kind == "script"]
    if ".." in item.path.parts:
        return False  # behind a link it leads elsewhere
    where = Path(os.path.abspath(item.path))
    if any(where.is_relative_to(os.path.abspath(top)) for top in tops):
        return True
    plain = [layer.dir for layer in assets.centre_layers() if layer.dir not in signed]
    around = [top for top in plain if where.is_relative_to(top)]
    return any(not any(anybody_writes(file, top) for file in _files_of(item)) for top in around)


def _files_of(item: Item) -> list[Path]:
    several = item.kind == "template"
    return [item.path / name for name in item.files] if several else [item.path]


def _is_own(item: Item) -> bool:
    if item.kind == "script" and not only_owner_makes(item.path.parent):
        return False  # another's module beside it could come before one that it imports
    return all(map(only_owner_writes, _files_of(item)))


# ---- What was trusted before


def _memory() -> Path:
    return assets.user_dir() / "trusted"


def remembered() -> set[str]:
    """What the user has trusted, each at its place; nothing if others could have written that."""
    path = _memory()
    try:
        if not path.is_file() or not only_owner_writes(path):
            return set()
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {line for line in lines if line.strip()}


def remember(item: Item) -> None:
    """Trust it from now on. Raises OSError."""
    if _line_of(item) not in remembered():
        _write_down(item)


def vouch(tables: FileTables) -> None:
    """Remember what was just written, in the place of what was written there before, if others can
    change it: what they put there is then not taken for one's own. Where nothing can be remembered
    one is asked, later."""
    if not only_owner_writes(tables.path):
        with contextlib.suppress(OSError):
            _write_down(_item(tables), instead=True)


def _write_down(item: Item, *, instead: bool = False) -> None:
    path, new = _memory(), _line_of(item)
    before = path.read_text(encoding="utf-8", errors="replace") if remembered() else ""
    place = new.removeprefix(item.digest)
    kept = (line for line in before.splitlines() if not (instead and line.endswith(place)))
    replace_private(path, "".join(f"{line}\n" for line in (*kept, new)).encode())


def _line_of(item: Item) -> str:
    return f"{item.digest} {item.kind} {os.path.abspath(item.path)!r}"
