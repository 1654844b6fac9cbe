"""ROUGE: how many of a text's words another has, in percent (Lin 2004; the rouge-score package)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsdpkit.errors import ConfigError

KINDS = ("rouge1", "rouge2", "rougeL")


def rouge(outputs: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """Mean F1 of ROUGE-1, -2 and -L in percent, words stemmed."""
    score = scorer("--rouge")
    scores = [score.score(t, o) for t, o in zip(targets, outputs, strict=True)]
    return {kind: 100 * sum(s[kind].fmeasure for s in scores) / len(scores) for kind in KINDS}


def scorer(asked_by: str) -> Any:
    """rouge-score's scorer. Raises ConfigError when the package is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError(
            f'{asked_by} needs a package that is not installed: pip install "fsdpkit[rouge]".'
        ) from None
    return RougeScorer(list(KINDS), use_stemmer=True)
