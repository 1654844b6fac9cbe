"""Records that somebody else wrote: read with a limit, believed only if they fit, a line each."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import SchedulerError, StorageError
from fsdpkit.runs.reading import open_own
from fsdpkit.runs.record import load
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.slurm import SlurmClient
from fsdpkit.scheduling.states import JobState
from tests.conftest import ROOT, Completed, answer_of
from tests.programs import Fsdpkit, ran
from tests.reporting.log_runs import make_run

DONE = {"12": asdict(JobState("COMPLETED", "sacct", exit_code=0, exit_signal=0))}


@pytest.fixture
def bad(tmp_path: Path) -> Run:
    """A run to be spoiled, beside one that is well; both are over, so nobody is asked."""
    make_run(tmp_path / "runs" / "good", ended=DONE)
    return make_run(tmp_path / "runs" / "bad", ended=DONE)


def changed(run: Run, **fields: Any) -> None:
    known = json.loads(run.paths.record.read_text())
    run.paths.record.write_text(json.dumps(known | fields))


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_terabyte(path: Path) -> None:
    """It takes no space, and is read like one that does."""
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def a_link_to_another_s_file(path: Path) -> None:
    (path.parent / "theirs").write_text("{}")
    path.symlink_to("theirs")


def a_directory(path: Path) -> None:
    path.mkdir()


def depths(path: Path) -> None:
    path.write_text('{"schema":' + "[" * 100_000)


NO_FILES = [
    a_pipe,
    a_device,
    a_terabyte,
    a_link_to_another_s_file,
    a_directory,
    depths,
]
RECORDS = ["run.json", "job.json", "metrics.jsonl", "slurm-12.log", "stop-requested"]
OF_ATTEMPT = [
    *("verdict.json", "ending.json", "orders.jsonl", "node-0.events.jsonl", "rank-0.err"),
    *("node-0.samples.jsonl", "rank-0.out", "rank-0.raised.json"),
]


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_record_is_one_line_and_the_other_runs_are_shown(
    kind: Callable[[Path], None], bad: Run, fsdpkit: Fsdpkit
) -> None:
    bad.paths.record.unlink()
    kind(bad.paths.record)
    words = ["status", "--runs", str(bad.dir.parent), "--json"]
    answers = answer_of_list(fsdpkit(*words))
    assert answers["good"]["phase"] == "succeeded"
    assert "run.json" in answers["bad"]["error"]
    alone = fsdpkit("status", str(bad.dir), status=74)
    assert alone.stderr.count("\n") == 1


def answer_of_list(done: Completed) -> dict[str, dict[str, Any]]:
    return {one["run"]: one for one in answer_of(done)["runs"]}


LOOKS = [["status"], ["diagnose"], ["report", "-o", "-"], ["logs", "--errors"]]
LOOKS += [["logs", "--tail", "5"], ["top", "--once"]]
IN_ONE_PROCESS = """
import json, sys
from fsdpkit.cli.main import main
run, *looks = json.loads(sys.argv[1])
for command, *words in looks:
    sys.argv[1:] = [command, run, *words]
    try:
        status = main()
    except SystemExit as left:
        status = left.code
    assert status in (None, 0, 2, 66, 74), (command, words, status)
"""
"""Of their own, so that one that waits or takes all memory can be ended."""


@pytest.mark.parametrize("kind", NO_FILES)
def test_no_file_of_a_run_is_waited_for_or_read_without_end(
    kind: Callable[[Path], None], bad: Run
) -> None:
    attempt = bad.dir / "attempt-0"
    (attempt / "failures").mkdir(parents=True)
    files = [bad.dir / name for name in RECORDS[1:]] + [attempt / name for name in OF_ATTEMPT]
    for file in [*files, attempt / "failures" / "01-node-0-rank-0"]:
        kind(file)
    changed(bad, ended={"12": asdict(JobState("FAILED", "sacct", exit_code=1, exit_signal=0))})
    program = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps([str(bad.dir), *LOOKS])]
    done = ran(program, cwd=ROOT, timeout=240, status=0)
    assert "Traceback" not in done.stderr


WRONG: list[dict[str, Any]] = [
    {"job_id": "--me"},
    {"job_id": "12 --me"},
    {"job_id": "12\n"},
    {"job_id": "١٢"},
    {"id": "good"},
    {"id": "--me"},
    {"id": "$(id)"},
    {"cluster": "--me"},
    {"cluster": "a b"},
    {"earlier": [{"job_id": "-u", "nodes": 1, "ranks_per_node": 1}]},
    {"after": ["--dependency"]},
    {"nodes": 0},
    {"nodes": 1 << 70},
    {"ranks_per_node": 4097},
    {"array": [0] * 100_001},
    {"array": [-1]},
    {"array": [1 << 40]},
    {"created_s": 1e300},
    {"submitted_s": -1.0},
    {"ended": {"--me": {}}},
]


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_what_would_be_a_word_of_a_command_or_no_number_is_not_believed(
    fields: dict[str, Any], bad: Run
) -> None:
    changed(bad, **fields)
    with pytest.raises(StorageError, match=r"run\.json"):
        load(bad.dir)


@pytest.mark.parametrize("word", ["--me", "-u", "1 2", "", "12_--me", "12\n"])
def test_no_argument_of_slurm_s_commands_can_be_an_option(word: str) -> None:
    client = SlurmClient()
    job = MarkedJob(word, JobMark("fsdpkit:x", os.geteuid()))
    assert client.states([job]) == {}
    for ask in (client.cancel, client.forgot, client.release):
        with pytest.raises(SchedulerError, match="not a job id"):
            ask(job)
    if word != "12_--me":  # of one word, without a dash in front
        with pytest.raises(SchedulerError, match="not a cluster name"):
            SlurmClient(word)


# Pickles


class Attack:
    """Unpickled, it leaves a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def own(run: Run) -> Path:
    """A result as submitit leaves it."""
    run.paths.submitit.mkdir(mode=0o700)
    path = run.paths.submitit / "12_0_result.pkl"
    path.write_bytes(pickle.dumps(("success", {"node": "a"})))
    path.chmod(0o600)
    return path


def test_no_attempt_is_read_that_is_a_link_to_another(bad: Run, tmp_path: Path) -> None:
    task = bad.paths.task()
    (tmp_path / "private").mkdir()
    (task.dir / "attempt-7").symlink_to(tmp_path / "private")
    assert 7 not in task.attempts()


@pytest.mark.parametrize(
    "who", ["another user's", "writable", "in a writable folder", "below an open one", "a link"]
)
def test_nothing_is_unpickled_that_another_user_could_have_written(
    who: str, bad: Run, tmp_path: Path
) -> None:
    changed(bad, nodes=1)
    path, trace = own(bad), tmp_path / "trace"
    path.write_bytes(pickle.dumps(("success", Attack(trace))))
    if who == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(path, 12345, 12345)
    elif who == "writable":
        path.chmod(0o620)
    elif who == "in a writable folder":
        path.parent.chmod(0o770)
    elif who == "below an open one":
        tmp_path.chmod(0o777)
    else:
        path.rename(tmp_path / "theirs.pkl")
        path.symlink_to(tmp_path / "theirs.pkl")
    with pytest.raises((StorageError, OSError), match=r"unpickled|symbolic link"):
        Run.open(bad.dir).results()
    with pytest.raises((StorageError, OSError)):
        open_own(path)
    assert not trace.exists()
