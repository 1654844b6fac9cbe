"""Generate text with a trained T5: greedy or beam search, from texts or a file, optionally scored.

    python examples/T5-fsdp/generate.py --weights runs/<run>/export "def add(a, b): return a + b"
    python examples/T5-fsdp/generate.py --weights runs/<run>/checkpoints/step-50 "def add(a, b):"
    torchrun --nproc-per-node 4 examples/T5-fsdp/generate.py --weights DIR --input pairs.jsonl

`--weights` is a Hugging Face directory, a checkpoint of fsdp_t5.py, or a run, whose newest complete
checkpoint is used. A single process holds the whole model; under torchrun each rank reads and holds
its part, and the ranks divide the texts. The output is the same: the texts, once, on standard
output. search.py chooses the tokens.
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

import msgspec
import torch
from attention import guard_kernels
from model import T5
from search import Search, generate
from torch.nn.functional import pad
from weights import CONFIG, is_checkpoint, load

from fsdpkit.config.gpu import compute_type
from fsdpkit.config.training import DataSettings
from fsdpkit.config.training.hub import hub_hint
from fsdpkit.config.training.presets import read_config_json
from fsdpkit.data.index import INDEX, read_index
from fsdpkit.data.loading import no_rows
from fsdpkit.data.readers import input_files, read
from fsdpkit.data.readers import whole as whole_file
from fsdpkit.data.rows import BadRows, sift
from fsdpkit.data.tokenizers import load_tokenizer
from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError, StorageError, UsageError
from fsdpkit.runs import checkpoints
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint_loading import newest_whole
from fsdpkit.training.device_code import capability_of
from fsdpkit.training.distributed import Ranks, gather, on_first, process_group
from fsdpkit.training.rouge import rouge

if TYPE_CHECKING:
    from fsdpkit.data.tokenizers import Tokenizer

T = TypeVar("T")
BYTES_OF_BYT5 = 384
"""Ids of ByT5's embedding table, 125 of them for sentinels."""


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


def read_fields(source: str, fields: Sequence[str], bad_rows: str = "fail") -> list[list[str]]:
    """For each of `fields` its text in every row of what training reads: a file, or a pattern.

    Raises NotFoundError for a missing file, ConfigError naming file and row for what cannot be
    used; under `bad_rows` "skip" such rows are left out and counted on standard error.
    """
    columns: list[list[str]] = [[] for _ in fields]
    bad = BadRows()
    for path in input_files(source):
        for batch in read(whole_file(path), fields):
            bad = bad.and_also(sift(batch, bad_rows))
            for row in batch.rows:
                for column, text in zip(columns, row, strict=True):
                    column.append(text)
    if not columns[0]:
        raise ConfigError(f"{source}: {no_rows(bad)}")
    if bad.count:
        print(
            f"generate: {bad.count} bad rows left out, such as {bad.examples[0]}", file=sys.stderr
        )
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
    add("--input", metavar="FILE",
        help="read texts from a .jsonl, .csv, .parquet or .txt file instead")  # fmt: skip
    add("--source-field", metavar="KEY",
        help="its field with the text to read; default: that of the run, or source")  # fmt: skip
    add("--target-field", metavar="KEY",
        help="its field with the text to expect; default: that of the run, or target")  # fmt: skip
    add("--source-prefix", metavar="TEXT",
        help="put before each text; default: that of the run, or nothing")  # fmt: skip
    add("--bad-rows", choices=["fail", "skip"], default="fail",
        help="a row that cannot be used ends it (default), or is left out")  # fmt: skip
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
        help="default: bfloat16 on GPUs that have it, else float32")  # fmt: skip
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
    if given.rouge:
        rouge([""], [""])  # a missing package is told now, not after the work
    with contextlib.redirect_stdout(sys.stderr):  # which has the texts alone
        weights = choose_weights(given.weights, ranks)
        trained_on = own_data(weights)
        columns = [given.texts]
        if given.input:
            fields = [given.source_field or trained_on.source_field]
            fields += [given.target_field or trained_on.target_field] if given.rouge else []
            columns = once(ranks, lambda: read_fields(given.input, fields, given.bad_rows))
        prefix = given.source_prefix
        prefix = trained_on.source_prefix if prefix is None else prefix
        tokenizer = load_tokenizer(given.tokenizer or own_tokenizer(weights))
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        device = ranks.device if ranks else torch.device(given.device or usual)
        guard_kernels(device)
        dtype = given.dtype or compute_type(
            "auto", on_gpu=device.type == "cuda", capability=capability_of(device)
        )
        model = load(weights, device=device, dtype=getattr(torch, dtype), ranks=ranks)
    search = Search(
        max_new_tokens=given.max_new_tokens,
        beams=given.beams,
        length_penalty=given.length_penalty,
        early_stopping=given.early_stopping,
        eos_id=tokenizer.eos_id,
    )
    texts = [prefix + text for text in columns[0]]
    outputs = write(model, tokenizer, texts, search, given.batch_size, ranks)
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
        ids = read_config_json(weights / CONFIG)["vocab_size"]
        if ids > BYTES_OF_BYT5:
            raise ConfigError(
                f"{weights} has no tokenizer beside its weights, and {ids:,} ids are not those of "
                "bytes: name the one that it was trained with (--tokenizer)."
            )
        return "bytes"
    data = own_data(weights)
    prepared = Path(data.source)
    if data.tokenizer is None and (prepared / INDEX).is_file():
        name = read_index(prepared).preparation.tokenizer.file
        return name if name == "bytes" else str(prepared / name)
    return data.tokenizer or "bytes"


def own_data(weights: Path) -> DataSettings:
    """What the run read that saved `weights`; the defaults where that is not known."""
    table = checkpoints.describe(weights).settings.get("data", {}) if is_checkpoint(weights) else {}
    names = DataSettings.__struct_fields__  # a later version may have others
    try:
        return msgspec.convert({k: v for k, v in table.items() if k in names}, DataSettings)
    except (msgspec.ValidationError, AttributeError) as error:
        raise ConfigError(
            f"{weights}: its record of training.data cannot be used: {error}."
        ) from None


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
