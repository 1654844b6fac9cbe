"""`[steps]` of a job: files of the person's that run beside the training, each as a program of its
own: never text that is pasted into the script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from fsdpkit.config.fields import Text, doc
from fsdpkit.errors import ConfigError, storage_errors


class OwnSteps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Programs run outside any container, in the job's environment, by their `#!` line or bash."""

    before: Annotated[
        Text | None, doc("Runs once at each start of the job, on the head node, before the ranks.")
    ] = None
    each_node: Annotated[Text | None, doc("Then runs on each node, before its ranks.")] = None
    after: Annotated[
        Text | None,
        doc(
            "Runs once when the job ends, with its exit status in FSDPKIT_STATUS, "
            "which it does not change; not when the job is queued again."
        ),
    ] = None

    @property
    def given(self) -> dict[str, str]:
        """By key, each that is set."""
        return {name: file for name in self.__struct_fields__ if (file := getattr(self, name))}


def command_of(path: Path, key: str) -> tuple[str, ...]:
    """The words that run the file, as the kernel reads its first line. Raises ConfigError."""
    with storage_errors(f"{key}: {path}", "read", ConfigError), open(path, "rb") as file:
        head = file.read(4096)
    if b"\r\n" in head:
        raise ConfigError(f"{key}: {path} has DOS line breaks, which shells misread: remove them")
    if head.startswith(b"\x7fELF"):
        return (str(path),)
    first = head.partition(b"\n")[0]
    words = first[2:].decode(errors="replace").split(None, 1) if first.startswith(b"#!") else []
    return (*([word.strip() for word in words] or ["bash"]), str(path))
