"""On four ranks: train the same small T5 under every setting, and once in plain torch.

Found, per case: losses and gradient norms of each step, the largest
difference of any weight, after all steps, from the plain run's, and what shows that the setting
took effect (units, values held, messages). The plain run holds the whole batch in one process and
knows nothing of FSDP.
"""

from __future__ import annotations

import functools
import io
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import IGNORE, PAD, T5, Block, T5Config, init_parameter
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.training.activation_checkpointing import _Offloaded, offload_activations
from fsdpkit.training.distributed import (
    Ranks,
    check_same_everywhere,
    sum_over_ranks,
)
from fsdpkit.training.gradients import clip_gradients, gradient_sync
from fsdpkit.training.sharding import shard
from fsdpkit.training.whole import whole_weights

STEPS, SEED, CLIP = 2, 7, 0.5
FAMILY = {
    "untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "tied": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "two groups": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
SMALL = {
    "vocab_size": 64, "d_model": 24, "d_ff": 40, "d_kv": 8, "num_heads": 3,
    "num_layers": 2, "num_decoder_layers": 2, "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
}  # fmt: skip

FSDP1, FULL = {"engine": "fsdp1"}, {"activation_checkpointing": "full"}
SELECTIVE = {"activation_checkpointing": "selective"}
OFFLOAD = {"activation_checkpointing": "offload"}
IGNORED = {"ignore": ("lm_head.*", "*.final_layer_norm.weight", "encoder.block.1.layer.0.*")}
PAIRS = {"strategy": "hybrid_shard", "shard_size": 2}
PAIRS_ZERO2 = {"strategy": "hybrid_shard_zero2", "shard_size": 2}


def is_unit(path: str, module: nn.Module) -> bool:
    return isinstance(module, Block) and path.endswith(".1")


CASES: dict[str, dict] = {
    "full_shard": {},
    "full_shard tied": {"family": "tied"},
    "full_shard two groups with values": {"family": "two groups", "built": "with values"},
    "full_shard checkpointed": FULL,
    "full_shard checkpointed selectively": SELECTIVE,
    "full_shard offloaded": {"cpu_offload": True},
    "full_shard activations offloaded": OFFLOAD,
    "full_shard wrapped by size": {"wrap": "size", "wrap_parameters": 6000},
    "full_shard wrapped by name": {
        "wrap": "names", "wrap_names": ("encoder", "decoder.block.*", "lm_head"),
    },
    "full_shard some ignored": IGNORED,
    "full_shard wrapped by a function": {"is_unit": is_unit},
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "hybrid_shard": PAIRS,
    "hybrid_shard_zero2": PAIRS_ZERO2,
    "no_shard": {"strategy": "no_shard"},
}  # fmt: skip
CASES = {f"fsdp2 {name}": case for name, case in CASES.items()} | {
    f"fsdp1 {name}": {**FSDP1, **case} for name, case in CASES.items()
}
CASES |= {
    "fsdp2 hybrid_shard in one group": {"strategy": "hybrid_shard", "shard_size": 4},
    "fsdp1 hybrid_shard in one group": {**FSDP1, "strategy": "hybrid_shard"},
    "fsdp2 hybrid_shard checkpointed selectively accumulated": {
        **PAIRS, **SELECTIVE, "accumulate": 2,
    },
    "fsdp2 full_shard every 2nd block checkpointed": {**FULL, "checkpoint_every": 2},
    "fsdp2 full_shard every 2nd block's activations offloaded": {**OFFLOAD, "checkpoint_every": 2},
    "fsdp2 full_shard prefetch": {"prefetch": 2},
    "fsdp1 full_shard prefetch": {**FSDP1, "prefetch": 1},
    "fsdp2 reshard to 2": {"reshard_to": 2},
    "fsdp2 reshard to node": {"reshard_to": "node"},
    "fsdp2 two blocks per unit": {"blocks_per_unit": 2},
    "fsdp2 two blocks per unit activations offloaded": {**OFFLOAD, "blocks_per_unit": 2},
    "fsdp2 tied modules in the root": {"family": "tied modules"},
    "fsdp1 tied modules in the root": {**FSDP1, "family": "tied modules"},
    "fsdp2 tied units": {
        "family": "tied modules", "wrap": "names", "wrap_names": ("shared", "lm_head"),
    },
    "fsdp1 full_shard backward prefetch after": {**FSDP1, "backward_prefetch": "post"},
    "fsdp1 full_shard no backward prefetch": {**FSDP1, "backward_prefetch": "none"},
    "fsdp1 full_shard unlimited gathers": {**FSDP1, "limit_all_gathers": False},
}  # fmt: skip

LOOKED_AT = {
    *("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"),
    *("full_shard checkpointed", "full_shard tied"),
}
"""Cases of both engines whose weights are also read one by one, as a metric would."""


class Collectives(TorchDispatchMode):
    """Counts messages between ranks, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        if name.startswith("c10d"):
            kinds = ("gather", "reduce_scatter", "allreduce")
            self.counts[next((kind for kind in kinds if kind in name), name)] += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def counting_offloaded() -> Iterator[list[int]]:
    """The values of each tensor that goes to host memory."""
    sizes: list[int] = []
    original = _Offloaded.__init__

    def counted(self: _Offloaded, tensor: Tensor) -> None:
        sizes.append(tensor.numel())
        original(self, tensor)

    _Offloaded.__init__ = counted
    try:
        yield sizes
    finally:
        _Offloaded.__init__ = original


class Batch:
    """Padded rows: source [B, S], its mask, labels [B, T] with −100 on padding."""

    def __init__(self, samples: list[tuple[list[int], list[int]]]) -> None:
        def padded(rows: list[list[int]], fill: int) -> Tensor:
            return nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], True, fill)

        self.source = padded([source for source, _ in samples], PAD)
        self.source_mask = self.source != PAD
        self.labels = padded([target for _, target in samples], IGNORE)
        self.tokens = (self.labels != IGNORE).sum()


def samples(step: int) -> list[tuple[list[int], list[int]]]:
    """Eight pairs whose targets differ much in length: ranks get unequal numbers of tokens."""
    generator = torch.Generator().manual_seed(100 + step)
    lengths = [1, 2, 9, 3, 14, 1, 5, 20]

    def ids(n: int) -> list[int]:
        return torch.randint(3, 64, (n,), generator=generator).tolist()

    return [(ids(3 + 2 * i), ids(n)) for i, n in enumerate(lengths)]


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch.source, batch.source_mask, batch.labels).float()
    return F.cross_entropy(
        scores.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def optimizer_of(model: nn.Module, family: str) -> torch.optim.Optimizer:
    # SGD: an update proportional to the gradient. AdamW divides by the gradient's own size, which
    # turns a rounding error on a gradient near zero into a step as large as any.
    groups: list = list(model.parameters())
    if family == "two groups":
        norms = [p for n, p in model.named_parameters() if "layer_norm" in n]
        rest = [p for n, p in model.named_parameters() if "layer_norm" not in n]
        groups = [{"params": rest}, {"params": norms, "lr": 0.1, "weight_decay": 0.01}]
    elif len({isinstance(p, DTensor) for p in groups}) == 2:
        kinds = ([p for p in groups if isinstance(p, DTensor) is kind] for kind in (True, False))
        groups = [{"params": each} for each in kinds]
    return torch.optim.SGD(groups, lr=0.5, momentum=0.9)


def built(family: str) -> tuple[nn.Module, functools.partial]:
    """A T5 on the current device and the function that fills its weights."""
    if family == "tied modules":
        config = T5Config(**SMALL, **FAMILY["untied"])
        model = T5(config)
        model.lm_head.weight = model.shared.weight
    else:
        config = T5Config(**SMALL, **FAMILY[family])
        model = T5(config)
    return model, functools.partial(init_parameter, config)


def with_values(family: str) -> nn.Module:
    model, fill = built(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            seed = zlib.crc32(f"{SEED} {name}".encode())
            fill(name, parameter, torch.Generator().manual_seed(seed))
    return model


def plain(family: str) -> tuple[list[float], list[float], dict[str, Tensor]]:
    model = with_values(family)
    optimizer = optimizer_of(model, family)
    losses, norms = [], []
    for step in range(STEPS):
        batch = Batch(samples(step))
        loss = loss_sum(model, batch) / batch.tokens
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, norms, {k: v.detach() for k, v in model.state_dict().items()}


def sharded(case: dict, ranks: Ranks, *, look: bool = False) -> dict:
    """look: whether its whole weights are looked at, besides."""
    case = {"family": "untied", "accumulate": 1, "built": "on meta", **case}
    family, accumulate = case.pop("family"), case.pop("accumulate")
    fill = None
    if case.pop("built") == "on meta":
        with torch.device("meta"):
            model, fill = built(family)
    else:
        model = with_values(family)
    chosen = case.pop("is_unit", None)
    model = shard(
        model, ShardingSettings(**case), PrecisionSettings(), ranks,
        blocks=[Block], fill=fill, seed=SEED, is_unit=chosen,
    )  # fmt: skip
    found: dict = {"family": family, "held at first": held(model), "units": units(model)}
    found["checkpointed"] = sum(isinstance(m, CheckpointWrapper) for m in model.modules())
    found["backward prefetch"] = str(getattr(model, "backward_prefetch", ""))
    found["ahead"] = units_ahead(model)
    found["parameters"] = len(list(model.parameters()))
    optimizer = optimizer_of(model, family)
    losses, norms = [], []
    collectives = Collectives()
    for step in range(STEPS):
        mine = samples(step)[ranks.rank :: ranks.world_size]
        per_pass = len(mine) // accumulate
        micro = [Batch(mine[i * per_pass :][:per_pass]) for i in range(accumulate)]
        (tokens,) = sum_over_ranks(sum(b.tokens for b in micro), device=ranks.device)
        total = torch.zeros(())
        counting = collectives if step == 1 else nullcontext()
        with (
            counting,
            counting_offloaded() as copied,
        ):  # not the first step: what engines set up once is no message of a step
            for i, batch in enumerate(micro):
                with gradient_sync(model, i == len(micro) - 1):
                    loss = loss_sum(model, batch)
                    found["held between"] = held(model)
                    (loss * (ranks.world_size / tokens).float()).backward()
                total += loss.detach()
        found["values offloaded"] = sum(copied)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found["held after"] = held(model) + sum(local(g).numel() for g in gradients)
        norms.append(float(clip_gradients(model, CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(sum_over_ranks(total, device=ranks.device)[0] / tokens))
    full = StateDictOptions(full_state_dict=True)
    if look:
        looked_at = dict(whole_weights(model))
        found["values at a look"] = {name: weight.tolist() for name, weight in looked_at.items()}
        found["chosen at a look"] = [name for name, _ in whole_weights(model, "encoder.*.q.weight")]
    found["ignored differ"] = differ_over_ranks(model, ranks)
    return {
        **found,
        "losses": losses,
        "norms": norms,
        "weights": get_model_state_dict(model, options=full),
        "largest_shard": max(local(p).numel() for p in model.parameters()),
        "messages": dict(collectives.counts),
    }


def differ_over_ranks(model: nn.Module, ranks: Ranks) -> bool:
    """Whether parameters that are no shards have other values on another rank."""
    whole = [p.detach().flatten() for p in model.parameters() if not isinstance(p, DTensor)]
    if isinstance(model, FullyShardedDataParallel) or not whole:
        return False  # there shards look like whole parameters
    mine = torch.cat(whole)
    total = mine.clone()
    dist.all_reduce(total)
    return bool((total / ranks.world_size - mine).abs().max() > 1e-6)


def held(model: nn.Module) -> int:
    """Values of weights that this rank has in memory: its shards and what is gathered now."""
    if isinstance(model, FullyShardedDataParallel):
        flat = [m._flat_param for m in FullyShardedDataParallel.fsdp_modules(model)]
        flat = [f for f in flat if f is not None]
        whole = [getattr(f, "_full_param_padded", f.new_empty(0)) for f in flat]
        shards = sum(getattr(f, "_local_shard", f).numel() for f in flat)
        return shards + sum(w.untyped_storage().nbytes() // 4 for w in whole)
    parameters = [
        p
        for state in states(model)
        for group in state._fsdp_param_groups
        for p in group.fsdp_params
    ]
    whole = [w for p in parameters for w in p.all_gather_outputs]
    # What `reshard_to` leaves between forward and backward.
    partly = (getattr(p, "_sharded_post_forward_param_data", None) for p in parameters)
    whole += [part for part in partly if part is not None]
    shards = sum(local(p.sharded_param).numel() for p in parameters)
    return shards + sum(w.untyped_storage().nbytes() // 4 for w in whole)


def units_ahead(model: nn.Module) -> list[int]:
    """Filled in forward: as each block begins, how many of the later ones are gathered already."""
    blocks = [m for m in model.modules() if isinstance(m, Block) and isinstance(m, FSDPModule)]
    groups = [block._get_fsdp_state()._fsdp_param_groups[0] for block in blocks]
    ahead: list[int] = []

    def count(number: int) -> None:
        if len(ahead) < len(blocks):
            later = groups[number + 1 :]
            ahead.append(sum(g.is_unsharded or g._all_gather_result is not None for g in later))

    for number, block in enumerate(blocks):
        block.register_forward_pre_hook(lambda *_, number=number: count(number))
    return ahead


def states(model: nn.Module) -> set:
    return {m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)}


def units(model: nn.Module) -> int:
    """Groups of weights that are gathered by one message, the root's included."""
    if isinstance(model, FullyShardedDataParallel):
        return len(FullyShardedDataParallel.fsdp_modules(model))
    return len(states(model))


def local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def message_of(action, kind: type[Exception]) -> str:
    try:
        action()
    except kind as error:
        return str(error)
    return "no error"


def main(ranks: Ranks, folder: Path) -> dict:
    reference = {family: plain(family) for family in [*FAMILY, "tied modules"]}
    found: dict = {"cases": {}, "plain": {k: v[:2] for k, v in reference.items()}}
    for name in CASES:
        with redirect_stdout(io.StringIO()) as said:
            result = sharded(CASES[name], ranks, look=name.partition(" ")[2] in LOOKED_AT)
        result["warnings"] = [x for x in said.getvalue().splitlines() if "warning" in x]
        counts: list = [None] * ranks.world_size
        dist.all_gather_object(counts, result["checkpointed"])
        result["checkpointed"] = counts
        weights, plain_weights = result.pop("weights"), reference[result["family"]][2]
        if looked_at := result.pop("values at a look", None):
            result["names at a look"] = sorted(looked_at)
        if ranks.is_first:
            if looked_at:
                result["look differs"] = max(
                    float((torch.tensor(values) - weights[name]).abs().max())
                    for name, values in looked_at.items()
                )
            result["names_equal"] = set(weights) == set(plain_weights)
            result["weight_difference"] = max(
                float((weights[k] - plain_weights[k]).abs().max()) for k in plain_weights
            )
        found["cases"][name] = result
    found["values offloaded by a whole model"] = offloaded_by_a_whole_model(ranks)
    found["differently seeded"] = message_of(lambda: differently_seeded(ranks), FsdpkitError)
    found["nothing chosen"] = message_of(
        lambda: sharded({"is_unit": lambda path, module: False}, ranks), ConfigError
    )
    found["no such parameter"] = message_of(
        lambda: sharded({"ignore": ("head.*",)}, ranks), ConfigError
    )
    found["all ignored"] = message_of(lambda: sharded({"ignore": ("*",)}, ranks), ConfigError)
    found["indivisible"] = message_of(
        lambda: sharded({"strategy": "hybrid_shard", "shard_size": 3}, ranks), ConfigError
    )
    found["indivisible reshard_to"] = message_of(
        lambda: sharded({"reshard_to": 3}, ranks), ConfigError
    )
    found["tied across"] = message_of(
        lambda: sharded(
            {"family": "tied modules", "wrap": "names", "wrap_names": ("lm_head",)}, ranks
        ),
        ConfigError,
    )
    found["other data"] = message_of(
        lambda: check_same_everywhere("training data", "b" if ranks.rank == 3 else "a"),
        FsdpkitError,
    )
    return found


def offloaded_by_a_whole_model(ranks: Ranks) -> int:
    model = with_values("untied")
    offload_activations(model, [Block])
    with counting_offloaded() as copied:
        loss_sum(model, Batch(samples(STEPS - 1)[ranks.rank :: ranks.world_size])).backward()
    return sum(copied)


def differently_seeded(ranks: Ranks) -> None:
    torch.manual_seed(ranks.rank)
    shard(
        T5(T5Config(**SMALL)), ShardingSettings(), PrecisionSettings(), ranks, blocks=[Block]
    )  # fmt: skip
