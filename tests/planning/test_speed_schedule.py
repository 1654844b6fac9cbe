"""When operations of a step run, by hand: small schedules with round numbers.

A machine of a thousand FLOPs and bytes a second, whose links carry a hundred bytes a second, and
which has no latency unless a test gives it one.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.planning.efficiency import Rates
from fsdpkit.planning.speed_schedule import collective_s, simulate
from fsdpkit.planning.work import Collective, Computation, Copy, Operation, StepWork
from tests.planning.made_work import made_work

PLAIN = Rates(
    peak_flops=1000,
    float32_flops=100,
    matmul_share=1,
    matmul_ramp_flops=0,
    attention_share=0.5,
    biased_attention_share=0.25,
    memory_bytes=1000,
    kernel_s=0,
    launch_s=0,
    collective_s=0,
    in_node_bytes=100,
    in_node_latency_s=0,
    node_bytes=100,
    network_latency_s=0,
    host_copy_bytes=100,
    host_bytes=100,
)


def rates(**changed: float) -> Rates:
    return msgspec.structs.replace(PLAIN, **changed)


def step(*operations: Operation, ahead: int | None = 2, ranks_per_node: int = 2) -> StepWork:
    return StepWork(
        operations=operations,
        tokens=1,
        samples=1,
        model_flops=1,
        ranks=4,
        ranks_per_node=ranks_per_node,
        gathers_ahead=ahead,
    )


def product(seconds: float, unit: str = "", phase: str = "forward", kernels: int = 1):
    return Computation(
        unit=unit, phase=phase, kind="matmul", flops=round(1000 * seconds), kernels=kernels
    )


def gather(seconds: float, unit: str, phase: str = "forward") -> Collective:
    """Within a node of two, where half of the bytes move."""
    size = round(200 * seconds)
    return Collective(
        kind="all_gather", bytes=size, group_size=2, group_per_node=2, unit=unit, phase=phase
    )


def reduced(seconds: float, unit: str) -> Collective:
    sent = gather(seconds, unit, "backward")
    return msgspec.structs.replace(sent, kind="reduce_scatter")


def test_the_first_gather_is_waited_for_and_the_next_hides_behind_computing():
    found = simulate(step(gather(1, "a"), product(2, "a"), gather(1, "b"), product(2, "b")), PLAIN)
    assert found.step_s == pytest.approx(1 + 2 + 2)
    assert found.by_cause["in-node links"] == pytest.approx(1)


def test_a_gather_longer_than_what_it_hides_behind_is_waited_for_with_the_rest():
    found = simulate(step(gather(1, "a"), product(2, "a"), gather(5, "b"), product(2, "b")), PLAIN)
    # b's gather runs from 1 to 6, a's product from 1 to 3.
    assert found.step_s == pytest.approx(8)
    assert found.by_cause["in-node links"] == pytest.approx(1 + 3)


def test_backward_gathers_one_unit_ahead():
    """What is gathered during a unit's backward waits until that unit's weights are in place."""
    backward = [
        gather(1, "c", "backward"),
        product(0.001, "c", "backward"),  # copied out
        gather(1, "b", "backward"),
        product(4, "c", "backward"),
        product(4, "b", "backward"),
    ]
    found = simulate(step(*backward), PLAIN)
    assert found.step_s == pytest.approx(1.001 + 4 + 4)
    late = simulate(step(product(3), *backward), PLAIN)
    # c arrives while the product before runs; b may not come before c is copied out.
    assert late.step_s == pytest.approx(3 + 0.001 + 4 + 4)


def test_reductions_run_beside_backward_and_the_optimizer_waits_for_the_last():
    found = simulate(
        step(
            product(2, "b", "backward"),
            reduced(3, "b"),
            product(2, "a", "backward"),
            reduced(3, "a"),
            product(1, "", "optimizer"),
        ),
        PLAIN,
    )
    # b's reduction runs from 2 to 5, a's from 5 to 8, beside a's product until 4.
    assert found.step_s == pytest.approx(9)


def test_a_hybrids_all_reduce_follows_its_units_reduction_and_not_the_next_one():
    across = Collective(
        kind="all_reduce", bytes=100, group_size=2, group_per_node=1, unit="b", phase="backward"
    )
    work = step(product(1, "b", "backward"), reduced(2, "b"), across, reduced(3, "a"))
    # From 3, over the network: two groups share it, so its 100 bytes take 2 s, beside the next.
    assert simulate(work, PLAIN).step_s == pytest.approx(6)
    slow = simulate(work, rates(node_bytes=20))
    assert slow.step_s == pytest.approx(3 + 10)


def test_offloaded_weights_come_before_they_are_gathered_and_gradients_leave_after():
    work = step(
        Copy(to="gpu", bytes=100, unit="a", phase="forward"),
        gather(1, "a"),
        product(1, "a"),
        Copy(to="host", bytes=100, unit="a", phase="backward"),
        Computation(unit="", phase="optimizer", kind="other", bytes=100, on_host=True),
    )
    found = simulate(work, PLAIN)
    assert found.step_s == pytest.approx(5)
    assert found.by_cause["host copies"] == pytest.approx(2)


def test_a_host_that_launches_slower_than_the_gpu_computes_bounds_the_step():
    found = simulate(step(product(1, kernels=100)), rates(launch_s=0.1))
    assert found.step_s == pytest.approx(10 + 0.01)
    assert max(found.by_cause, key=lambda each: found.by_cause[each]) == "launches"


def test_each_side_of_the_roofline_can_bound():
    memory = Computation(unit="", phase="forward", kind="other", bytes=3000)
    attention = Computation(unit="", phase="forward", kind="attention", flops=1000, bytes=100)
    found = simulate(step(memory, attention, product(1)), PLAIN)
    assert found.by_cause["memory"] == pytest.approx(3)
    assert found.by_cause["compute"] == pytest.approx(2 + 1)
    biased = msgspec.structs.replace(attention, kind="biased attention")
    assert simulate(step(biased), PLAIN).step_s == pytest.approx(4), "a slower kernel"
    in_float32 = msgspec.structs.replace(product(1), dtype="float32")
    assert simulate(step(in_float32), PLAIN).step_s == pytest.approx(10)
    small = rates(matmul_ramp_flops=1000)
    assert simulate(step(product(1)), small).step_s == pytest.approx(2)


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        # (kind, ranks, of them on a node) of 1000 bytes; nodes of four ranks.
        (("all_gather", 4, 4), 0.75 * 1000 / 100),
        (("all_gather", 8, 4), 7 / 8 * 1000 / 50),  # the network is the slower
        (("all_gather", 2, 1), 4 * 0.5 * 1000 / 50),  # four groups share it
        (("all_reduce", 4, 4), 2 * 0.75 * 1000 / 100),
        (("reduce_scatter", 1, 1), 0),
    ],
)
def test_a_message_takes_its_bytes_over_the_slowest_link(message, seconds):
    kind, size, inside = message
    one = Collective(
        kind=kind, bytes=1000, group_size=size, group_per_node=inside, unit="a", phase="forward"
    )
    assert collective_s(one, rates(node_bytes=50), 4) == pytest.approx(seconds)


def test_hops_cost_latency_within_and_between_nodes():
    one = Collective(
        kind="all_gather", bytes=1, group_size=8, group_per_node=4, unit="a", phase="forward"
    )
    alone = collective_s(one, rates(in_node_latency_s=1, network_latency_s=10), 4)
    assert alone == pytest.approx(6 * 1 + 2 * 10, rel=0.01)
    many = msgspec.structs.replace(one, kind="all_reduce", group_size=1024)
    ring = 2 * (1024 - 256) * 1 + 2 * 256 * 10
    assert collective_s(many, rates(in_node_latency_s=1, network_latency_s=10), 4) < ring / 10


def layered(strategy: str) -> StepWork:
    return made_work(layers=3, rows=1, length=8, nodes=2, gpus=2, strategy=strategy)


@pytest.mark.parametrize("strategy", ["full_shard", "hybrid_shard", "no_shard"])
@given(name=st.sampled_from(Rates.__struct_fields__), factor=st.floats(1, 20))
def test_a_better_machine_is_never_slower(strategy, name, factor):
    slow = rates(matmul_ramp_flops=50, kernel_s=0.01, launch_s=0.01, collective_s=0.02)
    slow = msgspec.structs.replace(slow, in_node_latency_s=0.01, network_latency_s=0.05)
    less = name.endswith("_s") or name == "matmul_ramp_flops"
    value = getattr(slow, name)
    fast = msgspec.structs.replace(slow, **{name: value / factor if less else value * factor})
    work = layered(strategy)
    assert simulate(work, fast).step_s <= simulate(work, slow).step_s * (1 + 1e-9)


@given(
    launch=st.floats(0, 0.5),
    node=st.floats(1, 1000),
    strategy=st.sampled_from(["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"]),
)
def test_every_second_of_a_step_has_one_cause(launch, node, strategy):
    found = simulate(layered(strategy), rates(launch_s=launch, node_bytes=node))
    assert sum(found.by_cause.values()) == pytest.approx(found.step_s)
    assert min(found.by_cause.values()) >= 0
