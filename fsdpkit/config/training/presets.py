"""The dimensions of a T5: published sizes by name, and any Hugging Face `config.json`.

Names of dimensions are those of a Hugging Face T5 `config.json`; sizes are from Raffel et al. 2020
(v1.0), the released configurations (v1.1, which Flan-T5 and mT5 share) and Xue et al. 2022 (ByT5).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsdpkit.bounded import LAYERS, json_of_model
from fsdpkit.config.training.hub import hub_hint
from fsdpkit.errors import ConfigError, NotFoundError

_V1_0 = {"vocab_size": 32128, "feed_forward_proj": "relu", "tie_word_embeddings": True}
_V1_1 = {"vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_MT5 = {"vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_BYT5 = {"vocab_size": 384, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def _size(
    family: Mapping[str, Any],
    d_model: int,
    d_ff: int,
    d_kv: int,
    heads: int,
    layers: tuple[int, int],
) -> dict[str, Any]:
    return {
        **family,
        "d_model": d_model,
        "d_ff": d_ff,
        "d_kv": d_kv,
        "num_heads": heads,
        "num_layers": layers[0],
        "num_decoder_layers": layers[1],
        "dropout_rate": 0.1,
    }


_V1_1_SIZES = {
    "small": _size(_V1_1, 512, 1024, 64, 6, (8, 8)),
    "base": _size(_V1_1, 768, 2048, 64, 12, (12, 12)),
    "large": _size(_V1_1, 1024, 2816, 64, 16, (24, 24)),
    "xl": _size(_V1_1, 2048, 5120, 64, 32, (24, 24)),
    "xxl": _size(_V1_1, 4096, 10240, 64, 64, (24, 24)),
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny-byt5": {
        **_size(_BYT5, 128, 256, 32, 4, (2, 2)),
        "dropout_rate": 0.0,
        "head_init_std": 128**-0.5,  # ours: starts at the loss of guessing, ln(384)
    },
    "t5-small": _size(_V1_0, 512, 2048, 64, 8, (6, 6)),
    "t5-base": _size(_V1_0, 768, 3072, 64, 12, (12, 12)),
    "t5-large": _size(_V1_0, 1024, 4096, 64, 16, (24, 24)),
    "t5-3b": _size(_V1_0, 1024, 16384, 128, 32, (24, 24)),
    "t5-11b": _size(_V1_0, 1024, 65536, 128, 128, (24, 24)),
    **{f"t5-v1.1-{size}": dimensions for size, dimensions in _V1_1_SIZES.items()},
    **{f"flan-t5-{size}": dimensions for size, dimensions in _V1_1_SIZES.items()},
    **{f"mt5-{size}": {**dimensions, **_MT5} for size, dimensions in _V1_1_SIZES.items()},
    "byt5-small": _size(_BYT5, 1472, 3584, 64, 6, (12, 4)),
    "byt5-base": _size(_BYT5, 1536, 3968, 64, 12, (18, 6)),
    "byt5-large": _size(_BYT5, 1536, 3840, 64, 16, (36, 12)),
    "byt5-xl": _size(_BYT5, 2560, 6720, 64, 32, (36, 12)),
    "byt5-xxl": _size(_BYT5, 4672, 12352, 64, 64, (36, 12)),
}
"""The published sizes, and `tiny-byt5`, which a laptop trains in a minute."""

if TYPE_CHECKING:
    PresetName = str
else:
    PresetName = Literal[tuple(PRESETS)]

_WHOLE = {  # positive integers that a config.json must or may give
    "vocab_size",
    "d_model",
    "d_ff",
    "d_kv",
    "num_heads",
    "num_layers",
    "num_decoder_layers",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
}
_UNSAID: Mapping[str, Mapping[str, Any]] = {
    "t5": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "mt5": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "scale_decoder_outputs": False,
    },
}
"""What transformers takes where a config.json of such a `model_type` says nothing."""
_LARGEST = 10_000_000
_REQUIRED = ("vocab_size", "d_model", "d_ff", "d_kv", "num_heads", "num_layers")
_OTHER = {
    "feed_forward_proj",
    "tie_word_embeddings",
    "scale_decoder_outputs",
    "dropout_rate",
    "layer_norm_epsilon",
    "initializer_factor",
    "head_init_std",
}
# What transformers writes beside the dimensions and the trainer does not need.
_BOOKKEEPING = {
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "pad_token_id",
    "eos_token_id", "bos_token_id", "decoder_start_token_id", "is_encoder_decoder", "is_decoder",
    "use_cache", "n_positions", "output_past", "output_attentions", "output_hidden_states",
    "return_dict", "task_specific_params", "tokenizer_class", "classifier_dropout",
    "dense_act_fn", "is_gated_act", "name_or_path", "gradient_checkpointing", "id2label",
    "label2id", "num_labels", "problem_type", "chunk_size_feed_forward", "add_cross_attention",
    "generation_config", "finetuning_task", "attn_implementation", "quantization_config",
    "hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim", "max_length",
}  # fmt: skip


def read_config_json(path: Path) -> dict[str, Any]:
    """The dimensions in a Hugging Face `config.json` of a T5 or an mT5, as keyword arguments of the
    example's T5Config. Raises NotFoundError when there is no such file, ConfigError naming file and
    key for a key that no T5 has or a value that no T5 can have."""
    try:
        table = json_of_model(path)
    except FileNotFoundError:
        named = path.parent if path.name == "config.json" else path
        raise NotFoundError(f"{path}: no such file.{hub_hint(named)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}.") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: must hold a JSON object.")
    kind = table.get("model_type", "t5")
    if kind not in _UNSAID:
        known_kinds = " and ".join(f'"{name}"' for name in _UNSAID)
        raise ConfigError(f"{path}: model_type is {kind!r}, but this trainer knows {known_kinds}.")

    known = _WHOLE | _OTHER
    for key in table:
        if key not in known | _BOOKKEEPING and not key.startswith("_"):
            import difflib  # only to explain a mistake

            near = difflib.get_close_matches(key, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{path}: {key!r} is no key of a T5 configuration.{hint}")
    if missing := [key for key in _REQUIRED if key not in table]:
        raise ConfigError(f"{path}: {', '.join(missing)} missing.")
    dimensions = {key: table[key] for key in table if key in known and table[key] is not None}
    dimensions.setdefault("num_decoder_layers", dimensions["num_layers"])
    dimensions = {**_UNSAID[kind], **dimensions}
    for key, value in dimensions.items():
        if expected := _unfit(key, value):
            raise ConfigError(f"{path}: {key} is {value!r}, but must be {expected}.")
    return dimensions


def _unfit(key: str, value: Any) -> str | None:
    """What `value` should have been, or None when it will do."""
    if key in _WHOLE:
        most = LAYERS if key.endswith("layers") else _LARGEST
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most
        return None if fits else f"a whole number above zero and at most {most}"
    if key == "feed_forward_proj":
        return None if value in ("relu", "gated-gelu") else '"relu" or "gated-gelu"'
    if key in ("tie_word_embeddings", "scale_decoder_outputs"):
        return None if isinstance(value, bool) else "true or false"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key == "dropout_rate":
        return None if number and 0 <= value < 1 else "a number from 0 to below 1"
    return None if number and value > 0 else "a number above zero"
