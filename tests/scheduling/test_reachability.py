"""What is concluded from a try to reach ranks' ports, and what is not."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsdpkit.rendering.script import Plan
from fsdpkit.runs.rank_ports import RankPort, are_tried, close_ports, save_ports
from fsdpkit.scheduling import reachability, submission
from fsdpkit.scheduling.reachability import Reach, UnaskedError, Watch, _judged, knock

PORT = RankPort(node="n1", host="10.0.0.1", port=4711, word="abc")
OTHER = RankPort(node="n2", host="10.0.0.2", port=4712, word="def")
WHERE = "n1, 10.0.0.1 port 4711"


def raises(error: Exception) -> Callable[[RankPort, int], str]:
    def try_it(port: RankPort, most: int) -> str:
        raise error

    return try_it


@pytest.mark.parametrize(
    ("tried", "answer", "why"),
    [
        (lambda *_: "abc", "reachable", WHERE),
        (lambda *_: "xyz", "not reachable", f"{WHERE}: another program answers"),
        (raises(TimeoutError("timed out")), "not reachable", f"{WHERE}: timed out"),
        (raises(OSError(113, "No route to host")), "not reachable", f"{WHERE}: No route to host"),
        (raises(UnaskedError("no srun")), "could not tell", "no srun"),
    ],
    ids=["word", "another", "silence", "rejected", "unasked"],
)
def test_a_place_reaches_who_sends_the_right_word(
    tmp_path: Path, tried: Any, answer: str, why: str
) -> None:
    save_ports([PORT], tmp_path)
    assert _judged("there", [PORT], tmp_path, tried) == Reach("there", answer, why)  # type: ignore[arg-type]


def test_one_node_that_is_reached_is_enough(tmp_path: Path) -> None:
    save_ports([PORT, OTHER], tmp_path)
    words = {"n1": "", "n2": "def"}
    found = _judged("there", [PORT, OTHER], tmp_path, lambda port, _: words[port.node])
    assert (found.answer, found.why) == ("reachable", "n2, 10.0.0.2 port 4712")


def test_silence_of_ranks_that_have_ended_says_nothing(tmp_path: Path) -> None:
    save_ports([PORT], tmp_path)
    close_ports(tmp_path)
    found = _judged("there", [PORT], tmp_path, raises(ConnectionRefusedError(111, "refused")))
    assert found.answer == "could not tell"
    assert str(found).startswith("could not tell whether ranks' ports are reachable from there: n1")


def test_nobody_is_asked_about_loopback(tmp_path: Path) -> None:
    alone = RankPort(node="n1", host="127.0.0.1", port=1, word="abc")
    found = _judged("there", [alone], tmp_path, raises(AssertionError()))
    assert (found.answer, "loopback" in found.why) == ("not reachable", True)


def test_the_word_is_what_a_rank_sends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"abcdef")

        threading.Thread(target=answer, daemon=True).start()
        port = RankPort(node="", host="127.0.0.1", port=server.getsockname()[1], word="abc")
        assert knock(port, 3) == "abc"


@pytest.fixture
def plan() -> Plan:
    request = submission.SubmitRequest(
        "check", nodes=2, cluster="generic", account="a1", partition="gpu"
    )
    return submission.plan(request)[0]


@pytest.mark.parametrize(
    ("srun", "answer", "why"),
    [
        ("echo here; printf abc", "reachable", WHERE),
        ("echo here; echo 'bash: connect: timed out' >&2", "not reachable", "connect: timed out"),
        ("echo 'srun: error: all busy' >&2; exit 1", "could not tell", "no node at once (srun"),
    ],
    ids=["word", "silence", "busy"],
)
def test_another_node_is_asked_through_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan, srun: str, answer: str, why: str
) -> None:
    (tmp_path / "srun").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/argv\n{srun}\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(reachability, "knock", raises(TimeoutError("timed out")))
    save_ports([PORT, OTHER], tmp_path)
    run: Any = SimpleNamespace(newest_attempt=lambda: SimpleNamespace(dir=tmp_path))
    watch = Watch(run, plan)
    watch._thread.join(60)
    login, outside = watch.findings()
    assert (login.place, login.answer) == ("this login node", "not reachable")
    assert (outside.place, outside.answer) == ("a node outside the job", answer)
    assert why in outside.why
    assert are_tried(tmp_path)
    argv = (tmp_path / "argv").read_text()
    assert all(word in argv for word in ("--nodes=1", "--exclude=n1,n2", "--time=00:01:00"))


def test_ranks_that_never_listened_are_not_concluded_from(tmp_path: Path, plan: Plan) -> None:
    run: Any = SimpleNamespace(newest_attempt=lambda: SimpleNamespace(dir=tmp_path))
    assert [r.answer for r in Watch(run, plan).findings()] == ["could not tell"] * 2
