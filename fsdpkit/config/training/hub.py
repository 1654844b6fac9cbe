"""A name on the Hugging Face hub where a path on disk is wanted: how to come by the files."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_FILES = (
    *(".json", ".model", ".safetensors", ".pt", ".bin", ".ckpt"),
    *(".jsonl", ".csv", ".parquet", ".txt"),
)


def hub_hint(path: str | Path, *, dataset: bool = False) -> str:
    """A sentence, with a space before it, if `path` is not there but may be a name on the hub, of a
    model or a `dataset`; else nothing.
    """
    text = str(path)
    if os.path.isabs(text):
        text = os.path.relpath(text)
    if not _NAME.fullmatch(text) or text.endswith(_FILES) or os.path.exists(path):
        return ""
    directory = text.rpartition("/")[2]
    kind = "--repo-type dataset " if dataset else ""
    what = "the files there" if dataset else "that directory"
    return (
        f" If {text} is a name on the Hugging Face hub: a job downloads nothing. On a machine with "
        f"internet: hf download {kind}{shlex.quote(text)} --local-dir {shlex.quote(directory)} "
        f"(pip install huggingface_hub), then name {what}."
    )
