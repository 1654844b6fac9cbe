"""What a person may have meant by a word that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing if no known word is close."""
    import difflib  # only to explain a mistake

    folded = {_folded(one): one for one in known}
    close = difflib.get_close_matches(_folded(word), folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


def _folded(word: str) -> str:
    return word.casefold().replace("-", "_")
