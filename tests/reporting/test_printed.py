"""What is read from the output of a script that knows nothing of fsdpkit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.reporting.status.printed import (
    Tail,
    lines_in,
    points_in,
    printed_by,
    printed_in,
)
from fsdpkit.reporting.status.printed_lines import numbers_in
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.runs.history import Attempt, History, Launch, NodeStory
from tests.reporting.made_run import write_lines
from tests.rows import pairs

NOW_S = 1_000_000.0


def tail(text: str, age_s: float = 0.0, *, whole: bool = True) -> Tail:
    return Tail(text.encode(), whole, NOW_S - age_s)


def read(*tails: Tail, pattern: str | None = None) -> Printed:
    found = printed_in(tails, pattern, NOW_S)
    assert found is not None
    return found


BUDGET = "fsdpkit.reporting.status.printed._BUDGET_S"


@pytest.fixture(scope="module", autouse=True)
def no_hurry() -> Iterator[None]:
    """A pattern has time, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BUDGET, 300.0)
        yield


@pytest.mark.parametrize(("line", "said"), pairs(Path(__file__).with_name("printed.txt")))
def test_a_line_is_read_as_far_as_it_tells_of_the_training(line: str, said: str) -> None:
    assert read(tail(f"{line}\n")).words == said


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]:W0102 03:04:05.678000 99 torch/a/b.py:7] [4/9] step 5 loss 2.0, 3 it/s",
        "W0102 03:04:05.678000 99 site-packages/torch/a/run.py:7] epoch 5",
        "[rank1]:[E0102 03:04:05.678 Group.cpp:7] [PG 0] step 5",
        "[W0102 03:04:05.678 socket.cpp:7] [c10d] iteration 5",
    ],
)
def test_torchs_own_log_is_not_the_trainings(line: str) -> None:
    found = read(tail(f"{line}\n"))
    assert (found.words, found.line) == ("", line)
    assert read(tail(f"step 3 loss 1.5\n{line}\n")).line == "step 3 loss 1.5"
    found = read(tail("step 3 loss 1.5\n", 9), tail(f"{line}\n"))
    assert (found.words, found.line) == ("step 3, loss 1.500", "step 3 loss 1.5")
    own = line.replace(line[line.index("99") + 3 :], "train.py:7] step 5") if "99" in line else ""
    assert not own or read(tail(f"{own}\n")).step == 5, "absl writes a script's lines so"


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("", "step 40 of 40, 9.00 it/s"),
        ("a model of 3 layers\n", ""),
        ("epoch 0: loss 2.5\n", "epoch 0, loss 2.500"),
        ("\r 5%|# | 2/30 [00:01<00:09, 3.0it/s]\n", "step 2 of 30, 3.00 it/s"),
    ],
)
def test_a_bar_that_came_to_its_end_is_over(after: str, said: str) -> None:
    bar = "\r{}%|##| {}/40 [00:01<00:00, 9.0it/s]"
    text = bar.format(97, 39) + bar.format(100, 40) + "\n"
    assert read(tail(text + after)).words == said
    assert read(tail(text, 9), *([tail(after)] if after else [])).words == said


def test_a_bar_that_says_it_is_the_trainings_is_its_last_step() -> None:
    text = "train: 100%|##| 40/40 [00:01<00:00, 9.0it/s]\nsaved\n"
    assert read(tail(text)).words == "step 40 of 40, 9.00 it/s"


def test_the_newest_line_is_shown_as_the_script_wrote_it_and_harmless() -> None:
    found = read(tail("old\n\x1b[2J\x1b]0;owned\x07 evaluating\t3 \u202e\n\n"))
    assert found.line == "\\u001b]0;owned\\u0007 evaluating 3 \\u202e"


def test_a_bar_is_read_while_it_writes_over_itself() -> None:
    bar = "\r 1%| | {n}/90 [00:01<00:09, 5it/s]"
    text = "".join(bar.format(n=n) for n in range(1, 31))
    assert read(tail(text)).step == 30
    assert read(tail(text + "\r 1%| | 31/9")).step == 30, "torn"
    assert read(tail("cut 99/90 [off, 5it/s]\r" + text, whole=False)).step == 30
    assert read(tail("step 1\nstep 2")).step == 1, "it may become 25"
    assert read(tail("step 1\nstep 25", age_s=60)).step == 25


def test_step_and_loss_may_stand_in_different_lines_and_files() -> None:
    bar = tail("\r 40%|##  | 40/100 [00:08<00:12, 5.0it/s]", age_s=1)
    assert read(tail("{'loss': 2.5}\n", 9), bar).words == "step 40 of 100, loss 2.500, 5.00 it/s"
    done = tail("\r100%|##| 3/3 [00:01<00:00, 9.0it/s]\n", age_s=90)
    assert read(tail("step 7 loss 2.5\n"), done).step == 7, "the file that grew last says it"
    assert read(tail("epoch 1 step 90\nepoch 2 begins\n")).place == "epoch 2"


def test_a_loss_that_is_no_number_is_not_replaced_by_an_older_one() -> None:
    found = read(tail("step 1 loss 2.5\nstep 2 loss nan\n"))
    assert (found.step, found.loss) == (2, None)


def test_a_pattern_reads_what_no_trainer_prints() -> None:
    text = "t=41/90 L~0.5 (3.5 img)\nsaved\n"
    pattern = r"t=(?P<step>\d+)/(?P<total>\d+) L~(?P<loss>[\d.]+) \((?P<rate>[\d.]+)"
    assert read(tail(text), pattern=pattern).words == "step 41 of 90, loss 0.5000, 3.50"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?P<step>\d+) of nothing", "matches no line"),
        ("(?P<step>.*)", "[metrics] pattern: it"),
        (r"(?P<step>\d*)", "matches no line"),
        ("(?P<step>", "no regular expression"),
        ("(?P<step>(?:x?){150}z)", "takes more than"),
    ],
)
def test_a_pattern_that_finds_nothing_says_so_in_time(
    pattern: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "takes more than":
        monkeypatch.setattr(BUDGET, 0.5)
    for _ in range(3):
        found = read(tail(("x" * 150 + "\n") * 400), pattern=pattern)
        assert why in str(found.remark)
        assert found.words == ""


@given(st.binary(max_size=300))
def test_nothing_that_a_script_prints_can_harm(data: bytes) -> None:
    found = printed_in([Tail(data, whole=True, written_s=NOW_S)], None, NOW_S)
    assert found is None or "\x1b" not in str(found.line)


@pytest.mark.parametrize("text", ["[ ", "loss ", "1,", "epoch(", "%|", "a_step 1 "])
def test_a_long_line_takes_no_longer_than_the_same_in_short_ones(text: str) -> None:
    taken_s = []
    for length in (1_000, 64_000):
        data = tail(((text * 40_000)[: length - 1] + "\n") * (64_000 // length))
        began_s = time.process_time()
        for line in lines_in(data, NOW_S):
            numbers_in(line)
        taken_s.append(time.process_time() - began_s)
    assert taken_s[1] / taken_s[0] < 16, "what looks at each place again takes 64 times as long"


def test_curves_come_from_lines_with_a_step_and_a_loss() -> None:
    text = "epoch 0 step 1/2 loss 3\nsaved\nepoch 0 step 2/2 loss 2\nepoch 1 step 1/2 loss 1\n"
    points = points_in([tail(text), tail("step 9 loss 9\n")], None, NOW_S)
    assert [(p.epoch, p.step, p.total, p.loss) for p in points] == [
        (0, 1, 2, 3.0),
        (0, 2, 2, 2.0),
        (1, 1, 2, 1.0),
    ]
    points = points_in(
        [tail("{'loss': 3, 'epoch': 0.5}\n{'loss': 2, 'epoch': 1.0}\n")], None, NOW_S
    )
    assert [(point.epoch, point.loss) for point in points] == [(0.5, 3.0), (1.0, 2.0)]


# ---- The files of a run


def history(directory: Path, **files: str) -> History:
    for name, text in files.items():
        rank, kind = name.split("_")
        (directory / f"rank-{rank[1:]}.{kind}").write_text(text)
    launch = Launch(number=0, began_s=NOW_S, nodes=("n1", "n2"))
    attempt = Attempt(number=0, dir=directory, job_id="1", launches=(launch,))
    return History(
        run=directory, array_task=None, dir=directory, attempts=(attempt,), checkpoints=()
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"r0_out": "step 3\n", "r3_out": "step 9\n"}, (0, 3)),
        ({"r0_out": "ready\n", "r3_out": "iteration 9/ 20 | lm loss: 2\n"}, (3, 9)),
        ({"r0_out": "ready\n", "r3_out": "ready\n"}, (0, None)),
        ({"r2_out": "step 9\n"}, None),
    ],
)
def test_rank_0_is_read_and_the_last_rank_where_that_counts(
    tmp_path: Path, files: dict[str, str], said: Any
) -> None:
    found = printed_by(history(tmp_path, **files), {}, ranks=4)
    assert (found and (found.rank, found.step)) == said


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ({}, ("1,204 steps of its optimizer", "counted")),
        ({"r0_out": "ready\n"}, ("1,204 steps of its optimizer", "counted")),
        (
            {"r0_out": "loss: 0.5\n"},
            ("1,204 steps of its optimizer, loss 0.5000", "counted and read from its output"),
        ),
        ({"r0_out": "step 3\n"}, ("step 3", "read from its output")),
    ],
)
def test_what_is_not_printed_is_counted(
    tmp_path: Path, printed: dict[str, str], said: tuple[str, str]
) -> None:
    told = history(tmp_path, **printed)
    node = NodeStory(number=0, name="n1")
    attempt = msgspec.structs.replace(told.attempts[0], nodes=(node,))
    lines = ({"optimizer_steps": 7}, {"optimizer_steps": 1204}, {})
    write_lines(attempt.paths.node_samples(0), *({"time_s": NOW_S, **line} for line in lines))
    found = printed_by(msgspec.structs.replace(told, attempts=(attempt,)), {}, ranks=4)
    assert found is not None
    assert (found.words, found.source) == said


def test_output_of_any_size_is_read_from_its_end(tmp_path: Path) -> None:
    told = history(tmp_path, r0_out="")
    with (tmp_path / "rank-0.out").open("wb") as file:
        file.truncate(1 << 34)
        file.seek(0, 2)
        file.write(b"\nstep 5 loss 2\n")
    found = printed_by(told, {}, ranks=1)
    assert found is not None
    assert found.words == "step 5, loss 2.000"


def test_a_step_is_found_before_much_else_that_was_printed(tmp_path: Path) -> None:
    noise = "".join(f"a detail {'x' * 90} {n}\n" for n in range(5000))
    found = printed_by(history(tmp_path, r0_out=f"step 5 loss 2\n{noise}"), {}, ranks=1)
    assert found is not None
    assert (found.words, found.line) == ("step 5, loss 2.000", f"a detail {'x' * 90} 4999")
