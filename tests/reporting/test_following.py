"""Following a run that starts again, is queued again and ends: every line once, in each file's
order. Between two looks the test does what ranks would have done meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsdpkit.reporting.logs import following
from fsdpkit.reporting.logs.following import follow
from fsdpkit.reporting.logs.lines import LineFilter, in_order, sources_of
from fsdpkit.scheduling.run import Run
from tests.reporting.log_runs import append, make_run

OUT = frozenset({"out"})


def followed(
    run: Run, choice: LineFilter, meanwhile: Sequence[Callable[[], object]] = (), **options: int
) -> list[str]:
    """What is printed while one thing after another happens between looks; then the run ends."""
    left = list(meanwhile)

    def sleep(seconds: float) -> None:
        if left:
            left.pop(0)()

    batches = follow(run, choice, ended=lambda: not left, sleep=sleep, **options)  # type: ignore[arg-type]
    return [line for _, lines in batches for line in lines]


def test_lines_come_once_over_restarts_and_requeues(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    first, again = run.dir / "attempt-0/rank-0.out", run.dir / "attempt-0/rank-0.restart-1.out"
    requeued = run.dir / "attempt-1/rank-0.out"
    lines = followed(
        run,
        LineFilter(streams=OUT),
        [
            lambda: append(first, "step 1\nste"),
            lambda: append(first, "p 2\nkilled in the mid"),
            lambda: append(again, "step 2\n"),
            lambda: append(first, "dle, and late\n"),
            lambda: append(requeued, "step 3\nno end"),
        ],
    )
    late = ["dle, and late"]  # what a server shows after the next launch began is not lost
    assert lines[:4] == ["step 1", "step 2", "killed in the mid", "step 2"]
    assert lines[4:] == [*late, "step 3", "no end"]


@settings(max_examples=60, suppress_health_check=[*HealthCheck])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [f"attempt-0/rank-{r}.{k}" for r in (0, 1, 12) for k in ("out", "err")]
            ),
            st.sampled_from(["a", "\n", "b\n", "\r\n", "long words", "é"]),
        ),
        max_size=30,
    )
)
def test_following_prints_what_reading_at_the_end_prints(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, str]]
) -> None:
    run = make_run(tmp_path_factory.mktemp("run"))
    choice = LineFilter(ranks=None)
    left = list(writes)
    seen: dict[Path, list[str]] = {}

    def sleep(seconds: float) -> None:
        if left:
            name, text = left.pop(0)
            append(run.dir / name, text)

    for source, lines in follow(run, choice, ended=lambda: not left, sleep=sleep):
        seen.setdefault(source.path, []).extend(lines)
    at_the_end: dict[Path, list[str]] = {}
    for source, lines in in_order(sources_of(run.paths, run.record, choice)):
        at_the_end.setdefault(source.path, []).extend(lines)
    assert {k: v for k, v in seen.items() if v} == {k: v for k, v in at_the_end.items() if v}


def test_the_tail_is_of_what_was_there_at_the_start(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    append(run.dir / "attempt-0/rank-0.out", "1\n2\n3\n")
    appears = run.dir / "attempt-0/rank-0.err"
    lines = followed(run, LineFilter(), [lambda: append(appears, "4\n5\n")], tail=1)
    assert lines == ["3", "4", "5"]


def test_one_attempt_is_followed_until_the_next_begins(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    meanwhile = [
        lambda: append(run.dir / "attempt-0/rank-0.out", "mine\n"),
        lambda: append(run.dir / "attempt-1/rank-0.out", "not mine\n"),
        lambda: pytest.fail("it goes on"),
    ]
    assert followed(run, LineFilter(last_attempt=0), meanwhile) == ["mine"]


def test_a_resumed_run_s_new_batch_log_is_found(tmp_path: Path) -> None:
    from fsdpkit.runs.record import JobRecord, save

    run = make_run(tmp_path / "run")
    append(run.dir / "slurm-12.log", "first job\n")

    def resume() -> None:
        record = run.record.with_job(
            JobRecord(job_id="13", nodes=2, ranks_per_node=2, first_attempt=1)
        )
        save(run.paths, record)
        append(run.dir / "slurm-13.log", "second job\n")

    choice = LineFilter(frozenset(), batch=True)
    assert followed(run, choice, [resume]) == ["first job", "second job"]


def test_a_file_whose_size_the_client_remembers_wrongly_is_opened_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client may answer stat from memory for a minute."""
    run = make_run(tmp_path / "run", ranks_per_node=100)
    paths = [run.dir / f"attempt-0/rank-{rank}.out" for rank in range(200)]
    for path in paths:
        append(path, "begins\n")
    monkeypatch.setattr(following, "_size", lambda path: len("begins\n"))
    seen: list[str] = []
    looks = 0

    def ended() -> bool:
        return len(seen) == 400

    def sleep(seconds: float) -> None:
        nonlocal looks
        if looks == 0:
            for path in paths:
                append(path, "goes on\n")
        looks += 1
        assert looks < 10

    for _, lines in follow(run, LineFilter(ranks=None), ended=ended, sleep=sleep):
        seen += lines
    assert seen == ["begins"] * 200 + ["goes on"] * 200


def test_a_backlog_is_read_without_pauses(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = "".join(f"{n:07}\n" for n in range(200_000))
    append(run.dir / "attempt-0/rank-0.out", text)
    paused_after = []
    lines: list[str] = []

    def sleep(seconds: float) -> None:
        paused_after.append(len(lines))

    ends = iter([False] * 20)
    for _, some in follow(
        run, LineFilter(), ended=lambda: next(ends, None) is not False, sleep=sleep
    ):
        lines += some
    assert lines == text.splitlines()
    assert paused_after[0] == 200_000


def test_files_of_launches_long_gone_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_LATE_S", 0.0)
    run = make_run(tmp_path / "run")
    first, second = (run.dir / f"attempt-{n}/rank-0.out" for n in (0, 1))
    opened: list[Path] = []
    listed: list[Path] = []
    names_in = os.listdir
    monkeypatch.setattr(os, "listdir", lambda d: listed.append(d) or names_in(d))
    read = following.LineReader.read
    monkeypatch.setattr(
        following.LineReader, "read", lambda self: opened.append(self.path) or read(self)
    )
    meanwhile = [
        lambda: append(first, "1\n"),
        lambda: append(second, "2\n"),
        lambda: None,
        lambda: (opened.clear(), listed.clear()),
        lambda: append(second, "3\n"),
    ]
    assert followed(run, LineFilter(), meanwhile) == ["1", "2", "3"]
    assert set(opened) == {second}
    assert set(listed) == {second.parent}
