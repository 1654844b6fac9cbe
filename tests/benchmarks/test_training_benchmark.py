"""What the training benchmark says of its samples, with known answers; and that ours runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.contestants import Contestant, ours, strategies
from benchmarks.peers.workload import Workload
from benchmarks.training import Bench, Sample, read_sample
from benchmarks.training_task import SMALL, write_task
from tests.training.launch import in_the_pool

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


@pytest.mark.torch
def test_our_contestant_trains_sharded_as_ddp_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", in_the_pool)
    write_task(tmp_path, TINY, WORK)
    bench = Bench(tmp_path, WORK)
    ddp, sharded = ours("ddp", name="ddp"), ours("sharding.strategy=full_shard", name="full_shard")
    words = ("model.attention=math", "loss=chunked", "optimizer.implementation=loop")
    others = [one for one in strategies() if one.rounds or "activation" in one.name]
    assert len(others) == 3
    them = [ddp, sharded, ours(*words, name="in other ways"), *others]
    samples = bench.in_turns(1, them)
    lossy = samples["bfloat16-stochastic"][0].ranks[0]
    assert lossy["parameter_bytes"] == samples["full_shard"][0].ranks[0]["parameter_bytes"] / 2
    assert len(samples["ddp"][0].losses) == 4
    assert samples["ddp"][0].losses[-1] != samples["ddp"][0].losses[0]
    whole, half = (samples[name][0].ranks[0] for name in ("ddp", "full_shard"))
    for key in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
        # Rows that two ranks cannot halve, and what fused AdamW counts steps with, are the rest.
        assert 0.45 < half[key] / whole[key] < 0.6, key
