"""What a plan takes and says, as far as no training step is run for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.config.profile import NodeType
from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import TrustedScript
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.asked import AskedStep, resolved
from fsdpkit.planning.cards import card_named, card_of
from fsdpkit.planning.outside import outside
from fsdpkit.planning.plans import variations
from fsdpkit.planning.tape import MemoryBlock, Tape
from fsdpkit.planning.verdict import layer_of, verdict

GIB = 2**30


@pytest.mark.parametrize(
    ("said", "name"),
    [("h100-80", "H100-80"), ("H200", "H200-141"), ("A100 40GB", "A100-40"), ("48", "48 GB")],
)
def test_a_gpu_goes_by_name_or_memory(said: str, name: str):
    assert card_named(said).name == name


@pytest.mark.parametrize("said", ["a100", "h1000", "", "-5", "h100; rm -rf"])
def test_another_is_refused_with_what_to_say(said: str):
    with pytest.raises(UsageError, match="--gpu"):
        card_named(said)


def test_a_profile_names_the_card_by_model_and_memory():
    node = NodeType(gpu="NVIDIA A100 80 GB, NVLink", gpu_memory_gb=80)
    assert card_of(node, "site x") == card_named("a100-80")
    assert not card_of(NodeType(gpu="NVIDIA A1000", gpu_memory_gb=80), "site x").known
    with pytest.raises(ConfigError, match="site x does not say"):
        card_of(NodeType(gpu="NVIDIA A100"), "site x")


def test_each_group_of_ranks_takes_memory_of_its_own():
    card = card_named("h100-80")
    none, one, two = (outside(card, n, "2.13.0").nccl for n in (0, 1, 2))
    assert none == 0
    assert 0 < two - one < one


def test_another_torch_and_an_unknown_gpu_are_said():
    assert not outside(card_named("h100-80"), 1, "2.13.0+cu130").notes
    assert len(outside(card_named("48"), 1, "2.14.1").notes) == 2
    assert outside(card_named("h100-80"), 1, "2.130.0").notes


def test_values_to_try_are_cut_at_commas_outside_of_brackets():
    assert variations(["a.b=1,2", "c=[x,y],z"]) == [
        ("a.b=1", "c=[x,y]"),
        ("a.b=1", "c=z"),
        ("a.b=2", "c=[x,y]"),
        ("a.b=2", "c=z"),
    ]
    for wrong in ("a", "=1", "a=", "a=" + ",".join("x" * 65)):
        with pytest.raises(UsageError, match="--try"):
            variations([wrong])


def test_a_layer_is_named_up_to_its_number():
    assert layer_of("encoder.block.3.layer.0.SelfAttention") == "encoder.block.3"
    assert (layer_of("lm_head"), layer_of("")) == ("lm_head", "outside of modules")


@pytest.mark.parametrize(("size", "fit"), [(60, "fits"), (75, "does not fit")])
def test_torch_and_what_is_outside_share_95_percent_of_the_card(size: int, fit: str):
    tape = _tape([MemoryBlock(size * GIB, 0, 1, "forward", "", "mm", died=2)])
    assert verdict(_asked(), tape).fit == fit


def test_what_fits_only_after_cached_memory_is_given_back_is_tight():
    blocks = [
        MemoryBlock(40 * GIB, 1, 1, "forward", "", "mm", died=2),
        MemoryBlock(60 * GIB, 0, 3, "backward", "", "mm", died=4),
    ]
    found = verdict(_asked(), _tape(blocks))
    assert (found.fit, found.expandable.allocated // GIB) == ("tight", 60)


def test_what_is_planned_otherwise_than_it_runs_is_said():
    plain = load_settings({}, ["compile=false"])
    assert resolved(_asked())[1] != resolved(_asked(plain))[1] == ()
    auto = load_settings({}, ["compile=false", "micro_batch=auto"])
    assert "micro_batch" in " ".join(resolved(_asked(auto))[1])


def _asked(settings=None) -> AskedStep:
    return AskedStep(
        settings or load_settings({}), 2, 4, card_named("h100-80"), TrustedScript(Path("x.py"), b"")
    )


def _tape(blocks: list[MemoryBlock]) -> Tape:
    return Tape(blocks=blocks, events=4, steps=[4], groups={"0": 8}, torch="2.13.0")
