"""`[training.data]`: what the model reads, what it should write, and how samples lie in a batch."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import doc
from fsdpkit.config.training.model import Name


class DataSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.data]`: what the model reads and what it should write."""

    source: Annotated[
        Name,
        doc(
            '"python-docs" (Python\'s own documentation, no download), a .jsonl, .csv, '
            ".parquet or .txt file, or a directory that `fsdpkit data prepare` made."
        ),
    ] = "python-docs"
    task: Annotated[
        Literal["docstring", "span-corruption", "pairs"],
        doc(
            "docstring: write a function's docstring from its code; span-corruption: "
            "fill gaps in text; pairs: source and target fields of the file."
        ),
    ] = "docstring"
    tokenizer: Annotated[
        Name | None,
        doc(
            '"bytes" (ByT5), a tokenizer.json or a SentencePiece .model; unset takes '
            "bytes, or what prepared data was made with."
        ),
    ] = None
    source_field: Annotated[
        str, doc("Field of the file that holds the source text.", min_length=1)
    ] = "source"
    target_field: Annotated[
        str, doc("Field of the file that holds the target text.", min_length=1)
    ] = "target"
    source_prefix: Annotated[
        str,
        doc(
            'Prefix of each source text, such as "summarize: ", by which T5 knows the '
            "task; it counts as part of source_length."
        ),
    ] = ""
    limit: Annotated[
        int, doc("Number of rows to use, from the beginning of source; 0: all.", ge=0, le=10**12)
    ] = 0
    bad_rows: Annotated[
        Literal["fail", "skip"],
        doc("A row that cannot be used ends the run, or is counted and left out."),
    ] = "fail"
    source_length: Annotated[
        int, doc("Longest source in tokens; longer ones are cut.", ge=2, le=1048576)
    ] = 96
    target_length: Annotated[
        int, doc("Longest target in tokens; longer ones are cut.", ge=2, le=1048576)
    ] = 32
    noise_density: Annotated[
        float, doc("Share of tokens that span-corruption hides.", gt=0, lt=1)
    ] = 0.15
    mean_span: Annotated[
        Annotated[float, Meta(ge=1, le=1000)] | None,
        doc("Mean length of a hidden span in tokens; unset: 3, and 20 for bytes."),
    ] = None
    buckets: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | Literal["auto"],
        doc(
            "Sizes that batches are padded to, each a share of the longest: few shapes "
            "for compile; 0 pads each batch to its longest sample; auto: 4 on a GPU (1 with "
            "packing), 0 on a CPU, and what it was when a run goes on."
        ),
    ] = "auto"
    multiple: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | Literal["auto"],
        doc(
            "Padded lengths are multiples of this; auto: 64 on a GPU (8 where source_length or "
            "target_length is below 64), 1 on a CPU, and what it was when a run goes on."
        ),
    ] = "auto"
    packing: Annotated[
        bool, doc("Pack several short samples into one row; they do not attend to each other.")
    ] = False
    held_out: Annotated[
        float,
        doc(
            "Share of the samples held out for evaluation and never trained on; none "
            "with held_out_source.",
            ge=0,
            le=0.5,
        ),
    ] = 0.02
    held_out_source: Annotated[
        Name | None,
        doc(
            "A file or prepared directory of its own for evaluation, with the fields "
            "of source; all of source is then trained on."
        ),
    ] = None
    workers: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | Literal["auto"],
        doc(
            "Loader processes per rank; 0 loads in the rank itself; auto: 2 on a GPU "
            "as far as the rank has cores for them, 0 on a CPU."
        ),
    ] = "auto"

    @property
    def holds_out(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self.held_out > 0 or self.held_out_source is not None
