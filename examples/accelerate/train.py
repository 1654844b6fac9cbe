"""Train a small model in your own loop with Accelerate, as a run that stops and resumes.

    fsdpkit submit examples/accelerate/train.py --nodes 2 --gpus 4
    python examples/accelerate/train.py                           # one process, no cluster

fsdpkit's part is `run`: it knows where to continue, and is told about each step. The data is
random; replace `rows` with yours.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from fsdpkit.script.accelerate import attach

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--save-steps", type=int, default=100)
parser.add_argument("--rows", type=int, default=4096)
parser.add_argument("--batch", type=int, default=32, help="rows a rank")
parser.add_argument("--lr", type=float, default=1e-3)
options = parser.parse_args()


def rows(count: int) -> torch.utils.data.TensorDataset:
    """Points, and which of four corners each is nearest to."""
    points = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(points, (points[:, 0] > 0) * 2 + (points[:, 1] > 0))


def main() -> None:
    set_seed(42)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    loader = torch.utils.data.DataLoader(rows(options.rows), options.batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run = attach(accelerator)

    step, steps = run.steps_done, options.epochs * len(loader)
    for epoch in range(options.epochs):
        for points, corners in run.batches(loader, epoch):
            loss = nn.functional.cross_entropy(model(points), corners)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.log({"loss": loss, "planned_steps": steps}, step=step)
            run.after_step(step, save=step % options.save_steps == 0, last=step == steps)
    accelerator.save_model(model, run.directory / "final")
    accelerator.end_training()


if __name__ == "__main__":
    main()
