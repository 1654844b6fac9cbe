"""The process in which plans are made: who shares one, and what follows when it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest

from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import TrustedModel, TrustedScript
from fsdpkit.planning import apart
from fsdpkit.planning.apart import ChildEnded, one_child, tape_apart
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.cards import card_named

pytestmark = pytest.mark.torch
SCRIPT = TrustedScript(Path("x.py"), b"")


def asked(model: str | None = None) -> AskedStep:
    named = None if model is None else TrustedModel(model, None)
    return AskedStep(load_settings({}), 1, 2, card_named("h100-80"), SCRIPT, named)


@pytest.fixture(autouse=True)
def none_shared(monkeypatch):
    """The tests' own child is not in the way."""
    monkeypatch.setattr(apart, "_shared", [])


@pytest.fixture
def pids(monkeypatch):
    """In the place of a tape its process's number, and whose kernels it would have called."""
    monkeypatch.setattr(apart, "_answer", lambda asked, _, trust, dump: (os.getpid(), trust))


def pid_of(one: AskedStep) -> int:
    pid, _ = tape_apart(one)
    return pid


def test_plans_of_the_trainer_share_a_child_inside_and_those_of_models_never_do(pids):
    assert pid_of(asked()) != pid_of(asked())
    with one_child():
        with one_child():
            first = pid_of(asked())
        assert pid_of(asked()) == first
        models = {pid_of(asked("x.py:f")) for _ in range(2)}
        assert len(models | {first}) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def ends(asked: AskedStep, directory: str, trust: str, dump: str):
    if trust == "nothing" and asked.model:
        return dump, ()
    return ctypes.memset(8, 0, 8)


def test_after_a_crash_it_is_asked_again_with_less_trust_and_told_where(monkeypatch):
    monkeypatch.setattr(apart, "_answer", ends)
    dump, _ = tape_apart(asked("x.py:f"))
    line = ends.__code__.co_firstlineno + 3
    assert f'{Path(__file__).name}", line {line} in ends' in dump


def test_a_child_that_ended_is_replaced_and_the_last_error_says_how_it_ended(monkeypatch, pids):
    with one_child():
        before = pid_of(asked())
        os.kill(before, signal.SIGKILL)
        with pytest.raises(
            ChildEnded, match=r"wait status 9"
        ):  # memory ran out, say: no second time
            tape_apart(asked())
        assert pid_of(asked()) != before
        monkeypatch.setattr(apart, "_answer", ends)
    with pytest.raises(ChildEnded, match=r"wait status 11"):
        tape_apart(asked())


def test_an_answer_that_was_not_waited_for_is_not_the_next_ones(monkeypatch):
    me = os.getpid()

    def slow(asked: AskedStep, directory: str, trust: str, dump: str):
        if asked.gpus != 1:
            os.kill(me, signal.SIGALRM)
            time.sleep(600)
        return asked.gpus, ()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(apart, "_answer", slow)
    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        with one_child():
            with pytest.raises(KeyboardInterrupt):
                tape_apart(asked())
            quick = AskedStep(load_settings({}), 1, 1, card_named("h100-80"), SCRIPT)
            assert tape_apart(quick)[0] == 1
    finally:
        signal.signal(signal.SIGALRM, usual)
