"""What a program of this folder finds on some ranks, as JSON.

    found.py PROGRAM RESULT WORDS…     `PROGRAM.main(ranks, RESULT's folder, WORDS…)` on each rank

The first rank's answer is written.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from fsdpkit.training.distributed import process_group

program, result, *words = sys.argv[1:]
main = import_module(program).main
with process_group(timeout_s=240) as ranks:
    found = main(ranks, Path(result).parent, *words)
    if ranks.is_first:
        Path(result).write_text(json.dumps(found))
