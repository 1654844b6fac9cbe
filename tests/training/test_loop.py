"""The trainer's smaller promises, in one process: stopping, checkpoints, rate and order."""

from __future__ import annotations

import math
from dataclasses import replace

import fsdp_t5
import pytest
import torch
from data import Sample
from model import EOS

from fsdpkit.config.training import OptimizerSettings, load_settings
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Progress, checkpoints
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.stopping import StopRequest, require_finite

FIRST = Ranks(rank=0, local_rank=0, world_size=2, local_world_size=2, device=torch.device("cpu"))


def test_the_file_is_looked_for_at_most_once_a_second(tmp_path):
    now = 100.0
    paths = TaskPaths(tmp_path)
    stop = StopRequest(paths, FIRST, clock=lambda: now)
    assert stop.wanted() == 0
    paths.stop_requested.touch()
    now = 100.9
    assert stop.wanted() == 0
    now = 101.0
    assert stop.wanted() == 1
    paths.stop_requested.unlink()
    now = 105.0
    assert stop.wanted() == 1, "a request is not taken back"


def test_only_the_first_rank_looks(tmp_path):
    paths = TaskPaths(tmp_path)
    paths.stop_requested.touch()
    assert StopRequest(paths, replace(FIRST, rank=1)).wanted() == 0


@pytest.mark.parametrize("votes", [0.0, 1.0])
def test_ranks_agree_on_what_was_summed(tmp_path, votes):
    stop = StopRequest(TaskPaths(tmp_path), FIRST)
    assert not stop.agreed()
    stop.decide(torch.tensor(votes))
    assert stop.agreed() == (votes > 0)


def test_checkpoints_are_the_complete_ones_by_number(tmp_path):
    paths = TaskPaths(tmp_path)
    assert checkpoints(paths) == []
    for name, files in {
        "step-9": [".metadata", "progress.json"],
        "step-10": [".metadata", "progress.json"],
        "step-11": [".metadata"],
        "step-12": ["progress.json"],
        ".step-13.tmp": [".metadata", "progress.json"],
        "step-14-copy": [".metadata", "progress.json"],
    }.items():
        (paths.checkpoints / name).mkdir(parents=True)
        for file in files:
            (paths.checkpoints / name / file).touch()
    assert [p.name for p in checkpoints(paths)] == ["step-9", "step-10"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_an_error_with_a_remedy(value):
    require_finite(torch.tensor(1.0), "The gradient of step 1")
    with pytest.raises(FsdpkitError, match=r"gradient of step 4 is not finite.*optimizer\.lr"):
        require_finite(torch.tensor(value), "The gradient of step 4")


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", [0.1, 1.0, 1.0, 1.0]),
        ("linear", [0.1, 1.0, 0.6, 0.208]),
        ("cosine", [0.1, 1.0, 0.6, 0.22]),
        ("inverse-sqrt", [0.1, 1.0, (10 / 61) ** 0.5, 0.316]),
    ],
)
def test_learning_rate_rises_then_follows_its_schedule(schedule, shares):
    settings = OptimizerSettings(schedule=schedule, warmup_steps=10, min_lr_ratio=0.2)
    got = [fsdp_t5.rate(settings, step, 110) for step in (0, 9, 60, 109)]
    assert got[:3] == pytest.approx(shares[:3])
    assert got[3] == pytest.approx(shares[3], abs=0.02)


def test_without_warm_up_the_first_step_has_the_peak_rate():
    settings = OptimizerSettings(schedule="constant", warmup_steps=0)
    assert fsdp_t5.rate(settings, 0, 10) == 1.0


def test_the_trainer_s_stream_has_a_new_order_each_epoch_and_resumes_within_one():
    samples = [Sample([i + 3], [EOS]) for i in range(10)]
    settings = load_settings({}, ["batch_size=2"])
    alone = replace(FIRST, world_size=1)

    def read(progress: Progress, batches: int) -> list[int]:
        sampler, loader = fsdp_t5.make_loader(samples, settings, alone, shuffle=True)
        stream = fsdp_t5.stream(sampler, loader, progress)
        return [i for _ in range(batches) for i in next(stream).source.flatten().tolist()]

    progress = Progress()
    two_epochs = read(progress, 10)
    first, second = two_epochs[:10], two_epochs[10:]
    assert sorted(first) == sorted(second) == list(range(3, 13))
    assert first != second
    assert (progress.epoch, progress.position) == (1, 10)
    assert read(Progress(epoch=1, position=4), 3) == second[4:]
