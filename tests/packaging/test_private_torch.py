"""What torch keeps for itself and this package touches: each name, as it was when it was read.

A new release of torch that moves one fails here by its name, before it fails in a training. What
the package touches and this table lacks fails, too.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.installation import ROOT

pytestmark = pytest.mark.torch

AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent:LocalElasticAgent"
PROCESS = "torch.distributed.elastic.multiprocessing.subprocess_handler:SubprocessHandler"
CHECKPOINTING = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"

# Overridden or called, with parameters where Python knows them.
NAMES: dict[str, tuple[str, ...] | None] = {
    f"{AGENT}._monitor_workers": ("self", "worker_group"),
    f"{AGENT}._rendezvous": ("self", "worker_group"),
    f"{AGENT}._start_workers": ("self", "worker_group"),
    f"{AGENT}._exit_barrier": ("self",),
    f"{PROCESS}._popen": ("self", "args", "env"),
    f"{CHECKPOINTING}:CheckpointWrapper": None,
    f"{CHECKPOINTING}:checkpoint_wrapper": None,
    "torch._guards:detect_fake_mode": ("inputs",),
    "torch.serialization:_get_layout": ("name",),
    "torch.utils._pytree:tree_map_only": None,
    "torch:_amp_foreach_non_finite_check_and_unscale_": None,
    "torch:_assert_async": None,
    "torch:_foreach_add_": None,
    "torch:_foreach_addcmul_": None,
    "torch:_foreach_clamp_min_": None,
    "torch:_foreach_div_": None,
    "torch:_foreach_lerp_": None,
    "torch:_foreach_mul_": None,
    "torch:_foreach_norm": None,
    "torch:_foreach_reciprocal_": None,
    "torch:_foreach_rsqrt_": None,
    "torch:_foreach_sqrt": None,
    "torch:_fused_sdp_choice": None,
    "torch.cuda.memory:_dump_snapshot": ("filename", "augment_with_fx_traces"),
    "torch.cuda.memory:_record_memory_history": None,
    "torch.distributed.tensor._utils:compute_local_shape_and_global_offset": (
        "global_shape",
        "mesh",
        "placements",
        "skip_offset",
    ),
    "torch:_meta_registrations": None,
    "torch.nn.modules.batchnorm:_BatchNorm": None,
    "torch:_C._autograd._get_sequence_nr": None,
    "torch:_C._current_autograd_node": None,
    "torch:_C._current_graph_task_id": None,
    "torch:_C._dispatch_has_kernel_for_dispatch_key": None,
    "torch._library:simple_registry": None,
    "torch._library.simple_registry:singleton.find": ("qualname",),
    "torch._subclasses.fake_tensor:FakeTensor": None,
    "torch._subclasses.fake_tensor:FakeTensorMode": None,
    "torch._subclasses.fake_tensor:unset_fake_temporarily": (),
    "torch.distributed.fsdp._flat_param:_data_ptr_allocated": ("tensor",),
    "torch.distributed.fsdp._flat_param:_same_storage": ("a", "b"),
    "torch.distributed.fsdp._flat_param:FlatParamHandle._get_unpadded_shard": (
        "tensor",
        "rank",
        "world_size",
    ),
    "torch.distributed.fsdp._runtime_utils:_get_reduce_scatter_tensors": (
        "state",
        "unsharded_grad",
    ),
    "torch.distributed.tensor:Shard._custom_chunk": ("tensor", "num_chunks", "dim"),
    "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty": (
        "tensor",
        "num_chunks",
        "dim",
    ),
    "torch.distributed.fsdp._fully_shard:_fsdp_param": None,
    "torch.distributed.fsdp:_flat_param": None,
    "torch.distributed.fsdp:_runtime_utils": None,
    "torch.distributed.fsdp._fully_shard:_fully_shard": None,
    "torch.distributed.fsdp._fully_shard._fsdp_init:_get_post_forward_mesh_info": (
        "reshard_after_forward",
        "mesh_info",
    ),
    "torch.distributed.tensor._sharding_prop:ShardingPropagator": None,
    "torch.testing._internal.distributed.fake_pg:FakeStore": None,
    "torch._functorch.aot_autograd:aot_function": None,
    "torch._functorch.partitioners:get_default_op_list": (),
    "torch._inductor.compile_fx:_recursive_joint_graph_passes": None,
    "torch._inductor.compile_fx:partition_fn": None,
    "torch._inductor.decomposition:select_decomp_table": (),
    "torch._inductor.virtualized:V": None,
    "torch.utils._python_dispatch:_disable_current_modes": None,
    "torch.utils._pytree:tree_flatten": None,
    "torch.utils._pytree:tree_unflatten": None,
    "torch.utils.checkpoint:_checkpoint_without_reentrant_generator": None,
    "torch.utils._python_dispatch:TorchDispatchMode": None,
    "torch.utils._pytree:tree_iter": None,
    "torch.utils.backend_registration:_setup_privateuseone_for_python_backend": None,
    "torch:ops.aten._local_scalar_dense": None,
    "torch:ops.aten._scaled_dot_product_efficient_attention": None,
    "torch:_C._autograd": None,
}
# Attributes of torchelastic's objects, and the class whose source sets them.
ATTRIBUTES = {
    "_pcontext": "torch.distributed.elastic.agent.server.local_elastic_agent:LocalElasticAgent",
    "_stdout": PROCESS,
    "_stderr": PROCESS,
    "_failures": "torch.distributed.elastic.multiprocessing.api:SubprocessContext",
}


def found(name: str) -> Any:
    module, _, path = name.partition(":")
    thing: Any = importlib.import_module(module)
    for part in path.split("."):
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_it_as_it_was(name: str) -> None:
    thing = found(name)
    if (parameters := NAMES[name]) is not None:
        assert tuple(inspect.signature(thing).parameters) == parameters


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_torchelastic_sets_it(attribute: str) -> None:
    assert f"self.{attribute}" in inspect.getsource(found(ATTRIBUTES[attribute]))


def names_in(path: Path) -> Iterator[str]:
    """Names taken from torch; `_in.name` for those of modules that are themselves private."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            for alias in node.names:
                inside = any(part.startswith("_") for part in (node.module or "").split("."))
                yield f"_in.{alias.name}" if inside else alias.name
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[0] == "torch":
            yield node.attr


def test_the_table_has_every_private_name_that_is_touched() -> None:
    last = {name.rpartition(":")[2].rpartition(".")[2] for name in NAMES}
    known = last | {f"_in.{name}" for name in (*last, "_distributed_c10d")} | {"_C"}
    sources = [*(ROOT / "fsdpkit").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    touched = {(path.name, name) for path in sources for name in names_in(path)}
    private = {one for one in touched if one[1].startswith("_") and not one[1].startswith("__")}
    assert {one for one in private if one[1] not in known} == set()
