"""The most bytes that a rank's tensors take in a step whose blocks are really compiled; started by
compiled.py through torchrun, or by itself for the plan of the same steps.

    compiled_ranks.py real|planned|uncompiled RANKS CASES

CASES is JSON: lists of `KEY=VALUE`. Prints JSON: bytes of each case, rank 0's; `uncompiled` is what
plans do by default. Of real ranks each case is best started by itself: what Python has not let go
of from one would count for the next.

What a compiled graph allocates passes no dispatch mode, so the profiler is asked: it sees every
allocation of host memory. Not counted is what messages take for themselves, as in memory.py: a
collective is given copies and has ended when it returns, and what other threads make is Gloo's.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_map_only

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from fsdpkit.config.trust import Consent  # noqa: E402
from fsdpkit.planning.asked import resolved  # noqa: E402
from fsdpkit.planning.subjects import of_trainer  # noqa: E402
from fsdpkit.planning.taping import tape_of  # noqa: E402
from fsdpkit.planning.verdict import course  # noqa: E402
from fsdpkit.training import process_group  # noqa: E402
from tests.planning.ranks.peaks import ENTRY, asked  # noqa: E402

MESSAGE, STEP = "a message", "the step"
STEPS = 3
"""The first compiles, the second is the first with an optimizer's state, the third is weighed."""
COLLECTIVES = (
    *("all_gather", "all_gather_single", "all_gather_into_tensor"),
    *("reduce_scatter_single", "reduce_scatter_tensor", "all_reduce", "broadcast"),
)


class Done:
    """The handle of a collective that has ended."""

    def wait(self, *_: Any) -> bool:
        return True


def of_numpy(tensor: Tensor) -> Tensor:
    """The same values in memory that torch knows nothing of."""
    tensor = tensor.detach()
    memory = np.empty(tensor.numel() * tensor.element_size(), np.uint8)
    return torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def on_copies(usual: Callable[..., Any]) -> Callable[..., Any]:
    """The collective, with copies in the hands of Gloo."""

    def call(*args: Any, async_op: bool = False, **named: Any) -> Done:
        copies: dict[int, tuple[Tensor, Tensor]] = {}

        def copied(tensor: Tensor) -> Tensor:
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor, of_numpy(tensor)
            return copies[id(tensor)][1]

        with record_function(MESSAGE), torch.no_grad():
            args, named = tree_map_only(Tensor, copied, (args, named))
            usual(*args, **named)
            for tensor, copy in copies.values():
                tensor.detach().copy_(copy)
        return Done()

    return call


@contextmanager
def messages_apart() -> Iterator[None]:
    with ExitStack() as stack:
        for name in COLLECTIVES:
            usual = getattr(dist, name)
            stack.enter_context(mock.patch.object(dist, name, on_copies(usual)))
        yield


def alive_bytes() -> int:
    """Of all storages in host memory that Python knows."""
    gc.collect()
    found = {}
    for each in gc.get_objects():
        if type(each) in (Tensor, torch.nn.Parameter) and each.device.type == "cpu":
            storage = each.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return sum(found.values())


def most_above(events: Sequence[Any], thread: int) -> int:
    """Bytes above those at the start of STEP."""
    own: dict[int, int] = {}
    changes: list[tuple[int, int, int]] = []

    def walk(event: Any, counts: bool) -> None:
        counts = counts and event.name != MESSAGE
        about = event.extra_fields
        if (
            hasattr(about, "alloc_size")
            and str(about.device) == "cpu"
            and (about.alloc_size < 0 or (counts and event.start_tid == thread))
        ):
            changes.append((event.start_time_ns, about.ptr, about.alloc_size))
        for child in event.children:
            walk(child, counts)

    for event in events:
        walk(event, True)
    (began,) = [e.start_time_ns for e in every(events) if e.name == STEP]
    now = most = 0
    for when, pointer, size in sorted(changes, key=lambda each: each[0]):
        if size > 0:
            own[pointer] = size
        elif own.pop(pointer, None) is None:
            continue
        if when >= began:
            now += size
            most = max(most, now)
    return most


def every(events: Sequence[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from every(event.children)


def real(case: list[str], ranks: Any) -> int:
    settings, _ = resolved(replace(asked(case, ranks.world_size), compiled=True))
    torch._dynamo.reset()
    left = alive_bytes()
    build, _ = of_trainer(Consent().to_script(ENTRY), settings)
    with messages_apart():
        subject = build(ranks)
        subject.step(0)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            subject.step(1)
            before = alive_bytes() - left
            with record_function(STEP):
                subject.step(2)
    subject.close()
    events = seen.profiler.kineto_results.experimental_event_tree()
    (main,) = {e.start_tid for e in every(events) if e.name == STEP}
    return before + most_above(events, main)


def planned(case: list[str], ranks: int, compiled: bool) -> int:
    tape, _ = tape_of(replace(asked(case, ranks), compiled=compiled), kernels="plain")
    if tape.uncompiled:
        raise RuntimeError(tape.uncompiled[0])
    return max(sum(sizes.values()) for _, sizes in course(tape))


def of_real_ranks(cases: list[list[str]]) -> Iterator[int]:
    with process_group() as ranks:
        for case in cases:
            yield real(case, ranks)


def main() -> None:
    how, count, text = sys.argv[1:]
    cases = json.loads(text)
    if how == "real":
        found = list(of_real_ranks(cases))
    else:
        found = [planned(case, int(count), how == "planned") for case in cases]
    if int(os.environ.get("RANK", "0")) == 0:
        print("PEAKS", json.dumps(found))


if __name__ == "__main__":
    main()
