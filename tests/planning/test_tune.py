"""`--tune` answers with the fastest settings that fit: as good as trying them all, asking few."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from fsdpkit.config.job import Resources
from fsdpkit.config.site import load_site
from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.training.footprint import least_gpu_bytes, parameter_count
from fsdpkit.config.training.problems import problems
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.cards import card_named
from fsdpkit.planning.efficiency import machine_for
from fsdpkit.planning.speed_calibration import uncalibrated
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.speed_settings import work_of_settings
from fsdpkit.planning.speed_words import tuned_lines
from fsdpkit.planning.tune import tune
from fsdpkit.planning.tune_space import (
    ALL,
    MICRO,
    candidates,
    hunger,
    nodes_that_fit,
    sets_of,
    takes_no_less,
)

GIB = 2**30
H100 = uncalibrated(machine_for("h100", 200))


def job(preset: str = "t5-v1.1-small", batch: int = 4, **sharding) -> TrainingSettings:
    plain = TrainingSettings()
    return msgspec.structs.replace(
        plain,
        batch_size=batch,
        model=msgspec.structs.replace(
            plain.model, preset=preset, num_layers=2, num_decoder_layers=2
        ),
        sharding=msgspec.structs.replace(plain.sharding, **sharding),
    )


def needs(settings: TrainingSettings, nodes: int, gpus: int, *, a_sample: float = 1.0) -> int:
    """A memory that grows with the micro-batch, in a straight line."""
    shards = least_gpu_bytes(
        settings, parameter_count(settings.model.dimensions()), nodes * gpus, gpus
    )
    kept = {"none": 1.0, "selective": 0.6, "full": 0.2}
    how = kept[settings.sharding.activation_checkpointing]
    scores = 0.1 if settings.loss == "chunked" else 0.3
    micro = settings.micro_batch
    assert isinstance(micro, int)
    return shards + round(micro * a_sample * (how + scores) * GIB)


class Counted:
    def __init__(self, memory: Callable[[TrainingSettings, int, int], int]) -> None:
        self.memory, self.asked = memory, 0

    def __call__(self, settings: TrainingSettings, nodes: int, gpus: int) -> int:
        self.asked += 1
        return self.memory(settings, nodes, gpus)


def tuned(base: TrainingSettings, room_gib: float, memory=needs, **changed):
    given = {"nodes": [2], "gpus": 2, "base_nodes": 2, "calibration": H100, **changed}
    return tune(base, memory_of=memory, room_bytes=round(room_gib * GIB), **given)


def step_s(settings: TrainingSettings, nodes: int) -> float:
    return simulate(work_of_settings(settings, nodes, 2), H100.machine.rates()).step_s


@pytest.mark.parametrize("room_gib", [0.6, 1.5, 3, 40])
def test_no_candidate_that_fits_is_faster_than_the_answer(room_gib):
    base = job()
    memory = Counted(needs)
    found = tuned(base, room_gib, memory)
    points = list(candidates(base, [2], 2, 2))
    fitting = [p for p in points if needs(p.settings, 2, 2) <= room_gib * GIB]
    assert found.fits
    assert found.memory_bytes <= room_gib * GIB
    chosen = next(p for p in points if sets_of(p, base, ALL) == found.sets)
    # A change has to be worth one per cent.
    best = min(step_s(p.settings, 2) * (1 + 0.01 * len(sets_of(p, base, ALL))) for p in fitting)
    mine = step_s(chosen.settings, 2) * (1 + 0.01 * len(found.sets))
    assert mine <= best * (1 + 1e-9)
    assert memory.asked == found.asked
    assert found.asked <= len(points) / 10


def test_the_answer_is_what_submit_accepts():
    for base in (job(), job(engine="fsdp1"), job(strategy="hybrid_shard", shard_size=2)):
        for point in candidates(base, [1, 2, 4], 2, 2):
            assert problems(point.settings, point.nodes * 2, 2) == []
            micro = point.values[MICRO]
            assert point.settings.batch_size % micro == 0


def test_every_candidate_trains_on_the_same_samples_a_step():
    base = job(batch=4)
    found = {p.nodes: p.settings.batch_size for p in candidates(base, [1, 2, 3, 4, 8, 16], 2, 2)}
    # 16 samples over 4 ranks; 6 ranks do not divide them, and of 32 half would have none.
    assert found == {1: 8, 2: 4, 4: 2, 8: 1}
    with pytest.raises(UsageError, match="16 samples"):
        tuned(base, 40, nodes=[3])


def test_nothing_is_changed_that_is_not_worth_it():
    found = tuned(job(), 80)
    assert not any("engine" in each or "loss" in each for each in found.sets)
    assert not any("cpu_offload" in each for each in found.sets)


def test_each_choice_says_what_the_others_would_do():
    found = tuned(job(), 3)
    said = {choice.key: choice for choice in found.choices}
    checkpointing = said["training.sharding.activation_checkpointing"]
    assert checkpointing.value == "full"
    # With everything else as it is, 5.9 and 4.3 GiB by `needs`, and there are 3.
    assert "none: " in checkpointing.why
    assert "faster, but takes 5.9 GiB" in checkpointing.why
    assert "selective: " in checkpointing.why
    assert "4.3 GiB" in checkpointing.why


def test_gpu_hours_want_fewer_nodes_than_tokens_a_second():
    base = job("t5-v1.1-base", batch=16)
    fast = tuned(base, 80, nodes=[1, 4])
    cheap = tuned(base, 80, nodes=[1, 4], aim="gpu_hours")
    assert fast.nodes > cheap.nodes
    assert any(choice.key == "nodes" for choice in fast.choices)


def test_where_nothing_fits_the_nearest_miss_is_told():
    found = tuned(job(), 0.01)
    assert not found.fits
    assert found.memory_bytes > found.room_bytes
    assert "training.sharding.activation_checkpointing=full" in found.sets
    assert "training.micro_batch=1" in found.sets


def test_what_cannot_be_followed_is_left_out_and_named():
    def memory(settings, nodes, gpus):
        if settings.sharding.strategy != "full_shard":
            raise ConfigError("this strategy cannot be recorded")
        return needs(settings, nodes, gpus)

    found = tuned(job(strategy="no_shard"), 3, memory)
    assert found.fits
    assert "training.sharding.strategy=full_shard" in found.sets
    assert any("cannot be recorded" in note for note in found.notes)


def test_no_memory_is_asked_for_after_the_time_is_up():
    memory = Counted(needs)
    found = tuned(job(), 3, memory, seconds=0)
    assert memory.asked == 0
    assert not found.fits
    assert any("not tried" in note for note in found.notes)
    assert found.memory_bytes is None


def test_memory_that_is_far_from_the_guess_is_found_out():
    """A hundred times what the closed form guesses, and a hundredth."""
    for a_sample in (100, 0.01):
        memory = partial(needs, a_sample=a_sample)
        base = job()
        found = tuned(base, 30 * max(1, a_sample / 10), memory)
        points = [
            p for p in candidates(base, [2], 2, 2) if memory(p.settings, 2, 2) <= found.room_bytes
        ]
        assert found.fits == bool(points)


def test_what_needs_no_less_than_a_misfit_is_known_not_to_fit():
    """Of all pairs: what is told to need no less does need no less."""
    points = list(candidates(job(batch=2), [2], 2, 2))
    pairs = [(a, b) for a in points for b in points[::7] if takes_no_less(a, b)]
    assert len(pairs) > len(points)
    for one, other in pairs:
        assert needs(one.settings, 2, 2) >= needs(other.settings, 2, 2) or (
            # footprint.py counts what offload keeps on the GPU and not what passes through.
            other.settings.sharding.cpu_offload
        )


def test_what_only_the_job_can_have_is_compared_with_nothing_else():
    """`offload` stands in no order of memory, and what may not be chosen is not advised."""
    keys = {"training.micro_batch"}
    base = job(batch=4, activation_checkpointing="offload")
    points = list(candidates(base, [2], 2, 2, keys))
    assert {p.settings.sharding.activation_checkpointing for p in points} == {"offload"}
    larger, smaller = (max(points, key=hunger), min(points, key=hunger))
    assert takes_no_less(larger, smaller)
    (without, *_) = candidates(job(batch=4), [2], 2, 2, keys)
    assert not takes_no_less(larger, without)
    assert {each.partition("=")[0] for p in points for each in sets_of(p, base, keys)} == keys
    assert sets_of(points[0], base, frozenset()) == ()


def test_settings_that_a_set_cannot_take_back_stay():
    for point in candidates(job(reshard_to=2), [2], 2, 2):
        assert point.settings.sharding.reshard_to == 2


def test_a_site_decides_how_many_nodes_there_can_be():
    site = load_site("osc-pitzer")
    resources = Resources(nodes=1, gpus=2, time="1:00:00", account="PAS0001")
    fit, refused = nodes_that_fit(resources, site, [1, 2, 4000])
    assert 1 in fit
    assert 4000 in refused
    assert "does not fit" in refused[4000]


def test_the_nearest_miss_says_by_how_much_and_which_gpu_would_do():
    needing = partial(needs, a_sample=40)
    found = tuned(job(), 4, needing)
    assert not found.fits
    over = found.memory_bytes - found.room_bytes
    told = "\n".join(tuned_lines(found))
    assert f"({over:,} bytes) too much" in told
    size, name = re.search(r"A GPU of (\d+) GiB or more would do, such as (\S+);", told).groups()
    # On that GPU, and with no GiB less, the search finds something.
    assert tuned(job(), 0.95 * int(size), needing).fits
    assert not tuned(job(), 0.95 * (int(size) - 1), needing).fits
    assert card_named(name).memory >= int(size) * GIB
