"""The template that an administrator's command names: a folder, a name, or NAME@VERSION."""

from __future__ import annotations

import os
from pathlib import Path

from fsdpkit.config.template import Template, load_template


def folder_of(word: str) -> str:
    """For `load_template`: an existing folder by its whole path, else the word, a name."""
    if "/" in word or word in (".", "..") or os.path.isfile(Path(word) / "template.toml"):
        return os.path.abspath(word)
    return word


def open_template(word: str) -> Template:
    """Raises NotFoundError or ConfigError."""
    return load_template(folder_of(word))
