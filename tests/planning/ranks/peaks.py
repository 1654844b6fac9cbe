"""Ranks that train, or one that pretends to, and the most memory that their tensors took.

    peaks.py real|pretended WORLD CASES

CASES is JSON: lists of `KEY=VALUE`. Prints JSON: bytes of each case, rank 0's.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import Consent
from fsdpkit.planning.asked import AskedStep, resolved
from fsdpkit.planning.cards import card_named
from fsdpkit.planning.subjects import of_model, of_trainer
from fsdpkit.planning.taping import tape_of
from fsdpkit.planning.verdict import course
from fsdpkit.training import process_group

ROOT = Path(__file__).resolve().parents[3]
ENTRY = ROOT / "examples" / "T5-fsdp" / "fsdp_t5.py"


class Held(TorchDispatchMode):
    """Weighs all storages that any operation has made and that are still there, by what they have
    at that moment: it knows nothing of births, deaths and resizing.

    All are weighed only when there may be more than ever before: what is there now cannot be more
    than what each had when an operation last had it in its hands, but where it has grown since.

    Not what Gloo makes for itself, such as the copy of a whole gradient that it sums in the place
    of a reduce-scatter: no operation returns that, and NCCL makes none. Nor for how long Gloo's
    threads hold on to messages: it is given copies (`_collective`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[int, weakref.ref[Any]] = {}
        self.had: dict[int, int] = {}
        self.at_most = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented
        given = {storage._cdata: storage for storage in storages((args, kwargs))}
        call = partial(_collective, func) if func.namespace in _COLLECTIVE else func
        result = call(*args, **(kwargs or {}))
        seen = {storage._cdata: storage for storage in storages(result)}
        for key, storage in seen.items():
            if key not in given and key not in self.there:
                self.there[key] = weakref.ref(storage, self._gone(key))
        for key, storage in {**given, **seen}.items():
            if key in self.there:
                self._has(key, storage.nbytes())
        if self.at_most > self.peak:
            for key, reference in list(self.there.items()):
                if (storage := reference()) is not None:
                    self._has(key, storage.nbytes())
            self.peak = max(self.peak, self.at_most)
        return result

    def _has(self, key: int, size: int) -> None:
        self.at_most += size - self.had.get(key, 0)
        self.had[key] = size

    def _gone(self, key: int) -> Any:
        def gone(_: Any) -> None:
            self.there.pop(key, None)
            self.at_most -= self.had.pop(key, 0)

        return gone


_COLLECTIVE = ("c10d", "_c10d_functional")


def _collective(func: Any, *args: Any, **kwargs: Any) -> Any:
    """`func` on copies, done when it returns; what it wrote is copied back.

    A thread of Gloo holds a message until it gets to let go, which may be well after it has said
    that the message is there. When that happens is up to the machine's scheduler, and the largest
    moment may fall in between. So Gloo never has a tensor of the program in its hands, and a tensor
    lives for as long as the program holds it: what a stream of a GPU does, where memory that was
    let go of is used again in the order of the stream.
    """
    copies: dict[int, tuple[Tensor, Tensor]] = {}

    def copied(tensor: Tensor) -> Tensor:
        return copies.setdefault(id(tensor), (tensor, tensor.data.clone()))[1]

    result = func(*tree_map_only(Tensor, copied, args), **tree_map_only(Tensor, copied, kwargs))
    if func.namespace == "_c10d_functional":
        result = tree_map_only(Tensor, torch.ops._c10d_functional.wait_tensor, result)
    for work in (each for each in tree_iter(result) if isinstance(each, torch.ScriptObject)):
        torch.distributed.Work.unbox(work).wait()
    for tensor, copy in copies.values():
        tensor.data.copy_(copy)
    given = {id(copy): tensor for tensor, copy in copies.values()}
    return tree_map_only(Tensor, lambda t: given[id(t)] if id(t) in given else t.clone(), result)


def storages(values: Any) -> Iterator[Any]:
    """Of the plain tensors in `values` that lie in host memory."""
    for tensor in tree_iter(values):
        if type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == "cpu":
            yield tensor.untyped_storage()


def asked(case: list[str], ranks: int) -> AskedStep:
    own = [text for text in case if not text.startswith("model=")]
    model = next((text[6:] for text in case if text.startswith("model=")), None)
    settings = load_settings({}, own)
    # Two ranks a node, so that a hybrid has two groups.
    nodes, gpus, entry = max(1, ranks // 2), min(2, ranks), Consent().to_script(ENTRY)
    named = None if model is None else Consent().to_model(model)
    return AskedStep(settings, nodes, gpus, card_named("h100-80"), entry, named)


def real(case: list[str], ranks: Any) -> int:
    wanted = asked(case, ranks.world_size)
    settings, _ = resolved(wanted)
    build, _ = (
        of_model(wanted.model, settings) if wanted.model else of_trainer(wanted.entry, settings)
    )
    held = Held()
    # Attention written out, as the tape has it with kernels = "plain". Weighing takes most time.
    with sdpa_kernel(SDPBackend.MATH), held if ranks.rank == 0 else nullcontext():
        subject = build(ranks)
        held.peak = 0
        for number in range(2):
            subject.step(number)
    subject.close()
    del subject
    gc.collect()
    return held.peak


def pretended(case: list[str], ranks: int) -> int:
    tape, _ = tape_of(asked(case, ranks), kernels="plain")
    return max(sum(sizes.values()) for _, sizes in course(tape))


def of_real_ranks(cases: list[list[str]]) -> Iterator[int]:
    with process_group() as ranks:
        here = type(ranks)(ranks.rank, ranks.rank % 2, ranks.world_size, 2, ranks.device)
        for case in cases:
            yield real(case, here)


if __name__ == "__main__":
    how, world, text = sys.argv[1:]
    cases = json.loads(text)
    if how == "real":
        found = list(of_real_ranks(cases))
        import os

        first = os.environ["RANK"] == "0"
    else:
        found, first = [pretended(case, int(world)) for case in cases], True
    if first:
        print("PEAKS", json.dumps(found))
