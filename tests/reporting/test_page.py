"""The report as a file: what it says, of which runs, and that nothing in it can do harm."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.cli.report import command as report
from fsdpkit.errors import NotFoundError, SchedulerError
from fsdpkit.reporting.report import about, head
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.training import trainings_of
from fsdpkit.runs import outcomes
from fsdpkit.runs.history import history_of
from fsdpkit.runs.reading import table_in
from fsdpkit.runs.record import JobRecord
from fsdpkit.scheduling import opened
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_states import Standing
from fsdpkit.scheduling.states import JobState
from tests.conftest import answer_of
from tests.packaging.installation import ROOT
from tests.reporting.made_run import (
    JOB,
    T0,
    breaks,
    ends,
    launches,
    made_run,
    saves,
    starts,
    trains,
    write_lines,
)

Fsdpkit = Callable[..., CompletedProcess[str]]
HOSTILE = "</title></svg><script>alert(1)</script>\"'&"


def trained(run: Run, **fields: Any) -> Run:
    """Twenty steps in two launches: a crash after step 12, steps 11 and 12 done twice."""
    task = run.paths.task()
    starts(task, 0, T0 + 60)
    launches(task, 0, T0 + 70)
    at_s = saves(task, 10, trains(task, 1, 10, T0 + 80, **fields), 1)
    at_s = trains(task, 11, 12, at_s, **fields)
    breaks(task, 0, at_s + 1, 12, "rank 3 on node2: ended by signal 9 (SIGKILL)")
    launches(task, 0, at_s + 6, 1)
    at_s = trains(task, 11, 20, at_s + 20, **fields)
    write_lines(task.metrics, {"time_s": at_s, "step": 20, "eval_loss": 0.3125})
    for node in (0, 1):
        write_lines(
            task.attempt(0).node_samples(node),
            *({"time_s": T0 + 70 + 10 * k, "cpu_percent": 50 + k} for k in range(5)),
        )
    ends(task, 0, at_s + 5)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return trained(made_run(tmp_path / "runs" / "made-20260101-000000-0000"))


class Text(HTMLParser):
    """What a person reads, and every address and element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words, self.addresses, self.elements = "", [], []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        self.skips = tag in ("style", "script")

    skips = False

    def handle_data(self, data: str) -> None:
        self.words += "" if self.skips else " " + data


def text(html: str) -> str:
    return " ".join(Text(html).words.split())


def test_a_finished_run_says_what_a_researcher_looks_for_first(run: Run) -> None:
    told = text(page(run))
    top = told[: told.index("Training")]
    for words in ("made", "Finished; its ranks were started again once", "20 of 20", "0.25"):
        assert words in top, words
    for words in ("evaluation loss 0.3125", "tokens/s, median 114", "GPU-minutes computed, "):
        assert words in top, words
    for words in (
        "done twice (shaded; the first time dashed): steps 11–12",
        "rank 3 on node2: ended by signal 9 (SIGKILL), after step 12",
        "repeated steps",
        "node[1-2]",
        "2 nodes × 2 ranks",
        "generic",
    ):
        assert words in told
    assert "What went wrong" not in told


def test_the_file_needs_nothing_else_and_forbids_itself_to_load_anything(run: Run) -> None:
    html = page(run)
    assert Text(html).addresses == ["data:,"]
    assert "url(" not in html
    assert "@import" not in html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src &#39;none&#39;;")
    assert "unsafe" not in policy
    assert html.count("<script>") == html.count("<style>") == 1


def test_what_others_wrote_is_escaped_wherever_it_stands(tmp_path: Path) -> None:
    job = {"name": HOSTILE, "description": HOSTILE, "args": [HOSTILE], HOSTILE: HOSTILE}
    hostile = made_run(
        tmp_path / "made-20260101-000000-0000",
        job=job,
        name=HOSTILE,
        site=HOSTILE,
        template=HOSTILE,
        command=[HOSTILE],
    )
    task = hostile.paths.task()
    starts(task, 0, T0, nodes=(HOSTILE, "node2"))
    launches(task, 0, T0 + 15, nodes=(HOSTILE, "node2"))
    trains(task, 1, 5, T0 + 20, rank_compute_s=[1.0, 1.0, 1.0, 2.0])
    write_lines(
        task.attempt(0).node_samples(0), *({"time_s": T0 + k, "cpu_percent": 5} for k in (1, 9))
    )
    breaks(task, 0, T0 + 30, 5, HOSTILE)
    ends(task, 0, T0 + 40, "crash", HOSTILE)
    html = page(hostile)
    assert Text(html).elements.count("script") == 1
    assert "alert(1)</script>" not in html
    assert html.count("&lt;script&gt;alert(1)") > 8


def test_a_run_that_failed_begins_with_why(tmp_path: Path) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000", state="FAILED", exit_code=1)
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 15)
    trains(task, 1, 5, T0 + 20)
    breaks(task, 0, T0 + 30, 5, "rank 1 on node1: ValueError: bad row")
    (task.attempt(0).failures / f"0{int((T0 + 30) * 1e9)}-node-0-rank-1").write_text(
        "1 rank 1 on node1: ValueError: bad row\n"
    )
    trouble = {"cause": "crash", "status": 1, "message": "rank 1 on node1: ValueError: bad row"}
    task.attempt(0).verdict.write_text(json.dumps({"trouble": trouble}))
    ends(task, 0, T0 + 40, "crash", "rank 1 on node1: ValueError: bad row")
    told = text(page(run))
    assert "FAILED, exit status 1" in told
    why = told[told.index("What went wrong") : told.index("Training")]
    assert "ValueError: bad row" in why
    assert f"fsdpkit diagnose {run.id} --page" in why
    assert "docs/failures/exception.md" in why
    assert (ROOT / "docs/failures/exception.md").is_file()


def test_the_page_holds_the_end_of_the_log_and_no_secret_of_it(tmp_path: Path) -> None:
    variables = {"HF_TOKEN": "hunter2-in-the-job"}
    job = {"environment": {"variables": variables}, "args": ["--api-key", "hunter2-as-argument"]}
    run = made_run(tmp_path / "made-20260101-000000-0000", state="FAILED", exit_code=1, job=job)
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 15)
    trains(task, 1, 5, T0 + 20)
    why = "rank 1 on node1: ValueError: bad token hunter2-in-the-job"
    breaks(task, 0, T0 + 30, 5, why)
    ends(task, 0, T0 + 40, "crash", why)
    failure = task.attempt(0).failures / f"0{int((T0 + 30) * 1e9)}-node-0-rank-1"
    failure.write_text(f"1 {why}\n")
    attempt = task.attempt(0)
    attempt.rank_file(1, "out", 0).write_text("".join(f"line {n}\n" for n in range(99)))
    secrets = (
        "hunter2-in-the-job hunter2-as-argument https://me:hunter2@host api_key='hunter2-long'"
    )
    attempt.rank_file(1, "err", 0).write_text(
        f"{secrets}\nmax_new_tokens=128\nTraceback (most recent call last):\n"
        f"  File \"train.py\", line 7\n\x1b[31mKeyError: 'labels' {HOSTILE}\n"
    )
    html = page(run)
    told = text(html)
    assert "Traceback: the last 5 lines of attempt-0/rank-1.err" in told
    assert "KeyError: 'labels' </title>" in told
    assert "the last 25 lines of attempt-0/rank-1.out" in told
    assert "line 98" in told
    assert "line 73" not in told, "its end alone"
    assert "max_new_tokens=128" in told
    assert "hunter2" not in html
    assert "\x1b" not in html
    assert "<script>alert" not in html


def test_a_stop_on_request_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000", state="FAILED", exit_code=75)
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 10)
    at_s = trains(task, 1, 9, T0 + 10)
    write_lines(task.attempt(0).dir / "orders.jsonl", {"time_s": at_s, "event": "stop-requested"})
    breaks(task, 0, at_s, 9, "rank 0: stopped early as asked", "stopped")
    why = "asked to stop and not to come back"
    ending = {"action": "end", "status": 75, "cause": "cancelled", "why": why, "step": 9}
    task.attempt(0).ending.write_text(json.dumps(ending))
    os.utime(task.attempt(0).ending, (at_s, at_s))
    state = JobState("FAILED", "sacct", 75, outcome="stopped", account=why)
    monkeypatch.setattr(Run, "job_states", lambda self: {JOB: state})
    html = page(run)
    told = text(html)
    assert "How it ended" in told
    assert 'class="diagnosis calm"' in html
    for wrong in ("What went wrong", "lost after failures", 'class="fault"'):
        assert wrong not in (html if "class" in wrong else told)


def test_what_a_script_prints_that_logs_nothing_is_shown_as_its_own_words(tmp_path: Path) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000")
    starts(run.paths.task(), 0, T0)
    launches(run.paths.task(), 0, T0 + 10)
    ends(run.paths.task(), 0, T0 + 60)
    lines = (f"epoch {n // 5} step {n % 5 + 1}/5 loss {9 - n}\n" for n in range(9))
    out = run.paths.task().attempt(0).rank_file(0, "out", 0)
    out.write_text("".join(lines) + HOSTILE + "\n")
    html = page(run)
    told = text(html)
    assert "read from its output epoch 1, step 4 of 5, loss 1" in told
    assert "Loss 1.000 at step 9 read from its output" in told
    assert f"loss 1 {HOSTILE}" in told, "the end of the log"
    assert "alert(1)</script>" not in html


def running(monkeypatch: pytest.MonkeyPatch, word: str, reason: str | None = None) -> None:
    state = JobState(word, "squeue", reason=reason)
    monkeypatch.setattr(Run, "job_states", lambda self: {JOB: state})


def test_a_run_that_goes_on_is_told_as_of_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000", state=None)
    starts(run.paths.task(), 0, T0)
    launches(run.paths.task(), 0, T0 + 15)
    trains(run.paths.task(), 1, 5, T0 + 20)
    running(monkeypatch, "RUNNING")
    told = text(page(run, now_s=T0 + 85))
    assert "Running; newest step 1 min before this page was made" in told
    assert "14 s left" not in told, "15 steps of a second, and a minute has passed"
    assert "so far" in told
    assert "in progress" in told
    assert re.search(r"As of \d+ \w+ 2026, \d\d:\d\d:\d\d", told)


@pytest.mark.parametrize(
    ("limit_s", "words"), [(9, ("9.0 s", "need 14 s")), (99, ("14 s", "left"))]
)
def test_what_ends_a_run_first_is_told_its_steps_or_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, words: tuple[str, str]
) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000", state=None)
    starts(run.paths.task(), 0, T0)
    launches(run.paths.task(), 0, T0 + 15)
    now_s = trains(run.paths.task(), 1, 5, T0 + 20) + 1
    state = JobState("RUNNING", "squeue", end_s=now_s + limit_s)
    monkeypatch.setattr(Run, "job_states", lambda self: {JOB: state})
    (one,) = trainings_of(run, [None], run.job_states())
    told = head.headline([one], now_s)
    assert told.tone == "good"
    assert any(words[0] == value and words[1] in what for what, value in told.numbers)
    later = head.headline([one], now_s + 600)
    assert later.tone == "open", "no step for ten minutes"


def test_a_loss_that_is_no_number_any_more_is_no_good_news(tmp_path: Path) -> None:
    run = trained(made_run(tmp_path / "made-20260101-000000-0000"))
    write_lines(run.paths.task().metrics, {"time_s": T0 + 300, "step": 21, "loss": math.nan})
    (one,) = trainings_of(run, [None], run.job_states())
    told = head.headline([one], T0 + 400)
    assert told.tone == "bad"
    assert "its loss is NaN" in told.words


@pytest.mark.parametrize("known", [True, False])
def test_a_page_that_is_followed_is_loaded_again_until_the_run_is_over_or_lost(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000", state="FAILED" if known else None)
    starts(run.paths.task(), 0, T0)
    out, seen, standing = tmp_path / "page.html", list[str](), Run.standing
    runs = Standing(run.record, {JOB: JobState("RUNNING", "squeue")})
    monkeypatch.setattr(Run, "standing", lambda self: standing(self) if seen else runs)

    def sleep(_: float) -> None:
        seen.append(out.read_text())
        assert len(seen) < 3, "for ever"
        monkeypatch.setattr(opened, "UNHEARD_S", -1.0)

    monkeypatch.setattr(time, "sleep", sleep)
    told = CliRunner().invoke(report, [str(run.dir), "--follow", "-o", str(out)])
    assert ['http-equiv="refresh"' in html for html in (*seen, out.read_text())] == [True, False]
    assert told.stdout.split() == [str(out)] * known
    if not known:
        assert isinstance(told.exception, SchedulerError)
        words = (
            rf"unknown what became of {run.id}: .* job 7; its newest attempt last wrote \d+ s ago"
        )
        assert re.search(words, str(told.exception))


def test_a_run_that_waits_or_never_started_is_a_page_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = made_run(tmp_path / "a-20260101-000000-0000", state="CANCELLED")
    assert "CANCELLED; it never started" in text(page(cancelled))
    waiting = made_run(tmp_path / "b-20260101-000000-0000", state=None, kind="slurm")
    running(monkeypatch, "PENDING", "Priority")
    told = text(page(waiting, now_s=T0 + 7200))
    assert "Waiting in the queue" in told
    assert "2 h so far" in told


def test_files_that_are_torn_or_missing_leave_a_page_with_the_rest(run: Run) -> None:
    attempt = run.paths.task().attempt(0).dir
    run.paths.job.unlink()
    for name in ("orders.jsonl", "node-0.events.jsonl", "node-1.samples.jsonl", "ending.json"):
        (attempt / name).write_text('{"time_s": 1, "event": 3}\n[]\n{"time')
    with open(run.paths.task().metrics, "a") as file:
        file.write('null\n{"step": null}\n{"time_s": 1e999, "step": 4}\n{"time_s": 1, "st')
    told = text(page(run))
    assert "Finished" in told
    assert "Loss" in told


def test_the_slow_rank_is_named_with_the_node_it_was_on(tmp_path: Path) -> None:
    """A spare took node2's place in the launch in which rank 3 was slow, and its GPU was hot."""
    run = made_run(tmp_path / "made-20260101-000000-0000")
    task = run.paths.task()
    starts(task, 0, T0, nodes=("node1", "node2", "node3"))
    launches(task, 0, T0 + 15)
    at_s = trains(task, 1, 10, T0 + 20, rank_compute_s=[0.5, 0.5, 0.5, 0.5])
    breaks(task, 0, at_s, 10)
    launches(task, 0, at_s + 1, 1, nodes=("node1", "node3"))
    began_s = at_s + 5
    at_s = trains(task, 11, 20, began_s, rank_compute_s=[0.5, 0.5, 0.5, 0.8])
    hot = [{"throttled": ["sw_power_cap"]}, {"throttled": ["hw_thermal_slowdown"]}]
    samples = [{"time_s": time_s, "gpus": hot} for time_s in (T0, began_s + 2, began_s + 4)]
    task.attempt(0).node_samples(2).write_text("".join(json.dumps(s) + "\n" for s in samples))
    ends(task, 0, at_s)
    assert (
        "Rank 3 on node3 computes 1.60 times as long as the median rank in 50% of the comparisons "
        "(steps 11 to 20); all the others wait for it. Its node's GPU 1 ran at a lower clock in 2 "
        "of 2 samples (hw_thermal_slowdown)."
    ) in text(page(run))


@pytest.mark.parametrize("slow", [[3], [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]], ids=["once", "all"])
def test_noise_is_no_slow_rank(tmp_path: Path, slow: list[int]) -> None:
    """One of four looks; or every rank in its turn."""
    run = made_run(tmp_path / "made-20260101-000000-0000")
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 15)
    at_s = trains(task, 1, 3, T0 + 20, rank_compute_s=[0.5] * 4)
    for step, rank in enumerate(slow, 4):
        times = [0.8 if one == rank else 0.5 for one in range(4)]
        at_s = trains(task, step, step, at_s, rank_compute_s=times)
    ends(task, 0, at_s)
    assert "No rank stands out" in text(page(run))


def test_a_thousand_ranks_are_no_thousand_lines(tmp_path: Path) -> None:
    from benchmarks.operate_parts.report import synthetic

    run = Run.open(synthetic(tmp_path / "big-20260101-000000-0000", 128, 8, 200))
    html = page(run)
    assert len(html) < 1_000_000
    assert html.count("<path") < 100
    assert "Rank 341 on node043" in text(html)
    assert "node018, " in text(html), "the node whose GPUs do least"


def test_settings_that_differ_come_first_and_secrets_do_not_come_at_all(tmp_path: Path) -> None:
    variables = {
        "HTTP_PROXY": "http://me:hunter2@proxy:80",
        "NCCL_DEBUG": "INFO",
        "WANDB_API_KEY": "hunter2",
        "HF_TOKEN": "hunter2",
    }
    job = {
        "resources": {"nodes": 2, "spare": 0},
        "training": {"steps": 20, "tokens": 7, "seed": 42, "optimizer": {"lr": 0.5}},
        "environment": {"variables": variables},
        "args": ["--api-key", "hunter2", "--password=hunter2", "--depth", "3"],
    }
    command = ["submit", "--set", "environment.variables.HF_TOKEN=hunter2", "--set"]
    command += ["training.tokens=7", "--api_token", "hunter2", "--set"]
    command += ['environment.variables={HF_TOKEN = "hunter2"}', "https://me:hunter2@host/data"]
    run = made_run(tmp_path / "made-20260101-000000-0000", job=job, command=command)
    told = about.settings(table_in(run.paths.job))
    changed = {one.key: (one.value, one.default) for one in told.changed}
    assert changed["training.optimizer.lr"][0] == "0.5"
    assert changed["training.optimizer.lr"][1] not in ("", "0.5")
    assert changed["training.tokens"] == ("7", "0")
    assert changed["environment.variables.NCCL_DEBUG"] == ("INFO", "")
    assert {one.key for one in told.as_default} == {"training.seed", "resources.spare"}
    html = page(run)
    assert "hunter2" not in html
    assert "--depth 3" in html
    assert "training.tokens=7" in html
    assert html.index("training.optimizer.lr") < html.index("training.seed")


def test_an_array_is_a_table_of_its_tasks_and_one_of_them_in_full(tmp_path: Path) -> None:
    job = {"training": {"steps": 20}, "args": ["--lr", "1e-{array_task}", "--api-key", "hunter2"]}
    run = made_run(tmp_path / "made-20260101-000000-0000", array=[0, 3], job=job)
    for task in (0, 3):
        paths = run.paths.task(task)
        starts(paths, 0, T0 + 10)
        launches(paths, 0, T0 + 25)
        ends(paths, 0, trains(paths, 1, 5 + task, T0 + 30))
    told = text(page(run))
    assert "Array of 2 tasks: 2 finished" in told
    assert "lowest training loss, of task 3 0.6250" in told
    assert "Loss by task" in told
    assert "8 / 20" in told
    assert "--lr 1e-0" in told
    assert "--lr 1e-3" in told
    assert "hunter2" not in told
    assert "Loss over steps" not in told
    states = {f"{JOB}_0": JobState("FAILED", "sacct", 1), f"{JOB}_3": run.job_states()[f"{JOB}_3"]}
    two = trainings_of(run, [0, 3], states)
    assert head.headline(two, T0).words.endswith("1 FAILED, exit status 1 (task 0), 1 finished")
    one = text(page(run, 3))
    assert "task 3" in one
    assert "Arguments --lr 1e-3" in one
    assert "Loss over steps" in one
    with pytest.raises(NotFoundError, match="no array task 7; it has 0,3"):
        page(run, 7)


def test_the_command_writes_the_file_whole_or_not_at_all(
    run: Run, tmp_path: Path, fsdpkit: Fsdpkit
) -> None:
    done = fsdpkit("report", run.id)
    assert (done.returncode, done.stdout.strip()) == (0, f"{run.id}.html"), done.stderr
    first = (tmp_path / f"{run.id}.html").read_text()
    assert first.rstrip().endswith("</html>")
    assert not list(tmp_path.glob(".*")), "no half-written file stays behind"
    answer = answer_of(fsdpkit("report", run.id, "-o", "two.html", "--json"))
    assert (answer["run"], answer["path"]) == (run.id, str(tmp_path / "two.html"))
    printed = fsdpkit("report", str(run.dir), "-o", "-")
    assert printed.stdout.rstrip().endswith("</html>")
    failed = fsdpkit("report", run.id, "-o", "no/such/directory.html", status=74)
    assert "no/such/directory.html cannot be written" in failed.stderr
    fsdpkit("report", "other", status=66)


# ---- Numbers that nobody expects


HUGE = [0, -0.0, 1, 1e29, -1e29, 1.7e308, -1.7e308, 5e-324, 2**63, 10**30, 1e-12, None]
NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e400"]
NUMBERS = st.sampled_from([*map(json.dumps, HUGE), *NO_NUMBERS]) | st.floats(0, 10).map(repr)
OF_STEPS = ("loss", "grad_norm", "lr", "step_time_s", "tokens_per_s", "mfu", "memory_bytes")
OF_SAMPLES = ("cpu_percent", "memory_used_bytes", "network_sent_bytes")


def lines_of(names: Sequence[str]) -> st.SearchStrategy[list[dict[str, str]]]:
    fields = st.fixed_dictionaries({}, optional=dict.fromkeys([*names, "time_s", "step"], NUMBERS))
    return st.lists(fields, max_size=8)


def as_json(place: int, fields: dict[str, str]) -> str:
    told = {"time_s": str(T0 + 80 + place), "step": str(place), **fields}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in told.items()) + "}\n"


@settings(max_examples=25, deadline=None)
@given(
    lines_of(OF_STEPS),
    lines_of(("eval_loss",)),
    lines_of(OF_SAMPLES),
    st.lists(NUMBERS, min_size=4, max_size=4),
    st.lists(NUMBERS, min_size=3, max_size=3),
)
def test_no_number_breaks_a_report(
    steps: list[dict[str, str]],
    evaluations: list[dict[str, str]],
    samples: list[dict[str, str]],
    ranks: list[str],
    times: list[str],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = made_run(Path(directory) / "made-20260101-000000-0000")
        task = run.paths.task()
        starts(task, 0, T0 + 60)
        launches(task, 0, T0 + 70)
        of_ranks = [{"step_time_s": "1", "rank_compute_s": f"[{', '.join(ranks)}]"}] * 4
        told = enumerate([*steps, *({"eval_loss": "1", **e} for e in evaluations), *of_ranks])
        write_lines(task.metrics, *(as_json(place, fields) for place, fields in told))
        write_lines(task.attempt(0).node_samples(0), *map(as_json, range(9), samples))
        for time_s, event in zip(times, ("trouble", "stop-requested", "launch"), strict=True):
            order = f'{{"time_s": {time_s}, "event": "{event}", "launch": 1, "nodes": ["n"]}}\n'
            write_lines(task.attempt(0).dir / "orders.jsonl", order)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            html = page(run)
    assert not re.search(r'(?: d|x1|x2|y1|y2|x|y|cx|cy|width|height)="[^"]*(?:nan|inf)', html)


def test_a_loss_that_explodes_is_drawn_with_gaps_and_named(tmp_path: Path) -> None:
    run = made_run(tmp_path / "made-20260101-000000-0000")
    task = run.paths.task()
    starts(task, 0, T0 + 60)
    launches(task, 0, T0 + 70)
    at_s = trains(task, 1, 5, T0 + 80)
    write_lines(
        task.metrics,
        *(
            {
                "time_s": at_s + k,
                "step": 6 + k,
                "loss": value,
                "step_time_s": 1.0,
                "grad_norm": None if k < 4 else 1.0,
            }
            for k, value in enumerate([1e29, math.inf, math.nan, None, 2.0])
        ),
    )
    ends(task, 0, at_s + 9)
    html = page(run)
    told = text(html)
    assert "NaN in 1 line, first at step 8" in told
    assert "infinite in 1 line, first at step 7" in told
    assert "NaN or infinite in 1 line, first at step 9" in told
    assert "NaN or infinite in 4 lines, first at step 6" in told, "the gradient"
    (line,) = re.findall(r'data-name="training" d="([^"]*)"', html)
    assert line.count("M") == 2, "a gap"


MANY = 301
"""Attempts of a run. One drawing of each would take the page's length many times."""


def test_hundreds_of_attempts_are_not_as_many_drawings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        JobRecord(
            job_id=str(100 + number),
            nodes=2,
            ranks_per_node=2,
            first_attempt=number,
            submitted_s=T0 + 100 * number,
            ended={str(100 + number): {"state": "FAILED", "source": "sacct", "exit_code": 1}},
        )
        for number in range(MANY)
    ]
    run = made_run(
        tmp_path / "made-20260101-000000-0000",
        earlier=jobs[:-1],
        job_id=str(99 + MANY),
        ended=jobs[-1].ended,
        first_attempt=MANY - 1,
    )
    task = run.paths.task()
    for number in range(MANY):
        at_s = T0 + 100 * number
        starts(task, number, at_s + 10, nodes=("node1",))
        launches(task, number, at_s + 20, nodes=("node1",))
        write_lines(
            task.metrics, {"time_s": at_s + 30, "step": number, "step_time_s": 1.0, "loss": 1.0}
        )
        breaks(task, number, at_s + 40, number)
    history = history_of(run.paths, run.record)
    assert [a.job_id for a in history.attempts[:: MANY // 3]] == ["100", "200", "300", "400"]
    reads, read = [0], outcomes.read

    def counted(path: Path, kind: type[Any]) -> Any:
        reads[0] += 1
        return read(path, kind)

    monkeypatch.setattr(outcomes, "read", counted)
    html = page(run)
    assert reads[0] < 8 * MANY, "a few files an attempt, however many jobs the run had"
    assert len(html) < 300_000
    assert "events are marked" in text(html)


def test_a_number_of_ones_own_has_a_curve_and_does_no_harm(tmp_path: Path) -> None:
    run = trained(made_run(tmp_path / "made-20260101-000000-0000"))
    own = [{"time_s": T0 + 90 + s, "step": s, HOSTILE: s * 0.5} for s in range(1, 21)]
    write_lines(run.paths.task().metrics, *own)
    html = page(run, now_s=T0 + 2000)
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)" in html
    assert re.search(r">10(\.0+)? at step 20<", html)
