"""The shapes in a directory of Hugging Face T5 weights, from the headers of its files alone.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header, a
JSON object of names, types and shapes: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.bounded import MODEL_BYTES, open_regular, read_bytes
from fsdpkit.errors import ConfigError, NotFoundError

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_HEADER_BYTES = 100 << 20
Shapes = dict[str, tuple[Path, list[int]]]


def weight_problems(directory: Path, dimensions: Mapping[str, Any]) -> Iterator[str]:
    """Telling tensors of `directory` that do not fit `dimensions` (keys of a T5 config.json).
    Raises NotFoundError when there are no safetensors, ConfigError for damaged ones."""
    shapes = tensor_shapes(directory)
    for name, expected, keys in _telling(dimensions):
        found = next((shapes[n] for n in name.split("|") if n in shapes), None)
        if found is None:
            missing = name.split("|")[0]
            yield f"{directory}: has no tensor {missing}, which a T5 of these dimensions has."
            continue
        path, shape = found
        if shape != expected:
            yield (
                f"{path}: tensor {name.split('|')[0]} is {shape}, but {keys} of the model make it "
                f"{expected}: leave the dimensions to the config.json beside it."
            )
    for stack, key in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        count = _blocks(shapes, stack)
        if count != dimensions[key]:
            yield (
                f"{directory}: holds {count} {stack} blocks, but {key} is {dimensions[key]}: leave "
                "it to the config.json beside the weights."
            )


def tensor_shapes(directory: Path) -> Shapes:
    """File and shape of each tensor in model.safetensors, or in the files that its index names.
    Raises NotFoundError or ConfigError, naming the file."""
    if (directory / WEIGHTS).exists():
        return _header(directory / WEIGHTS)
    index = directory / WEIGHTS_INDEX
    try:
        content = read_bytes(index, MODEL_BYTES, links=True)
        names = sorted(set(msgspec.json.decode(content)["weight_map"].values()))
    except FileNotFoundError:
        raise NotFoundError(
            f"{directory}: holds neither {WEIGHTS} nor {WEIGHTS_INDEX} (training.model.pretrained)."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{index}: not an index of safetensors: {error!r}.") from None
    found: Shapes = {}
    for name in names:
        found.update(_header(directory / name))
    return found


def _header(path: Path) -> Shapes:
    try:
        with open_regular(path, links=True) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MOST_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            table = msgspec.json.decode(file.read(length))
        table.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in table.values()), default=0)
        if path.stat().st_size != 8 + length + end:
            raise ValueError(f"{path.stat().st_size} bytes, not {8 + length + end}: cut short")
        return {name: (path, list(entry["shape"])) for name, entry in table.items()}
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file, but the index names it.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a safetensors file: {error}.") from None


def _telling(dimensions: Mapping[str, Any]) -> Iterator[tuple[str, list[int], str]]:
    """Tensor names (with `|` between spellings), their shapes, and the keys that decide them."""
    d_model, d_ff, heads = (dimensions[key] for key in ("d_model", "d_ff", "num_heads"))
    inner = heads * dimensions["d_kv"]
    embedding = "shared.weight|encoder.embed_tokens.weight|decoder.embed_tokens.weight"
    yield embedding, [dimensions["vocab_size"], d_model], "vocab_size and d_model"
    gated = dimensions["feed_forward_proj"] == "gated-gelu"
    for stack, feed_forward in (("encoder", 1), ("decoder", 2)):
        block = f"{stack}.block.0.layer"
        attention = f"{block}.0.SelfAttention"
        yield f"{attention}.q.weight", [inner, d_model], "num_heads × d_kv and d_model"
        buckets = dimensions.get("relative_attention_num_buckets", 32)
        bias = f"{attention}.relative_attention_bias.weight"
        yield bias, [buckets, heads], "relative_attention_num_buckets and num_heads"
        dense = f"{block}.{feed_forward}.DenseReluDense"
        for wi in ("wi_0", "wi_1") if gated else ("wi",):
            yield f"{dense}.{wi}.weight", [d_ff, d_model], "feed_forward_proj, d_ff and d_model"
        yield f"{dense}.wo.weight", [d_model, d_ff], "d_model and d_ff"


def _blocks(shapes: Shapes, stack: str) -> int:
    pattern = re.compile(rf"{stack}\.block\.(\d+)\.")
    return len({match[1] for name in shapes if (match := pattern.match(name))})
