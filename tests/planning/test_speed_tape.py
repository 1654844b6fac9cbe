"""A recorded step as work: what it sends, computes and moves, and the same on other nodes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import Consent
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.cards import card_named
from fsdpkit.planning.efficiency import machine_for
from fsdpkit.planning.forecast import work_on_tape
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.speed_tape import on_nodes
from fsdpkit.planning.tape import Tape
from fsdpkit.planning.work import Copy, StepWork

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
def taped_on(nodes: int, case: str) -> StepWork:
    return work_on_tape(*_taped(nodes, *CASES[case]))


@cache
def _taped(nodes: int, *sets: str) -> tuple[AskedStep, Tape]:
    from fsdpkit.planning.apart import tape_apart

    settings = load_settings({}, [*SETS, *sets])
    card = card_named("h100-80")
    asked = AskedStep(
        settings=settings, nodes=nodes, gpus=GPUS, card=card, entry=Consent().to_script(ENTRY)
    )
    return asked, tape_apart(asked)[0]


BLOCKS = [f"{half}.block.{n}" for half in ("encoder", "decoder") for n in range(2)]


@pytest.mark.torch
def test_units_are_gathered_in_order_and_one_ahead_in_backward_and_reduced_as_they_end():
    sent = [
        (each.kind, each.unit, each.phase)
        for each in taped_on(NODES, "full_shard").collectives()
        if each.unit is not None
    ]
    forward = [("all_gather", unit, "forward") for unit in ("", *BLOCKS, "lm_head")]
    backward = [("reduce_scatter", "lm_head", "backward")]
    for unit in reversed(BLOCKS):
        backward.append(("reduce_scatter", unit, "backward"))
    assert sent[: len(forward)] == forward
    again = [one for one in sent if one[0] == "all_gather" and one[2] == "backward"]
    assert again == [("all_gather", unit, "backward") for unit in reversed(BLOCKS)]
    reduced = [one for one in sent if one[0] == "reduce_scatter"]
    assert reduced == [*backward, ("reduce_scatter", "", "backward")]


@pytest.mark.torch
def test_a_hybrid_reduces_in_a_node_and_then_between_nodes():
    sent = [each for each in taped_on(NODES, "hybrid_shard").collectives() if each.unit is not None]
    shapes = {(each.kind, each.group_size, each.group_per_node) for each in sent}
    assert shapes == {("all_gather", 2, 2), ("reduce_scatter", 2, 2), ("all_reduce", 2, 1)}


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_its_flops_are_those_that_the_trainer_reports(case):
    from flops import flops_per_sequence
    from model import T5Config

    dimensions = load_settings({}, SETS).model.dimensions()
    counted = flops_per_sequence(T5Config(**dimensions), SOURCE, TARGET)
    work = taped_on(NODES, case)
    assert work.model_flops == ROWS * counted
    assert (work.tokens, work.samples) == (ROWS * (SOURCE + TARGET), ROWS)
    flops: Counter[str] = Counter()
    for each in work.computations():
        flops[each.phase] += each.flops
    # A fused attention makes its scores again.
    assert 2 <= flops["backward"] / flops["forward"] < 2.3
    assert bool(flops["recompute"]) is (case == "hybrid_shard")


@pytest.mark.torch
def test_a_compiled_step_moves_less_by_fewer_kernels_and_computes_the_same():
    asked, tape = _taped(NODES)
    settings = msgspec.structs.replace(asked.settings, compile=True)
    plain = work_on_tape(asked, tape)
    compiled = work_on_tape(dataclasses.replace(asked, settings=settings), tape)
    rates = machine_for("h100", 200).rates()
    assert simulate(compiled, rates).step_s < simulate(plain, rates).step_s
    assert compiled.model_flops == plain.model_flops
    for kind in ("matmul", "biased attention"):
        same = [[c for c in w.computations() if c.kind == kind] for w in (plain, compiled)]
        assert same[0] == same[1] != []
    kernels = [sum(c.kernels for c in w.computations()) for w in (plain, compiled)]
    assert kernels[1] < 0.9 * kernels[0]


@pytest.mark.torch
def test_offloaded_shards_cross_over_to_the_gpu_and_gradients_back():
    asked, tape = _taped(NODES, "sharding.cpu_offload=true")
    work = work_on_tape(asked, tape)
    copies = [each for each in work.operations if isinstance(each, Copy)]
    to = Counter(each.to for each in copies)
    assert to == {"gpu": 6 + 4, "host": 6}  # the root and the head stay gathered
    shards = 4 * tape.parameters / work.ranks
    back = sum(each.bytes for each in copies if each.to == "host")
    assert back == pytest.approx(shards, rel=0.02)
    (update,) = (each for each in work.computations() if each.on_host)
    assert update.bytes > 5 * shards


def messages(work: StepWork) -> list[tuple[object, ...]]:
    return [
        (one.kind, one.unit, one.phase, one.group_size, one.group_per_node)
        for one in work.collectives()
    ]


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("nodes", "to"), [(NODES, 2 * NODES), (2 * NODES, NODES)])
def test_a_resized_step_is_the_one_that_is_recorded_on_as_many_nodes(case, nodes, to):
    recorded = taped_on(to, case)
    resized = on_nodes(taped_on(nodes, case), to)
    assert resized.ranks == recorded.ranks
    assert messages(resized) == messages(recorded)
    for one, other in zip(resized.operations, recorded.operations, strict=True):
        # But for a norm's few numbers, one of each weight, which do not shrink with the shards.
        assert one.bytes == pytest.approx(other.bytes, rel=0.02, abs=1024), (one, other)
    rates = machine_for("h100", 200).rates()
    took, takes = (simulate(each, rates).step_s for each in (resized, recorded))
    assert took == pytest.approx(takes, rel=0.01)
