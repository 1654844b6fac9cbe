"""Models in Hugging Face's format that train in no time."""

from __future__ import annotations

from pathlib import Path

import torch


def save_tiny_llama(where: Path) -> Path:
    """A causal model with tied embeddings and a tokenizer of bytes; `where`."""
    from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        attention_dropout=0.1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(where)
    ByT5Tokenizer().save_pretrained(where)
    return where
