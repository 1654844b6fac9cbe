"""`tested.toml` beside a template: which clusters have run it, when, and how that went.

`fsdpkit template test --canary` writes an entry for its cluster, `fsdpkit templates NAME` shows
them. An entry is of one version and checksum; of another it is said to be old.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.as_toml import inline
from fsdpkit.config.loading import Layered, build, read_toml
from fsdpkit.config.template import Template
from fsdpkit.errors import ConfigError, StorageError
from fsdpkit.runs.layout import write_atomically

FILE = "tested.toml"


class Canary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job of two nodes went on one cluster."""

    result: Annotated[Literal["ok", "failed"], Meta(description="Whether it did all it should.")]
    told: Annotated[str, Meta(description="The end, in words.")]
    date: Annotated[str, Meta(description="UTC, as 2026-11-24T06:00:00Z.")]
    slurm: Annotated[str, Meta(description="Slurm's release there.")]
    partition: Annotated[str, Meta(description="Where it ran; empty: Slurm's choice.")]
    nodes: Annotated[int, Meta(description="Nodes.")]
    ranks: Annotated[int, Meta(description="Ranks of all nodes.")]
    version: Annotated[str, Meta(description="The template's version.")]
    sha256: Annotated[str, Meta(description="The template's checksum.")]
    fsdpkit: Annotated[str, Meta(description="Version of fsdpkit.")]


class KeptCanary(Canary, frozen=True, kw_only=True):
    """A template's newest canary on one cluster."""

    site: Annotated[str, Meta(description="Id of the cluster's profile.")]
    current: Annotated[bool, Meta(description="Whether it ran this very template.")]


class TestedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tested.toml`."""

    schema: Literal["fsdpkit.tested/1"] = "fsdpkit.tested/1"
    canaries: dict[str, Canary] = {}
    """The newest of each site."""


def read_tested(template: Template) -> TestedRecord:
    """What is on record; nothing without a file. Raises ConfigError for one that is none."""
    path = template.dir / FILE
    if not path.exists() and not path.is_symlink():
        return TestedRecord()
    if path.is_symlink():
        raise ConfigError(f"{path}: is a link, so it is not read")
    layered = Layered()
    layered.overlay(read_toml(path), str(path))
    return build(TestedRecord, layered, str(path))


def keep(template: Template, site: str, canary: Canary) -> Path:
    """Put one result on record. Raises StorageError where the folder cannot be written."""
    path = template.dir / FILE
    try:
        with _locked(template.dir):
            tested = read_tested(template)
            kept = {**tested.canaries, site: canary}
            text = _ABOUT + f"schema = {inline(tested.schema)}\n"
            for name, each in sorted(kept.items()):
                text += f"\n[canaries.{inline(name)}]\n"
                values = msgspec.to_builtins(each)
                text += "".join(f"{key} = {inline(value)}\n" for key, value in values.items())
            write_atomically(path, text, by_umask=True)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}), so the result is not kept"
        ) from error
    return path


_ABOUT = """\
# Written by `fsdpkit template test --canary`: the newest job on each cluster.
"""


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among those who write to the folder: two canaries may end at once."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def kept(template: Template) -> list[KeptCanary]:
    """The canaries on record, by site. Raises ConfigError."""
    found = sorted(read_tested(template).canaries.items())
    digest = template.sha256
    return [
        KeptCanary(site=site, current=one.sha256 == digest, **msgspec.structs.asdict(one))
        for site, one in found
    ]


def in_a_line(one: KeptCanary) -> str:
    """How a canary went, and of which version."""
    of = f"version {one.version}, not of this template as it is"
    return (
        f"canary {one.result} on {one.site}, {one.date} (Slurm {one.slurm}, {one.nodes} nodes, "
        f"{one.ranks} ranks), of {'this template' if one.current else of}"
        + ("" if one.result == "ok" else f": {one.told}")
    )
