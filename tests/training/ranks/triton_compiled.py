"""Compile the Triton kernels for Hopper, as benchmarks/kernels.py does for all GPUs.

Writes to the file in argv[1] what the compiler makes of each at a head width of 64, without
dropout, which spills a little. It says nothing of results; the interpreter does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attention_triton as ours

from benchmarks.kernels import CASES, compiled


def main() -> None:
    found = {}
    for kernel, cases in (("forward", ("encoder",)), ("backward", tuple(CASES)[:3])):
        tile = ours.tiles_of(kernel, 64, 2, 9)
        for case in cases:
            found[f"{kernel}, {case}"] = compiled(
                getattr(ours, f"{kernel}_kernel"), tile, 64, case, 90
            )
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
