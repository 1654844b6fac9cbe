"""What the laptop asks of the login node, and how the answer is told from other output.

A request is one word of letters and digits, so the login shell (bash, tcsh, dash, fish) has nothing
to interpret: JSON in URL-safe base64. Words of a command cross as their bytes. An answer is one
line that begins with `MARK`, for a shell's start-up files may print before it.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fsdpkit.errors import UsageError

PROTOCOL = 1
"""Changes when one side would no longer understand the other."""
MARK = "fsdpkit-remote: "
MOST_BYTES = 100_000
"""Of a request: Linux takes 128 KiB for one argument."""


@dataclass(frozen=True)
class RemoteRequest:
    """One thing to do on the login node."""

    do: Literal["hello", "receive", "run", "collect"]
    words: tuple[str, ...] = ()
    """Of the command, without `fsdpkit` itself."""
    tree: str = ""
    """Digest of the work tree that is asked about or sent."""
    work_dir: str = ""
    """Where to run; empty: at home."""
    via: str = ""
    """The host as the laptop calls it, for commands that are shown."""
    runs: str | None = None
    columns: int | None = None
    """Of the laptop's terminal, where the command has none of its own."""
    terminal: bool = False
    protocol: int = PROTOCOL

    def encode(self) -> str:
        """Raises UsageError for one that is too long for a command line."""
        table = asdict(self) | {"words": [_encoded(os.fsencode(word)) for word in self.words]}
        text = _encoded(json.dumps(table).encode())
        if len(text) > MOST_BYTES:
            raise UsageError(
                f"the command has {len(text) // 1024} KiB of words, more than crosses as one "
                "command line: put them into a job file"
            )
        return text

    @classmethod
    def decode(cls, text: str) -> RemoteRequest:
        """Raises ValueError for whatever is no request of this protocol."""
        table = json.loads(_decoded(text))
        if not isinstance(table, dict) or table.get("protocol") != PROTOCOL:
            raise ValueError("it is of another protocol")
        words = tuple(os.fsdecode(_decoded(word)) for word in table.pop("words"))
        try:
            return cls(words=words, **table)
        except TypeError as error:
            raise ValueError(str(error)) from None


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def answer(table: dict[str, Any]) -> str:
    """The line that says so; what else goes to the same stream does not matter."""
    return f"\n{MARK}{json.dumps(table)}\n"


def answer_in(output: str) -> dict[str, Any] | None:
    """The last answer among the lines; None if there is none."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            try:
                table = json.loads(line.removeprefix(MARK))
            except ValueError:
                return None
            return table if isinstance(table, dict) else None
    return None
