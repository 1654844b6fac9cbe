"""ROUGE of the texts that the model generates for held-out samples, on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from data import Batch
from loss import IGNORE
from model import T5
from search import Search, generate

from fsdpkit.data.tokenizers import Tokenizer
from fsdpkit.training.distributed import Ranks, sum_over_ranks
from fsdpkit.training.rouge import KINDS, scorer


def held_out_rouge(
    model: T5, batches: Iterable[Batch], tokenizer: Tokenizer, longest: int, ranks: Ranks
) -> dict[str, float]:
    """Mean F1 of ROUGE-1, -2 and -L in percent, of what `model` writes greedily, `longest` tokens
    at most.

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
