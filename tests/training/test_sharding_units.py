"""How a model is cut into units: by class, by size, by name, with what stays in float32."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fsdpkit.config.training import ShardingSettings
from fsdpkit.errors import ConfigError
from fsdpkit.training.activation_checkpointing import checkpoint_activations
from fsdpkit.training.units import (
    ShardedUnit,
    find_units,
    matching_paths,
    outermost,
    walk,
)


class Block(nn.Module):
    """272 parameters in two matrices, 32 in a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.first = nn.Linear(16, 8, bias=False)
        self.second = nn.Linear(8, 18, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.norm(x)))


class Model(nn.Module):
    """An embedding, two stacks of blocks in lists, a head."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.left = nn.ModuleList(Block() for _ in range(3))
        self.right = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 100, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def units(
    model: nn.Module, blocks: Any = (Block,), kept: Any = (), **sharding: Any
) -> list[ShardedUnit]:
    return find_units(model, ShardingSettings(**sharding), blocks, kept)


def paths(found: list[ShardedUnit]) -> list[str]:
    return [unit.path for unit in found]


def test_by_class_each_block_is_a_unit_in_order_of_definition() -> None:
    expected = ["left.0", "left.1", "left.2", "right.0", "right.1", "right.2"]
    assert paths(units(Model())) == expected


def test_what_forward_ends_with_is_a_unit_beside_blocks_and_is_not_freed_before_backward() -> None:
    found = find_units(Model(), ShardingSettings(), (Block,), last=("head",))
    assert paths(found) == [*paths(units(Model())), "head"]
    assert [unit.path for unit in found if unit.last] == ["head"]
    by_name = ShardingSettings(wrap="names", wrap_names=("left.*",))
    assert not any(unit.last for unit in find_units(Model(), by_name, (Block,), last=("head",)))
    in_float32 = find_units(Model(), ShardingSettings(), (Block,), ("head",), last=("head",))
    assert not any(unit.last for unit in in_float32), "computes otherwise than the blocks"
    with pytest.raises(ConfigError, match="embed and head share a weight"):
        find_units(Model(tied=True), ShardingSettings(), (Block,), last=("head",))


def test_a_checkpointed_block_is_the_unit_with_its_wrapper_and_keeps_its_path() -> None:
    model = Model()
    checkpoint_activations(model, [Block])
    found = units(model)
    assert paths(found)[0] == "left.0"
    assert found[0].modules == (model.left[0],)
    assert not isinstance(model.left[0], Block)
    assert paths(units(model, wrap="names", wrap_names=("left.?.norm",)))[0] == "left.0.norm"


def test_block_classes_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Model has no module of the block classes \(GRU\)"):
        units(Model(), blocks=(nn.GRU,))
    with pytest.raises(ConfigError, match="none were given"):
        units(Model(), blocks=())


def test_neighbours_share_a_unit_within_one_parent_only() -> None:
    found = units(Model(), blocks_per_unit=2)
    assert paths(found) == ["left.0", "left.2", "right.0", "right.2"]
    assert [len(unit.modules) for unit in found] == [2, 1, 2, 1]


def test_by_size_small_modules_are_gathered_with_what_holds_them() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10)), nn.Linear(10, 30)
    )
    assert paths(units(model, (), wrap="size", wrap_parameters=111)) == ["0", "1"]
    assert paths(units(model, (), wrap="size", wrap_parameters=110)) == ["0.0", "0.2", "1"]
    assert paths(units(model, (), wrap="size", wrap_parameters=331)) == []


trees = st.recursive(
    st.integers(1, 6).map(lambda n: nn.Linear(n, n, bias=False)),
    lambda children: st.lists(children, min_size=1, max_size=4).map(lambda c: nn.Sequential(*c)),
    max_leaves=12,
)


@given(trees, st.integers(1, 60))
def test_by_size_units_reach_the_least_and_what_is_left_over_does_not(
    tree: nn.Module, least: int
) -> None:
    model = nn.Sequential(tree)
    found = {unit.path for unit in units(model, (), wrap="size", wrap_parameters=least)}

    def rest(path: str, module: nn.Module) -> int:
        inside = {p for p, _ in walk(module, path)} & found - {path}
        taken = {id(w) for p, m in walk(module, path) if p in inside for w in m.parameters()}
        return sum(w.numel() for w in module.parameters() if id(w) not in taken)

    for path, module in walk(model):
        if path:
            assert (rest(path, module) >= least) == (path in found)


def test_by_name_patterns_take_the_outermost_that_runs() -> None:
    named = units(Model(), wrap="names", wrap_names=("left.*", "head"))
    assert paths(named) == ["left.0", "left.1", "left.2", "head"]  # "left" itself is a list


def test_by_name_a_unit_may_hold_others_and_comes_before_them() -> None:
    named = units(Model(), wrap="names", wrap_names=("right.0.*", "right.0"))
    assert paths(named) == ["right.0", "right.0.norm", "right.0.first", "right.0.second"]


def test_a_pattern_that_fits_nothing_is_named_with_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"wrap_names: 'middle\.\*' fits no module of Model"):
        units(Model(), wrap="names", wrap_names=("left.*", "middle.*"))
    with pytest.raises(ConfigError, match="'left' fits no module"):  # a list has no forward
        units(Model(), wrap="names", wrap_names=("left",))


def test_kept_modules_are_gathered_once_per_unit_and_once_for_the_root() -> None:
    model = Model()
    kept = outermost(matching_paths(model, ["*norm"], "keep"))
    found = units(model, kept=kept, blocks_per_unit=3)
    assert [(u.path, len(u.modules), u.float32, u.inner) for u in found] == [
        ("left.0", 3, False, False),
        ("left.0.norm", 3, True, True),
        ("right.0", 3, False, False),
        ("right.0.norm", 3, True, True),
        ("norm", 1, True, True),
    ]


def test_a_tie_across_units_is_refused_unless_both_were_named() -> None:
    names = {"wrap": "names", "wrap_names": ("embed", "head")}
    (pair,) = units(Model(tied=True), **names)
    assert len(pair.modules) == 2
    for refused in ({**names, "engine": "fsdp1"}, {**names, "wrap_names": ("head",)}):
        with pytest.raises(ConfigError, match="embed and head share a weight"):
            units(Model(tied=True), **refused)
