"""The trainer's smaller promises, in one process: stopping and checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import SaveAnswer, answer, ask
from fsdpkit.training.agreement import SaveClock, StopRequest, Votes
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.finite import require_finite

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


def test_a_checkpoint_is_wanted_when_the_last_one_is_old_enough():
    now = 0.0
    clock = SaveClock(FIRST, every_minutes=2, clock=lambda: now)
    now = 119.0
    assert clock.wanted() == 0
    now = 120.0
    assert clock.wanted() == 1
    assert clock.wanted() == 0, "asked once, until all ranks have answered"
    clock.decide(torch.tensor(1.0))
    assert clock.agreed()
    now = 200.0
    clock.saved()  # for another reason
    now = 319.0
    assert clock.wanted() == 0
    now = 320.0
    assert clock.wanted() == 1


def test_without_minutes_or_on_other_ranks_no_clock_asks():
    now = 0.0
    clocks = [
        SaveClock(FIRST, every_minutes=0, clock=lambda: now),
        SaveClock(replace(FIRST, rank=1), every_minutes=1, clock=lambda: now),
    ]
    now = 1e9
    assert [clock.wanted() for clock in clocks] == [0, 0]


def test_a_checkpoint_is_wanted_once_for_each_request(tmp_path):
    now, paths = 100.0, TaskPaths(tmp_path)
    clock = SaveClock(FIRST, every_minutes=0, clock=lambda: now, paths=paths)
    other = SaveClock(replace(FIRST, rank=1), 0, clock=lambda: now, paths=paths)
    assert clock.wanted() == 0
    asked = ask(paths)
    now = 100.9
    assert clock.wanted() == 0, "it is looked for at most once a second"
    now = 101.0
    assert (clock.wanted(), other.wanted()) == (1, 0)
    clock.decide(torch.tensor(1.0))
    assert clock.agreed()
    now = 102.0
    assert clock.wanted() == 0, "the checkpoint is being written"
    answer(paths, asked, SaveAnswer(step=5))
    ask(paths)
    now = 103.0
    assert clock.wanted() == 1


def test_a_checkpoint_is_due_at_its_steps_and_epochs_at_the_end_and_before_a_stop():
    def due(step, *, last=False, stopping=False, votes=None, every_steps=5, at_end=True, epoch=0):
        clock = SaveClock(FIRST, 1, every_steps=every_steps, every_epochs=2, at_end=at_end)
        if votes is not None:
            clock.decide(torch.tensor(votes))
        return clock.due(step, last=last, stopping=stopping, epoch=epoch)

    assert [step for step in range(1, 12) if due(step)] == [5, 10]
    assert not due(5, every_steps=0)
    assert due(3, last=True)
    assert not due(3, last=True, at_end=False)
    assert due(3, stopping=True)
    assert due(3, votes=1.0)
    assert not due(3, votes=0.0)
    assert [epoch for epoch in range(6) if due(3, epoch=epoch)] == [2, 4]


class OtherRank:
    """Of two ranks the other one, whose part of a sum arrives when this one waits for it."""

    def __init__(self, part: list[float]) -> None:
        self.part = part

    def all_reduce(self, values: torch.Tensor, *, async_op: bool) -> OtherRank:
        assert async_op
        self.values = values
        return self

    def wait(self) -> None:
        self.values += torch.tensor(self.part)


def test_each_wish_gets_its_own_votes_from_the_one_sum_of_a_step(tmp_path, monkeypatch):
    """Two ranks: this one wants to stop, the other one, which comes to the same, to save."""
    other = OtherRank([10.0, 0.0, 1.0])
    monkeypatch.setattr("fsdpkit.training.agreement.dist", other)
    paths = TaskPaths(tmp_path)
    paths.stop_requested.touch()
    stop, clock = StopRequest(paths, FIRST), SaveClock(FIRST, 1)
    end = Votes(FIRST, stop, clock).begin(torch.tensor(7.0))
    assert (stop.agreed(), clock.agreed()) == (False, False), "nobody has heard of the other rank"
    assert end().tolist() == [17.0]
    assert (stop.agreed(), clock.agreed()) == (True, True)
    paths.stop_requested.unlink()
    other.part[2] = 0.0
    stop, clock = StopRequest(paths, FIRST), SaveClock(FIRST, 1)
    assert Votes(FIRST, stop, clock).sum(1).tolist() == [11.0]
    assert (stop.agreed(), clock.agreed()) == (False, False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_an_error_with_a_remedy(value):
    require_finite(torch.tensor(1.0), "The gradient of step 1")
    with pytest.raises(FsdpkitError, match=r"gradient of step 4 is not finite.*optimizer\.lr"):
        require_finite(torch.tensor(value), "The gradient of step 4")
