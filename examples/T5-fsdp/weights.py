"""Weights in files: a Hugging Face directory of `config.json` and safetensors, read and written,
and checkpoints, read for use without training.

A rank reads its part of one parameter at a time, so that none ever holds the model. Everything that
can be wrong with a file is found from the headers, before a GPU has done any work: `check`, then
`fill_from` for `fsdpkit.training.sharding.shard`.

Names are those of model.py, which are Hugging Face's. Values are float32 in memory and in files
written here; bfloat16 and float16 files are read too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from model import EOS, PAD, T5, Block, T5Config
from torch import Generator, Tensor

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.config.training.presets import read_config_json
from fsdpkit.data.tokenizers import Tokenizer
from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.runs.checkpoints import DESCRIPTION, describe, step_of
from fsdpkit.training.checkpoint_loading import read_into, weights_in
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.export import MAX_FILE_BYTES, HuggingFace, write_hugging_face
from fsdpkit.training.sharding import Fill, shard
from fsdpkit.training.weight_files import FileFill, Stored, safetensors_in, same

CONFIG = "config.json"
SHARED, HEAD = "shared.weight", "lm_head.weight"
ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # of SHARED
# In files of 2020: transformers made this table and never read it.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
DTYPES = ("F32", "BF16", "F16")


def check(directory: Path, config: T5Config) -> T5Config:
    """`config` with the head tied or not as the files in `directory` have it.

    Compares every tensor's name, shape and type with what `config` needs; reads headers only (and
    the head, when the file also has one for a tied model). Raises NotFoundError when there are no
    safetensors, ConfigError naming file and tensor for a broken file, a tensor that is missing, not
    expected, of another shape, or of a type other than float32, bfloat16 and float16.
    """
    return _table(directory, config)[1]


def fill_from(directory: Path, config: T5Config) -> FileFill:
    """A `fill` for `shard`: each rank reads its part of each parameter in `directory`'s files.

    `config` is what `check` returned and the model was built from. Raises what `check` raises, and
    from the `fill` itself ConfigError for a tensor that holds NaN or infinity.
    """
    table, found = _table(directory, config)
    if found.tie_word_embeddings != config.tie_word_embeddings:
        raise ConfigError(
            f"{directory}: {HEAD} does not fit tie_word_embeddings = "
            f"{str(config.tie_word_embeddings).lower()}; build the model from what check() returns."
        )
    return FileFill(table, directory)


def load(
    directory: Path,
    *,
    attention: str = "sdpa",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    ranks: Ranks | None = None,
) -> T5:
    """The model in evaluation mode, from a Hugging Face directory or a checkpoint of fsdp_t5.py.

    In one process it is whole; with `ranks`, a collective, FSDP2 spreads it over their devices, and
    each reads its part. A checkpoint is believed: `fsdpkit.runs.checkpoints` can check it before.

    Raises what `check` raises, NotFoundError for a checkpoint without config.json, StorageError for
    one that cannot be read.
    """
    in_shards = is_checkpoint(directory)
    fill: Fill = _leave
    if in_shards:
        config = _config_of_checkpoint(directory)
    else:
        config = check(directory, T5Config(**read_config_json(directory / CONFIG)))
        fill = fill_from(directory, config)
    with torch.device("meta"):
        model = T5(config, attention).to(dtype).eval()
    if ranks:
        as_it_is = PrecisionSettings(param="float32")  # the shards have `dtype` already
        shard(model, ShardingSettings(), as_it_is, ranks, blocks=[Block], fill=fill)
    else:
        model.to_empty(device=device)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                fill(name, parameter, torch.default_generator)
    if in_shards:
        read_into(directory, {n: p.detach() for n, p in model.named_parameters()}, ranks)
    return model


def is_checkpoint(directory: Path) -> bool:
    """Whether `directory` is a checkpoint of a run, not a Hugging Face directory."""
    return step_of(directory) is not None or (directory / DESCRIPTION).is_file()


def export(
    directory: Path,
    model: T5,
    config: T5Config,
    *,
    eos_id: int = EOS,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write a whole `model` to `directory` for `transformers` 4 and 5.

    A sharded one is exported from its checkpoint: `fsdpkit.training.export`. Raises StorageError
    when it cannot be written, or when `directory` is no earlier export.
    """
    weights = dict(model.named_parameters())
    beside = hugging_face(config, eos_id)
    write_hugging_face(
        directory,
        {name: 4 * weight.numel() for name, weight in weights.items()},
        lambda names: {name: weights[name] for name in names},
        beside.texts(),
        beside.copies,
        dtype=torch.float32,
        max_file_bytes=max_file_bytes,
    )


def hugging_face(
    config: T5Config, eos_id: int = EOS, tokenizer: Tokenizer | None = None
) -> HuggingFace:
    """What a directory for `transformers` has beside the weights of a T5, its tokenizer included:
    AutoTokenizer without one would take T5's own, and give a ByT5 other ids."""
    table = hugging_face_config(config, eos_id)
    ids = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    # transformers 4 scales what is tied: where ours does not, it gets an equal, untied head.
    untie = config.tie_word_embeddings and not config.scales_decoder_outputs
    return HuggingFace(
        files={"config.json": table, "generation_config.json": {key: table[key] for key in ids}},
        copies={HEAD: SHARED} if untie else {},
        as_they_are=tokenizer.files if tokenizer else {},
    )


def hugging_face_config(config: T5Config, eos_id: int = EOS) -> dict[str, Any]:
    """What `config.json` says of `config`, in words that transformers 4 and 5 understand alike.

    transformers 4 both ties and scales by tie_word_embeddings. transformers 5 scales by
    scale_decoder_outputs and ties a head that the file lacks or has with equal values.
    """
    dimensions = asdict(config)
    del dimensions["head_init_std"]  # of no use once there are weights
    scaled = config.scales_decoder_outputs
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        **dimensions,
        "tie_word_embeddings": config.tie_word_embeddings and scaled,
        "scale_decoder_outputs": scaled,
        "is_encoder_decoder": True,
        "use_cache": True,
        "torch_dtype": "float32",
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
        "eos_token_id": eos_id,
    }


def _config_of_checkpoint(directory: Path) -> T5Config:
    """Its config.json, the head tied as it was while training; fits the tensors."""
    if not (directory / CONFIG).is_file():
        raise NotFoundError(
            f"{directory}: holds no {CONFIG}, which says what model it is: it was saved by another "
            "trainer than fsdp_t5.py."
        )
    config = T5Config(**read_config_json(directory / CONFIG))
    if describe(directory).export.get("copies", {}).get(HEAD) == SHARED:
        scales = config.scales_decoder_outputs
        config = replace(config, tie_word_embeddings=True, scale_decoder_outputs=scales)
    found = {name: tuple(shape) for name, (shape, _) in weights_in(directory).items()}
    expected = _shapes(config)
    if wrong := sorted(dict(found.items() ^ expected.items())):
        raise ConfigError(f"{directory}: {wrong[0]} is not what {CONFIG} there says.")
    return config


def _leave(name: str, tensor: Tensor, generator: Generator) -> None:
    """A `fill` for values that are read later."""


def _shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in T5(config).named_parameters()}


def _table(directory: Path, config: T5Config) -> tuple[dict[str, Stored], T5Config]:
    """Where each parameter of the model is, and the config with the head's tie as found."""
    stored = {name: entry for name, entry in safetensors_in(directory) if name != UNUSED}
    aliases = [stored.pop(name) for name in ALIASES if name in stored]
    if aliases:
        shared = stored.setdefault(SHARED, aliases[0])
        for alias in aliases:
            if not same(shared, alias):
                raise ConfigError(f"{alias.file}: {alias.name} differs from {shared.name}.")
    tied = config.tie_word_embeddings
    if HEAD in stored and SHARED in stored:
        tied = same(stored[SHARED], stored[HEAD])
    found = replace(
        config, tie_word_embeddings=tied, scale_decoder_outputs=config.scales_decoder_outputs
    )
    if tied:
        stored.pop(HEAD, None)
    wrong = list(_mismatches(directory, stored, _shapes(found)))
    if wrong:
        more = f"\n(and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
        raise ConfigError("\n".join(wrong[:5]) + more)
    return stored, found


def _mismatches(
    directory: Path, stored: dict[str, Stored], expected: dict[str, tuple[int, ...]]
) -> Iterator[str]:
    for name, shape in expected.items():
        if name not in stored:
            yield f"{directory}: {name} is missing from the safetensors; {_of(name, shape)}."
        elif stored[name].shape != shape:
            found = stored[name]
            yield (
                f"{found.file}: {found.name} has the shape {list(found.shape)}, but "
                f"{_of(name, shape)}."
            )
    for name, found in stored.items():
        if name not in expected:
            yield f"{found.file}: {name} belongs to no T5 of the dimensions given."
        elif found.dtype not in DTYPES:
            yield (
                f"{found.file}: {name} is of type {found.dtype}; only {', '.join(DTYPES)} can be "
                "read."
            )


def _of(name: str, shape: tuple[int, ...]) -> str:
    if name == HEAD:
        return f"tie_word_embeddings = false asks for it, with the shape {list(shape)}"
    return f"the dimensions given make it {list(shape)}"
