"""From a centre's folders to the files of its catalogue: pages, and the Python behind the form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from fsdpkit.config import assets
from fsdpkit.publishing.catalogue.bundle import folder, modules_zip, scripts, zipped
from fsdpkit.publishing.catalogue.reading import Catalogue
from fsdpkit.publishing.catalogue.rendering import Writing


def catalogue_files(
    catalogue: Catalogue, name: str, engine: Mapping[str, bytes]
) -> dict[str, bytes]:
    """By path. engine: what `engine_of` gives; name: the centre's, for people."""
    files = {path: text.encode() for path, text in Writing(catalogue, name).pages().items()}
    for file in resources.files("fsdpkit.publishing.catalogue").joinpath("static").iterdir():
        files[f"static/{file.name}"] = file.read_bytes()
    engine = {"modules.zip": modules_zip(), **engine, "folders.zip": zipped(_folders(catalogue))}
    return files | {f"engine/{path}": content for path, content in engine.items()}


def _folders(catalogue: Catalogue) -> dict[str, bytes]:
    """What the form's Python lays out: `packaged`, `centre0`, …, and `root` for scripts that lie
    in none of them."""
    tops = {"packaged": assets.packaged_dir()}
    tops |= {f"centre{number}": top for number, top in enumerate(catalogue.centres)}
    files = {f"{name}/{path}": c for name, top in tops.items() for path, c in folder(top).items()}
    for path, content in scripts(job.entry.path for _, job in catalogue.jobs).items():
        files[_place(Path("/", path), tops)] = content
    return files


def _place(path: Path, tops: Mapping[str, Path]) -> str:
    inside: Sequence[str] = [
        f"{name}/{path.relative_to(top.resolve()).as_posix()}"
        for name, top in tops.items()
        if path.is_relative_to(top.resolve())
    ]
    return max(inside, key=lambda found: -len(found), default=f"root{path.as_posix()}")
