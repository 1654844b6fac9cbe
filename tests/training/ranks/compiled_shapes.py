"""On one rank: three blocks and three stay compiled with texts of several lengths, and beside
evaluation and generation. Traced only, not made into kernels.

Found, per case: what each line of metrics says of blocks, and graphs.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from equality import SMALL, Batch, loss_sum, samples
from model import T5, Block, T5Config, init_parameter
from search import Search, generate
from torch import nn
from torch._dynamo.utils import counters

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training import compilation
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.metrics import Metrics
from fsdpkit.training.sharding import shard

LENGTHS = [(6, 3), (4, 5), (8, 7), (5, 5)]


class Run:
    """Shapes go through it, and `lines` says how many blocks were compiled between them."""

    def __init__(self, ranks: Ranks, name: str, **sharding: Any) -> None:
        config = T5Config(**{**SMALL, "num_layers": 3, "num_decoder_layers": 3})
        with torch.device("meta"):
            model: nn.Module = T5(config)
        self.model = shard(
            model, ShardingSettings(**sharding), PrecisionSettings(), ranks,
            blocks=[Block], fill=functools.partial(init_parameter, config), compile=True,
        )  # fmt: skip
        torch._dynamo.reset()
        counters.clear()
        paths = TaskPaths(Path(sys.argv[2]).parent / name)
        self.metrics = Metrics(paths, ranks, model=self.model)
        self.lines: list[list[int]] = []

    def train(self, lengths: Sequence[tuple[int, int]], rows: int = 3) -> None:
        for source, target in lengths:
            loss = loss_sum(self.model, self.batch(source, target, rows))
            loss.backward()
            tokens = torch.ones((), dtype=torch.float64)
            self.metrics.step(loss, tokens, tokens)
        line = self.metrics.log(1, lr=1.0, grad_norm=torch.zeros(()))
        self.lines.append([line["compiled_blocks"], line["blocks"]])

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for rows, source, target in [(3, 7, 4), (3, 5, 6), (1, 9, 5)]:
                loss_sum(self.model, self.batch(source, target, rows))
        self.model.train()

    def write(self) -> None:
        self.model.eval()
        batch = self.batch(10, 2, 2)
        generate(self.model, batch.source, batch.source_mask, Search(max_new_tokens=2))
        self.model.train()

    @staticmethod
    def batch(source: int, target: int, rows: int) -> Batch:
        return Batch([(s[:source], t[:target]) for s, t in samples(0)[-rows:]])

    @property
    def found(self) -> dict[str, Any]:
        self.metrics.close()
        return {"blocks": self.lines, "graphs": counters["stats"]["unique_graphs"]}


def all_shapes(ranks: Ranks, engine: str) -> dict[str, Any]:
    run = Run(ranks, engine, engine=engine)
    run.train(LENGTHS[:1])
    one_shape = counters["stats"]["unique_graphs"]
    run.train(LENGTHS[1:])
    run.evaluate()
    if engine == "fsdp2":
        run.write()
    run.train(LENGTHS)
    return {**run.found, "graphs of one shape": one_shape}


def limited(ranks: Ranks) -> dict[str, Any]:
    """One graph a stack: no other shape is compiled."""
    compilation.LIMIT = 1
    run = Run(ranks, "limited")
    for lengths in LENGTHS[:3]:
        run.train([lengths])
    return run.found


def main(ranks: Ranks, folder: Path) -> dict:
    torch.compile = functools.partial(torch.compile, backend="eager")
    said = io.StringIO()
    with redirect_stdout(said):
        found: dict[str, Any] = {each: all_shapes(ranks, each) for each in ("fsdp2", "fsdp1")}
        found["said of all"] = said.getvalue()
        found["limited"] = {**limited(ranks), "said": said.getvalue()}
    return found
