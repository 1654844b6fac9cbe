"""The largest id of a tokenizer file, read without the packages that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config.training.hub import hub_hint
from fsdpkit.errors import ConfigError, NotFoundError

SENTINELS = 100
"""`<extra_id_N>` that T5's tokenizers have; a SentencePiece model gets them on top."""


def largest_id(path: Path, sentinels: bool) -> int:
    """The largest id that `path` gives to text, and to span corruption's gaps if `sentinels`.
    Raises NotFoundError when there is no such file, ConfigError for one that is no tokenizer or
    lacks what T5 needs, as far as that shows here."""
    if path.suffix not in (".json", ".model"):
        raise ConfigError(
            f'tokenizer {path}: must be "bytes", a tokenizer.json or a SentencePiece .model.'
            + hub_hint(path)
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise NotFoundError(f"{path}: {reason} (training.data.tokenizer).") from None
    if path.suffix == ".json":
        return _of_json(path, content, sentinels)
    pieces = _sentencepieces(path, content)
    own = {b"<extra_id_0>", "▁<extra_id_0>".encode()} & set(pieces)
    return len(pieces) - 1 + (SENTINELS if sentinels and not own else 0)


def _of_json(path: Path, content: bytes, sentinels: bool) -> int:
    """BPE, WordPiece and WordLevel map words to ids, Unigram lists them; added tokens come on top.
    See https://github.com/huggingface/tokenizers, `tokenizers/src/tokenizer/serialization.rs`."""
    try:
        table: Any = msgspec.json.decode(content)
        vocabulary = table["model"]["vocab"]
        if isinstance(vocabulary, list):
            vocabulary = {word: number for number, (word, *_) in enumerate(vocabulary)}
        ids = {**vocabulary, **{token["content"]: token["id"] for token in table["added_tokens"]}}
        largest = max(map(int, ids.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a tokenizer.json: {error!r}.") from None
    needed = ["</s>", "<pad>"] + ["<extra_id_0>"] * sentinels
    if missing := [token for token in needed if token not in ids]:
        raise ConfigError(
            f"{path}: has no {' and no '.join(missing)} token, which T5 needs: add it to the "
            "tokenizer's special tokens."
        )
    return largest


def _sentencepieces(path: Path, content: bytes) -> list[bytes]:
    """The pieces of a ModelProto: its repeated field 1, whose own field 1 is the piece's text."""
    try:
        pieces = [
            next(text for inner, text in _protobuf(value) if inner == 1)
            for field, value in _protobuf(content)
            if field == 1
        ]
    except (IndexError, StopIteration, RuntimeError, ValueError):
        pieces = []
    if not pieces:
        raise ConfigError(f"{path}: not a SentencePiece model.")
    return pieces


def _protobuf(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(field number, content) of the length-delimited fields of a protobuf message. Raises
    IndexError or ValueError for bytes that are none. See
    https://protobuf.dev/programming-guides/encoding/."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        field, wire_type = key >> 3, key & 7
        if wire_type == 0:
            _, at = _varint(content, at)
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
        elif wire_type == 2:
            length, at = _varint(content, at)
            if at + length > len(content):
                raise ValueError("a field is cut short")
            yield field, content[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {wire_type}")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
