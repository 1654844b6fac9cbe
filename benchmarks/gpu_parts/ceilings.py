"""What the device can do at most with T5 v1.1-large's shapes: matrix products and bandwidth.

The products are those of one step of 64 rows of 512 and 128 tokens, forward and both of backward;
the roofline in README.md assumes a rate for them, and this is what takes its place.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.trial import plan
from fsdpkit.training.hardware import peak_tflops


class Product(NamedTuple):
    """`tokens` × `inputs` by `inputs` × `outputs`."""

    name: str
    tokens: int
    inputs: int
    outputs: int

    @property
    def flops(self) -> int:
        return 2 * self.tokens * self.inputs * self.outputs


def products(part: Part) -> list[Product]:
    """The linear maps of the model, those that could be one product also as one."""
    task = plan("t5-v1.1-large", dry=part.dry)
    config, rows = task.config, 2 if part.dry else 64
    inner = config.num_heads * config.d_kv
    found = []
    for stack, length in zip(("encoder", "decoder"), task.lengths, strict=True):
        tokens = rows * length
        found += [
            Product(f"{stack} q, k, v or o", tokens, config.d_model, inner),
            Product(f"{stack} q, k and v as one", tokens, config.d_model, 3 * inner),
            Product(f"{stack} wi_0 or wi_1", tokens, config.d_model, config.d_ff),
            Product(f"{stack} wi_0 and wi_1 as one", tokens, config.d_model, 2 * config.d_ff),
            Product(f"{stack} wo", tokens, config.d_ff, config.d_model),
        ]
    head = Product("head", rows * task.lengths.target, config.d_model, config.vocab_size)
    chunk = Product("head, 512 rows", 16 if part.dry else 512, config.d_model, config.vocab_size)
    return [*found, head, chunk]


def run(part: Part) -> None:
    for product in products(part):
        action = functools.partial(matrix_product, part, product)
        part.measure(f"bfloat16 {product.name}", action, needs_s=2)
    for name in ("copy", "read", "add"):
        part.measure(f"bandwidth, {name}", functools.partial(bandwidth, part, name), needs_s=2)


def matrix_product(part: Part, product: Product) -> Row:
    """TFLOP/s forward, of the gradient of the input, and of the gradient of the weight."""
    device = part.device
    make = functools.partial(torch.randn, device=device.torch, dtype=torch.bfloat16)
    x, weight = make(product.tokens, product.inputs), make(product.outputs, product.inputs)
    grad = make(product.tokens, product.outputs)
    ways = {
        "forward": lambda: x @ weight.mT,
        "input_gradient": lambda: grad @ weight,
        "weight_gradient": lambda: grad.mT @ x,
    }
    took_s = {name: device.seconds(way, 0.1) for name, way in ways.items()}
    rates = {name: product.flops / seconds / 1e12 for name, seconds in took_s.items()}
    all_of_it = 3 * product.flops / sum(took_s.values()) / 1e12
    peak = peak_tflops(device.torch, torch.bfloat16)
    return {
        "shape": [product.tokens, product.inputs, product.outputs],
        "tflops_by_product": rates,
        "product_tflops": all_of_it,
        "share_of_peak": all_of_it / peak if peak else None,
    }


def bandwidth(part: Part, name: str) -> Row:
    """Bytes read and written a second, over tensors that no cache holds."""
    device = part.device
    size = 2**16 if part.dry else 2**30
    a = torch.ones(size // 4, device=device.torch)
    b = torch.zeros_like(a)
    moved, action = {
        "copy": (2 * size, lambda: b.copy_(a)),
        "read": (size, lambda: a.sum()),
        "add": (3 * size, lambda: torch.add(a, b, out=b)),
    }[name]
    return {"gb_per_s": moved / device.seconds(action) / 1e9}
