"""`--tune` finds settings that fit and that no single change makes faster, and says why."""

from __future__ import annotations

import re

import msgspec
import pytest

from fsdpkit.cli.plan_question import places_of
from fsdpkit.cli.plan_tune import tuned_lines
from fsdpkit.config.job import Resources
from fsdpkit.config.site import load_site
from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.training.footprint import least_gpu_bytes, parameter_count
from fsdpkit.config.training.problems import problems
from fsdpkit.config.trust import Consent
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.cards import Card, card_named
from fsdpkit.planning.efficiency import machine_for
from fsdpkit.planning.forecast import TRAINER
from fsdpkit.planning.speed import SpeedCalibration
from fsdpkit.planning.tune import MICRO, Allowed, Tuned, tune
from fsdpkit.planning.work import Computation, StepWork
from tests.training.launch import REPOSITORY

GIB = 2**30
H100 = SpeedCalibration(machine_for("h100", 200))
KEPT = {"none": 1.0, "selective": 0.6, "full": 0.2}
COMPUTED = {"none": 1.0, "selective": 1.1, "full": 1.33}
SENT = {"full_shard": 0.3, "hybrid_shard": 0.2, "shard_grad_op": 0.15, "no_shard": 0.05}


def job(room_gib: float, batch: int = 4, nodes: int = 2, **changed) -> AskedStep:
    plain = TrainingSettings()
    model = msgspec.structs.replace(
        plain.model, preset="t5-v1.1-small", num_layers=2, num_decoder_layers=2
    )
    sharding = {k: changed.pop(k) for k in [*changed] if k in plain.sharding.__struct_fields__}
    settings = msgspec.structs.replace(
        plain,
        batch_size=batch,
        model=model,
        sharding=msgspec.structs.replace(plain.sharding, **sharding),
        **changed,
    )
    card = Card("of the test", round(room_gib * GIB / 0.95), (9, 0))
    return AskedStep(settings, nodes, 2, card, Consent().to_script(REPOSITORY / TRAINER))


def needs(asked: AskedStep) -> int:
    """Memory that grows with the micro-batch, in a straight line."""
    settings = asked.settings
    count = parameter_count(settings.model.dimensions())
    shards = least_gpu_bytes(settings, count, asked.ranks, asked.gpus)
    micro = settings.micro_batch or settings.batch_size
    scores = 0.1 if settings.loss == "chunked" else 0.3
    kept = KEPT[settings.sharding.activation_checkpointing] + scores
    return shards + round(micro * kept * GIB)


def takes(asked: AskedStep) -> StepWork:
    """A step of one kernel that moves as many bytes as it lasts."""
    settings, sharding = asked.settings, asked.settings.sharding
    passes = settings.batch_size // (settings.micro_batch or settings.batch_size)
    times = settings.batch_size * COMPUTED[sharding.activation_checkpointing]
    times += passes * (SENT[sharding.strategy] + 0.2) + 0.05 * asked.nodes
    times += (settings.loss == "chunked") * 0.1 + sharding.cpu_offload * 5
    one = Computation(unit="", phase="forward", kind="other", bytes=round(1e10 * times))
    return StepWork(
        operations=(one,),
        tokens=settings.batch_size * 100,
        samples=settings.batch_size,
        model_flops=1,
        ranks=asked.ranks,
        ranks_per_node=asked.gpus,
    )


class Counted:
    """What was asked about."""

    def __init__(self) -> None:
        self.asked: list[AskedStep] = []

    def __call__(self, asked: AskedStep) -> tuple[int, StepWork]:
        self.asked.append(asked)
        return needs(asked), takes(asked)


def tuned(asked: AskedStep, nodes=(2,), measure=None, **changed) -> Tuned:
    return tune(asked, nodes, H100, measure=measure or Counted(), **changed)


@pytest.mark.parametrize("room_gib", [0.5, 1.5, 3, 40])
def test_the_answer_fits_and_no_other_that_was_recorded_and_fits_is_faster(room_gib):
    seen = Counted()
    found = tuned(job(room_gib), measure=seen)
    assert found.fits
    assert found.memory_bytes <= found.room_bytes
    fitting = [takes(a).operations[0].bytes for a in seen.asked if needs(a) <= found.room_bytes]
    rate = 0.8 * 3.35e12
    assert found.speed.step_s.middle * rate <= min(fitting) * 1.05
    assert len(seen.asked) == found.asked < 30


def test_where_there_is_room_nothing_is_computed_twice_and_little_is_sent():
    found = tuned(job(40, activation_checkpointing="full", micro_batch=1, loss="chunked"))
    assert set(found.sets) == {
        "training.sharding.activation_checkpointing=none",
        "training.sharding.strategy=no_shard",
        "training.loss=whole",
        "training.micro_batch=4",
    }


def test_all_that_is_recorded_is_what_submit_accepts():
    seen = Counted()
    for asked in (job(3), job(1, strategy="hybrid_shard", shard_size=2), job(3, engine="fsdp1")):
        tuned(asked, nodes=[1, 2, 4], measure=seen)
    for one in seen.asked:
        assert problems(one.settings, one.ranks, one.gpus) == []


def test_every_setting_trains_on_the_same_samples_a_step():
    seen = Counted()
    found = tuned(job(40, batch=4), nodes=[1, 2, 3, 4, 8], measure=seen)
    assert {(a.nodes, a.settings.batch_size) for a in seen.asked} == {
        (1, 8),
        (2, 4),
        (4, 2),
        (8, 1),
    }
    assert any("do not divide" in note and "3" in note for note in found.notes)
    assert f"training.batch_size={8 // found.nodes}" in found.sets
    assert not any(MICRO in each for each in found.sets)


def test_gpu_hours_want_fewer_nodes_than_tokens_a_second():
    base = job(80, batch=16)
    fast = tuned(base, nodes=[1, 2, 4])
    cheap = tuned(base, nodes=[1, 2, 4], aim="gpu_hours")
    assert fast.nodes > cheap.nodes
    assert any(choice.key == "nodes" for choice in fast.choices)


def test_each_choice_says_what_the_others_do():
    found = tuned(job(2.5))
    said = {choice.key: choice for choice in found.choices}
    checkpointing = said["training.sharding.activation_checkpointing"]
    others = {"none", "selective", "full"} - {checkpointing.value}
    assert any(f"{each}: " in checkpointing.why for each in others)
    assert any("but takes" in choice.why for choice in found.choices)


def test_what_fits_nowhere_misses_by_the_least_and_says_which_gpu_would_do():
    found = tuned(job(0.2))
    assert not found.fits
    assert found.memory_bytes > found.room_bytes
    assert "training.sharding.activation_checkpointing=full" in found.sets
    assert "training.micro_batch=1" in found.sets
    told = "\n".join(tuned_lines(found))
    assert f"({found.memory_bytes - found.room_bytes:,} bytes) too much" in told
    size, name = re.search(r"A GPU of (\d+) GiB or more would do, such as (\S+);", told).groups()
    assert tuned(job(0.95 * int(size))).fits
    assert card_named(name).memory >= int(size) * GIB


def test_what_cannot_be_followed_is_left_out_and_named():
    def measure(asked):
        if asked.settings.sharding.strategy != "full_shard":
            raise ConfigError("this strategy cannot be recorded")
        return needs(asked), takes(asked)

    found = tuned(job(3, strategy="no_shard"), measure=measure)
    assert found.fits
    assert "training.sharding.strategy=full_shard" in found.sets
    assert any("cannot be recorded" in note for note in found.notes)


def test_nothing_is_recorded_after_the_time_is_up():
    seen = Counted()
    with pytest.raises(UsageError, match="nothing could be recorded"):
        tuned(job(3), measure=seen, seconds=-1)
    assert seen.asked == []


def test_what_only_the_job_can_have_stays_and_what_may_not_be_chosen_is_not_advised():
    seen = Counted()
    asked = job(3, micro_batch=2, strategy="hybrid_shard", shard_size=2)
    found = tuned(asked, measure=seen, allowed=Allowed(frozenset({MICRO})))
    assert {each.partition("=")[0] for each in found.sets} <= {MICRO}
    assert {a.settings.sharding for a in seen.asked} == {asked.settings.sharding}


def test_what_needs_no_less_than_a_misfit_is_not_recorded():
    seen = Counted()
    found = tuned(job(0.8, batch=8), measure=seen)
    assert found.fits
    misfits = [a for a in seen.asked if needs(a) > found.room_bytes]
    assert len(misfits) < len(seen.asked) / 2 + 4


def test_a_site_decides_how_many_nodes_there_can_be():
    site = load_site("osc-pitzer")
    resources = Resources(nodes=1, gpus=2, time="1:00:00", account="PAS0001")
    fit, refused = places_of(resources, site, [1, 2, 4000])
    assert 1 in fit
    assert 4000 in refused
    assert "does not fit" in refused[4000]
