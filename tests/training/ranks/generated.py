"""Some ranks save checkpoints, others write with generate.py what the command lines ask for.

argv: the file for the findings, then what to do, as JSON: {"save": {run: [Hugging Face directory,
engine]}}, or {"write": {name: command line}, "measure": checkpoint}.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys
from pathlib import Path

import generate as command
import search
import torch
from model import T5, Block, T5Config
from torch import Tensor
from torch.distributed.tensor import DTensor
from weights import check, fill_from, hugging_face, load

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.config.training.presets import read_config_json
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.distributed import Ranks, gather, process_group
from fsdpkit.training.progress import Progress
from fsdpkit.training.sharding import shard


def save(directory: Path, engine: str, run: Path, ranks: Ranks) -> None:
    """A checkpoint as fsdp_t5.py saves it, of the weights in `directory`."""
    config = check(directory, T5Config(**read_config_json(directory / "config.json")))
    with torch.device("meta"):
        model = T5(config)
    sharded = shard(
        model, ShardingSettings(engine=engine), PrecisionSettings(), ranks,
        blocks=[Block], fill=fill_from(directory, config),
    )  # fmt: skip
    optimizer = torch.optim.SGD(sharded.parameters())
    saves = Checkpointer(TaskPaths(run), ranks, sharded, optimizer, export=hugging_face(config))
    saves.save(Progress(step=7))
    saves.close()


def run(command_line: list[str], ranks: Ranks) -> dict:
    """What each rank printed and raised, and of each batch its decoder's steps and tokens."""
    printed, raised = io.StringIO(), ""
    taken.clear()
    with contextlib.redirect_stdout(printed):
        try:
            run_command(command.arguments_of(command_line), ranks)
        except FsdpkitError as error:
            raised = f"{error.exit_code}: {error}"
    each = gather({"printed": printed.getvalue(), "raised": raised, "batches": taken})
    return {key: [found[key] for found in each] for key in each[0]}


run_command = command.run
taken: list[tuple[int, list[int]]] = []  # of each batch: steps of the decoder, tokens of each text


def count_steps() -> None:
    steps = 0
    step, generate = search.CachedDecoder.step, command.generate

    def counted(self: search.CachedDecoder, tokens: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return step(self, tokens)

    def noted(*arguments: object) -> list[list[int]]:
        nonlocal steps
        steps = 0
        rows = generate(*arguments)
        taken.append((steps, [len(row) for row in rows]))
        return rows

    search.CachedDecoder.step, command.generate = counted, noted


def bytes_alive() -> int:
    """Of all memory that tensors have which Python can reach."""
    tensors = (each for each in gc.get_objects() if issubclass(type(each), Tensor))
    plain = (t.to_local() if isinstance(t, DTensor) else t for t in tensors if not t.is_meta)
    storages = {s.data_ptr(): s.nbytes() for t in plain for s in [t.untyped_storage()]}
    return sum(storages.values())


def measure(checkpoint: Path, ranks: Ranks) -> dict:
    """Most bytes that a rank holds, and blocks that are whole at once, while a text is written."""
    before = bytes_alive()
    model = load(checkpoint, ranks=ranks)
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    sizes = [4 * sum(p.numel() for p in block.parameters()) for block in blocks]
    total = 4 * sum(p.numel() for p in model.parameters())
    most_bytes = most_blocks = 0
    loaded = bytes_alive() - before

    def look(*_: object) -> None:
        nonlocal most_bytes, most_blocks
        most_bytes = max(most_bytes, bytes_alive() - before)
        whole = [b for b in blocks if not isinstance(next(b.parameters()), DTensor)]
        most_blocks = max(most_blocks, len(whole))

    for block in (blocks[2], blocks[-3]):  # looking takes long
        block.layer[-1].inner.wo.register_forward_hook(look)
    source = torch.ones(1, 4, dtype=torch.int64)
    command.generate(model, source, source > 0, search.Search(max_new_tokens=2, beams=2))
    left = sum(not isinstance(next(block.parameters()), DTensor) for block in blocks)
    return {
        "model": total,
        "root": total - sum(sizes),
        "largest block": max(sizes),
        "most after loading": max(gather(loaded)),
        "most while writing": max(gather(most_bytes)),
        "most blocks": max(gather(most_blocks)),
        "blocks left": max(gather(left)),
    }


def write_all(given: object, ranks: Ranks) -> None:
    found: dict = {"memory": measure(Path(asked["measure"]), ranks)}
    count_steps()
    found.update({name: run(words, ranks) for name, words in asked["write"].items()})
    if ranks.is_first:
        result.write_text(json.dumps(found))


result, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
if "save" in asked:
    with process_group(240) as ranks:
        for run_directory, (directory, engine) in asked["save"].items():
            save(Path(directory), engine, Path(run_directory), ranks)
    if ranks.is_first:
        result.write_text("{}")
else:
    command.run = write_all  # in the process group that the command makes
    command.main(["--weights", ".", "text"])
