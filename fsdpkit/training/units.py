"""Which modules are gathered together: a model cut into units, by class, by size or by name.

A unit's weights are all-gathered in one message, used, and freed as a whole, so units decide both
how large messages are and how much is in memory at once. What belongs to no unit belongs to the
root, which stays gathered from the first layer to the last. Nothing here communicates or changes
the model; `fsdpkit.training.sharding` hands the result to either engine.

A module's path is its dotted name in the model as it was written, whatever wraps it now.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from fsdpkit.config.training import ShardingSettings
from fsdpkit.errors import ConfigError

TINY = 10_000
"""Parameters below which a unit's message costs more than the memory it saves."""

IsUnit = Callable[[str, nn.Module], bool]
"""Whether the module of this path is a unit."""

_OWN_BLOCKS = "_no_split_modules"
_WRAPPERS = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


@dataclass(frozen=True)
class ShardedUnit:
    """Modules whose weights are gathered and freed together."""

    path: str  # of the first module
    modules: tuple[nn.Module, ...]
    float32: bool = False  # its weights are gathered and used in float32
    inner: bool = False  # the full-precision part of a larger unit, gathered beside it
    last: bool = False  # forward ends and backward begins with it: not freed in between


def plain_name(name: str) -> str:
    """A parameter's or module's name as the unwrapped model has it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def walk(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every (path, module), parents first, in order of definition; the root's path is "".

    A checkpoint wrapper stands for the block in it. A module with two names comes twice.
    """
    yield path, model
    for name, child in unwrapped(model)._modules.items():
        if child is not None:
            yield from walk(child, f"{path}.{name}" if path else name)


def unwrapped(module: nn.Module) -> nn.Module:
    """The block inside a checkpoint wrapper, or the module itself."""
    while isinstance(module, CheckpointWrapper):
        module = module._checkpoint_wrapped_module
    return module


def block_paths(model: nn.Module, blocks: Collection[type[nn.Module]]) -> list[str]:
    """Paths of the outermost modules of the given classes; ConfigError if there is none.

    The model itself does not count.
    """
    paths: list[str] = []
    for path, module in walk(model):
        if path and isinstance(unwrapped(module), tuple(blocks)) and not _around(path, paths):
            paths.append(path)
    if not paths:
        names = ", ".join(block.__name__ for block in blocks) or "none were given"
        if not blocks and hasattr(model, _OWN_BLOCKS):
            named = ", ".join(sorted(getattr(model, _OWN_BLOCKS) or ())) or "nothing"
            names = f"none were given, and its {_OWN_BLOCKS} names {named}"
        raise ConfigError(
            f"{type(model).__name__} has no module of the block classes ({names}): pass `blocks` "
            "the classes of its large repeated layers."
        )
    return paths


def own_blocks(model: nn.Module) -> list[type[nn.Module]]:
    """The block classes that a model of transformers names itself; empty for any other.

    Some also name embeddings there, of which there is one: of classes that come more than once
    only those count.
    """
    names = {*(getattr(model, _OWN_BLOCKS, None) or ())}
    counts: dict[type[nn.Module], int] = defaultdict(int)
    for path, module in walk(model):
        if path and type(unwrapped(module)).__name__ in names:
            counts[type(unwrapped(module))] += 1
    repeated = [kind for kind, count in counts.items() if count > 1]
    return repeated or [*counts]


def matching_paths(model: nn.Module, patterns: Sequence[str], key: str) -> list[str]:
    """Paths of the modules that fit one of `patterns`, in order of definition.

    A pattern is a shell's (`*`, `?`, `[…]`), and `*` also crosses dots; of modules inside one
    another that fit the same pattern the outermost counts. Lists of modules (nn.ModuleList) have no
    forward and are passed over. Raises ConfigError, naming `key`, for a pattern that fits nothing.
    """
    named = [(path, module) for path, module in walk(model) if path and _runs(module)]
    found: set[str] = set()
    for pattern in patterns:
        fits: list[str] = []
        for path, _ in named:
            if fnmatch.fnmatchcase(path, pattern) and not _around(path, fits):
                fits.append(path)
        if not fits:
            raise ConfigError(
                f"{key}: {pattern!r} fits no module of {type(model).__name__}. Its modules are "
                f"named like {', '.join(path for path, _ in named[:4])}."
            )
        found.update(fits)
    return [path for path, _ in named if path in found]


def outermost(paths: Sequence[str]) -> list[str]:
    """`paths` without those inside another of them."""
    return [p for p in paths if not any(_within(p, other) for other in paths if other != p)]


def find_units(
    model: nn.Module,
    sharding: ShardingSettings,
    blocks: Collection[type[nn.Module]],
    kept: Sequence[str] = (),
    is_unit: IsUnit | None = None,
    last: Sequence[str] = (),
) -> list[ShardedUnit]:
    """The units of `model`, those around others first; the root is none of them.

    `kept` are paths of modules that compute in float32 while the rest does not; `last` those of
    modules beside the blocks that are units under wrap = "class", too. Raises ConfigError
    for block classes or patterns that the model lacks, an `is_unit` that finds nothing, and a
    weight tied across units.
    """
    if is_unit is not None:
        paths = _chosen_by(model, is_unit)
    elif sharding.wrap == "class":
        paths = block_paths(model, blocks)
    elif sharding.wrap == "names":
        paths = matching_paths(model, sharding.wrap_names, "training.sharding.wrap_names")
    else:
        paths = _by_size(model, sharding.wrap_parameters, blocks)
    last = last if is_unit is None and sharding.wrap == "class" else ()
    last = [path for path in last if not _around(path, kept)]
    paths += last
    paths += [p for p in kept if p not in paths and any(_within(unit, p) for unit in paths)]

    groups = _neighbours(paths, sharding.blocks_per_unit, kept)
    named_by_hand = sharding.wrap == "names" and sharding.engine == "fsdp2"
    groups = _with_ties_together(model, groups, merge=named_by_hand)
    modules = dict(walk(model))
    with_weights = [path for path in kept if any(True for _ in modules[path].parameters())]
    units = [(group, _around(group[0], kept) is not None, False) for group in groups]
    units += [(group, True, True) for group in _kept_inside(groups, with_weights)]
    order = {path: number for number, path in enumerate(modules)}
    return [
        ShardedUnit(
            group[0], tuple(modules[path] for path in group), float32, inner, group[0] in last
        )
        for group, float32, inner in sorted(units, key=lambda unit: order[unit[0][0]])
    ]


def _chosen_by(model: nn.Module, is_unit: IsUnit) -> list[str]:
    able = [(path, unwrapped(module)) for path, module in walk(model) if path and _runs(module)]
    paths = [path for path, module in able if is_unit(path, module)]
    if not paths:
        raise ConfigError(
            f"is_unit chose no module of {type(model).__name__}: it is asked for each with its "
            f"path, such as {', '.join(path for path, _ in able[:4])}."
        )
    return paths


def warning_about_tiny(units: Sequence[ShardedUnit]) -> str | None:
    """One line when units are too small to be worth a message of their own."""
    sizes = {
        unit.path: sum(p.numel() for module in unit.modules for p in module.parameters())
        for unit in units
        if not unit.inner
    }
    tiny = {path: size for path, size in sizes.items() if size < TINY}
    if not tiny:
        return None
    path, size = min(tiny.items(), key=lambda item: item[1])
    return (
        f"warning    {len(tiny)} of {len(sizes)} sharding units have fewer than {TINY:,} "
        f"parameters ({path}: {size:,}), so messages cost more than they save: raise "
        "training.sharding.blocks_per_unit or wrap larger modules"
    )


def _by_size(model: nn.Module, least: int, blocks: Collection[type[nn.Module]]) -> list[str]:
    """Bottom-up: a module is a unit as soon as `least` parameters in it are in no other unit.

    Blocks are not cut: their code may use inner weights directly. Nor are embeddings taken out of
    what surrounds them, whose head may be the same weight, nor modules tied to something outside.
    """
    ties = _ties(model)
    seen: set[nn.Parameter] = set()
    units: list[str] = []

    def rest_of(path: str, module: nn.Module) -> int:
        """Parameters in `module` that are in no unit yet, each counted once."""
        inner = unwrapped(module)
        whole = isinstance(inner, tuple(blocks))
        own = [p for p in inner.parameters(recurse=whole) if p not in seen]
        seen.update(own)
        rest = sum(p.numel() for p in own)
        if not whole:
            for name, child in inner._modules.items():
                if child is not None:
                    rest += rest_of(f"{path}.{name}" if path else name, child)
        ties_leave = any(len({_within(p, path) for p in owners}) > 1 for owners in ties)
        if (
            rest >= least
            and path
            and _runs(module)
            and not isinstance(inner, nn.Embedding)
            and not ties_leave
        ):
            units.append(path)
            return 0
        return rest

    rest_of("", model)
    return units


def _neighbours(paths: Sequence[str], count: int, kept: Sequence[str]) -> list[list[str]]:
    """Runs of up to `count` paths that follow one another in one parent, in one precision."""
    groups: list[list[str]] = []
    kind_before: tuple[str, bool] | None = None
    for path in paths:
        kind = (path.rpartition(".")[0], _around(path, kept) is not None)
        if groups and kind == kind_before and len(groups[-1]) < count:
            groups[-1].append(path)
        else:
            groups.append([path])
        kind_before = kind
    return groups


def _kept_inside(groups: Sequence[Sequence[str]], kept: Sequence[str]) -> list[list[str]]:
    """Full-precision modules inside each unit (or the root), as groups of their own."""
    owner = {path: number for number, group in enumerate(groups) for path in group}
    inside: dict[int, list[str]] = defaultdict(list)
    for path in kept:
        if path not in owner:
            inside[owner.get(_around(path, owner) or "", -1)].append(path)
    return list(inside.values())


def _with_ties_together(
    model: nn.Module, groups: list[list[str]], *, merge: bool
) -> list[list[str]]:
    """`groups` as they are when no weight is in two of them, else those joined, or ConfigError."""
    for owners in _ties(model):
        owner = {path: number for number, group in enumerate(groups) for path in group}
        numbers = {owner.get(_around(path, owner) or "", -1) for path in owners}
        if len(numbers) == 1:
            continue
        if not merge or -1 in numbers:
            raise ConfigError(
                f"{' and '.join(owners)} share a weight, but are not in the same sharding unit. "
                "Keep tied layers (embedding and head, say) outside the units: then both belong "
                'to the root. Or, with fsdp2, name both in wrap_names under wrap = "names": then '
                "they are gathered together."
            )
        first, *others = sorted(numbers)
        groups[first] = [path for number in (first, *others) for path in groups[number]]
        groups = [group for number, group in enumerate(groups) if number not in others]
    return groups


def _ties(model: nn.Module) -> list[list[str]]:
    """For each weight with several names: the paths of the modules that have it."""
    owners: dict[nn.Parameter, list[str]] = defaultdict(list)
    for path, module in walk(model):
        for parameter in unwrapped(module)._parameters.values():
            if parameter is not None:
                owners[parameter].append(path)
    return [paths for paths in owners.values() if len(set(paths)) > 1]


def _runs(module: nn.Module) -> bool:
    """Whether `module` has a forward, where gathering could hook in; a list of modules has none."""
    return type(unwrapped(module)).forward is not nn.Module.forward


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.") or not outer


def _around(path: str, paths: Collection[str]) -> str | None:
    """The innermost of `paths` that is `path` or holds it."""
    return max((p for p in paths if _within(path, p)), key=len, default=None)
