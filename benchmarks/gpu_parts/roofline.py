"""The least time that a step can take, part by part: `python benchmarks/gpu_parts/roofline.py`.

Computed, not measured. A part takes as long as its operations at the rate of the tensor cores, or
its bytes at the rate of the memory, whichever is more; parts follow one another. Operations are
flops.py's. Bytes are the fewest that a fused kernel moves: what it reads and writes of tensors that
no cache holds, as each function's docstring counts them.

Writes results/roofline-t5-large-h100.json, from which the table in README.md is made; the measured
column is that of the newest profile in results/gpu-*.json, and empty without one.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model import T5Config

BENCHMARKS = Path(__file__).resolve().parents[1]
RESULT = BENCHMARKS / "results" / "roofline-t5-large-h100.json"


PRODUCTS = "matrix products"
ATTENTION = "attention"
ELEMENTWISE = "norms, gates, residuals"
CROSS_ENTROPY = "cross-entropy"
OPTIMIZER = "clipping and AdamW"
SHARDING = "casts and copies of sharding"
OTHER = "other"

BF16, FLOAT32 = 2, 4


@dataclass(frozen=True)
class Ceiling:
    """Rates of one device, and where they are from."""

    device: str
    flops_per_s: float
    attention_flops_per_s: float
    bytes_per_s: float
    product_share: float
    memory_share: float
    sources: tuple[str, ...]

    def attainable(self) -> Ceiling:
        """The rates at which large products and copies run as a rule, an assumption."""
        return dataclasses.replace(
            self,
            flops_per_s=self.product_share * self.flops_per_s,
            bytes_per_s=self.memory_share * self.bytes_per_s,
        )


H100 = Ceiling(
    "NVIDIA H100 SXM 80 GB",
    989.4e12,
    486.9e12,
    3.35e12,
    0.7,
    0.9,
    (
        "matrix products at 989.4 dense bf16 TFLOP/s and memory at 3.35 TB/s: NVIDIA's data sheet "
        "of the H100 SXM",
        "attention's products at 486.9 TFLOP/s: cuDNN's forward without a mask on a GPU of this "
        "class, as published in pytorch#138493; backward is slower",
        "the second column: 70 % of the rate of products and 90 % of that of memory, an "
        "assumption until section 1 of benchmarks/gpu.py has measured them (a plain product has "
        "been published at 230 of an A100's 312)",
    ),
)


@dataclass(frozen=True)
class Work:
    """What one part of a step does, forward and backward."""

    kind: str
    name: str
    flops: int = 0
    bytes: int = 0

    def seconds(self, ceiling: Ceiling) -> float:
        rate = ceiling.attention_flops_per_s if self.kind == ATTENTION else ceiling.flops_per_s
        return max(self.flops / rate, self.bytes / ceiling.bytes_per_s)


def step_work(config: T5Config, rows: int, source: int, target: int) -> list[Work]:
    """All of a step of `rows` sequences at world size 1, bf16 over float32 shards, no dropout."""
    from flops import forward_flops

    forward = {k: rows * n for k, n in forward_flops(config, source, target).items()}
    tokens = {"encoder": rows * source, "decoder": rows * target}
    parameters = parameter_count(config)
    return [
        *(
            Work(PRODUCTS, f"{PRODUCTS}, {name}", 3 * forward[name])
            for name in ("encoder", "decoder", "head")
        ),
        # Backward makes the scores again: five products for forward's two.
        *(
            Work(
                ATTENTION,
                f"{ATTENTION}, {name}",
                7 * forward[f"{name} attention"] // 2,
            )
            for name in ("encoder", "decoder")
        ),
        Work(ELEMENTWISE, "norms and residuals", bytes=norm_bytes(config, **tokens)),
        Work(ELEMENTWISE, "gates", bytes=gate_bytes(config, **tokens)),
        Work(ELEMENTWISE, "embeddings", bytes=embedding_bytes(config, **tokens)),
        Work(CROSS_ENTROPY, CROSS_ENTROPY, bytes=loss_bytes(config, tokens["decoder"])),
        Work(SHARDING, SHARDING, bytes=sharding_bytes(parameters)),
        Work(OPTIMIZER, OPTIMIZER, bytes=optimizer_bytes(parameters)),
    ]


def parameter_count(config: T5Config) -> int:
    d, inner = config.d_model, config.num_heads * config.d_kv
    attention, maps = 4 * d * inner, 3 if config.feed_forward_proj == "gated-gelu" else 2
    feed_forward = maps * d * config.d_ff
    encoder = config.num_layers * (attention + feed_forward + 2 * d) + d
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * d) + d
    tables = 2 * config.relative_attention_num_buckets * config.num_heads
    heads = 1 if config.tie_word_embeddings else 2
    return encoder + decoder + tables + heads * config.vocab_size * d


def norm_bytes(config: T5Config, encoder: int, decoder: int) -> int:
    """Each sublayer: forward reads the residual stream and what is added, writes the new stream and
    its norm; backward reads the norm's gradient, the stream and the gradient passed on, and writes
    that of the stream."""
    sublayers = (2 * config.num_layers + 1) * encoder + (
        3 * config.num_decoder_layers + 1
    ) * decoder
    return 8 * sublayers * config.d_model * BF16


def gate_bytes(config: T5Config, encoder: int, decoder: int) -> int:
    """Gated: forward reads two tensors and writes one, backward reads three and writes two; else
    one and one, and two and one."""
    passes = 8 if config.feed_forward_proj == "gated-gelu" else 5
    tokens = config.num_layers * encoder + config.num_decoder_layers * decoder
    return passes * tokens * config.d_ff * BF16


def embedding_bytes(config: T5Config, encoder: int, decoder: int) -> int:
    """A row is read and written for each token, forward; read and added to a row, backward."""
    return 5 * (encoder + decoder) * config.d_model * BF16


def loss_bytes(config: T5Config, tokens: int) -> int:
    """The scores are read once, and their gradient is written; the products' own reads and writes
    are theirs."""
    return 2 * tokens * config.vocab_size * BF16


def sharding_bytes(parameters: int) -> int:
    """On one GPU: one gather, which reads float32 shards and writes bfloat16 copies that stay until
    backward, and one reduction, which reads bfloat16 gradients and writes float32 ones."""
    return parameters * (FLOAT32 + BF16 + BF16 + FLOAT32)


def optimizer_bytes(parameters: int) -> int:
    """The norm reads gradients, clipping reads and writes them, AdamW reads weights, gradients and
    two moments and writes all but the gradients; float32."""
    return parameters * FLOAT32 * (1 + 2 + 7)


def roofline(
    config: T5Config, ceiling: Ceiling, rows: int, source: int, target: int
) -> dict[str, Any]:
    """What the result file holds; seconds of one step."""
    work = step_work(config, rows, source, target)
    usual = ceiling.attainable()
    parts = [
        {**asdict(one), "least_s": one.seconds(ceiling), "attainable_s": one.seconds(usual)}
        for one in work
    ]
    step_s = {key: sum(part[key] for part in parts) for key in ("least_s", "attainable_s")}
    counted = sum(one.flops for one in work if one.kind == PRODUCTS)
    counted += sum(6 * one.flops // 7 for one in work if one.kind == ATTENTION)
    return {
        "roofline": "T5 v1.1-large, 512/128, bfloat16",
        "rows": rows,
        "ceiling": asdict(ceiling),
        "parts": parts,
        "step": step_s,
        "sequences_per_s": {key: rows / s for key, s in step_s.items()},
        "mfu": {key: counted / s / ceiling.flops_per_s for key, s in step_s.items()},
    }


PUBLISHED = (
    ("NVIDIA's T5X in FP8, one of 64 H100 (published)", 174.1),
    ("40 % of the bf16 peak", 263.0),
    ("second target", 292.0),
)


def table(result: Mapping[str, Any], profile: Mapping[str, Any] | None = None) -> str:
    """Markdown: computed beside measured, which is empty as long as there is no `profile`, a row of
    profile.py for the same number of rows."""
    if profile and profile["rows"] != result["rows"]:
        scale = result["rows"] / profile["rows"]
    else:
        scale = 1.0
    measured = {k: v * scale for k, v in profile["by_kind_s"].items()} if profile else {}
    columns = ("Part of a step", "TFLOP", "GB", "At data sheet rates", "Attainable", "Share")
    ruled = ((*columns, "Measured"), ("---",) * (len(columns) + 1))
    lines = ["| " + " | ".join(row) + " |" for row in ruled]
    whole_s = result["step"]["attainable_s"]
    kinds = dict.fromkeys(part["kind"] for part in result["parts"])
    for kind in kinds:
        own = [part for part in result["parts"] if part["kind"] == kind]
        if len(own) > 1:
            lines += [_line(part["name"], [part], whole_s, None) for part in own]
        lines.append(_line(f"**{kind}**", own, whole_s, measured.get(kind)))
    beside = {k: s for k, s in measured.items() if k not in kinds}
    lines += [f"| {kind} |  |  |  |  |  | {1e3 * s:.1f} ms |" for kind, s in beside.items()]
    if profile:
        lines.append(f"| device idle |  |  |  |  |  | {1e3 * scale * profile['idle_s']:.1f} ms |")
    whole = f"{1e3 * scale * profile['wall_s']:.1f} ms" if profile else ""
    lines.append(_line("**step**", result["parts"], whole_s, None)[:-2] + f"{whole} |")
    speed = f"{profile['rows'] / profile['wall_s']:.1f}" if profile else "not measured"
    published = "; ".join(f"{what} {value:g}" for what, value in PUBLISHED)
    sources = "; ".join(result["ceiling"]["sources"])
    note = (
        f"{result['roofline']}, batch {result['rows']} on one {result['ceiling']['device']}, "
        f"forward, backward and update. Computed, sequences/s: {_speed(result, 'least_s')} at the "
        "data sheet's rates, an upper bound for doing these parts one after the other; "
        f"{_speed(result, 'attainable_s')} at attainable rates. Measured: {speed}. For comparison, "
        f"sequences/s: {published}. Ceilings assumed: {sources}."
    )
    return "\n".join([*lines, "", note])


def _speed(result: Mapping[str, Any], key: str) -> str:
    return f"{result['sequences_per_s'][key]:.0f} ({100 * result['mfu'][key]:.0f} % MFU)"


def _line(
    name: str, parts: list[Mapping[str, Any]], step_s: float, measured_s: float | None
) -> str:
    flops, size = (sum(part[key] for part in parts) for key in ("flops", "bytes"))
    least_s, seconds = (sum(part[key] for part in parts) for key in ("least_s", "attainable_s"))
    cells = (
        name,
        f"{flops / 1e12:.1f}" if flops else "",
        f"{size / 1e9:.1f}" if size else "",
        f"{1e3 * least_s:.1f} ms",
        f"{1e3 * seconds:.1f} ms",
        f"{100 * seconds / step_s:.0f} %",
        "" if measured_s is None else f"{1e3 * measured_s:.1f} ms",
    )
    return "| " + " | ".join(cells) + " |"


def newest_profile(directory: Path) -> dict[str, Any] | None:
    """The row "kernels" of the newest measurement on an H100 SXM, if there is one."""
    found = []
    for file in directory.glob("gpu-*.json"):
        result = json.loads(file.read_text("utf-8"))
        name = result["measured"]["device"]
        if "H100" in name and "PCIe" not in name and "NVL" not in name:
            found += [
                (result["measured"]["date"], row)
                for row in result["rows"]
                if (row["part"], row["name"], row["status"]) == ("profile", "kernels", "measured")
            ]
    return max(found, key=lambda each: str(each[0]))[1] if found else None


def t5_large() -> T5Config:
    import model

    from fsdpkit.config.training.presets import PRESETS

    return model.T5Config(**PRESETS["t5-v1.1-large"])


def main() -> int:
    sys.path[:0] = [str(BENCHMARKS.parent), str(BENCHMARKS.parent / "examples" / "T5-fsdp")]
    result = roofline(t5_large(), H100, 64, 512, 128)
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    from benchmarks import report

    report.main()
    print(table(result, newest_profile(RESULT.parent)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
