"""Write text with a trained T5: greedy or beam search, from texts or a file, scored if asked.

    python examples/T5-fsdp/generate.py --weights runs/<run>/export "def add(a, b): return a + b"
    python examples/T5-fsdp/generate.py --weights runs/<run>/checkpoints/step-50 "def add(a, b):"
    torchrun --nproc-per-node 4 examples/T5-fsdp/generate.py --weights DIR --input pairs.jsonl

`--weights` is a Hugging Face directory, a checkpoint of fsdp_t5.py, or a run, whose newest whole
checkpoint is taken. In one process the model is whole; under torchrun each rank reads and holds its
part, and the ranks share the texts. What is printed is the same: the texts, on standard output,
once. search.py chooses the tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from attention import guard_kernels
from model import T5
from search import CachedDecoder, Search, beam_search, greedy
from torch import Tensor
from torch.nn.functional import pad
from weights import is_checkpoint, load

from fsdpkit.config.training.hub import hub_hint
from fsdpkit.data.index import INDEX, read_index
from fsdpkit.data.tokenizers import load_tokenizer
from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError, StorageError, UsageError
from fsdpkit.runs import checkpoints
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint_loading import newest_whole
from fsdpkit.training.distributed import Ranks, gather, on_first, process_group

if TYPE_CHECKING:
    from fsdpkit.data.tokenizers import Tokenizer

T = TypeVar("T")


@torch.inference_mode()
def generate(
    model: T5, source: Tensor, source_mask: Tensor, search: Search | None = None
) -> list[list[int]]:
    """Target ids for each row of `source`, int64 [B, S], without start token and EOS.

    `source_mask` bool [B, S], true on real tokens. The model is in evaluation mode: whole, or
    sharded by FSDP2, then with a batch on each rank, at the same time. Raises ConfigError for a
    model built with FlexAttention, which knows no single tokens.
    """
    search = search or Search()
    if model.decoder.kernel == "flex":
        raise ConfigError("FlexAttention cannot write token by token: load the model with sdpa.")
    decoder = CachedDecoder(model, source, source_mask, search)
    choose = greedy if search.beams == 1 else beam_search
    rows: list[list[int]] = choose(decoder, len(source), search).tolist()
    return [row[: row.index(search.eos_id)] if search.eos_id in row else row for row in rows]


def write(
    model: T5,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    search: Search,
    batch_size: int = 8,
    ranks: Ranks | None = None,
) -> list[str]:
    """What `model` writes for each of `texts`, in batches of similar length.

    With `ranks`, all of them call this with the same texts, each writes for its share, and each
    gets the whole answer. Raises ConfigError for a tokenizer whose ids the model does not have.
    """
    known = model.config.vocab_size
    if tokenizer.vocab_size > known:
        raise ConfigError(
            f"tokenizer {tokenizer.name} has ids to {tokenizer.vocab_size - 1}, but the model "
            f"knows {known} (vocab_size): take the tokenizer that the model was trained with."
        )
    sources = [[*tokenizer.encode(text), tokenizer.eos_id] for text in texts]
    by_length = sorted(range(len(texts)), key=lambda i: len(sources[i]))
    rank, world_size = (ranks.rank, ranks.world_size) if ranks else (0, 1)
    outputs: dict[int, str] = {}
    for begin in progress(range(0, len(texts), batch_size * world_size), visible=rank == 0):
        members = by_length[begin : begin + batch_size * world_size][rank::world_size]
        # A rank without a text of its own joins in all the same: the others gather its weights.
        members = members or [by_length[begin]]
        longest = len(sources[members[-1]])
        rows = [pad(torch.tensor(sources[i]), (0, longest - len(sources[i]))) for i in members]
        lengths = torch.tensor([len(sources[i]) for i in members])
        mask = torch.arange(longest) < lengths[:, None]
        device = model.shared.weight.device
        written = generate(model, torch.stack(rows).to(device), mask.to(device), search)
        for i, ids in zip(members, written, strict=True):
            # Embeddings are padded to a round number: some ids stand for nothing.
            outputs[i] = tokenizer.decode([j for j in ids if j < tokenizer.vocab_size])
    for others in gather(outputs) if ranks else []:
        outputs.update(others)
    return [outputs[i] for i in range(len(texts))]


def progress(steps: range, *, visible: bool) -> Iterator[int]:
    """`steps`, with a bar on stderr when there are many and a person is looking."""
    if len(steps) < 3 or not visible or not sys.stderr.isatty():
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
        help="config.json and safetensors, such as a run's export; a checkpoint; or a run",
    )
    add(
        "--tokenizer",
        metavar="NAME",
        help='"bytes", a tokenizer.json or a .model; default: the one in DIR, or of its run, '
        "or bytes",
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
    add("--batch-size", type=whole, default=8, metavar="N",
        help="texts at a time, on each rank (default 8)")  # fmt: skip
    add("--device", help="default: a GPU if there is one; each rank has its own")
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
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return run(given, None)
    if given.device:
        raise UsageError("--device is for one process: under torchrun each rank has its own.")
    with process_group(timeout_s=3600) as ranks:  # one may read for long
        return run(given, ranks)


def run(given: argparse.Namespace, ranks: Ranks | None) -> int:
    """From arguments that fit one another to the output; with `ranks`, a collective."""
    columns = [given.texts]
    if given.input:
        fields = [given.source_field, *([given.target_field] if given.rouge else [])]
        columns = once(ranks, lambda: read_fields(given.input, fields))
    if given.rouge:
        rouge([""], [""])  # a missing package is told now, not after the work
    with contextlib.redirect_stdout(sys.stderr):  # which has the texts alone
        weights = choose_weights(given.weights, ranks)
        tokenizer = load_tokenizer(given.tokenizer or own_tokenizer(weights))
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        device = ranks.device if ranks else torch.device(given.device or usual)
        guard_kernels(device)
        dtype = given.dtype or ("bfloat16" if device.type == "cuda" else "float32")
        model = load(weights, device=device, dtype=getattr(torch, dtype), ranks=ranks)
    search = Search(
        max_new_tokens=given.max_new_tokens,
        beams=given.beams,
        length_penalty=given.length_penalty,
        early_stopping=given.early_stopping,
        eos_id=tokenizer.eos_id,
    )
    outputs = write(model, tokenizer, columns[0], search, given.batch_size, ranks)
    once(ranks, lambda: show(given, columns, outputs))
    return 0


def once(ranks: Ranks | None, action: Callable[[], T]) -> T:
    """What `action` returns here, or on rank 0 of `ranks`."""
    return action() if ranks is None else on_first(ranks, action)


def choose_weights(given: Path, ranks: Ranks | None) -> Path:
    """The directory to read: `given`, or, if that is a run, its newest checkpoint that is whole.

    Every byte of a checkpoint is read before it is believed, by each rank a share of the files.
    Raises StorageError naming the file that is not as it was written, NotFoundError for a run
    without checkpoints.
    """
    if not once(ranks, given.exists):
        raise NotFoundError(f"{given}: no such directory (--weights).{hub_hint(given)}")
    of_run = TaskPaths(given).checkpoints
    is_one = once(ranks, lambda: is_checkpoint(given))
    if not is_one and not once(ranks, of_run.is_dir):
        return given
    found = [given] if is_one else once(ranks, lambda: checkpoints.checkpoints_in(of_run))
    if not found:
        raise NotFoundError(f"{of_run} holds no checkpoint.")
    path, _ = newest_whole(found, ranks)
    if not is_one:
        once(ranks, lambda: print(f"reading {path}"))
    return path


def own_tokenizer(weights: Path) -> str:
    """The tokenizer beside the weights, else that of the run which saved them, else bytes."""
    for name in ("tokenizer.json", "spiece.model"):
        if (weights / name).is_file():
            return str(weights / name)
    if not is_checkpoint(weights):
        return "bytes"
    data = checkpoints.describe(weights).settings.get("data", {})
    prepared = Path(data.get("source", ""))
    if data.get("tokenizer") is None and (prepared / INDEX).is_file():
        name = read_index(prepared).preparation.tokenizer.file
        return name if name == "bytes" else str(prepared / name)
    return data.get("tokenizer") or "bytes"


def show(given: argparse.Namespace, columns: list[list[str]], outputs: list[str]) -> None:
    if given.output:
        save(given.output, ["source", "target"][: len(columns)], columns, outputs)
    else:
        print("\n".join(outputs))
    if given.rouge:
        scores = rouge(outputs, columns[1])
        found = "  ".join(f"{kind} {score:.2f}" for kind, score in scores.items())
        print(f"{found}  (mean F1 of {len(outputs)} texts, percent)")


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
