"""ROUGE: how many of a text's words another has, in percent (Lin 2004; the rouge-score package)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from data import Batch
from model import IGNORE, T5
from search import Search, generate

from fsdpkit.data.tokenizers import Tokenizer
from fsdpkit.errors import ConfigError
from fsdpkit.training.distributed import Ranks, sum_over_ranks

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


def held_out_rouge(
    model: T5, batches: Iterable[Batch], tokenizer: Tokenizer, longest: int, ranks: Ranks
) -> dict[str, float]:
    """The same of what `model` writes for samples, greedily, `longest` tokens at most.

    A collective: on all ranks with as many batches, on each its own; the answer is of all. `model`
    is in evaluation mode and sharded by FSDP2, whose root stays gathered, as after any evaluation.
    Targets are the samples', cut to their longest length.
    """
    score = scorer("training.evaluation.rouge")
    sums, count = dict.fromkeys(KINDS, 0.0), 0
    for batch in batches:
        for output, target in written(model, batch, tokenizer, longest):
            found = score.score(target, output)
            sums = {kind: sums[kind] + found[kind].fmeasure for kind in KINDS}
            count += 1
    *totals, samples = sum_over_ranks(*sums.values(), count, device=ranks.device).tolist()
    means = (100 * total / max(1.0, samples) for total in totals)
    return dict(zip((f"eval_{kind}" for kind in KINDS), means, strict=True))


def written(
    model: T5, batch: Batch, tokenizer: Tokenizer, longest: int
) -> Iterator[tuple[str, str]]:
    """What `model` writes for each row, and what the row expects; rows of nothing are left out."""
    search = Search(max_new_tokens=longest, eos_id=tokenizer.eos_id)
    outputs = generate(model, batch.source, batch.source_mask, search)
    for output, labels in zip(outputs, batch.labels.tolist(), strict=True):
        if target := [label for label in labels if label != IGNORE]:
            yield known(output, tokenizer), known(target, tokenizer)


def known(ids: list[int], tokenizer: Tokenizer) -> str:
    """The text of `ids` without those that stand for nothing: embeddings may be padded."""
    return tokenizer.decode([each for each in ids if each < tokenizer.vocab_size])
