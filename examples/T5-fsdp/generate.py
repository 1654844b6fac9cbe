"""Write text with a trained T5: greedy or beam search, from texts or a file, scored if asked.

    python examples/T5-fsdp/generate.py --weights runs/<run>/export "def add(a, b): return a + b"
    python examples/T5-fsdp/generate.py --weights DIR --input pairs.jsonl --beams 4 --rouge

One process, no torchrun. The decoder runs a token at a time and keeps what earlier tokens left, in
`CachedDecoder`, so that model.py has training's path alone. The search gives the tokens that
transformers' `generate` gives for the same settings.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from attention import guard_kernels, masked
from model import EOS, PAD, T5
from torch import Tensor
from torch.nn.functional import pad
from weights import load

from fsdpkit.data.tokenizers import load_tokenizer
from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError, StorageError, UsageError

if TYPE_CHECKING:
    from fsdpkit.data.tokenizers import Tokenizer

NEVER = -1e9  # score of a beam that must not be chosen; finite, so that sums stay so


@dataclass(frozen=True, kw_only=True)
class Search:
    """How to choose tokens; names and meanings as in transformers."""

    max_new_tokens: int = 128
    beams: int = 1  # 1 is greedy
    length_penalty: float = 1.0  # scores are divided by length to this power
    early_stopping: bool = False  # stop at `beams` finished texts, not when none can improve
    eos_id: int = EOS


@torch.inference_mode()
def generate(
    model: T5, source: Tensor, source_mask: Tensor, search: Search | None = None
) -> list[list[int]]:
    """Target ids for each row of `source`, int64 [B, S], without start token and EOS.

    `source_mask` bool [B, S], true on real tokens. The model is neither sharded nor in training
    mode. Raises ConfigError for a model built with FlexAttention, which knows no single tokens.
    """
    search = search or Search()
    if model.decoder.kernel == "flex":
        raise ConfigError("FlexAttention cannot write token by token: load the model with sdpa.")
    decoder = CachedDecoder(model, source, source_mask, search)
    choose = greedy if search.beams == 1 else beam_search
    rows: list[list[int]] = choose(decoder, len(source), search).tolist()
    return [row[: row.index(search.eos_id)] if search.eos_id in row else row for row in rows]


class CachedDecoder:
    """The decoder one token at a time: keys and values of what came before are kept.

    It holds B·beams rows, the beams of a source next to each other.
    """

    def __init__(self, model: T5, source: Tensor, source_mask: Tensor, search: Search) -> None:
        self.model, self.length = model, 0
        blocks, beams = model.decoder.block, search.beams
        mask = source_mask[:, None, None, :]
        memory = model.encoder(model.shared(source), mask)
        self.memory_bias = masked(mask, memory.new_zeros(())).repeat_interleave(beams, 0)
        self.memory = [
            [part.repeat_interleave(beams, 0) for part in b.layer[1].inner.keys_and_values(memory)]
            for b in blocks
        ]
        buckets = model.decoder.buckets(search.max_new_tokens, source.device)
        self.positions = blocks[0].layer[0].inner.position_bias(buckets)[None]  # [1, H, L, L]
        rows, heads, _, width = self.memory[0][0].shape
        shape = rows, heads, search.max_new_tokens, width
        self.past = [[part.new_empty(shape) for part in pair] for pair in self.memory]

    def step(self, tokens: Tensor) -> Tensor:
        """Scores of the token after `tokens`, int64 [rows]: float32 [rows, V]."""
        now, self.length = self.length, self.length + 1
        bias = self.positions[:, :, now : self.length, : self.length]
        x = self.model.shared(tokens[:, None])
        for block, past, memory in zip(
            self.model.decoder.block, self.past, self.memory, strict=True
        ):
            itself, across, feed_forward = block.layer
            normed = itself.layer_norm(x)
            for kept, new in zip(past, itself.inner.keys_and_values(normed), strict=True):
                kept[:, :, now] = new[:, :, 0]
            seen = (kept[:, :, : self.length] for kept in past)
            x = itself.add(x, itself.inner.attend(normed, *seen, bias))
            normed = across.layer_norm(x)
            x = across.add(x, across.inner.attend(normed, *memory, self.memory_bias))
            x = feed_forward(x)
        scores: Tensor = self.model.head(self.model.decoder.final_layer_norm(x))
        return scores[:, 0].float()

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row `rows[i]` has seen; only within the beams of one source."""
        for pair in self.past:
            for kept in pair:
                kept[:, :, : self.length] = kept[rows, :, : self.length]


def greedy(decoder: CachedDecoder, batch: int, search: Search) -> Tensor:
    """The likeliest token each time; int64 [batch, ≤ max_new_tokens], PAD after EOS."""
    tokens = torch.full((batch,), PAD, device=decoder.positions.device)
    finished = torch.zeros_like(tokens, dtype=torch.bool)
    written = []
    for _ in range(search.max_new_tokens):
        tokens = decoder.step(tokens).argmax(-1).masked_fill(finished, PAD)
        written.append(tokens)
        finished |= tokens == search.eos_id
        if finished.all():
            break
    return torch.stack(written, 1)


def beam_search(decoder: CachedDecoder, batch: int, search: Search) -> Tensor:
    """The best of the texts found along `beams` paths; int64 [batch, max_new_tokens].

    Two pools a source: `running` texts, still without EOS, by the sum of their log-probabilities,
    and `ended` ones, by that sum divided by length^length_penalty. Twice as many candidates as
    beams are looked at, so that enough go on even if half of them end; only those of the better
    half may end. A source is done when its best running text, at its present length, scores no
    better than its worst ended one.
    """
    beams, steps, device = search.beams, search.max_new_tokens, decoder.positions.device
    first_row = torch.arange(batch, device=device)[:, None] * beams
    running = torch.full((batch, beams, steps), PAD, device=device)
    running_score = torch.full((batch, beams), NEVER, device=device)
    running_score[:, 0] = 0.0  # all beams begin alike: go on from one of them
    ended, ended_score = running.clone(), torch.full_like(running_score, NEVER)
    is_ended = torch.zeros_like(running_score, dtype=torch.bool)
    may_improve = torch.ones(batch, 1, dtype=torch.bool, device=device)
    last = running[:, :, 0]
    for t in range(steps):
        log_p = decoder.step(last.flatten()).log_softmax(-1).unflatten(0, (batch, beams))
        totals = running_score[:, :, None] + log_p
        score, flat = totals.flatten(1).topk(2 * beams)
        parent, token = flat // log_p.shape[-1], flat % log_p.shape[-1]
        candidates = pick(running, parent)
        candidates[:, :, t] = token
        ends = (token == search.eos_id) | (t + 1 == steps)

        counts = ends & may_improve
        counts[:, beams:] = False
        if search.early_stopping:
            counts &= ~is_ended.all(1, keepdim=True)
        penalty = (t + 1) ** search.length_penalty
        final = torch.where(counts, score / penalty, -torch.inf)
        ended_score, best = torch.cat([ended_score, final], 1).topk(beams)
        ended = pick(torch.cat([ended, candidates], 1), best)
        is_ended = pick(torch.cat([is_ended, counts], 1), best)

        running_score, best = (score + ends * NEVER).topk(beams)
        running, last = pick(candidates, best), pick(token, best)
        decoder.reorder((pick(parent, best) + first_row).flatten())

        worst = torch.where(is_ended, ended_score.amin(1, keepdim=True), NEVER)
        may_improve &= (running_score[:, :1] / penalty > worst).any(1, keepdim=True)
        if not may_improve.any() or ends.all() or (search.early_stopping and is_ended.all()):
            break
    return ended[:, 0]


def pick(values: Tensor, which: Tensor) -> Tensor:
    """`values[b, which[b, i]]` for each b and i: [B, n, …] and [B, m] to [B, m, …]."""
    return values.take_along_dim(which.reshape(*which.shape, *[1] * (values.ndim - 2)), 1)


def write(
    model: T5, tokenizer: Tokenizer, texts: Sequence[str], search: Search, batch_size: int = 8
) -> list[str]:
    """What `model` writes for each of `texts`, in batches of similar length.

    Raises ConfigError for a tokenizer whose ids the model does not have.
    """
    known = model.config.vocab_size
    if tokenizer.vocab_size > known:
        raise ConfigError(
            f"tokenizer {tokenizer.name} has ids to {tokenizer.vocab_size - 1}, but the model "
            f"knows {known} (vocab_size): take the tokenizer that the model was trained with."
        )
    sources = [[*tokenizer.encode(text), tokenizer.eos_id] for text in texts]
    by_length = sorted(range(len(texts)), key=lambda i: len(sources[i]))
    outputs = [""] * len(texts)
    for begin in progress(range(0, len(texts), batch_size)):
        members = by_length[begin : begin + batch_size]
        longest = len(sources[members[-1]])
        rows = [pad(torch.tensor(sources[i]), (0, longest - len(sources[i]))) for i in members]
        lengths = torch.tensor([len(sources[i]) for i in members])
        mask = torch.arange(longest) < lengths[:, None]
        device = model.shared.weight.device
        written = generate(model, torch.stack(rows).to(device), mask.to(device), search)
        for i, ids in zip(members, written, strict=True):
            # Embeddings are padded to a round number: some ids stand for nothing.
            outputs[i] = tokenizer.decode([j for j in ids if j < tokenizer.vocab_size])
    return outputs


def progress(steps: range) -> Iterator[int]:
    """`steps`, with a bar on stderr when there are many and a person is looking."""
    if len(steps) < 3 or not sys.stderr.isatty():
        yield from steps
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(steps, "writing", console=Console(stderr=True), transient=True)


def rouge(outputs: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """Mean F1 of ROUGE-1, -2 and -L in percent, words stemmed (Lin 2004; rouge-score package)."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError(
            '--rouge needs a package that is not installed: pip install "fsdpkit[rouge]".'
        ) from None
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = RougeScorer(kinds, use_stemmer=True)
    scores = [scorer.score(t, o) for t, o in zip(targets, outputs, strict=True)]
    return {kind: 100 * sum(s[kind].fmeasure for s in scores) / len(scores) for kind in kinds}


def read_fields(path: Path, fields: Sequence[str]) -> list[list[str]]:
    """For each of `fields` its text in every row of a .jsonl file.

    Raises NotFoundError for a missing file, ConfigError naming file and line.
    """
    columns: list[list[str]] = [[] for _ in fields]
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                for field, column in zip(fields, columns, strict=True):
                    if not isinstance(row, dict) or not isinstance(row.get(field), str):
                        raise ConfigError(f"{path}:{number}: has no text {field!r}.")
                    column.append(row[field])
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file (--input).") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}.") from None
    except ValueError as error:
        raise ConfigError(f"{path}:{number}: not JSON: {error}.") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}.") from None
    if not columns[0]:
        raise ConfigError(f"{path}: holds no rows.")
    return columns


def arguments_of(command_line: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write text with a trained T5.", allow_abbrev=False
    )
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="what the model reads")
    add(
        "--weights",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory with config.json and safetensors, such as a run's export",
    )
    add(
        "--tokenizer",
        metavar="NAME",
        help='"bytes", a tokenizer.json or a .model; default: the one in DIR, or bytes',
    )
    add("--input", type=Path, metavar="FILE", help="read texts from a .jsonl file instead")
    add("--source-field", default="source", metavar="KEY", help="its key with the text to read")
    add("--target-field", default="target", metavar="KEY", help="its key with the text to expect")
    add("--rouge", action="store_true", help="compare with the targets; needs fsdpkit[rouge]")
    add("--output", type=Path, metavar="FILE", help="write .jsonl here instead of printing")
    add("--beams", type=whole, default=1, help="paths of beam search; 1 is greedy (default)")
    add(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="above 1 prefers longer texts, in beam search (default 1)",
    )
    add("--early-stopping", action="store_true", help="stop at as many texts as beams")
    add("--max-new-tokens", type=whole, default=128, metavar="N", help="default 128")
    add("--batch-size", type=whole, default=8, metavar="N", help="texts at a time (default 8)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--dtype", choices=["float32", "bfloat16"],
        help="default: bfloat16 on GPUs, float32 on CPUs")  # fmt: skip
    return parser.parse_args(command_line)


def whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main(command_line: Sequence[str] | None = None) -> int:
    given = arguments_of(command_line)
    if bool(given.texts) == bool(given.input):
        raise UsageError("Give texts, or a file with --input, and not both.")
    if given.rouge and not given.input:
        raise UsageError("--rouge compares with targets: give a file of pairs with --input.")
    columns = [given.texts]
    if given.input:
        fields = [given.source_field, *([given.target_field] if given.rouge else [])]
        columns = read_fields(given.input, fields)
    if given.rouge:
        rouge([""], [""])  # a missing package is told now, not after the work
    tokenizer = load_tokenizer(given.tokenizer or own_tokenizer(given.weights))
    device = torch.device(given.device)
    guard_kernels(device)
    dtype = given.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    model = load(given.weights, device=device, dtype=getattr(torch, dtype))
    search = Search(
        max_new_tokens=given.max_new_tokens,
        beams=given.beams,
        length_penalty=given.length_penalty,
        early_stopping=given.early_stopping,
        eos_id=tokenizer.eos_id,
    )
    outputs = write(model, tokenizer, columns[0], search, given.batch_size)
    if given.output:
        save(given.output, ["source", "target"][: len(columns)], columns, outputs)
    else:
        print("\n".join(outputs))
    if given.rouge:
        scores = rouge(outputs, columns[1])
        found = "  ".join(f"{kind} {score:.2f}" for kind, score in scores.items())
        print(f"{found}  (mean F1 of {len(outputs)} texts, percent)")
    return 0


def own_tokenizer(weights: Path) -> str:
    found = [weights / n for n in ("tokenizer.json", "spiece.model") if (weights / n).is_file()]
    return str(found[0]) if found else "bytes"


def save(path: Path, keys: list[str], columns: list[list[str]], outputs: list[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            for row in zip(*columns, outputs, strict=True):
                table = dict(zip([*keys, "output"], row, strict=True))
                file.write(json.dumps(table, ensure_ascii=False) + "\n")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}.") from None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FsdpkitError as error:
        print(f"generate: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
