"""How agents authenticate each other: the run's secret, and messages signed with it.

The batch shell makes a new secret for each attempt and passes it to the agents only in their
environment. Anybody who reaches the head node's port can connect to it, but nothing they send is
decoded before its signature has been verified. No input or output here:

    head → agent    GREETING: magic, nonce                     sent to anybody who connects
    agent → head    CLAIM: magic, node, nonce, signature       over both nonces and the node's index
    head → agent    GRANT: signature                           so that the agent knows the head, too
    both            frames: length, body, signature            over direction, number and body

Each connection has its own keys, derived from both nonces, and frames are numbered, so a recorded
frame cannot be replayed on another connection, in another order or in the other direction.
HMAC-SHA256 throughout (RFC 2104); nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import MutableMapping
from dataclasses import dataclass

from fsdpkit.errors import NodeError

VARIABLE = "FSDPKIT_SECRET"
SECRET_BYTES = 32
MAGIC = b"fsdpkit1"
_NONCE = 32
_NODE = 4
_LENGTH = 4
_SIGNATURE = hashlib.sha256().digest_size
GREETING_BYTES = len(MAGIC) + _NONCE
CLAIM_BYTES = len(MAGIC) + _NODE + _NONCE + _SIGNATURE
GRANT_BYTES = _SIGNATURE
FRAME_BYTES = 1 << 20
"""A longer body is none of ours."""


class ForgedError(Exception):
    """The message was not signed with this run's secret, or is out of order."""


@dataclass
class _Taken:
    """The secret from this process's environment."""

    text: str | None = None


_taken = _Taken()


def take_secret(environ: MutableMapping[str, str]) -> None:
    """Take the secret out of the environment: no rank and no command of the job gets it."""
    _taken.text = environ.pop(VARIABLE, None)


@dataclass(frozen=True)
class Keys:
    """What the agents of one attempt sign with. attempt: its name, as torchrun's --rdzv-id."""

    secret: bytes
    attempt: str

    def sign(self, *parts: bytes) -> bytes:
        mac = hmac.new(self.secret, self.attempt.encode() + b"\0", hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(4, "big") + part)
        return mac.digest()


def keys_of(attempt: str) -> Keys:
    """From the secret that was taken. Raises NodeError if there was none, or it is malformed."""
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
    return Keys(secret, attempt)


class Head:
    """The head's side of a connection's beginning."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self._nonce = keys, os.urandom(_NONCE)

    @property
    def greeting(self) -> bytes:
        return MAGIC + self._nonce

    def grant(self, claim: bytes) -> tuple[int, bytes, Frames]:
        """Which node claims to be at the other end, the answer to it, and its frames. claim:
        CLAIM_BYTES. Raises ForgedError."""
        magic, rest = claim[: len(MAGIC)], claim[len(MAGIC) :]
        node, nonce = rest[:_NODE], rest[_NODE : _NODE + _NONCE]
        nonces = (node, self._nonce, nonce)
        signed = hmac.compare_digest(rest[_NODE + _NONCE :], self._keys.sign(b"claim", *nonces))
        if not (magic == MAGIC and signed):
            raise ForgedError
        up, down = (self._keys.sign(way, *nonces) for way in (b"up", b"down"))
        return (
            int.from_bytes(node, "big"),
            self._keys.sign(b"grant", *nonces),
            Frames(sending=down, receiving=up),
        )


class AgentHandshake:
    """An agent's side of it."""

    def __init__(self, keys: Keys, node: int, greeting: bytes) -> None:
        """greeting: GREETING_BYTES. Raises ForgedError."""
        if greeting[: len(MAGIC)] != MAGIC:
            raise ForgedError
        own = os.urandom(_NONCE)
        self._keys = keys
        self._nonces = (node.to_bytes(_NODE, "big"), greeting[len(MAGIC) :], own)
        signature = keys.sign(b"claim", *self._nonces)
        self.claim = MAGIC + self._nonces[0] + own + signature

    def frames(self, grant: bytes) -> Frames:
        """grant: GRANT_BYTES. Raises ForgedError."""
        if not hmac.compare_digest(grant, self._keys.sign(b"grant", *self._nonces)):
            raise ForgedError
        up, down = (self._keys.sign(way, *self._nonces) for way in (b"up", b"down"))
        return Frames(sending=up, receiving=down)


class Frames:
    """Bodies to and from bytes on one connection, each signed and numbered."""

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending, self._receiving = sending, receiving
        self._sent = self._received = 0
        self._buffer = bytearray()

    def seal(self, body: bytes) -> bytes:
        """One frame. Raises ValueError beyond FRAME_BYTES."""
        if len(body) > FRAME_BYTES:
            raise ValueError(f"a message of {len(body)} bytes; the most are {FRAME_BYTES}")
        signature = _frame_signature(self._sending, self._sent, body)
        self._sent += 1
        return len(body).to_bytes(_LENGTH, "big") + body + signature

    def open(self, data: bytes) -> list[bytes]:
        """The bodies that are complete with these bytes. Raises ForgedError."""
        self._buffer += data
        bodies = []
        while len(self._buffer) >= _LENGTH:
            length = int.from_bytes(self._buffer[:_LENGTH], "big")
            if length > FRAME_BYTES:
                raise ForgedError
            end = _LENGTH + length + _SIGNATURE
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_LENGTH : _LENGTH + length])
            signature = _frame_signature(self._receiving, self._received, body)
            if not hmac.compare_digest(bytes(self._buffer[_LENGTH + length : end]), signature):
                raise ForgedError
            self._received += 1
            bodies.append(body)
            del self._buffer[:end]
        return bodies


def _frame_signature(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.new(key, number.to_bytes(8, "big") + body, hashlib.sha256).digest()
