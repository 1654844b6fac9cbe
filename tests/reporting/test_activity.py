"""What `status` says of a script that logs nothing, and of a request to stop that nobody sees."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpkit.reporting.status.activity import activities, in_words, remarks
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.history import Attempt, History, Launch, NodeStory, attempt_of
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.outcomes import Ending
from fsdpkit.runs.samples import Gpu, Sample

BEGAN_S = 1_000_000.0
ENDED = Ending(action="end", status=0, cause="done", why="")


def samples(
    cpu_s: list[float], moved: list[int] | None = None, gpu: float | None = None
) -> list[Sample]:
    """One every ten seconds from the launch on."""
    moved = moved or [0] * len(cpu_s)
    gpus = () if gpu is None else (Gpu(utilization_percent=gpu), Gpu(utilization_percent=gpu))
    return [
        Sample(time_s=BEGAN_S + 10 * n, work_cpu_s=cpu, work_moved_bytes=bytes_, gpus=gpus)
        for n, (cpu, bytes_) in enumerate(zip(cpu_s, moved, strict=True))
    ]


def steps(*made: int) -> list[Sample]:
    sampled = zip(samples([5] * len(made)), made, strict=True)
    return [msgspec.structs.replace(one, optimizer_steps=count) for one, count in sampled]


@pytest.mark.parametrize(
    ("of_nodes", "words"),
    [
        pytest.param([samples([5, 35])], ["3.0 CPU cores", "0.0 MB/s"], id="computes"),
        pytest.param([samples([5, 5], [0, 5 * 10**7])], ["5.0 MB/s"], id="reads"),
        pytest.param([samples([5, 5], gpu=97.0)], ["GPUs to 97 %"], id="on a GPU"),
        pytest.param([samples([5, 5]), samples([5, 15])], ["1.0 CPU"], id="another node's"),
        pytest.param([samples([5, 35, 35, 35])], ["have not computed", "since"], id="stood still"),
        pytest.param([samples([5, 5, 5])], ["idle since"], id="never did anything"),
        pytest.param([samples([50, 60, 5, 15])], ["1.0 CPU"], id="a worker ended between"),
        pytest.param([steps(7, 9)], ["its processes use 0.0 CPU"], id="makes steps"),
        pytest.param([steps(9, 9)], ["idle since"], id="made steps"),
        pytest.param([samples([5])], [], id="one sample tells nothing"),
        pytest.param([[Sample(time_s=BEGAN_S), Sample(time_s=BEGAN_S + 9)]], [], id="older agents"),
        pytest.param([], [], id="no node"),
    ],
)
def test_what_the_machine_shows_is_said(of_nodes: list[list[Sample]], words: list[str]) -> None:
    said = in_words([activities(of_node, BEGAN_S) for of_node in of_nodes])
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)


@pytest.mark.parametrize(
    ("printed_s", "words"),
    [
        (BEGAN_S + 29, "hardly compute, and last printed at"),
        (BEGAN_S + 15, "or printed anything since"),
        (None, "idle since"),
    ],
)
def test_a_line_now_and_then_is_a_sign_of_life(printed_s: float | None, words: str) -> None:
    (said,) = in_words([activities(samples([5, 5, 5, 5]), BEGAN_S)], printed_s)
    assert words in said


def test_what_was_before_the_launch_does_not_count() -> None:
    assert activities(samples([5, 35, 65]), BEGAN_S + 5) == activities(samples([5, 35, 65])[1:], 0)


def history(tmp_path: Path, attempt: Attempt) -> History:
    return History(run=tmp_path, array_task=None, dir=tmp_path, attempts=(attempt,), checkpoints=())


def attempt(tmp_path: Path) -> Attempt:
    with (tmp_path / "node-0.samples.jsonl").open("wb") as file:
        for sample in samples([5, 35]):
            file.write(msgspec.json.encode(sample) + b"\n")
    return Attempt(
        number=0,
        dir=tmp_path,
        job_id="1",
        nodes=(NodeStory(number=0, name="n1"),),
        launches=(Launch(number=0, began_s=BEGAN_S, nodes=("n1",)),),
    )


def test_a_script_that_logs_is_judged_by_its_steps(tmp_path: Path) -> None:
    told = history(tmp_path, attempt(tmp_path))
    assert len(remarks(told, None)) == 1
    assert len(remarks(told, BEGAN_S - 60)) == 1, "the attempt before did, not this one"
    assert remarks(told, BEGAN_S + 60) == []


def test_nothing_is_said_of_what_has_ended(tmp_path: Path) -> None:
    ended = msgspec.structs.replace(attempt(tmp_path), ending=ENDED)
    assert remarks(history(tmp_path, ended), None) == []


@pytest.mark.parametrize(
    ("nodes", "unheeded"),
    [
        ([[False]], True),
        ([[False, True]], False),
        ([[False], [True]], False),
        ([[], [False]], True),
        ([[], []], False),
    ],
)
def test_a_request_to_stop_that_no_rank_looks_for_is_told(
    tmp_path: Path, nodes: list[list[bool]], unheeded: bool
) -> None:
    paths = AttemptPaths(tmp_path / "attempt-0")
    JsonLines(paths.dir / "orders.jsonl").write(event="stop-requested")
    for number, looked in enumerate(nodes):
        events = JsonLines(paths.node_events(number))
        events.write(event="node-ready", node=f"n{number}")
        for one in looked:
            events.write(event="stop-passed-on", looked=one)
    found = attempt_of(paths)
    assert found.stop_unheeded is unheeded
    said = [one for one in remarks(history(tmp_path, found), None) if "stop_requested()" in one]
    assert len(said) == unheeded
