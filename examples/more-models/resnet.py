"""Images: a small ResNet with BatchNorm, sharded by fsdpkit.

    fsdpkit submit examples/more-models/resnet.py --nodes 2 --gpus 4 -- images.pt
    torchrun --nproc-per-node 2 examples/more-models/resnet.py images.pt 60   # steps

`images.pt` is torch.save({"images": uint8 [N, 3, H, W], "labels": int64 [N]}); the last tenth is
held out.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fsdpkit import training

WIDTHS, BATCH, LR, SEED = (16, 32, 64), 16, 0.05, 42


class Block(nn.Module):
    """Two convolutions and the way around them; `stride` 2 halves height and width."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.around = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.around(x))


class ResNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        pairs = zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in pairs))
        self.head = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: Tensor) -> Tensor:  # float [B, 3, H, W] → scores [B, classes]
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def fill(name: str, tensor: Tensor, generator: Generator) -> None:
    """Initial values; BatchNorm begins as the identity."""
    if name.endswith(("norm1.weight", "norm2.weight")):
        tensor.fill_(1)
    elif tensor.ndim < 2:
        tensor.zero_()
    else:
        tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5, generator=generator)


def scaled(images: Tensor, device: torch.device) -> Tensor:
    return images.to(device).float() / 127.5 - 1


file, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
paths = training.TaskPaths.of_this_job("resnet-run")
with training.process_group() as ranks:
    data = torch.load(file, weights_only=True)
    images, labels = data["images"], data["labels"]
    kept = len(images) // 10
    samples = TensorDataset(images[:-kept], labels[:-kept])
    sampler = training.GlobalOrderSampler(
        samples, num_replicas=ranks.world_size, rank=ranks.rank, seed=SEED
    )
    batches = training.GlobalBatches(sampler, BATCH, drop_last=True)

    with torch.device("meta"):
        model: nn.Module = ResNet(int(labels.max()) + 1)
    model = training.shard(
        model,
        training.ShardingSettings(),
        training.PrecisionSettings(keep_float32=("*norm*",)),  # statistics want float32
        ranks,
        blocks=[Block],
        fill=fill,
        seed=SEED,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    saves = training.Checkpointer(paths, ranks, model, optimizer, state={"schedule": schedule})
    progress = saves.resume() or training.Progress()
    stream = training.endless(DataLoader(samples, batch_sampler=batches), progress)
    while progress.step < steps:
        pixels, answers = next(stream)
        scores = model(scaled(pixels, ranks.device)).float()
        loss = F.cross_entropy(scores, answers.to(ranks.device))
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.step += 1
        if progress.step % 20 == 0:
            ranks.say(f"step {progress.step}  loss {loss.item():.3f}")

    model.eval()  # with the running statistics, each rank its own
    mine = slice(ranks.rank, None, ranks.world_size)
    with torch.no_grad():
        guesses = model(scaled(images[-kept:][mine], ranks.device)).argmax(-1)
    hits = (guesses == labels[-kept:][mine].to(ranks.device)).sum()
    (right,) = training.sum_over_ranks(hits, device=ranks.device)
    ranks.say(f"held out: {right / kept:.0%} right")
    saves.save(progress)
    saves.close()
