"""What training.py's contestants are given: sizes, initial weights and token ids, on disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.workload import Workload, write_workload

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "T5-fsdp"

# T5 v1.1 in its proportions, small enough for a step of about half a second.
SMALL = {
    "vocab_size": 8192,
    "d_model": 256,
    "d_ff": 512,
    "d_kv": 32,
    "num_heads": 8,
    "num_layers": 4,
    "num_decoder_layers": 4,
}
ON_CPU = Workload(
    ranks=2,
    batch=4,
    source_length=128,
    target_length=32,
    warmup_steps=4,
    steps=16,
    precision="float32",
)


def write_task(directory: Path, dimensions: Mapping[str, Any], work: Workload) -> None:
    """The workload's files: sizes, T5's initial weights and seeded token ids."""
    import torch
    from safetensors.torch import save_file

    sys.path.insert(0, str(EXAMPLE))
    from model import T5, T5Config, init_parameter

    head = dimensions["d_model"] ** -0.5  # the untrained model's loss starts near ln(vocabulary)
    config = T5Config(**dimensions, dropout_rate=0.0, head_init_std=head)
    with torch.device("meta"):
        model = T5(config)
    weights = {}
    generator = torch.Generator().manual_seed(work.seed)
    for name, parameter in model.named_parameters():
        weights[name] = torch.empty(parameter.shape)
        init_parameter(config, name, weights[name], generator)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    rows = (work.warmup_steps + work.steps, work.ranks, work.batch)
    high = dimensions["vocab_size"]
    lengths = {"source": work.source_length, "labels": work.target_length}
    batches = {
        key: torch.randint(2, high, (*rows, length), generator=generator)  # no pad, no EOS
        for key, length in lengths.items()
    }
    save_file(batches, directory / "batches.safetensors")
    about = {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "dropout_rate": 0.0,
        **dimensions,
    }
    (directory / "config.json").write_text(json.dumps(about), "utf-8")
    write_workload(directory, work)
