"""Where either engine keeps a unit's whole weights while they are gathered."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, UntypedStorage, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

ROOT = "the root"
"""The unit of what no other unit has."""


def gathered_into(model: nn.Module) -> Iterator[tuple[str, UntypedStorage]]:
    """Each storage with the path of its unit's first module, as far as they were made."""
    for path, module in model.named_modules():
        if isinstance(module, FSDPModule):
            groups = module._get_fsdp_state()._fsdp_param_groups
            for parameter in (each for group in groups for each in group.fsdp_params):
                for output in getattr(parameter, "all_gather_outputs", ()):
                    yield path, output.untyped_storage()
        elif isinstance(module, FSDP1) and (handle := module._handle) is not None:
            for name in ("_full_param_padded", "_full_prec_full_param_padded"):
                padded = getattr(handle.flat_param, name, None)
                if padded is not None:
                    yield path, padded.untyped_storage()


def resharded(model: nn.Module) -> Iterator[Tensor]:
    """What FSDP2 keeps of gathered weights between forward and backward, with `reshard_to`."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            groups = module._get_fsdp_state()._fsdp_param_groups
            for parameter in (each for group in groups for each in group.fsdp_params):
                kept = getattr(parameter, "_sharded_post_forward_param_data", None)
                if kept is not None:
                    yield kept
