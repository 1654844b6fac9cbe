"""What the training benchmark says of its samples, with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.contestants import Contestant, ours
from benchmarks.peers.workload import Workload
from benchmarks.training import Bench, Sample, read_sample
from benchmarks.training_task import SMALL

WORK = Workload(
    ranks=2,
    batch=2,
    source_length=12,
    target_length=8,
    warmup_steps=1,
    steps=3,
    precision="float32",
)
TINY = {**SMALL, "vocab_size": 64, "d_model": 16, "d_ff": 32, "d_kv": 4, "num_heads": 2}


def rank(**changes: object) -> dict:
    return {
        "elapsed_s": 2.0,
        "losses": [4.0, 3.0, 2.0, 1.0],
        "before_bytes": 100,
        "start_peak_bytes": 150,
        "training_peak_bytes": 180,
        **changes,
    }


def sample(*losses: float) -> Sample:
    return Sample(1.0, 1.0, 0, 0, list(losses), [])


def test_tokens_a_second_are_those_of_all_ranks_over_the_slowest_ranks_time() -> None:
    found = read_sample(WORK, [rank(), rank(elapsed_s=4.0)])
    # 3 timed steps × 2 ranks × 2 rows × (12 + 8) tokens in 4 s
    assert found.tokens_per_s == 3 * 2 * 2 * 20 / 4.0
    assert found.steps_per_s == 3 / 4.0


def test_contestants_that_did_other_work_are_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {"ours": 4.0, "peer": 4.01}
    monkeypatch.setattr(Bench, "run", lambda self, one: sample(losses[one.name]))
    peer = Contestant("peer", "a peer", "python", "peer.py")
    with pytest.raises(RuntimeError, match="not do the same work"):
        Bench(tmp_path, WORK).in_turns(1, [ours(), peer])
