"""Compile the Triton kernels for a GPU that need not be here: Triton brings its own assembler.

Writes to the file in argv[1], per kernel: bytes of shared memory, whether Hopper's matrix
instructions are in it, and bytes that registers spill. It says nothing of results; the interpreter
does.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
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
NUMBERS = {
    **dict.fromkeys(
        ("queries", "keys", "far", "reach", "width", "rows", "slots", "last_slot"), "i32"
    ),
    "dropout": "fp32",
}
TENSORS = {
    **dict.fromkeys(("bias", "lse", "delta", "sums", "near_sums", "far_sums"), "*fp32"),
    **dict.fromkeys(("of_queries", "of_keys", "seed"), "*i64"),
}


def compiled(kernel: Any, tile: Tiles, *without: str, **sizes: int) -> Any:
    """In bfloat16, with a bias, packed samples and dropout but for tensors it is called without;
    dropout spills a little."""
    constants = {
        "HEADS": 16, "WIDTH": 64, "PADDED": 64, "CAUSAL": True, "PRECISION": "tf32x3", **sizes,
        **dict.fromkeys(without),
    }  # fmt: skip
    signature = {
        name: "constexpr" if name in constants else (NUMBERS | TENSORS).get(name, "*bf16")
        for name in kernel.arg_names
    }
    pointers = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in ("queries", "keys", "width", "reach")
    }
    source = ASTSource(kernel, signature, constants, pointers)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    log = io.StringIO()
    triton.knobs.nvidia.dump_ptxas_log = True
    with contextlib.redirect_stdout(log):
        found = triton.compile(source, target=HOPPER, options=options)
    spilled = re.search(r"(\d+) bytes spill stores", log.getvalue())
    assert spilled, log.getvalue()
    return found.metadata.shared, "wgmma" in found.asm["ptx"], int(spilled[1])


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
        "backward": compiled(ours.backward_kernel, backward, "seed", **sizes),
        "backward across": compiled(
            ours.backward_kernel, backward, "bias", "near_sums", "far_sums",
            "of_queries", "seed", CAUSAL=False, **sizes,
        ),
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
