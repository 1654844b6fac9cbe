"""Join, add up the ranks, finish at different times, leave."""

from __future__ import annotations

import time

from fsdpkit.training.distributed import process_group, sum_over_ranks

with process_group(timeout_s=60) as ranks:
    (total,) = sum_over_ranks(ranks.rank, device=ranks.device)
    assert total == ranks.world_size * (ranks.world_size - 1) / 2
    time.sleep(0.3 * (ranks.rank % 2))
