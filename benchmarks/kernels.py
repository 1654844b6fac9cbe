"""What the compiler makes of the Triton kernels: `python benchmarks/kernels.py`, without a GPU.

Triton brings NVIDIA's assembler, so each kernel can be compiled for a GPU that is not here.
Written down are registers a thread, bytes that do not fit in them (spills) and shared memory, for
the GPUs of compute capability 8.0, 9.0 and 10.0, into results/kernels.json and the table in
README.md. It says nothing of speed.

`--triton DIR`, once or more, compiles with another release too: `pip install --target DIR triton`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "kernels.json"
sys.path.insert(0, str(ROOT))

from benchmarks.report import README, all_of, with_all_tables  # noqa: E402

GPUS = {90: ("H100", 227), 80: ("A100", 163), 100: ("B200", 227)}
"""By compute capability: a GPU, and the KiB of shared memory that a block may have."""
# What a kernel is called without.
CASES: dict[str, tuple[str, ...]] = {
    "encoder": ("of_queries", "seed"),
    "packed decoder": ("seed",),
    "across": ("of_queries", "seed", "bias", "near_sums", "far_sums"),
    "encoder, dropout": ("of_queries",),
}
STRIDES = ("q_stride", "kv_stride")
NUMBERS = (*STRIDES, "queries", "keys", "far", "reach", "width", "rows", "slots", "last_slot")
FLOATS = ("bias", "lse", "delta", "sums", "near_sums", "far_sums")
INTEGERS = ("of_queries", "of_keys", "seed")
COLUMNS = ("Triton", "GPU", "Head width", "Kernel", "Case", "Tile", "Warps", "Registers", "Spills")


def compiled(kernel: Any, tile: Any, width: int, case: str, capability: int) -> dict[str, Any]:
    """Of a kernel in bfloat16 with 16 heads."""
    triton: Any = importlib.import_module("triton")
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    source = importlib.import_module("triton.compiler").ASTSource

    constants: dict[str, Any] = {
        "HEADS": 16, "WIDTH": width, "PADDED": width, "CAUSAL": "decoder" in case,
        "PRECISION": "tf32x3", "TILE_Q": tile.queries, "TILE_K": tile.keys,
        **dict.fromkeys(name for name in CASES[case] if name in kernel.arg_names),
    }  # fmt: skip
    types = {
        **dict.fromkeys(NUMBERS, "i32"),
        **dict.fromkeys(FLOATS, "*fp32"),
        **dict.fromkeys(INTEGERS, "*i64"),
        **dict.fromkeys(constants, "constexpr"),
        "dropout": "fp32",
    }
    signature = {name: types.get(name, "*bf16") for name in kernel.arg_names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, (name, type) in enumerate(signature.items())
        if type.startswith("*") or name in (*STRIDES, "queries", "keys", "reach", "width")
    }
    log = io.StringIO()
    triton.knobs.nvidia.dump_ptxas_log = True
    with contextlib.redirect_stdout(log):
        found = triton.compile(
            source(kernel, signature, constants, aligned),
            target=target("cuda", capability, 32),
            options={"num_warps": tile.warps, "num_stages": tile.stages},
        )
    registers = re.search(r"Used (\d+) registers", log.getvalue())
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log.getvalue())
    assert registers, log.getvalue()
    assert spilled, log.getvalue()
    return {
        "registers": int(registers[1]),
        "spilled_bytes": [int(spilled[1]), int(spilled[2])],
        "shared_bytes": found.metadata.shared,
        "warpgroup_instructions": "wgmma" in found.asm["ptx"],
    }


def rows() -> list[dict[str, Any]]:
    """Every kernel with the Triton that this process imports."""
    sys.path.insert(0, str(ROOT / "examples" / "T5-fsdp"))
    ours: Any = importlib.import_module("attention_triton")
    triton: Any = importlib.import_module("triton")

    found = []
    for capability in GPUS:
        for width in (64, 128):
            for name in ("forward", "backward"):
                kernel = getattr(ours, f"{name}_kernel")
                tile = ours.tiles_of(name, width, 2, capability // 10)
                for case in CASES if name == "backward" else list(CASES)[:1]:
                    row = {
                        "triton": triton.__version__, "capability": capability, "width": width,
                        "kernel": name, "case": case, "tile": list(tile),
                        **compiled(kernel, tile, width, case, capability),
                    }  # fmt: skip
                    print(row, file=sys.stderr, flush=True)
                    found.append(row)
    return found


def result(found: list[dict[str, Any]]) -> dict[str, Any]:
    """As report.py reads it."""
    plain = [row for row in found if "dropout" not in row["case"]]
    fits = [row["shared_bytes"] <= GPUS[row["capability"]][1] * 1024 for row in found]
    table: list[tuple[str, ...]] = [(*COLUMNS, "Shared memory")]
    table.append(tuple("-" * max(3, len(name)) for name in table[0]))
    for row in found:
        queries, keys, warps, _ = row["tile"]
        name, _ = GPUS[row["capability"]]
        table.append(
            (
                row["triton"],
                f"sm_{row['capability']} ({name})",
                str(row["width"]),
                row["kernel"],
                row["case"],
                f"{queries} × {keys}",
                str(warps),
                str(row["registers"]),
                f"{row['spilled_bytes'][0]} B",
                f"{row['shared_bytes'] / 1024:.1f} KiB",
            )
        )
    note = "\n".join("| " + " | ".join(line) + " |" for line in table)
    return {
        "measured": {
            "date": time.strftime("%Y-%m-%d"),
            "device": "no GPU, only compiled",
            "python": platform.python_version(),
            "triton": " and ".join(dict.fromkeys(row["triton"] for row in found)),
        },
        "figures": [
            vars(
                all_of(
                    "no spills",
                    "kernels without dropout that spill no register",
                    [row["spilled_bytes"] == [0, 0] for row in plain],
                )
            ),
            vars(all_of("shared memory", "kernels whose shared memory the GPU has", fits)),
        ],
        "notes": [note],
        "kernels": found,
    }


def child(triton: str | None) -> list[dict[str, Any]]:
    """`rows` in a process of its own, with the Triton in the folder `triton`, if any."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--rows"],
            env=os.environ
            | {"TRITON_CACHE_DIR": cache}
            | ({"PYTHONPATH": triton} if triton else {}),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--triton", action="append", default=[], metavar="DIR")
    parser.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows:
        print(json.dumps(rows()))
        return 0
    found = [row for triton in (None, *options.triton) for row in child(triton)]
    RESULTS.write_text(json.dumps(result(found), indent=1, ensure_ascii=False) + "\n", "utf-8")
    README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
