"""`tested.txt` beside a template: on which clusters a canary has run, when, and how that went.

`fsdpkit template test --canary` writes a line for its cluster, `fsdpkit templates NAME` shows
them. A line ends with the version and checksum that were tested; of others it is said to be old.
"""

from __future__ import annotations

from pathlib import Path

from fsdpkit.bounded import DETAILS_BYTES, read_bytes
from fsdpkit.config.template import Template
from fsdpkit.errors import StorageError
from fsdpkit.runs.layout import write_atomically

FILE = "tested.txt"


def keep(template: Template, site: str, told: str) -> Path:
    """Put one result on record, in place of the site's last. Raises StorageError where the folder
    cannot be written."""
    path = template.dir / FILE
    line = f"{site}: {' '.join(told.split())}; {_version(template)}"
    others = [one for one in _lines(template) if not one.startswith(f"{site}: ")]
    try:
        write_atomically(path, "\n".join([*sorted([*others, line]), ""]), by_umask=True)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}), so the result is not kept"
        ) from error
    return path


def kept(template: Template) -> list[str]:
    """The lines on record; none of a file that cannot be read, or is a link."""
    old = " (not this template as it is)"
    return [
        f"{line}{'' if line.endswith(_version(template)) else old}" for line in _lines(template)
    ]


def _version(template: Template) -> str:
    return f"version {template.manifest.version}, sha256 {template.sha256[:12]}"


def _lines(template: Template) -> list[str]:
    try:
        return (
            read_bytes(template.dir / FILE, DETAILS_BYTES).decode("utf-8", "replace").splitlines()
        )
    except OSError:
        return []
