"""torch's own nn.Transformer, encoder and decoder, sharded by fsdpkit: it learns to reverse digits.

fsdpkit submit examples/more-models/nn_transformer.py --nodes 2 --gpus 4
torchrun --nproc-per-node 2 examples/more-models/nn_transformer.py 150   # steps
"""

import sys

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fsdpkit import training

WIDTH, HEADS, LAYERS, LENGTH, BATCH, LR, SEED = 64, 4, 2, 8, 32, 3e-3, 42
START = 10


class Reverser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(11, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.transformer = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:  # int64 [B, T] each → [B, T, 10]
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=source.device).triu(1)
        read, written = (self.token(t) + self.position.weight for t in (source, target))
        return self.head(self.transformer(read, written, tgt_mask=causal, tgt_is_causal=True))


def fill(name: str, tensor: Tensor, generator: Generator) -> None:
    if tensor.ndim == 1:
        tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    else:
        tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)


def task(seed: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Digits, what the decoder has read of the answer, and the answer; the same for each seed."""
    digits = torch.randint(0, 10, (BATCH, LENGTH), generator=Generator().manual_seed(seed))
    answer = digits.flip(1)
    return (
        digits.to(device),
        F.pad(answer[:, :-1], (1, 0), value=START).to(device),
        answer.to(device),
    )


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
with training.process_group() as ranks:
    with torch.device("meta"):
        model: nn.Module = Reverser()
    model = training.shard(
        model,
        training.ShardingSettings(),
        training.PrecisionSettings(),
        ranks,
        blocks=[nn.TransformerEncoderLayer, nn.TransformerDecoderLayer],
        fill=fill,
        seed=SEED,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    for step in range(1, steps + 1):
        digits, shifted, answer = task(step * ranks.world_size + ranks.rank, ranks.device)
        loss = F.cross_entropy(model(digits, shifted).float().flatten(0, 1), answer.flatten())
        loss.backward()
        training.clip_gradients(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            ranks.say(f"step {step}  loss {loss.item():.3f}")

    model.eval()
    digits, shifted, answer = task(ranks.rank, ranks.device)  # step 0: never trained on
    with torch.no_grad():
        hits = (model(digits, shifted).argmax(-1) == answer).float().mean()
    (right,) = training.sum_over_ranks(hits, device=ranks.device)
    ranks.say(f"held out: {right / ranks.world_size:.0%} right")
