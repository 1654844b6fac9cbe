"""A run of the real trainer on two ranks, made once: checkpoints of steps 2, 4 and 6, an export."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fsdpkit.runs.checkpoints import (
    CHECKSUMS,
    DESCRIPTION,
    Best,
    checksum_lines,
    describe,
    sha256_of,
)
from fsdpkit.runs.layout import TaskPaths
from tests.training.launch import EXAMPLE, run_ranks

STEPS = (2, 4, 6)


def trained_run(factory: pytest.TempPathFactory) -> TaskPaths:
    """Its directory, the same for all who ask: copy it before you change anything."""
    return _trained_in(factory.getbasetemp() / "trained")


@cache
def _trained_in(directory: Path) -> TaskPaths:
    paths = TaskPaths(directory)
    directory.mkdir(exist_ok=True)
    data = directory / "pairs.jsonl"
    rows = [{"source": f"count to {i}", "target": str(i)} for i in range(1, 45)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "steps": STEPS[-1], "batch_size": 2, "data.source": data, "data.task": "pairs",
        "model.d_model": 16, "model.d_ff": 24, "model.d_kv": 8, "model.num_heads": 2,
        "model.num_layers": 1, "model.num_decoder_layers": 1, "checkpoint.every_steps": 2,
        "checkpoint.keep_last": 3, "checkpoint.export": "true",
    }  # fmt: skip
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run_ranks(2, EXAMPLE / "fsdp_t5.py", *sets, FSDPKIT_TASK_DIR=str(paths.dir), status=0)
    return paths


def copied(paths: TaskPaths, to: Path) -> TaskPaths:
    """The run's checkpoints in the directory `to`, to be damaged there."""
    copy = TaskPaths(to)
    shutil.copytree(paths.checkpoints, copy.checkpoints)
    return copy


def flip(file: Path, position: int | None = None, bit: int = 1) -> None:
    """Change one bit of a byte, of the middle one unless a position is given."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if position is None else position] ^= bit
    file.write_bytes(data)


def measure(checkpoint: Path, **measured: float) -> None:
    """Make the checkpoint one of a run that keeps the best eval_loss, and was measured so."""
    was = describe(checkpoint)
    now = replace(was, measured=measured, best_by=Best("eval_loss"))
    (checkpoint / DESCRIPTION).write_text(now.to_json())
    sums = {name: sha256_of(checkpoint / name) for name in (DESCRIPTION, *now.files)}
    (checkpoint / CHECKSUMS).write_text(checksum_lines(sums))
