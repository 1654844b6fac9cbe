"""GPUs that fsdpkit knows: memory, capability, peaks and bandwidths, one row a card. No torch.

The one home of such figures, in gpu_models.txt: memory plans, speed, MFU and site profiles read
them here. What nobody has published is None: a plan says so, and a finished run measures it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from fsdpkit.config.gpu import Capability, parse_capability


class GpuModel(NamedTuple):
    """Peaks are dense, in TFLOP/s, by type; float32 is without TF32, of AMD's matrix cores."""

    name: str
    spelled: tuple[frozenset[str], ...]
    """Ways to name it, each the words that a name must have."""
    sizes: tuple[int, ...]
    """Gigabytes by which names tell it from its namesakes."""
    memory_mib: int
    capability: Capability | None
    bfloat16: float | None
    float16: float | None
    float32: float | None
    memory_tb_s: float | None
    links_gb_s: float | None
    """A direction, to the other GPUs of its node."""
    source: str
    """Year of its maker's data sheet, or the number of a note in the table's heading."""

    @property
    def peak_tflops(self) -> float | None:
        """Of the types that train fast: what MFU divides by."""
        return self.bfloat16 or self.float16

    @property
    def rates(self) -> tuple[float, float, float, float] | None:
        """Peak, float32, memory and links; None if one is unknown, so that a speed is, too."""
        peak, float32 = self.peak_tflops, self.float32
        memory, links = self.memory_tb_s, self.links_gb_s
        if peak is None or float32 is None or memory is None or links is None:
            return None
        return peak, float32, memory, links

    def has_size(self, gigabytes: float) -> bool:
        """Whether a name with so many is this card's: makers and drivers round differently."""
        return any(abs(gigabytes - size) <= 0.07 * size for size in self.sizes)


ONLY_BY_SIZE = frozenset({"A100-64", "GH200-144", "H100-64", "H100-94", "H20-141", "P100-12"})
"""Rarer than their namesakes: a name without gigabytes is none of these."""


def _row(line: str) -> GpuModel:
    name, spellings, gigabytes, mib, known, *numbers, source = line.split(maxsplit=10)
    spelled = tuple(frozenset(each.split("+")) for each in spellings.split("|"))
    sizes = tuple(map(int, gigabytes.split(",")))
    capability = None if known == "-" else parse_capability(known)
    bf16, fp16, fp32, memory, links = (None if n == "-" else float(n) for n in numbers)
    return GpuModel(
        name, spelled, sizes, int(mib), capability, bf16, fp16, fp32, memory, links, source
    )


_TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
GPU_MODELS = tuple(_row(line) for line in _TABLE if line and not line.startswith("#"))

# Slurm's types and people write these without a space before or after, as in rtx6000ada. NVLink is
# on many cards: only NVL by itself is in a name.
_PARTS = re.compile(
    r"nvidia|tesla|geforce|quadro|rtx|ada|pcie|(?:pro|max)(?=[\W_\d])|(?:sxm|nvl)(?!ink)\d*"
)
_SIZE = re.compile(r"(?<![a-z0-9])(\d{2,3})(?:[-_ ]?(?:gb|gib|g)(?![a-z0-9])|$)")
_SLICE = re.compile(r"(?<![a-z0-9])(?:mig|\d+g\.\d+gb)(?![a-z0-9])")
_BESIDE = frozenset(
    """ac amd blackwell center data edition generation geforce gpu hbm2 hbm2e hbm3 hbm3e instinct
    intel nvidia nvl pcie quadro r rtx server sxm tesla workstation""".split()  # noqa: SIM905
)
"""Words of names that tell no card from another."""
_ANOTHER = frozenset({"d", "laptop", "mobile", "q", "super", "ti"})
"""Of a card that is slower or faster than the one whose name it has."""


def gpu_models(name: str, *, typed: bool = False) -> list[GpuModel]:
    """The rows that a name may mean, as a driver, Slurm, a profile or a person writes it: "NVIDIA
    A100-SXM4-80GB", "nvidia_h100_80gb_hbm3", "rtx6000ada", or "a100", of which there are several.
    None for another GPU, for several GPUs and for a slice of one. typed: nor for one with a word
    that is in no name, which is a mistake."""
    text = name.lower()
    words, sizes = _words(text), _SIZE.findall(text)
    found = [(each, row) for row in GPU_MODELS for each in row.spelled if each <= words]
    spelled = max((each for each, _ in found), key=len, default=frozenset[str]())
    rows = [row for each, row in found if len(each) == len(spelled)]
    if _SLICE.search(text) or words & _ANOTHER or len({row.spelled[0] for row in rows}) > 1:
        return []
    if typed and not _words(_SIZE.sub("", text)) <= spelled | _BESIDE:
        return []
    if sizes:
        return [row for row in rows if any(row.has_size(float(size)) for size in sizes)]
    return [row for row in rows if row.name not in ONLY_BY_SIZE] or rows


def _words(text: str) -> frozenset[str]:
    apart = _PARTS.sub(lambda part: f" {part[0].rstrip('0123456789')} ", text)
    return frozenset(re.findall(r"[a-z0-9]+", apart))


def gpu_model(name: str) -> GpuModel | None:
    """The row of a GPU by its name; of several that differ in memory the first. None: unknown."""
    return next(iter(gpu_models(name)), None)
