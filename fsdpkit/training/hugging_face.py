"""A model of `transformers` from a directory in Hugging Face's format, and back into one.

    source = training.pretrained("/models/Llama-3.2-1B")
    model = training.shard(source.model, sharding, precision, ranks, fill=source.fill)
    …
    saves = training.Checkpointer(paths, ranks, model, optimizer, export=source.export)

The model is built without memory for its weights; buffers, such as tables of rotary embeddings,
have their values. `shard` takes the blocks that the model names itself and reads each rank's part
of the files. What is exported has the tensors of the source under the source's own names, its
configuration, and its tokenizer.

Files do not always hold the tensors that the model has: prefixes differ, and transformers 5 stacks
the experts of a layer, which lie one by one in files. transformers' own rules say which is which.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fsdpkit.bounded import LAYERS, MODEL_BYTES, json_of_model, read_bytes
from fsdpkit.config.training.hub import hub_hint
from fsdpkit.errors import ConfigError, NotFoundError, StorageError
from fsdpkit.training.export import DTYPE_KEYS, TOKENIZER_FILES, HuggingFace
from fsdpkit.training.export_layout import WeightPart
from fsdpkit.training.initialisation import Fill
from fsdpkit.training.weight_files import (
    FileFill,
    JoinedTensors,
    Needed,
    Source,
    Stored,
    safetensors_in,
    tensors_needed,
)

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
_ROTARY = "rotary_emb.inv_freq"
_REMEDY = (
    "`leave_out` names tensors that are not to be read; `otherwise` fills what the files lack."
)
_ALSO_COPIED = (
    *("preprocessor_config.json", "processor_config.json", "tekken.json", "vocab.bpe"),
    *("*.tiktoken", "*.spm", "source.spm", "target.spm", "sentencepiece*.model"),
)


@dataclass(frozen=True)
class Pretrained:
    """A model of `transformers` whose weights are still in files.

    Attributes:
        model: Without memory for its weights; buffers have their values.
        fill: For `shard`: reads each rank's part of the files.
        export: For `Checkpointer`: makes what is exported loadable by `from_pretrained`.
    """

    model: nn.Module
    fill: FileFill
    export: HuggingFace


def pretrained(
    directory: Path | str,
    model_class: type[nn.Module] | None = None,
    *,
    config: Any = None,
    otherwise: Fill | None = None,
    leave_out: Sequence[str] = (),
) -> Pretrained:
    """The model in a directory of Hugging Face's format: config.json and safetensors.

    Weights are float32 until `shard` says otherwise. Runs no code from the directory and asks no
    network.

    Args:
        directory: Where `config.json` is, with the weights in one file or several.
        model_class: Of `transformers`; None: the one that config.json names.
        config: A `transformers` configuration that takes the place of config.json, and is exported.
        otherwise: Fills what the files lack, such as a new head.
        leave_out: Patterns of names in the files; tensors that fit are not read.

    Returns:
        The model, what fills it, and what an export has beside the weights.

    Raises:
        NotFoundError: A file is missing.
        ConfigError: A file cannot be used, or `transformers` is not installed. Names and shapes
            that do not fit are refused by `shard`.
        StorageError: A tokenizer's file cannot be read.
    """
    directory = Path(directory)
    table = _read_config(directory)
    if config is None:
        config = _config(directory)
    else:
        config, table = deepcopy(config), json.loads(config.to_json_string())  # as one saves it
    model = _model(directory, model_class or _class_of(directory, table), config)
    stored = {
        name: tensor
        for name, tensor in safetensors_in(directory)
        if not any(fnmatchcase(name, pattern) for pattern in leave_out)
    }
    targets = _without_leftovers(model, _names_in_model(model, [*stored]))
    sources, parts = _joined(directory, stored, targets)
    export = HuggingFace(
        files=_tables(directory, table, type(model).__name__),
        as_they_are=dict(_beside(directory)),
        layout=_layout(tensors_needed(model), parts),
    )
    return Pretrained(model, FileFill(sources, directory, otherwise, _REMEDY), export)


def model_of(directory: Path) -> nn.Module:
    """The model that config.json in `directory` describes, without memory for its weights, which
    need not be there. Raises NotFoundError, ConfigError."""
    return _model(directory, _class_of(directory, _read_config(directory)), _config(directory))


def _model(directory: Path, model_class: type[nn.Module], config: Any) -> nn.Module:
    config.use_cache = False  # of no use in training, and a recomputed block would fill it twice
    model = _built(directory, model_class, config)
    model.float()
    if tie := getattr(model, "tie_weights", None):
        tie()
    return model


def _built(directory: Path, model_class: type[nn.Module], config: Any) -> nn.Module:
    try:
        with weights_on_meta():
            return model_class(config)
    except Exception as error:  # whatever a model raises for numbers that do not go together
        raise ConfigError(
            f"{directory / CONFIG}: no {model_class.__name__} can be made of it: {_told(error)}."
        ) from error


@contextmanager
def weights_on_meta() -> Iterator[None]:
    """Modules made here have parameters without memory, and buffers with their values.

    Under torch.device("meta") buffers would have none either, and a table that is in no file could
    not be had again.
    """

    def without_memory(
        module: nn.Module, name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None  # as it is: a tied weight stays the same object
        return nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    handle = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


def _read_config(directory: Path) -> dict[str, Any]:
    file = directory / CONFIG
    if not directory.is_dir():
        raise NotFoundError(f"{directory}: no such directory.{hub_hint(directory)}")
    if not file.exists():
        raise NotFoundError(f"{file}: no such file: not a model in Hugging Face's format.")
    table = _table(file)
    if quantization := table.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise ConfigError(
            f"{file}: the weights are quantized ({method or 'quantization_config'}), and cannot be "
            "trained as they are: use the model that they were made from."
        )
    return table


def _table(file: Path) -> dict[str, Any]:
    try:
        table: Any = json_of_model(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}.") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: holds no table.")
    if many := _too_many(table):
        raise ConfigError(f"{file}: {many} is more than {LAYERS}, which no model has.")
    return table


_COUNTS = re.compile(r"layer|block|expert|depth|stage")


def _too_many(value: Any, key: str = "") -> str | None:
    """The first number of parts that would take long to build."""
    if isinstance(value, dict):
        return next((found for k, v in value.items() if (found := _too_many(v, str(k)))), None)
    if isinstance(value, list):
        return next((found for v in value if (found := _too_many(v, key))), None)
    counts = isinstance(value, int) and _COUNTS.search(key)
    return f"{key} = {value}" if counts and value > LAYERS else None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            "training.pretrained needs the package transformers, which is not installed: "
            "pip install transformers."
        ) from None
    return transformers


def _config(directory: Path) -> Any:
    try:
        config = _transformers().AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # also those of the packages that check its values
        raise ConfigError(
            f"{directory / CONFIG}: transformers cannot use it: {_told(error)}."
        ) from None
    # What transformers itself does not look at before a step.
    heads, groups = (getattr(config, f"num_{what}_heads", 0) for what in ("attention", "key_value"))
    if isinstance(heads, int) and isinstance(groups, int) and groups and heads % groups:
        raise ConfigError(
            f"{directory / CONFIG}: num_attention_heads ({heads}) is not a multiple of "
            f"num_key_value_heads ({groups})."
        )
    return config


def _told(error: Exception) -> str:
    """The line that says what is wrong; what follows is advice on other calls."""
    first, *others = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
    return " ".join([first, *(others[:1] if first.endswith(":") else [])]).rstrip(".")


def _class_of(directory: Path, table: Mapping[str, Any]) -> type[nn.Module]:
    named = table.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    found = getattr(_transformers(), name, None) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        what = f"names {name}, which transformers does not have" if name else "names no class"
        raise ConfigError(
            f"{directory / CONFIG}: `architectures` {what}: pass pretrained() the `model_class`."
        )
    return found


class _Target(NamedTuple):
    """Where a tensor of a file belongs."""

    name: str
    converter: Any = None  # of transformers: how several become one
    pattern: str | None = None  # which of the converter's sources it is


def _names_in_model(model: Any, names: Sequence[str]) -> dict[str, _Target]:
    """Names in files → in the model, by the rules of the transformers that is installed."""
    own = model.state_dict(keep_vars=True)
    prefix = getattr(model, "base_model_prefix", "")
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key
    except ImportError:  # transformers 4 has models as their files are
        return {name: _Target(_with_prefix(name, prefix, own)) for name in names}
    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings: list[Any] = [rule for rule in rules if not isinstance(rule, WeightConverter)]
    by_pattern: dict[str | None, Any] = {
        pattern: converter for converter in converters for pattern in converter.source_patterns
    }
    targets = {}
    for name in names:
        new, pattern = rename_source_key(name, renamings, converters, prefix or None, own)
        targets[name] = _Target(new, by_pattern.get(pattern), pattern)
    return targets


def _without_leftovers(model: nn.Module, targets: dict[str, _Target]) -> dict[str, _Target]:
    """Without what old files have and the model has not, as far as transformers knows it: also
    rotary embeddings of each layer, which the model now has once, and computes."""
    patterns = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())]
    own = model.state_dict(keep_vars=True)
    if any(name.endswith(_ROTARY) for name, _ in model.named_buffers()):
        patterns.append(rf"(^|\.){re.escape(_ROTARY)}$")
    return {
        name: target
        for name, target in targets.items()
        if target.name in own or not any(re.search(pattern, name) for pattern in patterns)
    }


def _with_prefix(name: str, prefix: str, own: Collection[str]) -> str:
    """A base model's weights fit a model with a head, and the other way round."""
    if name not in own and prefix:
        if f"{prefix}.{name}" in own:
            return f"{prefix}.{name}"
        if name.removeprefix(f"{prefix}.") in own:
            return name.removeprefix(f"{prefix}.")
    return name


def _joined(
    directory: Path, stored: Mapping[str, Stored], targets: Mapping[str, _Target]
) -> tuple[dict[str, Source], dict[str, WeightPart]]:
    """Names in the model → what is read, and names in the files → parts of the model's tensors."""
    sources: dict[str, Source] = {}
    parts: dict[str, WeightPart] = {}
    several: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    converters: dict[str, Any] = {}
    for name, target in targets.items():
        if target.converter is not None and target.pattern is not None:
            several[target.name][target.pattern].append(name)
            converters[target.name] = target.converter
            continue
        if target.name in sources:
            raise ConfigError(
                f"{directory}: {sources[target.name].name} and {name} are both {target.name}."
            )
        sources[target.name] = stored[name]
        parts[name] = WeightPart((target.name,))
    for new, by_pattern in several.items():
        sources[new] = _join(directory, new, converters[new], by_pattern, stored, parts)
    return sources, parts


def _join(
    directory: Path,
    new: str,
    converter: Any,
    by_pattern: Mapping[str, list[str]],
    stored: Mapping[str, Stored],
    parts: dict[str, WeightPart],
) -> Source:
    """One tensor of several, as `converter` has it; adds the way back to `parts`."""
    kinds = [type(operation).__name__ for operation in converter.operations]
    dims = [getattr(operation, "dim", None) for operation in converter.operations]
    known = kinds in (["MergeModulelist"], ["MergeModulelist", "Concatenate"], ["Concatenate"])
    stacks = "MergeModulelist" in kinds
    if not known or (stacks and dims[0] != 0) or len(converter.target_patterns) != 1:
        raise ConfigError(
            f"{directory}: the model makes {new} of other tensors in a way that is not read "
            f"({', '.join(kinds)}): load it with transformers, and shard it with its values."
        )
    groups: list[tuple[list[str], Source]] = []
    for pattern in converter.source_patterns:
        names = sorted(by_pattern.get(pattern, ()), key=_by_number)
        if stacks and names:
            _require_all(directory, names)
            groups.append((names, JoinedTensors(tuple(stored[n] for n in names), 0, stacked=True)))
        elif names:
            groups += [([name], stored[name]) for name in names]
    dim, start = dims[-1] if "Concatenate" in kinds else None, 0
    for names, source in groups:
        length = source.shape[dim] if dim is not None else 0
        for number, name in enumerate(names):
            at = None if dim is None else (dim - stacks, start, length)
            parts[name] = WeightPart((new,), number if stacks else None, at)
        start += length
    whole = tuple(source for _, source in groups)
    return whole[0] if dim is None else JoinedTensors(whole, dim)


def _require_all(directory: Path, names: Sequence[str]) -> None:
    """Raise ConfigError unless sorted `names` differ in one number alone, which counts from 0."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    differing = [column for column in columns if len({*column}) > 1]
    if len(names) > 1 and differing != [tuple(str(n) for n in range(len(names)))]:
        there = ", ".join(" ".join(row) for row in zip(*differing, strict=True))
        raise ConfigError(
            f"{directory}: {names[0]} and those like it must be numbered from 0 without gaps, "
            f"but there are {there}."
        )


def _by_number(name: str) -> list[tuple[int, int, str]]:
    """Sorts expert 10 behind expert 9."""
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in name.split(".")]


def _layout(needed: Sequence[Needed], parts: Mapping[str, WeightPart]) -> dict[str, WeightPart]:
    """The tensors of an export: those of the source, and weights that the source lacks."""
    groups = {name: each.names for each in needed for name in each.names}
    layout = {
        name: WeightPart(groups.get(part.of[0], part.of), part.index, part.narrow)
        for name, part in parts.items()
    }
    filled = {name for part in layout.values() for name in part.of}
    layout |= {
        each.names[0]: WeightPart(each.names) for each in needed if each.names[0] not in filled
    }
    return layout


def _tables(directory: Path, config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """config.json and generation_config.json, for weights that are float32 until they are said to
    be otherwise."""
    named = {key: "float32" for key in DTYPE_KEYS if key in config}
    tables = {
        CONFIG: {**config, **(named or {"dtype": "float32"}), "architectures": [architecture]}
    }
    if (generation := directory / GENERATION_CONFIG).exists():
        tables[GENERATION_CONFIG] = _table(generation)
    return tables


def _beside(directory: Path) -> Iterator[tuple[str, bytes]]:
    """What turns text, or images, into what the model reads."""
    for file in sorted(directory.iterdir()):
        patterns = (*TOKENIZER_FILES, *_ALSO_COPIED)
        if file.is_file() and any(fnmatchcase(file.name, pattern) for pattern in patterns):
            try:
                yield file.name, read_bytes(file, MODEL_BYTES, links=True)
            except OSError as error:
                raise StorageError(f"{file} cannot be read: {error.strerror}.") from None
