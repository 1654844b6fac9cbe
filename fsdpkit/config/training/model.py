"""`[training.model]`: which T5, as a preset, a `config.json` or a directory of weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import doc
from fsdpkit.config.training.presets import PRESETS, PresetName, read_config_json

Name = Annotated[str, Meta(min_length=1, max_length=4096)]

Kernel = Literal["auto", "sdpa", "flex", "math"]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.model]`: which T5; a dimension given here replaces the preset's or the file's."""

    preset: Annotated[PresetName, doc("Published size to start from, or the demo's.")] = "tiny-byt5"
    pretrained: Annotated[
        Name | None,
        doc(
            "Directory with a Hugging Face config.json and safetensors to start from; "
            "replaces the preset."
        ),
    ] = None
    config: Annotated[
        Name | None,
        doc("A Hugging Face T5 config.json for a model with new weights; replaces the preset."),
    ] = None
    attention: Annotated[
        Kernel,
        doc(
            "auto: on a GPU the kernel that was measured to be fastest, elsewhere and "
            "so far sdpa; sdpa: PyTorch's fused attention; flex: FlexAttention, GPUs only, without "
            "dropout; math: the scores written out, to compare with."
        ),
    ] = "auto"
    d_model: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        doc("Width of the residual stream; unset takes the preset's."),
    ] = None
    d_ff: Annotated[
        Annotated[int, Meta(ge=1, le=1048576)] | None,
        doc("Inner width of the feed-forward layers; unset takes the preset's."),
    ] = None
    d_kv: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        doc("Width of one attention head; unset takes the preset's."),
    ] = None
    num_heads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        doc("Attention heads in each layer; unset takes the preset's."),
    ] = None
    num_layers: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        doc("Blocks in the encoder; unset takes the preset's."),
    ] = None
    num_decoder_layers: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        doc("Blocks in the decoder; unset takes the preset's."),
    ] = None
    vocab_size: Annotated[
        Annotated[int, Meta(ge=2, le=10_000_000)] | None,
        doc("Rows of the embedding table; unset takes the preset's."),
    ] = None
    dropout_rate: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        doc("Dropout probability everywhere in the model; unset takes the preset's."),
    ] = None

    @property
    def source(self) -> str:
        """The preset's name, or the path of the model that takes its place."""
        return self.pretrained or self.config or self.preset

    def dimensions(self) -> dict[str, Any]:
        """Arguments of the example's T5Config: preset or config.json, overrides applied. Raises
        ConfigError or NotFoundError for a config.json that is no T5's."""
        if self.pretrained:
            base: Mapping[str, Any] = read_config_json(Path(self.pretrained) / "config.json")
        elif self.config:
            base = read_config_json(Path(self.config))
        else:
            base = PRESETS[self.preset]
        given = {k: v for k, v in msgspec.structs.asdict(self).items() if v is not None}
        for key in ("preset", "pretrained", "config", "attention"):
            given.pop(key, None)
        return {**base, **given}
