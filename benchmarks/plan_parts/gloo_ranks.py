"""Seconds a step of small T5s on the ranks of this machine; started by gloo.py through torchrun.

argv: a file of cases, a list of lists of `[training]` settings, the file to write to, and how many
steps of each are timed. All cases are built once and take their turns, round after round, so that
whoever else uses the machine slows them alike. One step is a forward, a backward, clipping and an
update, as the trainer's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp"
sys.path[:0] = [str(EXAMPLE), str(EXAMPLE.parents[1])]

import fsdp_t5  # noqa: E402

from fsdpkit.config.training import TrainingSettings, load_settings  # noqa: E402
from fsdpkit.training.distributed import Ranks, process_group  # noqa: E402
from fsdpkit.training.optimizers import make_optimizer  # noqa: E402

WARM = 1


class Case:
    """One model with its optimizer and a batch."""

    def __init__(self, settings: TrainingSettings, ranks: Ranks) -> None:
        size = settings.model.dimensions()["vocab_size"]
        self.model, config = fsdp_t5.build(settings, size, ranks)
        self.optimizer = make_optimizer(self.model, settings.optimizer)
        rows, data = settings.batch_size, settings.data
        make = torch.Generator().manual_seed(ranks.rank)
        high = config.vocab_size
        self.source = torch.randint(2, high, (rows, data.source_length), generator=make)
        self.labels = torch.randint(2, high, (rows, data.target_length), generator=make)
        self.mask = torch.ones_like(self.source, dtype=torch.bool)
        self.seconds: list[float] = []

    def step(self) -> None:
        dist.barrier()
        started = time.perf_counter()
        loss = self.model(self.source, self.mask, self.labels, loss="whole")
        (loss / self.labels.numel()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.barrier()
        self.seconds.append(time.perf_counter() - started)


def main() -> None:
    torch.set_num_threads(1)
    wanted = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    with process_group() as ranks:
        cases = [Case(load_settings({}, sets), ranks) for sets in wanted]
        for _ in range(WARM + int(sys.argv[3])):
            for case in cases:
                case.step()
        if ranks.is_first:
            found = [case.seconds[WARM:] for case in cases]
            Path(sys.argv[2]).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
