"""Settings of `[training.data]` that cannot work together; see `problems.py`."""

from collections.abc import Iterator

from fsdpkit.config.training.data import DataSettings

FILES = (".jsonl", ".csv", ".parquet", ".txt")


def data_problems(data: DataSettings) -> Iterator[str]:
    """One plain sentence for each, with its remedy; no file is looked at."""
    yield from _source(data)
    yield from _held_out_source(data)
    yield from _source_prefix(data)


def _source(data: DataSettings) -> Iterator[str]:
    suffix = data.source.rpartition("/")[2].rpartition(".")
    is_file = bool(suffix[1])
    if data.source == "python-docs":
        if data.task == "pairs":
            yield (
                'task "pairs" needs a file: set training.data.source to a .jsonl, .csv or .parquet '
                'path, or training.data.task to "docstring" or "span-corruption".'
            )
    elif is_file and not data.source.endswith(FILES):
        yield (
            f'training.data.source is {data.source!r}: it must be "python-docs", end in '
            f"{', '.join(FILES)}, or be a directory that `fsdpkit data prepare` made."
        )
    elif data.task == "docstring":
        yield (
            'task "docstring" reads Python\'s own sources only: for a file set '
            'training.data.task to "pairs" (or "span-corruption" on its source field).'
        )
    elif data.task == "pairs" and data.source.endswith(".txt"):
        yield (
            f"training.data.source {data.source!r} is plain text, which has no pairs: set "
            'training.data.task = "span-corruption".'
        )
    if data.task == "pairs" and data.source_field == data.target_field:
        yield (
            f"training.data.source_field and target_field are both {data.source_field!r}: the "
            "model would learn to copy; name two fields."
        )
    if data.packing and data.buckets not in ("auto", 0, 1):
        yield (
            "training.data.packing fills rows of one size: leave training.data.buckets at 0 or 1."
        )


def _held_out_source(data: DataSettings) -> Iterator[str]:
    source = data.held_out_source
    if source is None:
        return
    if source == data.source:
        yield (
            f"training.data.held_out_source is {source!r}, what is trained on: name other data, or "
            "leave it unset and set training.data.held_out."
        )
    elif source == "python-docs" or data.task == "docstring":
        yield (
            "training.data.held_out_source is a file or prepared directory beside one: leave it "
            "unset for Python's own documentation, of which training.data.held_out keeps a share."
        )
    elif data.task == "pairs" and source.endswith(".txt"):
        yield (
            f"training.data.held_out_source {source!r} is plain text, which has no pairs: name a "
            ".jsonl, .csv or .parquet file."
        )
    elif "." in source.rpartition("/")[2] and not source.endswith(FILES):
        yield (
            f"training.data.held_out_source is {source!r}: it must end in {', '.join(FILES)}, or "
            "be a directory that `fsdpkit data prepare` made."
        )


def _source_prefix(data: DataSettings) -> Iterator[str]:
    if not data.source_prefix:
        return
    if data.task == "span-corruption":
        yield (
            "training.data.source_prefix tells T5 a task with source and target; span-corruption "
            "has none: leave it unset."
        )
    taken = len(data.source_prefix.encode(errors="replace"))
    # A prepared directory has the tokenizer it was made with.
    in_bytes = data.tokenizer == "bytes" or (
        data.tokenizer is None and data.source.endswith((*FILES, "python-docs"))
    )
    if in_bytes and taken >= data.source_length - 1:
        yield (
            f"training.data.source_prefix takes {taken} bytes, and training.data.source_length is "
            f"{data.source_length}: nothing of a text is left; shorten the one or raise the other."
        )
