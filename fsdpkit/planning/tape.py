"""What one rank did in some steps, in order: blocks of memory, operations, messages. No torch here.

Sizes are bytes as the program asked for them; what an allocator makes of them is `allocator`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

Phase = Literal["build", "forward", "backward", "recompute", "optimizer", "between"]
"""`recompute` is a checkpointed block's forward within backward; `between` everything that no
other phase has, such as the norm of the gradients."""

Kind = Literal[
    "weights",
    "gradients",
    "optimizer",
    "gathered",
    "reduction",
    "activations",
    "logits",
    "temporary",
    "other",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which a picture stacks them."""

Trust = Literal["kernels", "torch", "nothing"]
"""Whose kernels are called when a step is taped: everybody's, those of torch and what declares a
fake version, or none, for no step is run."""
TRUST: tuple[Trust, ...] = get_args(Trust)

HOST = -1
"""The `stream` of a block of host memory."""


@dataclass
class MemoryBlock:
    """One piece of the device's memory over its life. Born at event `born`, freed at `died`."""

    size: int
    """Bytes."""
    stream: int
    """0 is the stream that computes."""
    born: int
    phase: Phase
    module: str
    """Path of the module that ran, without wrappers; empty outside of all."""
    operation: str
    """What made it, as torch names it: `mm`, `native_dropout`."""
    died: int | None = None
    """None: alive at the end."""
    kind: Kind = "temporary"
    also_used_on: tuple[int, ...] = ()
    """Streams that must have finished with it before it is reused (`record_stream`)."""
    unit: str = ""
    """Of gathered weights: path of the unit they are of; empty for the buffer of a message, and in
    the first step, when engines make what they gather into."""
    handed_on: bool = False
    """Whether a layer returned it: who uses it next keeps it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel's worth of work. `flops` of matrix products and attention alone."""

    name: str
    flops: int
    bytes_read: int
    bytes_written: int
    phase: Phase
    module: str
    stream: int
    dtype: str
    """Of what it writes."""
    biased: bool = False
    """Of attention, whether its scores have a bias or a mask that is a tensor."""


@dataclass(frozen=True, slots=True)
class TapedCollective:
    """One message. `bytes`: the whole buffer, which an all-gather makes, a reduce-scatter takes."""

    name: Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "other"]
    bytes: int
    ranks: int
    group: str
    """Name of the group of ranks."""
    phase: Phase
    module: str
    stream: int


@dataclass
class Tape:
    """`blocks` by birth; `work` in the host's order; `steps`: each step's end, an event number."""

    blocks: list[MemoryBlock] = field(default_factory=list)
    work: list[Operation | TapedCollective] = field(default_factory=list)
    events: int = 0
    began: int = 0
    """The event at which the first step begins: everything before belongs to building."""
    steps: list[int] = field(default_factory=list)
    work_steps: list[int] = field(default_factory=list)
    """Length of `work` at the end of each step; `work_began` before the first."""
    work_began: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    """Groups of ranks that sent anything, each with its size: a communicator each."""
    assumed: list[str] = field(default_factory=list)
    """Values that the host read from the device, and sizes by them: what was taken, and where."""
    samples: int = 0
    """Of one rank in a step, as the next; 0: not known."""
    tokens: int = 0
    parameters: int = 0
    """Of the whole model."""
    notes: list[str] = field(default_factory=list)
    """Of what is trained."""
    launched: list[str] = field(default_factory=list)
    """Triton kernels that were not run, and where: they make no tensors, and take time."""
    uncompiled: list[str] = field(default_factory=list)
    """Why functions that a run compiles are followed uncompiled, and where: an upper bound."""
    lacking: list[str] = field(default_factory=list)
    """What could not be followed, and where: the tape is then a lower bound."""
    least: Tape | None = None
    """The same with what was assumed as small as it can be, and not as large."""
    torch: str = ""


def layer_of(path: str) -> str:
    """The repeated layer that a module belongs to: `encoder.block.3` of what lies in it."""
    if found := re.match(r"(?:.*?\.)?\d+(?=\.|$)", path):
        return found[0]
    return path or "outside of modules"
