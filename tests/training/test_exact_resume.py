"""Stopped and continued, a run is the run it would have been.

Where the number of ranks is the same, bit for bit: losses, weights, optimizer, random generators.
Elsewhere the same samples in the same steps, and losses to rounding.
"""

from __future__ import annotations

import json

import pytest
from launch import findings

SAME = [
    *(f"every step from {step}" for step in (1, 5)),
    *("fsdp1, buckets", "groups, packed", "fsdp1 no_shard, spans, sgd", "float16"),
    *("bfloat16, a scheduler of torch", "micro batches, recomputed", "bfloat16 weights"),
    *("fsdp1 ignored, not in the background", "patient", "epochs"),
]
ELSEWHERE = [
    *((2, name) for name in ("fsdp1", "no_shard", "hybrid", "micro batches")),
    (3, "fsdp1"),
    *((4, name) for name in ("no_shard", "hybrid")),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict]:
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        {"source": f"count to {i}", "target": " ".join("abcdefg"[: i % 7 + 1])}
        for i in range(1, 45)
    ]  # an epoch is three and a half steps
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {ranks: findings(ranks, "exact_resume", folder) for ranks in (2, 3, 4)}


@pytest.mark.parametrize("name", SAME)
def test_on_the_same_ranks_a_continued_run_is_the_same_bit_for_bit(found, name):
    name = name if " from " in name else f"{name} from 3"
    case, start = found[2]["same"][name], int(name.rpartition(" ")[2])
    reference, continued = case["reference"], case["continued"]
    steps = [int(step) for step in reference["numbers"]]
    assert [int(step) for step in continued["numbers"]] == [s for s in steps if s > start]
    for step, numbers in continued["numbers"].items():
        assert numbers == reference["numbers"][step], f"step {step}"
    assert case["different"] == []


def test_what_is_counted_has_counted_when_the_run_is_stopped(found):
    """Otherwise the comparison would show nothing of the loss scale and of patience."""
    losses = [
        numbers[0]
        for numbers in found[2]["same"]["float16 from 3"]["reference"]["numbers"].values()
    ]
    assert losses[0] is None
    assert losses[3:].count(None) == 0
    assert list(found[2]["same"]["patient from 3"]["reference"]["numbers"]) == list("12345")


def test_every_rank_s_generators_go_on_where_they_were(found):
    draws = found[2]["generators"]
    assert draws["resumed"] == draws["went on"]
    assert len({number for rank in draws["went on"] for number in rank}) == 6  # each its own


@pytest.mark.parametrize(("ranks", "name"), ELSEWHERE)
def test_on_other_ranks_or_strategies_the_samples_are_the_same(found, ranks, name):
    reference, continued = found[2]["plain"], found[ranks]["other"][name]
    assert [int(step) for step in continued["samples"]] == [4, 5, 6]
    for step, digest in continued["samples"].items():
        assert digest == reference["samples"][step], f"step {step}"


@pytest.mark.parametrize(("ranks", "name"), ELSEWHERE)
def test_on_other_ranks_or_strategies_losses_agree_to_rounding(found, ranks, name):
    reference, continued = found[2]["plain"], found[ranks]["other"][name]
    for step, (loss, norm, tokens) in continued["numbers"].items():
        same_loss, same_norm, same_tokens = reference["numbers"][step]
        assert tokens == same_tokens
        # Sums in another order; what AdamW makes of that grows over the three steps.
        assert loss == pytest.approx(same_loss, rel=2e-5), f"step {step}"
        assert norm == pytest.approx(same_norm, rel=1e-3), f"step {step}"
