"""Small models of `transformers` in Hugging Face's format, made here: no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 264
_DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
    "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _DECODER),
    "qwen2 tied": ("Qwen2Config", "Qwen2ForCausalLM", {**_DECODER, "tie_word_embeddings": True}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_DECODER, "num_local_experts": 4}),
    "t5": ("T5Config", "T5ForConditionalGeneration", _T5),
}
"""Config class, model class, and what the config says. A MoE's experts are stacked in memory."""


def made(kind: str, directory: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """A model with weights drawn from a seed, and a tokenizer of bytes beside it."""
    import transformers

    config_class, model_class, table = KINDS[kind]
    torch.manual_seed(7)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**table))
    several_files = {"max_shard_size": "50KB"} if kind == "mixtral" else {}
    model.to(dtype).save_pretrained(directory, **several_files)
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(directory)
    return directory


def loaded(directory: Path, kind: str) -> Any:
    """The model as transformers reads it, in float32."""
    import transformers

    return getattr(transformers, KINDS[kind][1]).from_pretrained(directory, dtype=torch.float32)
