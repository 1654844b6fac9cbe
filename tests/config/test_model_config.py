"""A model's config.json that somebody else wrote is refused in a sentence, and never waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.training.presets import read_config_json
from fsdpkit.errors import ConfigError

T5 = {"vocab_size": 8, "d_model": 8, "d_ff": 8, "d_kv": 8, "num_heads": 1, "num_layers": 1}


def saying(**keys: object) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps(T5 | keys)) and None


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "a terabyte": (lambda path: path.touch() or os.truncate(path, 1 << 40), "more than 64 MiB"),
    "deep nesting": (lambda path: path.write_text("[" * 200_000) and None, "nested too deep"),
    "a million layers": (saying(num_layers=10**6), "at most 1000"),
    "a huge vocabulary": (saying(vocab_size=10**12), "at most 10000000"),
}


@pytest.mark.parametrize(("make", "why"), BAD.values(), ids=BAD)
def test_it_is_refused(make: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    make(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=why):
        read_config_json(tmp_path / "config.json")
