"""The fourteen questions that people ask before they queue (pytorch#125323), and three for
debugging: each answered by one plan or two, and held to what it must be."""

from __future__ import annotations

import io
import pickle
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import Consent
from fsdpkit.planning import plans
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.cards import Card, card_named
from fsdpkit.planning.held import last_step
from fsdpkit.planning.replay import alive_at, events
from fsdpkit.planning.verdict import MemoryVerdict
from fsdpkit.planning.words import rows, table
from tests.training.launch import EXAMPLE

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def _with_dynamo() -> None:
    """Here once, and not again in each child; and in no worker that only collects."""
    import torch._dynamo  # noqa: F401


MODELS = Path(__file__).parent / "ranks" / "models.py"
T5 = (
    "model.preset=t5-v1.1-small", "model.num_layers=2", "model.num_decoder_layers=2",
    "model.vocab_size=1024", "model.dropout_rate=0.0", "data.multiple=1", "batch_size=2",
    "data.source_length=64", "data.target_length=32", "compile=false",
    "precision.param=bfloat16", "loss=whole",
)  # fmt: skip
WIDTH, FF, INNER = 512, 1024, 6 * 64
ENCODER = 4 * WIDTH * INNER + 3 * WIDTH * FF + 2 * WIDTH
"""Parameters of an encoder block but the first, which has the biases of relative positions, too."""
DECODER = ENCODER + 4 * WIDTH * INNER + WIDTH
MIB = 2**20


def asked(
    *sets: str, nodes: int = 2, card: Card | None = None, model: str | None = None
) -> AskedStep:
    settings = load_settings({}, [*(() if model else T5), *sets])
    given = card or card_named("h100-80")
    entry = Consent().to_script(EXAMPLE / "fsdp_t5.py")
    named = None if model is None else Consent().to_model(model)
    return AskedStep(settings, nodes, 2, given, entry, named)


@cache
def planned(*sets: str, nodes: int = 2, model: str | None = None) -> MemoryVerdict:
    return plans.plan(asked(*sets, nodes=nodes, model=model))


def states(found: MemoryVerdict) -> int:
    return found.weights + found.optimizer


def whole(found: MemoryVerdict) -> dict[str, int]:
    """Of each unit the most bytes of its weights that are gathered at one time."""
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, block, is_birth in events(found.tape):
        if block.unit:
            now[block.unit] = now.get(block.unit, 0) + (block.size if is_birth else -block.size)
            most[block.unit] = max(most.get(block.unit, 0), now[block.unit])
    return most


# 1 to 6


def test_1_the_expected_peak_is_the_sum_of_what_it_is_made_of():
    found = planned()
    made_of = sum(found.kinds.values())
    assert made_of == pytest.approx(found.replayed.allocated, rel=0.02)
    parameters = 2 * 1024 * WIDTH + 2 * (ENCODER + DECODER) + 2 * 32 * 6 + 2 * WIDTH
    assert found.weights == pytest.approx(4 * parameters / 4, rel=0.001)
    assert found.optimizer == pytest.approx(2 * found.weights, rel=0.001)
    assert found.total == found.replayed.reserved + found.outside.bytes
    assert found.replayed.allocated <= found.replayed.reserved


def test_2_wrapping_two_blocks_in_a_unit_gathers_twice_as_much_at_once():
    one, two = planned(), planned("sharding.blocks_per_unit=2")
    largest = [max(v for k, v in whole(f).items() if "block" in k) for f in (one, two)]
    assert largest == [
        pytest.approx(2 * DECODER, rel=0.01),
        pytest.approx(2 * 2 * DECODER, rel=0.01),
    ]
    assert two.gathered > one.gathered + 2 * 0.9 * DECODER
    assert states(two) == states(one)


@pytest.mark.parametrize(
    ("key", "start", "step"), [("batch_size", 2, 1), ("data.source_length", 1024, 256)]
)
def test_3_and_4_the_largest_batch_and_the_longest_text_fit_and_one_more_does_not(
    key: str, start: int, step: int, monkeypatch: pytest.MonkeyPatch
):
    full = f"training.{key}"
    small = Card("small", 2050 * MIB, (9, 0))
    # A shorter text is filled up to a multiple.
    shape = ("model.num_layers=1", "model.num_decoder_layers=1", "data.multiple=256",
             "batch_size=2", "data.source_length=1024")  # fmt: skip

    def ask(sets) -> AskedStep:
        return asked(*shape, *(each.removeprefix("training.") for each in sets), card=small)

    fits, plan = {}, plans.plan

    def plan_and_note(one: AskedStep) -> MemoryVerdict:
        made = plan(one)
        settings = one.settings
        value = settings.batch_size if key == "batch_size" else settings.data.source_length
        fits[value] = made.fit
        return made

    monkeypatch.setattr(plans, "plan", plan_and_note)
    found = plans.most(ask, full, plans.candidates(ask([]), full), start)
    assert found is not None
    assert (found.plan.fit, found.beyond) == ("fits", found.number + step)
    assert fits[found.beyond] != "fits"
    assert found.number > start
    assert len(fits) < 10  # where a line through two plans says, and not by halving alone


@pytest.mark.parametrize(
    "memory",
    [lambda n: n, lambda n: n // 512 * 512, lambda n: n * n, lambda n: 1 + n**0.5, lambda n: 7],
    ids=["a line", "steps", "squares", "roots", "the same"],
)
def test_3_the_largest_is_found_however_memory_grows(memory, monkeypatch):
    fits, values = {}, range(1, 100_000)

    def plan(number: int) -> SimpleNamespace:
        fits[number] = "fits" if number <= largest else "does not fit"
        taken = SimpleNamespace(reserved=memory(number))
        return SimpleNamespace(fit=fits[number], replayed=taken, room=memory(largest))

    monkeypatch.setattr(plans, "plan", plan)
    for start, largest in product([1, 600, 99_999], [0, 1, 2, 742, 99_998, 99_999]):
        fits.clear()
        found = plans.most(lambda sets: int(sets[0].partition("=")[2]), "key", values, start)
        assert (found.number if found else 0) == largest
        assert fits.get(largest) == ("fits" if largest else None)
        assert fits.get(largest + 1) == ("does not fit" if largest < 99_999 else None)
        assert len(fits) <= 2 * 17 + 4


def test_no_torch_is_imported_to_read_the_answer_of_a_child():
    """Which would take as long as its own import of torch did."""
    modules: set[str] = set()

    class Reads(pickle.Unpickler):
        def find_class(self, module, name):
            modules.add(module)
            return super().find_class(module, name)

    Reads(io.BytesIO(pickle.dumps(planned().tape))).load()
    assert modules == {"fsdpkit.planning.tape"}


def test_the_largest_micro_batch_is_one_that_divides_the_batch():
    assert [*plans.candidates(asked("batch_size=12"), "training.micro_batch")] == [
        1,
        2,
        3,
        4,
        6,
        12,
    ]


def test_5_twice_the_ranks_halve_the_shards_and_leave_activations_alone():
    four, eight = planned(), planned(nodes=4)
    assert states(eight) == pytest.approx(states(four) / 2, rel=0.001)
    assert eight.kept.bytes == four.kept.bytes


def test_6_offloading_moves_weights_gradients_and_optimizer_to_the_host():
    here, there = planned(), planned("sharding.cpu_offload=true")
    assert states(there) == 0
    assert 1 <= (there.replayed.host - here.replayed.host - here.optimizer) / (2 * here.weights) < 2
    saved = here.replayed.allocated - there.replayed.allocated
    assert saved == pytest.approx(states(here) + here.kinds.get("gradients", 0), rel=0.1)
    assert f"{there.host / MIB:.1f} MiB" in "\n".join(rows([(("x",), there)]))


def test_6_a_save_while_training_goes_on_copies_the_shards_to_the_host():
    """By 0.1 % what four CPU ranks copy, under each strategy, which also copy counters."""
    here, there = planned(), planned("sharding.cpu_offload=true")
    assert here.copy == there.copy == states(here)
    assert planned("checkpoint.background=false").host == here.host - here.copy
    assert not [note for note in here.notes if "host memory" in note]
    small = replace(card_named("h100-80"), job_memory_mb=(2 * here.host >> 20) - 1)
    assert [note for note in plans.plan(asked(card=small)).notes if "host memory" in note]


# 7 to 9: checkpointing


def kept_in(found: MemoryVerdict) -> dict[str, int]:
    return {k: v for k, v in found.kept.by_layer.items() if ".block." in k}


def test_7_and_8_full_keeps_least_and_selective_some():
    none, selective, full = (
        planned(f"sharding.activation_checkpointing={how}") if how != "none" else planned()
        for how in ("none", "selective", "full")
    )
    assert full.kept.bytes < selective.kept.bytes < none.kept.bytes
    # Of a block the result alone: rows × tokens × width × two bytes.
    assert kept_in(full)["encoder.block.1"] == 2 * 64 * WIDTH * 2
    assert kept_in(none)["encoder.block.1"] > 10 * kept_in(full)["encoder.block.1"]
    assert not none.kept.checkpointed
    # Selective keeps attention and every second product, inside.
    assert selective.kept.inside["encoder.block.1"] >= 2 * 64 * INNER * 2
    assert "kept by the selective policy" in "\n".join(table(selective))


def test_9_another_policy_for_other_units_is_every_nth_block():
    mixed = planned("sharding.activation_checkpointing=full", "sharding.checkpoint_every=2")
    none, full = planned(), planned("sharding.activation_checkpointing=full")
    by_block = kept_in(mixed)
    assert set(mixed.kept.checkpointed) == {"encoder.block.0", "decoder.block.0"}
    assert by_block["encoder.block.0"] == kept_in(full)["encoder.block.0"]
    assert by_block["encoder.block.1"] == kept_in(none)["encoder.block.1"]


# 10 and 11: precision


def test_10_gradients_summed_in_float32_take_twice_the_buffers():
    wide, narrow = planned(), planned("precision.reduce=bfloat16")

    def reduction(found: MemoryVerdict) -> int:
        return max(b.size for b in found.tape.blocks if b.kind == "reduction")

    assert reduction(wide) == 2 * reduction(narrow)
    assert wide.replayed.allocated > narrow.replayed.allocated


def test_11_each_part_of_mixed_precision_changes_the_bytes_of_its_own():
    mixed = planned()
    single = planned("precision.param=float32")
    norms = planned('precision.keep_float32=["*layer_norm"]')
    lower = planned("precision.master=bfloat16", "optimizer.rounding=stochastic")
    block = "decoder.block.1"
    assert whole(single)[block] == pytest.approx(2 * whole(mixed)[block], rel=0.01)
    assert single.weights == mixed.weights
    assert lower.weights == pytest.approx(mixed.weights / 2, rel=0.01)
    assert lower.optimizer == pytest.approx(mixed.optimizer / 2, rel=0.01)
    # Norms in float32 are gathered in four bytes, and what they return is cast back.
    gathered = {size for unit, size in whole(norms).items() if "layer_norm" in unit}
    assert gathered == {2 * 4 * WIDTH, 3 * 4 * WIDTH}
    assert norms.kept.bytes > mixed.kept.bytes


# 12 to 14: over which ranks


def test_12_a_hybrid_shards_over_a_node_and_needs_two_more_groups():
    full, hybrid = planned(), planned("sharding.strategy=hybrid_shard")
    # Over two ranks, and not over four; the world sums what all ranks count, in either.
    assert states(hybrid) == pytest.approx(2 * states(full), rel=0.001)
    assert (full.outside.communicators, hybrid.outside.communicators) == (1, 3)
    assert hybrid.outside.nccl > full.outside.nccl


def test_13_resharding_to_fewer_ranks_keeps_a_part_of_each_unit():
    full, few = planned(), planned("sharding.reshard_to=2")
    blocks = 2 * (ENCODER + DECODER)
    more = held_at_backward(few) - held_at_backward(full)
    assert more == pytest.approx(2 * blocks / 2, rel=0.05)  # bfloat16, over two ranks
    assert states(few) == states(full)
    assert few.outside.communicators > full.outside.communicators


def held_at_backward(found: MemoryVerdict) -> int:
    """All that there is when backward begins, but for activations."""
    begin, end = last_step(found.tape)
    first = min(
        b.born for b in found.tape.blocks if begin < b.born <= end and b.phase == "backward"
    )
    there = alive_at(found.tape, first - 1)
    return sum(b.size for b in there if b.kind not in ("activations", "logits", "temporary"))


def test_14_without_resharding_after_forward_all_units_are_whole_at_once():
    full, kept = planned(), planned("sharding.strategy=shard_grad_op")
    assert len([unit for unit in kept.units if ".block." in unit]) == 4
    assert len([unit for unit in full.units if ".block." in unit]) <= 2
    root = 2 * 2 * 1024 * WIDTH
    weights = [
        sum(size for unit, size in f.units.items() if unit != "messages") for f in (full, kept)
    ]
    assert weights[0] <= root + 2 * 2 * DECODER + 2**14
    assert weights[1] >= 2 * 2 * (ENCODER + DECODER)


# Debugging


def test_the_layer_that_holds_most_activations_is_named_first():
    found = planned(model=f"{MODELS}:one_wide")
    name, held = next(iter(found.kept.by_layer.items()))
    assert name == "layers.1"
    rows_, width = 4 * 48, 64
    assert held == pytest.approx(rows_ * width * 2 * (32 * 2 + 2), rel=0.1)
    assert f"most by {name}" in "\n".join(table(found))


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_the_units_that_hold_unsharded_memory_are_named(engine: str):
    found = planned(f"sharding.engine={engine}")
    assert whole(found)["decoder.block.1"] == pytest.approx(2 * DECODER, rel=0.02)
    units = {unit: size for unit, size in found.units.items() if unit != "messages"}
    assert units.items() <= whole(found).items()
    (line,) = [line for line in table(found) if line.startswith("gathered")]
    assert all(unit in line for unit in [*units][:1])


def test_a_checkpointed_layer_that_keeps_hold_of_its_insides_is_named():
    full = "sharding.activation_checkpointing=full"
    good, bad = (planned(full, model=f"{MODELS}:{name}") for name in ("reader", "hoarding"))
    assert len(good.kept.checkpointed) == len(bad.kept.checkpointed) == 3
    assert not good.kept.inside
    inner = 4 * 48 * 4 * 64 * 2
    assert bad.kept.inside == {f"layers.{k}": inner for k in range(3)}
    assert "keep nothing but their results" in "\n".join(table(good))
    (line,) = [line for line in table(bad) if "not released by checkpointing" in line]
    assert "layers.0" in line
