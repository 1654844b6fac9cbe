"""The examples that are no language model of ours: a ResNet with BatchNorm, and nn.Transformer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from launch import REPOSITORY, run_ranks

from fsdpkit.runs.checkpoints import describe
from fsdpkit.runs.layout import TaskPaths

pytestmark = pytest.mark.torch
FOLDER = REPOSITORY / "examples" / "more-models"


def share_right(said: str) -> int:
    return int(re.findall(r"held out: (\d+)% right", said)[-1])


def stripes(file: Path) -> None:
    """Four hundred noisy images of 16 × 16: rows, columns or one of the diagonals striped."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    kinds = torch.stack([y, x, y + x, y - x]) // 2 % 2 * 120
    labels = torch.randint(0, 4, (400,), generator=generator)
    noise = torch.randint(0, 136, (400, 3, 16, 16), generator=generator)
    torch.save({"images": (kinds[labels, None] + noise).to(torch.uint8), "labels": labels}, file)


def test_a_resnet_learns_and_goes_on_from_its_checkpoint_at_another_number_of_ranks(tmp_path):
    images, paths = tmp_path / "images.pt", TaskPaths(tmp_path / "run")
    stripes(images)
    said = ""
    for ranks, steps in ((2, "20"), (1, "60")):
        done = run_ranks(
            ranks,
            FOLDER / "resnet.py",
            str(images),
            steps,
            FSDPKIT_TASK_DIR=str(paths.dir),
            status=0,
        )
        said += done.stdout
    assert [int(step) for step in re.findall(r"step (\d+)", said)] == [20, 40, 60]
    assert share_right(said) >= 90
    assert describe(paths.checkpoints / "step-60").state["schedule"]["last_epoch"] == 60


def test_nn_transformer_learns_to_reverse_digits_on_two_ranks(tmp_path):
    done = run_ranks(
        2, FOLDER / "nn_transformer.py", "150", FSDPKIT_TASK_DIR=str(tmp_path), status=0
    )
    assert share_right(done.stdout) >= 90
