"""The trainer's smaller promises, in one process: stopping and checkpoints."""

from __future__ import annotations

import torch

from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.agreement import SaveClock, StopRequest, Votes
from fsdpkit.training.distributed import Ranks

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
