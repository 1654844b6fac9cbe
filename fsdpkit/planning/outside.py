"""What takes a GPU's memory outside of torch's allocator, each value with its source. No torch.

NCCL, cuBLAS and the CUDA context ask the driver themselves. torch neither counts nor can free what
they hold, so a plan leaves them room. The values below are published ones, the larger of several;
none was measured by fsdpkit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsdpkit.planning.cards import Card

MIB = 2**20
SAFE = 0.95
"""Share of a card that reserved and outside may take together: NCCL fails without a word on memory
when torch holds nearly everything (cosmos-rl#731, miles#2199)."""
CALIBRATED_TORCH = "2.13"


@dataclass(frozen=True)
class OutsideMemory:
    """Bytes outside of the allocator on one kind of GPU, with one torch and NCCL."""

    context: int
    """CUDA's context and modules."""
    first_communicator: int
    next_communicator: int
    """Of each further group of ranks that sends anything."""
    cublas: int
    """One workspace; it lies inside of the allocator's memory."""
    sources: tuple[tuple[str, str], ...]


_CONTEXT = ("context", "0.4-0.6 GiB on H100, unverified; the larger is taken")
_NCCL = (
    "NCCL",
    "1 GiB, and 0.65 GiB for each further communicator (LUMI-AI-Guide#111, RCCL); 544-688 MiB for "
    "the first on 4 x A100 (nccl#964)",
)
_HOPPER = OutsideMemory(
    context=614 * MIB,
    first_communicator=1024 * MIB,
    next_communicator=666 * MIB,
    cublas=32 * MIB,
    sources=(_CONTEXT, _NCCL, ("cuBLAS", "32 MiB a workspace on Hopper (pytorch#144397)")),
)
_OTHER = replace(
    _HOPPER,
    cublas=8320 * 1024,
    sources=(_CONTEXT, _NCCL, ("cuBLAS", "8,320 KiB a workspace (PyTorch, CUDA semantics)")),
)
WORKSPACES = 2
"""One for the thread of forward, one for that of backward."""


@dataclass(frozen=True)
class Outside:
    """Bytes, and what there is to know of them."""

    context: int
    nccl: int
    communicators: int
    workspace: int
    """Of cuBLAS, inside of the allocator."""
    sources: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return self.context + self.nccl


def outside(card: Card, communicators: int, torch: str) -> Outside:
    """communicators: groups of ranks, of more than one rank, that send anything on the GPU."""
    hopper = card.capability is not None and card.capability[0] == 9
    values = _HOPPER if hopper else _OTHER
    notes = []
    if not card.known:
        notes.append(f"{card.name} is not a GPU that fsdpkit knows: values of other GPUs are used")
    if not torch.startswith(f"{CALIBRATED_TORCH}."):
        notes.append(f"the rules and values are those of torch {CALIBRATED_TORCH}; this is {torch}")
    nccl = 0
    if communicators:
        nccl = values.first_communicator + (communicators - 1) * values.next_communicator
    return Outside(
        context=values.context,
        nccl=nccl,
        communicators=communicators,
        workspace=WORKSPACES * values.cublas,
        sources=values.sources,
        notes=tuple(notes),
    )
