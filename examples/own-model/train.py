"""Your own model: a decoder-only language model in plain torch, sharded by fsdpkit.

    fsdpkit submit examples/own-model/train.py --nodes 2 --gpus 4
    torchrun --nproc-per-node 2 examples/own-model/train.py 20   # steps
    fsdpkit plan --gpu h100-80 --model examples/own-model/train.py:planned

Copy it; replace `Decoder` with your module and `windows` with your data.
"""

import sys
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fsdpkit import training

WIDTH, HEADS, LAYERS, CONTEXT, BATCH, LR, SEED = 128, 4, 4, 128, 8, 1e-3, 42


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, WIDTH]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:  # int64 [B, T] → scores [B, T, 256]
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def fill(name: str, tensor: Tensor, generator: Generator) -> None:
    """Initial values of one whole parameter; the same at any number of ranks."""
    if tensor.ndim == 1:
        tensor.fill_(1.0 if "norm" in name else 0.0)
    else:
        tensor.normal_(0.0, 0.02, generator=generator)


def forward(model: nn.Module, tokens: Tensor) -> Tensor:  # int64 [B, T + 1] → the sum of losses
    scores, targets = model(tokens[:, :-1]), tokens[:, 1:]
    return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten(), reduction="sum")


def planned() -> dict[str, object]:
    """What fsdpkit plan --model examples/own-model/train.py:planned asks for: does it fit?"""
    with torch.device("meta"):
        model = Decoder()
    return {
        "model": model,
        "batch": torch.zeros(BATCH, CONTEXT + 1, dtype=torch.int64),  # of one rank and step
        "forward": forward,
        "blocks": [Block],
    }


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    paths = training.TaskPaths.of_this_job("own-model-run")
    with training.process_group() as ranks:
        text = torch.tensor(list("\n".join(topics.values()).encode()))
        # Neighbours share a byte: a target of one, an input of the next.
        windows = TensorDataset(text.unfold(0, CONTEXT + 1, CONTEXT))
        sampler = training.GlobalOrderSampler(
            windows, num_replicas=ranks.world_size, rank=ranks.rank, seed=SEED
        )
        groups = training.GlobalBatches(sampler, BATCH, drop_last=True)
        loader = DataLoader(windows, batch_sampler=groups)

        with torch.device("meta"):  # without memory: each rank fills its own shard only
            model: nn.Module = Decoder()
        sharding = training.ShardingSettings(strategy="full_shard")
        precision = training.PrecisionSettings(param="auto")  # bfloat16 on GPUs
        model = training.shard(
            model, sharding, precision, ranks, blocks=[Block], fill=fill, seed=SEED
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)

        saves = training.Checkpointer(paths, ranks, model, optimizer)
        progress = saves.resume() or training.Progress()
        metrics = training.Metrics(paths, ranks, progress.tokens, planned_steps=steps)
        stop, stopping = training.StopRequest(paths, ranks), False
        clock = training.SaveClock(ranks, every_minutes=0, paths=paths, every_steps=100)
        votes = training.Votes(ranks, stop, clock)
        batches = training.endless(loader, progress)
        while progress.step < steps and not stopping:
            tokens = next(batches)[0].to(ranks.device)
            loss = forward(model, tokens)
            (count,) = votes.sum(tokens[:, 1:].numel())
            # A token weighs the same on every rank.
            (loss * (ranks.world_size / count).float()).backward()
            grad_norm = training.clip_gradients(model, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            metrics.step(loss, count, count)
            stopping = stop.agreed()
            if progress.step % 10 == 0:
                line = metrics.log(progress.step, lr=LR, grad_norm=grad_norm)
                ranks.say(f"step {progress.step}  loss {line['loss']:.3f}")
            if clock.due(progress.step, last=progress.step == steps, stopping=stopping):
                progress.tokens = metrics.settle()
                saves.save(progress)
        saves.close()
    return training.STOPPED_EARLY if stopping else 0


if __name__ == "__main__":
    sys.exit(main())
