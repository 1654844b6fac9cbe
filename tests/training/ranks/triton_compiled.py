"""Compile the Triton kernels for a GPU that need not be here: Triton brings its own assembler.

Writes to the file in argv[1], per kernel: bytes of shared memory, and whether Hopper's matrix
instructions are in it. It says nothing of results; the interpreter does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attention_triton as ours
import torch
import triton
from attention_triton import Tiles
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
NUMBERS = {"queries": "i32", "keys": "i32", "length": "i32", "batch": "i32", "dropout": "fp32"}
TENSORS = {
    **dict.fromkeys(("bias", "lse", "delta", "parts"), "*fp32"),
    **dict.fromkeys(("of_queries", "of_keys", "seed"), "*i64"),
}


def compiled(kernel: Any, tile: Tiles, *without: str, **sizes: int) -> Any:
    """In bfloat16, with a bias, packed samples and dropout but for tensors it is called without."""
    constants = {
        "HEADS": 16, "WIDTH": 64, "PADDED": 64, "CAUSAL": True, "PRECISION": "tf32x3", **sizes,
        **dict.fromkeys(without),
    }  # fmt: skip
    signature = {
        name: "constexpr" if name in constants else (NUMBERS | TENSORS).get(name, "*bf16")
        for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, constants)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=HOPPER, options=options)


def main() -> None:
    torch.cuda.get_device_capability = lambda device: (9, 0)
    with FakeTensorMode(), torch.device("cuda"):
        head = torch.empty(1, 1, 16, 64, dtype=torch.bfloat16)
    forward, backward = (ours.tiles(kernel, head) for kernel in ("forward", "backward"))
    sizes = {"TILE_Q": backward.queries, "TILE_K": backward.keys}
    found = {
        "forward": compiled(
            ours.forward_kernel, forward, TILE_Q=forward.queries, TILE_K=forward.keys
        ),
        "query gradient": compiled(
            ours.query_gradient_kernel, backward, "bias", "of_queries", "of_keys", "seed", **sizes
        ),
        "key gradient": compiled(ours.key_gradient_kernel, backward, **sizes),
        "bias gradient": compiled(
            ours.bias_gradient_kernel, backward, "of_queries", "seed", TILE=backward.queries
        ),
    }
    Path(sys.argv[1]).write_text(
        json.dumps({k: [c.metadata.shared, "wgmma" in c.asm["ptx"]] for k, c in found.items()})
    )


if __name__ == "__main__":
    main()
