"""Small models of other kinds than a language model: convolutions, routing, masks, a scan, FFT."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.planning.ranks.models import Layer, mlp_of

WIDTH = 64


class Residual(nn.Module):
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(4, given), nn.Conv2d(given, made, 3, padding=1)
        self.time, self.second = nn.Linear(32, made), nn.Conv2d(made, made, 3, padding=1)
        self.skip = nn.Conv2d(given, made, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(F.silu(hidden))


class Denoiser(nn.Module):
    """A U-Net that predicts the noise that it adds."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.down = nn.ModuleList([Residual(16, 16), Residual(16, 32)])
        self.up = nn.ModuleList([Residual(64, 16), Residual(32, 16)])

    def forward(self, images: Tensor) -> Tensor:
        time = torch.rand(len(images), 32, device=images.device).to(images.dtype)
        noise = torch.randn_like(images)
        hidden, skips = self.enter(images + noise), []
        for part in self.down:
            hidden = part(hidden, time)
            skips.append(hidden)
            hidden = F.avg_pool2d(hidden, 2)
        for part in self.up:
            hidden = F.interpolate(hidden, scale_factor=2.0)
            hidden = part(torch.cat([hidden, skips.pop()], 1), time)
        return F.mse_loss(self.leave(hidden).float(), noise.float())


def unet() -> dict[str, Any]:
    return {"model": Denoiser(), "batch": torch.zeros(4, 3, 16, 16), "blocks": [Residual]}


class Experts(nn.Module):
    """Eight of them, tokens sorted by the expert that they go to, each with as many."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, 8, bias=False)
        self.up = nn.Parameter(torch.zeros(8, width, 2 * width))
        self.down = nn.Parameter(torch.zeros(8, 2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = self.gate(tokens).float().softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort()
        given = tokens[order // 2].view(8, -1, WIDTH)
        made = torch.bmm(F.silu(torch.bmm(given, self.up)), self.down).view(-1, WIDTH)
        made = (made * weights.flatten()[order, None]).to(x.dtype)
        return x + torch.zeros_like(tokens).index_add(0, order // 2, made).view_as(x)


def experts() -> dict[str, Any]:
    return mlp_of(Experts)


class Scan(nn.Module):
    """A state that goes from token to token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        given = self.key(x).float().sigmoid() * self.value(x).float()
        state, states = torch.zeros_like(given[:, 0]), []
        for at in range(x.shape[1]):
            state = self.decay.float() * state + given[:, at]
            states.append(state)
        return x + torch.stack(states, 1).to(x.dtype)


def scan() -> dict[str, Any]:
    return mlp_of(Scan)


class Fourier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.modes = nn.Parameter(torch.zeros(width, width, 8, 2))

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.view_as_complex(self.modes.float())
        found = torch.fft.rfft(x.float().transpose(1, 2))
        mixed = torch.zeros_like(found)
        mixed[:, :, :8] = torch.einsum("bix,iox->box", found[:, :, :8], modes)
        return x + torch.fft.irfft(mixed, n=x.shape[1]).transpose(1, 2).to(x.dtype)


def fourier() -> dict[str, Any]:
    return mlp_of(Fourier)


class MaskedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(48, WIDTH), nn.Linear(WIDTH, 48)
        self.encoder = nn.Sequential(*(Layer(WIDTH) for _ in range(3)))
        self.hidden, self.decoder = nn.Parameter(torch.zeros(1, 1, WIDTH)), Layer(WIDTH)

    def forward(self, patches: Tensor) -> Tensor:
        rows, count, _ = patches.shape
        order = torch.rand(rows, count, device=patches.device).argsort(1)
        seen = order[:, : count // 4, None].expand(-1, -1, WIDTH)
        found = self.encoder(self.enter(patches).gather(1, seen))
        rest = self.hidden.to(found.dtype).expand(rows, count - seen.shape[1], -1)
        back = order.argsort(1)[..., None].expand(-1, -1, WIDTH)
        made = self.leave(self.decoder(torch.cat([found, rest], 1).gather(1, back)))
        return (made.float() - patches.float()).pow(2).mean()


def masked_autoencoder() -> dict[str, Any]:
    return {"model": MaskedAutoencoder(), "batch": torch.zeros(4, 64, 48), "blocks": [Layer]}
