"""GPUs that fsdpkit knows: memory, capability, peaks and bandwidths, one row a card. No torch.

The one home of such figures: memory plans, speed, MFU and site profiles read them here. What nobody
has published is None: a plan says so, and a finished run measures it.
"""

from __future__ import annotations

import re
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
    """Year of its maker's data sheet, or the note below the table's heading."""

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


# Columns: name; spellings between bars, each of words joined by +; gigabytes; MiB of memory;
# compute capability; TFLOP/s of bfloat16, float16 and float32; TB/s of memory; GB/s of links; year
# of the maker's data sheet (3090 and 4090: white papers of their architecture) or a note.
#
# Figures "with sparsity" are halved, since no training has zeros in place of half its weights, and
# so are those of a card of two dies, each of which is a device to torch. Memory is the total of
# nvidia-smi or rocm-smi, as public logs show it; MI300A's is its maker's. Links are NVLink,
# Infinity Fabric, or PCI Express where bridges join no more than two cards. Capability:
# developer.nvidia.com/cuda-gpus.
# Compared in November 2026 with pages that have these figures, and found the same: B200, GB200 and
# B300 (glennklockwood.com/garden/processors), A100, A40, L40 (hmc-tech.com/gpu, which computes them
# from clocks, and L40S 1 % higher), H100-PCIe (NVIDIA's product brief PB-11133-001), A6000
# (servethehome.com), H20 (wccftech's figures, at zangshuxian.com), memory of 6000-Ada and PRO6000
# (yottalabs.ai), memory of AMD's (rocm.docs.amd.com/en/latest/reference/gpu-specs.html), MI325X
# (docs.vultr.com), T4, V100, A10 (huggingface.co/RajBhope/gpu-runtime-predictor).
# [1] with HBM2e, whose rate is from torchtitan's benchmark of Llama 3 on H100, December 2024.
# [2] made for Leonardo (A100) and MareNostrum 5 (H100) alone, without a public data sheet.
# [3] Stampede3 User Guide, Texas Advanced Computing Center, 2024; half a card.
_TABLE = """
P100-16      p100|p100l          16         16384  6.0  -      18.7   9.3   0.732 16    2016
P100-12      p100                12         12288  6.0  -      18.7   9.3   0.549 16    2016
P100-SXM-16  p100+sxm            16         16384  6.0  -      21.2   10.6  0.732 80    2016
V100-32      v100|v100l          32         32768  7.0  -      125    15.7  0.9   150   2020
V100-16      v100                16         16384  7.0  -      125    15.7  0.9   150   2020
V100-PCIe-32 v100+pcie           32         32768  7.0  -      112    14    0.9   16    2020
V100-PCIe-16 v100+pcie           16         16384  7.0  -      112    14    0.9   16    2020
V100S-32     v100s               32         32768  7.0  -      130    16.4  1.134 16    2020
T4-16        t4                  16         15360  7.5  -      65     8.1   0.32  16    2019
RTX8000-48   8000                48         49152  7.5  -      130.5  16.3  0.672 16    2018
A100-80      a100|a100l          80         81920  8.0  312    312    19.5  2.039 300   2022
A100-40      a100                40         40960  8.0  312    312    19.5  1.555 300   2020
A100-64      a100                64         65536  8.0  -      -      -     -     -     [2]
A100-PCIe-80 a100+pcie           80         81920  8.0  312    312    19.5  1.935 32    2022
A100-PCIe-40 a100+pcie           40         40960  8.0  312    312    19.5  1.555 32    2020
A30-24       a30                 24         24576  8.0  165    165    10.3  0.933 32    2021
A10-24       a10                 24         23028  8.6  125    125    31.2  0.6   32    2021
A40-48       a40                 48         46068  8.6  149.7  149.7  37.4  0.696 32    2021
A6000-48     a6000               48         49140  8.6  154.8  154.8  38.7  0.768 32    2021
3090-24      3090                24         24576  8.6  71     71     35.6  0.936 32    2021
4090-24      4090                24         24564  8.9  165.2  165.2  82.6  1.008 32    2022
L4-24        l4                  24         23034  8.9  121    121    30.3  0.3   32    2023
L40-48       l40                 48         46068  8.9  181.05 181.05 90.5  0.864 32    2022
L40S-48      l40s                48         46068  8.9  362.05 362.05 91.6  0.864 32    2023
5000-Ada-32  5000+ada            32         32760  8.9  261.1  261.1  65.3  0.576 32    2023
6000-Ada-48  6000+ada            48         49140  8.9  364.2  364.2  91.1  0.96  32    2022
H100-80      h100                80         81559  9.0  989.4  989.4  66.9  3.35  450   2023
H100-94      h100                94         95830  9.0  989.4  989.4  66.9  2.4   450   2023, [1]
H100-64      h100                64         65247  9.0  -      -      -     -     -     [2]
H100-PCIe-80 h100+pcie           80         81559  9.0  756.5  756.5  51.2  2.0   64    2023
H100-NVL-94  h100+nvl            94         95830  9.0  835.5  835.5  60    3.9   64    2024
H20-96       h20                 96         97871  9.0  148    148    44    4.0   450   2023
H20-141      h20|h20+3e          141        143771 9.0  148    148    44    4.8   450   2024
H200-141     h200                141        143771 9.0  989.4  989.4  66.9  4.8   450   2024
H200-NVL-141 h200+nvl            141        143771 9.0  835.5  835.5  60    4.8   450   2024
GH200-96     gh200               96,120,480 97871  9.0  989.4  989.4  66.9  4.0   450   2023
GH200-144    gh200               144        145920 9.0  989.4  989.4  66.9  4.9   450   2024
B200-180     b200                180,192    183359 10.0 2250   2250   75    8.0   900   2025
GB200-186    gb200               186        189471 10.0 2500   2500   80    8.0   900   2024
B300-270     b300                270,288    275040 10.3 2250   2250   75    8.0   900   2025
GB300-279    gb300               279        284208 10.3 2500   2500   80    8.0   900   2025
PRO6000-96   pro+6000            96         97887  12.0 500    500    120   1.597 64    2025
MI100-32     mi100               32         32752  -    92.3   184.6  46.1  1.229 138   2020
MI210-64     mi210               64         65520  -    181.0  181.0  45.3  1.638 150   2022
MI250X-64    mi250x|mi250x+mi250 64,128     65520  -    191.5  191.5  47.9  1.638 150   2021
MI250-64     mi250               64,128     65520  -    181.0  181.0  45.3  1.638 150   2021
MI300X-192   mi300x              192        196592 -    1307.4 1307.4 163.4 5.3   448   2023
MI300A-128   mi300a              128        131072 -    980.6  980.6  122.6 5.3   384   2023
MI325X-256   mi325x              256        262128 -    1307.4 1307.4 163.4 6.0   448   2024
MI355X-288   mi355x              288        294896 -    2516.6 2516.6 157.3 8.0   537.6 2025
Max1550-64   max+1550|pvc        64,128     65536  -    416    416    26.2  1.638 -     [3]
"""

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


GPU_MODELS = tuple(map(_row, _TABLE.strip().splitlines()))

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
