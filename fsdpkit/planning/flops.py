"""How many operations a call of torch computes: products and attention, a multiply-add as two."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import flop_registry


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """`torch.utils.flop_counter`'s count, which leaves masks aside: a causal attention computes
    half of its scores."""
    count = flop_registry.get(getattr(func, "overloadpacket", func))
    if count is None:
        return 0
    flops = int(count(*args, **kwargs, out_val=result))
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return flops // 2 if given.get("is_causal") is True else flops
