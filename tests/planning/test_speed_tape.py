"""The closed form of a T5's step against the tape of the real one: same messages, same order."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import Consent
from fsdpkit.errors import UsageError
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.cards import card_named
from fsdpkit.planning.efficiency import machine_for
from fsdpkit.planning.speed_resized import on_nodes
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.speed_settings import work_of_settings
from fsdpkit.planning.speed_tape import work_of
from fsdpkit.planning.tape import Tape
from fsdpkit.planning.work import StepWork

ENTRY = Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp" / "fsdp_t5.py"
ROWS, SOURCE, TARGET = 4, 256, 64
SETS = [
    *("model.preset=t5-v1.1-small", "model.num_layers=2", "model.num_decoder_layers=2"),
    *(f"batch_size={ROWS}", f"data.source_length={SOURCE}", f"data.target_length={TARGET}"),
    *("data.multiple=64", "data.buckets=1", "compile=false", "model.dropout_rate=0"),
]
NODES, GPUS = 2, 2
CASES = {
    "full_shard": [],
    "hybrid_shard": ["sharding.strategy=hybrid_shard", "sharding.activation_checkpointing=full"],
    "accumulated": ["micro_batch=2", "sharding.strategy=shard_grad_op"],
}


@cache
def taped_on(nodes: int, case: str) -> tuple[StepWork, StepWork]:
    """Of the tape, and of the closed form."""
    from fsdpkit.planning.apart import tape_apart

    settings = load_settings({}, [*SETS, *CASES[case]])
    card = card_named("h100-80")
    tape, _ = tape_apart(
        AskedStep(
            settings=settings, nodes=nodes, gpus=GPUS, card=card, entry=Consent().to_script(ENTRY)
        )
    )
    counted = work_of_settings(settings, nodes, GPUS)
    taped = work_of(
        tape,
        ranks=nodes * GPUS,
        ranks_per_node=GPUS,
        tokens=ROWS * (SOURCE + TARGET),
        samples=ROWS,
        parameters=counted.parameters,
    )
    return taped, counted


@pytest.fixture(scope="module", params=CASES)
def both(request) -> tuple[StepWork, StepWork]:
    return taped_on(NODES, request.param)


@pytest.mark.torch
def test_the_closed_form_sends_what_the_recorded_step_sends_in_its_order(both):
    taped, counted = (
        [
            (each.kind, each.unit, each.phase, each.group_size, each.group_per_node)
            for each in work.collectives()
            if each.unit is not None
        ]
        for work in both
    )
    assert taped == counted


@pytest.mark.torch
def test_its_messages_have_the_recorded_sizes(both):
    taped, counted = ([each for each in w.collectives() if each.unit is not None] for w in both)
    for one, other in zip(taped, counted, strict=True):
        # But for the tables of relative positions.
        assert one.bytes == pytest.approx(other.bytes, rel=0.01), one


@pytest.mark.torch
def test_its_flops_are_the_recorded_ones(both):
    taped, counted = both
    by_phase = []
    for work in both:
        flops: Counter[str] = Counter()
        for each in work.computations():
            flops[each.phase] += each.flops
        by_phase.append({phase: n for phase, n in flops.items() if n})
    assert by_phase[0] == by_phase[1]
    assert taped.model_flops == counted.model_flops


@pytest.mark.torch
def test_both_are_simulated_alike(both):
    """An H100 that launches nothing late: what is left is what a step computes and sends."""
    rates = machine_for("h100", 200).rates({"launch_s": 1e-3, "kernel_s": 1e-3})
    taped, counted = (simulate(work, rates).step_s for work in both)
    assert taped == pytest.approx(counted, rel=0.4)  # 0.35 of torch 2.15


def messages(work: StepWork) -> list[tuple[object, ...]]:
    return [
        (one.kind, one.unit, one.phase, one.group_size, one.group_per_node)
        for one in work.collectives()
    ]


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("nodes", "to"), [(NODES, 2 * NODES), (2 * NODES, NODES)])
def test_a_resized_step_is_the_one_that_is_recorded_on_as_many_nodes(case, nodes, to):
    recorded, _ = taped_on(to, case)
    resized = on_nodes(taped_on(nodes, case)[0], to)
    assert resized.ranks == recorded.ranks
    assert messages(resized) == messages(recorded)
    for one, other in zip(resized.operations, recorded.operations, strict=True):
        # But for a norm's few numbers, one of each weight, which do not shrink with the shards.
        assert one.bytes == pytest.approx(other.bytes, rel=0.02, abs=1024), (one, other)
    rates = machine_for("h100", 200).rates()
    took, takes = (simulate(each, rates).step_s for each in (resized, recorded))
    assert took == pytest.approx(takes, rel=0.01)


def test_an_empty_tape_has_no_speed():
    with pytest.raises(UsageError, match="no whole step"):
        work_of(Tape(), ranks=1, ranks_per_node=1, tokens=1, samples=1, parameters=1)
