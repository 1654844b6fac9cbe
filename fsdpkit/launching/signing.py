"""The secret that the agents of an attempt sign their messages with (staging/wire.py)."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from fsdpkit.errors import NodeError
from fsdpkit.staging.wire import AttemptKeys

VARIABLE = "FSDPKIT_SECRET"
SECRET_BYTES = 32


@dataclass
class _Taken:
    """The secret from this process's environment."""

    text: str | None = None


_taken = _Taken()


def take_secret(environ: MutableMapping[str, str]) -> None:
    """Take the secret out of the environment: no rank and no command of the job gets it."""
    _taken.text = environ.pop(VARIABLE, None)


def keys_of(attempt: str) -> AttemptKeys:
    """From the secret that was taken. attempt: its name, as torchrun's --rdzv-id. Raises NodeError
    if there was no secret, or it is malformed."""
    if _taken.text is None:
        raise NodeError(
            f"${VARIABLE} is not set, so this node's agent could not tell the others from "
            "strangers: the script has to make it and hand it to srun, as the packaged template "
            "does; was it rendered by another release of fsdpkit?"
        )
    try:
        secret = bytes.fromhex(_taken.text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise NodeError(f"${VARIABLE} is not {2 * SECRET_BYTES} hexadecimal digits")
    return AttemptKeys(secret, attempt)
