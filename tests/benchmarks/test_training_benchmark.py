"""What the training benchmark says of its samples, with known answers; and that ours runs."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.contestants import Contestant, contestants, ours, pairs, steps, strategies
from benchmarks.peers.workload import Workload
from benchmarks.training import Bench, Sample, compare_steps, loss_difference, read_sample
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


def test_memory_is_the_fullest_ranks_beyond_what_it_held_before() -> None:
    found = read_sample(WORK, [rank(), rank(before_bytes=50, start_peak_bytes=90)])
    assert (found.start_bytes, found.training_bytes) == (50, 130)


def test_a_steps_loss_is_the_mean_over_ranks() -> None:
    found = read_sample(WORK, [rank(), rank(losses=[2.0, 1.0, 0.0, 3.0])])
    assert found.losses == [3.0, 2.0, 1.0, 2.0]


def test_the_difference_of_losses_is_the_largest_of_any_step_and_run() -> None:
    runs = {"ours": [sample(4.0, 2.0), sample(4.0, 2.0)], "peer": [sample(4.0, 2.5)]}
    assert loss_difference(runs) == pytest.approx(0.25)
    assert loss_difference({"ours": [sample(4.0, 2.0)]}) == 0


def test_contestants_that_did_other_work_are_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {"ours": 4.0, "peer": 4.01}
    monkeypatch.setattr(Bench, "run", lambda self, one: sample(losses[one.name]))
    peer = Contestant("peer", "a peer", "python", "peer.py")
    with pytest.raises(RuntimeError, match="not do the same work"):
        Bench(tmp_path, WORK).in_turns(1, [ours(), peer])


@pytest.mark.parametrize(("loss", "near"), [(4.1, True), (4.3, False)])
def test_weights_of_fewer_bits_may_be_near_the_others_losses_but_no_farther(
    loss: float, near: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {"ours": 4.0, "lossy": loss}
    monkeypatch.setattr(Bench, "run", lambda self, one: sample(losses[one.name]))
    them = [ours(), ours(name="lossy", rounds=True)]
    with nullcontext() if near else pytest.raises(RuntimeError, match="not do the same work"):
        Bench(tmp_path, WORK).in_turns(1, them)


def test_turns_alternate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run(self: Bench, one: Contestant) -> Sample:
        order.append(one.name)
        return sample(4.0)

    monkeypatch.setattr(Bench, "run", run)
    Bench(tmp_path, WORK).in_turns(2, [ours(name="a"), ours(name="b"), ours(name="c")])
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_each_step_of_the_speed_list_adds_one_thing_to_the_one_before() -> None:
    words = [set(one.words) for one in steps()]
    assert all(len(after - before) == 1 for before, after in pairwise(words))
    assert all(before < after for before, after in pairwise(words))


def test_a_step_is_compared_with_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter([100.0, 150.0, 300.0, 100.0, 150.0, 100.0, 120.0] * 3)
    monkeypatch.setattr(
        Bench, "run", lambda self, one: replace(sample(4.0), tokens_per_s=next(speeds))
    )
    monkeypatch.setattr(Bench, "peaks", lambda self, them, samples: samples)
    rows = compare_steps(Bench(tmp_path, WORK), 3)
    assert [row["times_before"] for row in rows[:4]] == [None, 1.5, 2.0, pytest.approx(1 / 3)]
    assert [row["tokens_per_s"] for row in rows[:3]] == [100.0, 150.0, 300.0]


@pytest.mark.parametrize("gpus", [0, 1])
def test_memory_of_a_cpu_is_measured_in_short_runs_whose_allocator_gives_back(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "batches.safetensors").write_text("ids")

    def run(self: Bench, one: Contestant) -> Sample:
        assert (self.directory / "batches.safetensors").read_text() == "ids"
        assert json.loads((self.directory / "workload.json").read_text())["steps"] == 2
        assert "MALLOC_MMAP_THRESHOLD_" in self.extra
        return replace(sample(4.0), training_bytes=123)

    monkeypatch.setattr(Bench, "run", run)
    monkeypatch.setattr("benchmarks.training.gpu_count", lambda: gpus)
    peaks = Bench(tmp_path, WORK).peaks([ours()], {"ours": [sample(4.0)]})
    assert [s.training_bytes for s in peaks["ours"]] == [0 if gpus else 123]


@pytest.mark.parametrize("gpu", [False, True])
def test_every_pair_is_of_contestants(gpu: bool) -> None:
    names = {one.name for one in contestants("python", gpu=gpu)}
    assert all({pair.ours, pair.peer} <= names for pair in pairs(gpu=gpu))


def test_on_a_gpu_eager_attention_is_to_be_beaten_twofold() -> None:
    least = {pair.peer: pair.least_speed for pair in pairs(gpu=True)}
    assert {name for name, speed in least.items() if speed == 2} == {
        "accelerate-eager",
        "accelerate-eager-compile",
    }


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


@pytest.mark.torch
def test_a_contestant_that_fails_says_why(tmp_path: Path) -> None:
    work = replace(WORK, ranks=1)
    write_task(tmp_path, TINY, work)
    broken = Contestant("broken", "broken", sys.executable, "fsdpkit_t5.py", ("no_such=1",))
    with pytest.raises(RuntimeError, match="no_such"):
        Bench(tmp_path, work).run(broken)
