"""What a plan takes and says, as far as no training step is run for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.config.gpu_models import GPU_MODELS
from fsdpkit.config.profile import NodeType
from fsdpkit.config.site import load_site
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
    [
        ("h100-80", "H100-80"),
        ("H200", "H200-141"),
        ("A100 40GB", "A100-40"),
        ("48", "48 GB"),
        ("nvidia_a100-sxm4-80gb", "A100-80"),
        ("a100_80gb", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80"),
        ("NVIDIA A100-SXM-64GB", "A100-64"),
        ("h100", "H100-80"),
        ("h100-64", "H100-64"),
        ("h100nvl", "H100-NVL-94"),
        ("gh200", "GH200-96"),
        ("NVIDIA GH200 120GB", "GH200-96"),  # of its CPU's memory
        ("NVIDIA GH200 144G HBM3e", "GH200-144"),
        ("NVIDIA B300 SXM6 AC", "B300-270"),
        ("gb200 nvl72", "GB200-186"),
        ("NVIDIA H20-3e", "H20-141"),
        ("Tesla V100-SXM2-16GB", "V100-16"),
        ("rtx6000ada", "6000-Ada-48"),
        ("nvidia_geforce_rtx_3090", "3090-24"),
        ("AMD Instinct MI250X", "MI250X-64"),
        ("Intel(R) Data Center GPU Max 1550", "Max1550-64"),
    ],
)
def test_a_gpu_goes_by_name_or_memory(said: str, name: str):
    assert card_named(said).name == name


@pytest.mark.parametrize(
    ("said", "say"),
    [
        ("a100", "a100-80 or a100-40"),
        ("h1000", "h100-80"),
        ("h100 pcle", "h100-pcie-80"),
        ("a100-24", "a100-64"),
        ("a100_3g.20gb", "--gpu 48"),
        ("", "--gpu 48"),
        ("-5", "--gpu 48"),
        ("h100; rm -rf", "--gpu 48"),
    ],
)
def test_another_is_refused_with_what_to_say(said: str, say: str):
    with pytest.raises(UsageError, match=f"--gpu.*{say}"):
        card_named(said)


def test_each_gpu_of_the_table_goes_by_its_own_name_and_has_no_more_than_dense_peaks():
    for row in GPU_MODELS:
        assert card_named(row.name).name == row.name
        assert card_named(row.name).memory == row.memory_mib * 2**20
        assert row.source
        if row.capability is not None and row.capability < (8, 0):
            assert row.bfloat16 is None
        if row.rates is not None:
            peak, float32, memory, links = row.rates
            assert float32 < peak < 3000
            assert links / 1000 < memory < 10


def test_the_gpus_of_all_published_profiles_are_known():
    nodes = [
        node
        for file in (Path(__file__).parents[2] / "site" / "profiles").rglob("*.toml")
        for node in load_site(str(file)).profile.node_types.values()
        if node.gpu and node.gpu_memory_gb
    ]
    assert len(nodes) > 40
    assert [node.gpu for node in nodes if not card_of(node, "site").known] == []


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
    assert (found.fit, found.replayed.allocated // GIB) == ("tight", 60)


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
