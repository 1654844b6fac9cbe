"""What a person may have meant by a word that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable

_ALSO = {
    "bf16": "bfloat16",
    "ddp": "no_shard",
    "fp16": "float16",
    "fp32": "float32",
    "hsdp": "hybrid_shard",
    "zero2": "shard_grad_op",
    "zero3": "full_shard",
}
"""What other programs call the same."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing if no known word is close."""
    import difflib  # only to explain a mistake

    folded = {_folded(one): one for one in known}
    typed = _folded(word)
    meant = _ALSO.get(typed.replace("_", ""), typed)
    close = difflib.get_close_matches(meant, folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


def _folded(word: str) -> str:
    return word.casefold().replace("-", "_")
