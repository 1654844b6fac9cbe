"""Who types another launcher's command line is told ours; who does not mean one is left alone."""

from __future__ import annotations

import shlex

import pytest

from fsdpkit.config.launchers import is_launcher, refuse_launcher, same_submission
from fsdpkit.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("python train.py", "train.py"),
        ("python3.11 -u -W ignore train.py --lr 1 'a b'", "train.py -- --lr 1 'a b'"),
        ("/opt/env/bin/python -m lab.train --run x", "-m lab.train -- --run x"),
        ("torchrun --nproc_per_node 4 --nnodes=2 train.py -m", "train.py --gpus 4 --nodes 2 -- -m"),
        ("torchrun --standalone --nproc-per-node gpu -m lab.train", "-m lab.train"),
        ("torchrun --no-python -- litgpt pretrain", "litgpt -- pretrain"),
        ("python -m torch.distributed.run --rdzv_id 7 -m lab.train x", "-m lab.train -- x"),
        ("python3 -m torch.distributed.launch --nproc_per_node=4 train.py", "train.py --gpus 4"),
        ("torch.distributed.run train.py --lr 1", "train.py -- --lr 1"),
        ("python -c pass", None),
        ("python", None),
        ("torchrun --nnodes", None),
        ("srun python train.py", None),
        ("torchrun python train.py", None),
    ],
)
def test_the_command_that_does_the_same(typed: str, ours: str | None) -> None:
    words = shlex.split(typed)
    assert same_submission(words) == (ours and f"fsdpkit submit {ours}")
    with pytest.raises(UsageError, match="leave"):
        refuse_launcher(words, "submit")


@pytest.mark.parametrize("word", ["train.py", "litgpt", "pythonic", "accelerate", "", "./run"])
def test_other_programs_are_none(word: str) -> None:
    assert not is_launcher(word)
