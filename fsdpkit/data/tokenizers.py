"""Text to token ids and back: ByT5's bytes, a `tokenizer.json`, or a SentencePiece `.model`.

T5 needs three things of a tokenizer beside its pieces: an end-of-text id, a padding id and, for
span corruption, the sentinels `<extra_id_0>`, `<extra_id_1>`, … that mark gaps. `encode` never adds
an end-of-text id: whoever cuts texts to length does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fsdpkit.config.training.hub import hub_hint
from fsdpkit.data.tokenizer_files import SENTINELS
from fsdpkit.data.tokens import Encoded, ids_dtype
from fsdpkit.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    import sentencepiece
    import tokenizers


CONFIG = "tokenizer_config.json"


class Tokenizer(Protocol):
    """What the trainer and the preparation use; ids are below `vocab_size`."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def sentinels(self) -> Sequence[int]:
        """Ids of `<extra_id_0>`, `<extra_id_1>`, … in this order; empty when there are none."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """What Hugging Face's AutoTokenizer needs in a model's directory to give the same ids:
        content by file name. Raises OSError where its own file cannot be read again."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without EOS."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, faster."""

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        """The same ids one behind the other, and lengths [texts, 1]."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `ids` stand for, up to the first EOS, without padding."""


def _config(kind: str, **more: int) -> bytes:
    """A tokenizer_config.json: `kind` is the class in transformers, special tokens are T5's."""
    tokens = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return (json.dumps({"tokenizer_class": kind, **tokens, **more}, indent=2) + "\n").encode()


def _beside(tokenizer: Path) -> bytes | None:
    """The tokenizer_config.json that came with it, if there is one."""
    try:
        content = (tokenizer.parent / CONFIG).read_bytes()
        return content if isinstance(json.loads(content), dict) else None
    except (OSError, ValueError):
        return None


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that `spec` names: "bytes", a path that ends in .json, or one in .model. Raises
    NotFoundError for a missing file, ConfigError for a file that is no tokenizer, lacks EOS or
    padding, or needs a package that is not installed."""
    if spec == "bytes":
        return ByteTokenizer()
    path = Path(spec)
    if path.suffix not in (".json", ".model"):
        raise ConfigError(
            f'tokenizer {spec!r}: must be "bytes", a tokenizer.json or a SentencePiece .model.'
            + hub_hint(path)
        )
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file (training.data.tokenizer).")
    return JsonTokenizer(path) if path.suffix == ".json" else SentencePieceTokenizer(path)


class ByteTokenizer:
    """ByT5's vocabulary (Xue et al. 2022): pad 0, EOS 1, unknown 2, byte b is b + 3. Its sentinels
    are the byte ids from 258 downwards, as in the released models; valid UTF-8 never uses the first
    eleven of them."""

    name, vocab_size, eos_id, pad_id = "bytes", 259, 1, 0
    sentinels: Sequence[int] = range(258, 258 - SENTINELS, -1)
    offset = 3

    @property
    def files(self) -> Mapping[str, bytes]:
        # Sentinels of its own it has none: they are ids of bytes that no text has.
        return {CONFIG: _config("ByT5Tokenizer", extra_ids=0)}

    def encode(self, text: str) -> list[int]:
        return [byte + self.offset for byte in text.encode()]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        raw = [text.encode() for text in texts]
        ids = np.frombuffer(b"".join(raw), np.uint8).astype("<u2")
        ids += self.offset
        return Encoded(ids, np.fromiter(map(len, raw), np.int64, len(raw))[:, None])

    def decode(self, ids: Sequence[int]) -> str:
        kept = (int(i) - self.offset for i in _until(ids, self.eos_id))
        return bytes(byte for byte in kept if 0 <= byte < 256).decode(errors="replace")


class JsonTokenizer:
    """A Hugging Face `tokenizer.json` through the `tokenizers` package."""

    def __init__(self, path: Path) -> None:
        # Each preparing process and each loader worker tokenises for itself; threads on top of
        # that only compete, and the package complains of a fork after it has used them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError:
            raise _missing(path, "tokenizers") from None
        try:
            self._backend: tokenizers.Tokenizer = Backend.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise ConfigError(f"{path}: not a tokenizer.json: {error}.") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.name, self._path = path.name, path
        self.eos_id = self._id_of("</s>", path, "the end of a text")
        self.pad_id = self._id_of("<pad>", path, "padding")
        self.sentinels = _sentinels(self._backend.token_to_id)
        self.vocab_size = max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def files(self) -> Mapping[str, bytes]:
        config = _beside(self._path) or _config("PreTrainedTokenizerFast")
        return {"tokenizer.json": self._path.read_bytes(), CONFIG: config}

    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return _flat(self.encode_batch(texts), self.vocab_size)

    def decode(self, ids: Sequence[int]) -> str:
        kept = [int(i) for i in _until(ids, self.eos_id) if i != self.pad_id]
        return str(self._backend.decode(kept, skip_special_tokens=False))

    def _id_of(self, token: str, path: Path, purpose: str) -> int:
        found = self._backend.token_to_id(token)
        if found is None:
            raise ConfigError(
                f"{path}: has no {token} token, which T5 needs for {purpose}: add it to the "
                "tokenizer's special tokens."
            )
        return int(found)


class SentencePieceTokenizer:
    """A SentencePiece `.model`, such as T5's own `spiece.model`. A model that holds no
    `<extra_id_N>` pieces gets T5's hundred above its own, in reverse: `<extra_id_99>` first,
    `<extra_id_0>` last (32 099 in the released vocabulary)."""

    def __init__(self, path: Path) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise _missing(path, "sentencepiece") from None
        try:
            backend: sentencepiece.SentencePieceProcessor = SentencePieceProcessor(str(path))
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"{path}: not a SentencePiece model: {error}.") from None
        self._backend = backend
        self.name, self._path = path.name, path
        self.pad_id, self.eos_id = int(backend.pad_id()), int(backend.eos_id())
        for found, option, purpose in (
            (self.eos_id, "eos_id", "the end of a text"),
            (self.pad_id, "pad_id", "padding"),
        ):
            if found < 0:
                raise ConfigError(
                    f"{path}: has no {option.removesuffix('_id')} piece, which T5 needs for "
                    f"{purpose}: train it with pad_id=0, eos_id=1, unk_id=2."
                )
        self._pieces = int(backend.get_piece_size())
        self.sentinels: Sequence[int] = _sentinels(self._piece_id)
        self.vocab_size = self._pieces
        if not self.sentinels:
            self.vocab_size += SENTINELS
            self.sentinels = range(self.vocab_size - 1, self._pieces - 1, -1)

    @property
    def files(self) -> Mapping[str, bytes]:
        extra_ids = self.vocab_size - self._pieces
        config = _beside(self._path) or _config("T5Tokenizer", extra_ids=extra_ids)
        return {"spiece.model": self._path.read_bytes(), CONFIG: config}

    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return list(self._backend.encode(list(texts), num_threads=1))

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return _flat(self.encode_batch(texts), self.vocab_size)

    def decode(self, ids: Sequence[int]) -> str:
        parts: list[str] = []
        pending: list[int] = []
        for i in map(int, _until(ids, self.eos_id)):
            if i >= self._pieces:
                parts.append(self._backend.decode(pending))
                parts.append(f"<extra_id_{self.vocab_size - 1 - i}>")
                pending = []
            elif i != self.pad_id:
                pending.append(i)
        return " ".join(part for part in [*parts, self._backend.decode(pending)] if part)

    def _piece_id(self, piece: str) -> int | None:
        # mT5's model holds them as words, with SentencePiece's mark of a space in front.
        for spelling in (piece, f"▁{piece}"):
            found = int(self._backend.piece_to_id(spelling))
            if found != self._backend.unk_id():
                return found
        return None


def _sentinels(id_of: Any) -> list[int]:
    """Ids of `<extra_id_0>`, `<extra_id_1>`, … as far as there are any."""
    found: list[int] = []
    while (number := id_of(f"<extra_id_{len(found)}>")) is not None:
        found.append(int(number))
    return found


def _flat(rows: Sequence[Sequence[int]], vocab_size: int) -> Encoded:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    joined: list[int] = []
    for row in rows:
        joined += row
    return Encoded(np.array(joined, ids_dtype(vocab_size)), lengths[:, None])


def _until(ids: Sequence[int], end: int) -> Sequence[int]:
    ids = list(ids)
    return ids[: ids.index(end)] if end in ids else ids


def _missing(path: Path, package: str) -> ConfigError:
    return ConfigError(
        f"{path}: needs the package {package}, which is not installed: "
        'pip install "fsdpkit[tokenizers]".'
    )
