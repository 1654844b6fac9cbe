"""Join, add up the ranks, finish at different times, leave together.

The last rank is the slowest and marks the file argv[1] before it lets go; whoever has left before
that mark left while a peer still needed it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fsdpkit.training.distributed import process_group, sum_over_ranks

mark = Path(sys.argv[1])
with process_group(timeout_s=240) as ranks:
    (total,) = sum_over_ranks(ranks.rank, device=ranks.device)
    assert total == ranks.world_size * (ranks.world_size - 1) / 2
    if ranks.rank == ranks.world_size - 1:
        time.sleep(0.5)
        mark.touch()
assert mark.exists(), "left before the slowest rank was done"
