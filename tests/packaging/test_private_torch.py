"""What torch keeps for itself and this package touches is there, with the parameters it had.

A new release of torch that moves one fails here by its name, before it fails in a training.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.installation import ROOT

pytestmark = pytest.mark.torch

AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent:LocalElasticAgent"
PROCESS = "torch.distributed.elastic.multiprocessing.subprocess_handler:SubprocessHandler"

SIGNATURES = {
    # Overridden, or called with more than a tensor: parameters by name.
    f"{AGENT}._monitor_workers": ("self", "worker_group"),
    f"{AGENT}._rendezvous": ("self", "worker_group"),
    f"{AGENT}._start_workers": ("self", "worker_group"),
    f"{AGENT}._exit_barrier": ("self",),
    f"{PROCESS}._popen": ("self", "args", "env"),
    "torch._guards:detect_fake_mode": ("inputs",),
    "torch.cuda.memory:_dump_snapshot": ("filename", "augment_with_fx_traces"),
    "torch.distributed.tensor._utils:compute_local_shape_and_global_offset": (
        *("global_shape", "mesh", "placements", "skip_offset"),
    ),
    "torch._library.simple_registry:singleton.find": ("qualname",),
    "torch.distributed.fsdp._flat_param:_data_ptr_allocated": ("tensor",),
    "torch.distributed.fsdp._flat_param:_same_storage": ("a", "b"),
    "torch.distributed.fsdp._flat_param:FlatParamHandle._get_unpadded_shard": (
        *("tensor", "rank", "world_size"),
    ),
    "torch.distributed.fsdp._runtime_utils:_get_reduce_scatter_tensors": (
        *("state", "unsharded_grad"),
    ),
    "torch.distributed.tensor:Shard._custom_chunk": ("tensor", "num_chunks", "dim"),
    "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty": (
        *("tensor", "num_chunks", "dim"),
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_init:_get_post_forward_mesh_info": (
        *("reshard_after_forward", "mesh_info"),
    ),
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


@pytest.mark.parametrize("name", SIGNATURES)
def test_torch_calls_and_is_called_as_it_was(name: str) -> None:
    assert tuple(inspect.signature(found(name)).parameters) == SIGNATURES[name]


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_torchelastic_sets_it(attribute: str) -> None:
    assert f"self.{attribute}" in inspect.getsource(found(ATTRIBUTES[attribute]))


def private_names(path: Path) -> Iterator[str]:
    """`module:name` of what a file takes from torch that is private, or in a private module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            dotted = [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"torch[.\w]+", ast.unparse(node)):
            dotted = [("torch", ast.unparse(node).removeprefix("torch."))]
        else:
            continue
        for module, name in dotted:
            if any(re.match("_[^_]", part) for part in (*module.split("."), *name.split("."))):
                yield f"{module}:{name}"


def test_torch_has_every_private_name_that_is_touched() -> None:
    sources = [*(ROOT / "fsdpkit").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    touched = {name for path in sources for name in private_names(path)}
    assert len(touched) > 40
    assert [name for name in sorted(touched) if not is_there(name)] == []


def is_there(name: str) -> bool:
    try:
        found(name)
    except (AttributeError, ImportError):
        return False
    return True
