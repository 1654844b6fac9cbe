"""How a job's nodes recognise each other: the attempt's secret, and messages signed with it.

The batch shell makes a new secret for each attempt and passes it on only in the environment.
Anybody who reaches a port may connect; nothing that they send is decoded before its signature has
been verified. No input or output here:

    server → client   GREETING: magic, nonce             sent to anybody who connects
    client → server   CLAIM: magic, node, nonce, frame   the frame has no body
    server → client   GRANT: frame                       without a body, too
    both              frames: length, body, signature    over direction, number and body
    server → client   after some frames: bytes whose SHA-256 stands in the frame

Each connection has its own keys, derived from both nonces and the node's number, and frames are
numbered: what was recorded cannot be replayed on another connection, in another order or in the
other direction. HMAC-SHA256 throughout (RFC 2104); nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct

from fsdpkit.staging.manifest import BLOCK, StageError

HUB, BLOCKS, AGENTS = b"hub", b"blocks", b"agents"
"""What listens at a port: a claim to one is none to the other."""
MAGIC = b"fsdpkit2"
FRAME_BYTES = 1 << 20
"""A longer body is none of ours."""
_NONCE, _NODE, LENGTH_BYTES = 32, 4, 4
_SIGNATURE = hashlib.sha256().digest_size
GREETING_BYTES = len(MAGIC) + _NONCE
GRANT_BYTES = LENGTH_BYTES + _SIGNATURE
CLAIM_BYTES = len(MAGIC) + _NODE + _NONCE + GRANT_BYTES
_REQUEST = struct.Struct("!IQQ")
_BLOCK = struct.Struct("!QI32s")


class StrangeError(Exception):
    """What arrived was not signed with this attempt's secret, or is not what comes next."""


class AttemptKeys:
    """What the nodes of one attempt sign with."""

    def __init__(self, secret: bytes, attempt: str) -> None:
        """Raises StageError for a secret that is not 32 bytes long."""
        if len(secret) != _SIGNATURE:
            raise StageError("settings", "the job's secret is not 64 hexadecimal digits")
        self._key = hmac.digest(secret, attempt.encode(), "sha256")

    def of(self, way: bytes, kind: bytes, node: bytes, nonces: bytes) -> bytes:
        """The key of one direction of a connection."""
        return hmac.digest(self._key, b"\0".join((way, kind, node + nonces)), "sha256")


class SignedFrames:
    """Bodies to and from bytes on one connection, each signed and numbered."""

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending, self._receiving = sending, receiving
        self._sent = self._received = 0
        self._arrived = bytearray()

    def seal(self, body: bytes) -> bytes:
        """One frame. Raises ValueError beyond FRAME_BYTES."""
        if len(body) > FRAME_BYTES:
            raise ValueError(f"a message of {len(body)} bytes; the most are {FRAME_BYTES}")
        self._sent += 1
        return (
            len(body).to_bytes(LENGTH_BYTES, "big") + body + _sign(self._sending, self._sent, body)
        )

    def open(self, rest: bytes) -> bytes:
        """The body out of what follows the length. Raises StrangeError."""
        body, signature = rest[:-_SIGNATURE], rest[-_SIGNATURE:]
        if not hmac.compare_digest(signature, _sign(self._receiving, self._received + 1, body)):
            raise StrangeError
        self._received += 1
        return body

    def take(self, data: bytes) -> list[bytes]:
        """The bodies of the frames that are complete with these bytes. Raises StrangeError."""
        self._arrived += data
        bodies = []
        while len(self._arrived) >= LENGTH_BYTES:
            end = LENGTH_BYTES + rest_bytes(self._arrived[:LENGTH_BYTES])
            if len(self._arrived) < end:
                break
            bodies.append(self.open(bytes(self._arrived[LENGTH_BYTES:end])))
            del self._arrived[:end]
        return bodies


def rest_bytes(length: bytes | bytearray) -> int:
    """How many bytes a frame has after these LENGTH_BYTES. Raises StrangeError."""
    body = int.from_bytes(length, "big")
    if body > FRAME_BYTES:
        raise StrangeError
    return body + _SIGNATURE


def _sign(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + body, "sha256")


def greeting() -> bytes:
    return MAGIC + os.urandom(_NONCE)


def claimed(
    keys: AttemptKeys, kind: bytes, node: int, greeting: bytes
) -> tuple[bytes, SignedFrames]:
    """The claim of a client, and its frames, of which the grant is to be the first.

    greeting: GREETING_BYTES. Raises StrangeError.
    """
    if greeting[: len(MAGIC)] != MAGIC:
        raise StrangeError
    number, nonce = node.to_bytes(_NODE, "big"), os.urandom(_NONCE)
    told = kind, number, greeting[len(MAGIC) :] + nonce
    frames = SignedFrames(sending=keys.of(b"up", *told), receiving=keys.of(b"down", *told))
    return MAGIC + number + nonce + frames.seal(b""), frames


def granted(
    keys: AttemptKeys, kind: bytes, greeting: bytes, claim: bytes
) -> tuple[bytes, int, SignedFrames]:
    """The server's answer to a claim, which node is at the other end, and the server's frames.

    claim: CLAIM_BYTES. Raises StrangeError.
    """
    magic, rest = claim[: len(MAGIC)], claim[len(MAGIC) : -GRANT_BYTES]
    number, nonce = rest[:_NODE], rest[_NODE:]
    told = kind, number, greeting[len(MAGIC) :] + nonce
    frames = SignedFrames(sending=keys.of(b"down", *told), receiving=keys.of(b"up", *told))
    if magic != MAGIC or frames.open(claim[LENGTH_BYTES - GRANT_BYTES :]):
        raise StrangeError
    return frames.seal(b""), int.from_bytes(number, "big"), frames


def request(item: int, first: int, end: int) -> bytes:
    """For blocks `first` to `end` - 1 of an object."""
    return _REQUEST.pack(item, first, end)


def requested(body: bytes) -> tuple[int, int, int]:
    """Raises StrangeError."""
    try:
        return _REQUEST.unpack(body)
    except struct.error as error:
        raise StrangeError from error


def header(index: int, length: int, sha256: bytes) -> bytes:
    """Goes before a block's bytes. length: 0 if all are zeros; then none follow."""
    return _BLOCK.pack(index, length, sha256)


def headed(body: bytes) -> tuple[int, int, bytes]:
    """Raises StrangeError."""
    try:
        index, length, sha256 = _BLOCK.unpack(body)
    except struct.error as error:
        raise StrangeError from error
    if length > BLOCK:
        raise StrangeError
    return index, length, sha256
