"""`fsdpkit.run` without a cluster: what crosses to a rank, and what is believed of what it left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from fsdpkit import FunctionError
from fsdpkit.config import assets
from fsdpkit.errors import DamagedError, StorageError, UsageError
from fsdpkit.launching.serving import serve
from fsdpkit.runs import calls
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.scheduling.functions import submit_function
from fsdpkit.scheduling.returned import results_of
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState
from tests.programs import ran
from tests.reporting.log_runs import attempt_of, make_run


@dataclass(frozen=True)
class Called:
    """A run whose rank 0 has called a function, without a cluster."""

    run: Run
    attempt: AttemptPaths
    done: subprocess.CompletedProcess[str]

    def outcome(self, state: str = "FAILED") -> list[Any]:
        return results_of(self.run, JobState(state, "squeue", 0 if state == "COMPLETED" else 1))

    def failure(self, state: str = "FAILED") -> FunctionError:
        with pytest.raises(FunctionError) as raised:
            self.outcome(state)
        return raised.value


Call = Callable[..., Called]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    def make(
        function: Callable[..., Any],
        *args: Any,
        ranks: int = 1,
        most_mb: int = 10,
        path: Sequence[str] = (),
        change: Callable[[Path], object] = lambda path: None,
    ) -> Called:
        run = make_run(tmp_path / "run", nodes=1, ranks_per_node=ranks)
        attempt = attempt_of(run)
        content = msgspec.msgpack.encode(
            calls.Call(function=cloudpickle.dumps((function, args)), path=[*path])
        )
        run.paths.call.write_bytes(content)
        change(run.paths.call)
        entry = assets.package_dir() / "launching" / "entries" / calls.ENTRY
        words = ["--digest", calls.digest_of(content), "--result-mb", str(most_mb)]
        told = {"FSDPKIT_RUN_DIR": run.dir, "FSDPKIT_ATTEMPT_DIR": attempt.dir, "RANK": "0"}
        done = ran(
            [sys.executable, str(entry), *words],
            env={**os.environ, **{name: str(value) for name, value in told.items()}},
        )
        return Called(run, attempt, done)

    return make


# The rank's side


def test_what_a_function_returns_comes_back(call: Call) -> None:
    """Also what no module has a name for."""

    class Answer:
        def __init__(self, value: object) -> None:
            self.value = value

    called = call(lambda *args: Answer((args, os.environ["RANK"])), [1, 2], "é")
    assert called.done.returncode == 0, called.done.stderr
    (answer,) = called.outcome("COMPLETED")
    assert answer.value == (([1, 2], "é"), "0")


def test_an_exception_comes_back_with_its_own_traceback(call: Call) -> None:
    def breaks() -> None:
        raise ValueError("boom")

    called = call(breaks)
    assert called.done.returncode == 1
    assert "ValueError: boom" in called.done.stderr  # for the agents and diagnose
    error = called.failure()
    assert error.rank == 0
    assert "in breaks" in error.traceback
    assert "calling.py" not in error.traceback
    assert "ValueError: boom" in str(error)


def test_modules_of_the_submitter_are_found(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside them those that are gone on the rank's side are named."""
    (tmp_path / "mine.py").write_text("def answer(): return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine

    called = call(mine.answer, path=[str(tmp_path)])
    assert called.outcome("COMPLETED") == [42]
    called = call(mine.answer)
    assert "mine" in str(called.failure())
    assert "loaded" in str(called.failure())


def test_another_function_than_was_submitted_is_not_loaded(call: Call, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def planted(path: Path) -> None:
        function = cloudpickle.dumps((mark.touch, ()))
        path.write_bytes(msgspec.msgpack.encode(calls.Call(function=function, path=[])))

    called = call(lambda: 1, change=planted)
    assert called.done.returncode == 74
    assert not mark.exists()
    assert "digest" in str(called.failure())


def test_a_later_call_is_believed_once_and_as_it_was_signed(tmp_path: Path) -> None:
    found = calls.KeptCalls(tmp_path, b"secret")
    found.write(0, b"call")
    assert found.read(0) == b"call"
    with pytest.raises(FileExistsError):
        found.write(0, b"another")
    again = tmp_path / "1.pkl"
    for content in ((tmp_path / "0.pkl").read_bytes(), b"", b"\0" * 40):
        again.write_bytes(content)
        again.chmod(0o600)
        with pytest.raises(DamagedError):
            found.read(1)


def test_ranks_that_stay_end_without_calls_and_are_no_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"RUN_DIR": tmp_path, "HEARTBEAT_DIR": tmp_path, "ATTEMPT_DIR": tmp_path / "attempt-0"}
    for name, value in told.items():
        monkeypatch.setenv(f"FSDPKIT_{name}", str(value))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    serve(b"secret", 1, 0.0)
    first = tmp_path / "calls" / "0.pkl"
    assert calls.KeptCalls(first.parent, b"secret").read(0) == b""
    first.unlink()
    (tmp_path / "stop-requested").touch()
    serve(b"secret", 1, 1000.0)
    assert first.exists()
    monkeypatch.setenv("FSDPKIT_ATTEMPT_DIR", str(tmp_path / "attempt-1"))
    with pytest.raises(RuntimeError):
        serve(b"secret", 1, 0.0)


# The submitter's side


def test_a_result_that_others_could_have_written_is_not_loaded(call: Call, tmp_path: Path) -> None:
    called = call(lambda: 1)
    called.attempt.result(0).chmod(0o666)
    with pytest.raises(StorageError, match="unpickled"):
        called.outcome("COMPLETED")


@pytest.mark.parametrize(
    ("function", "args", "noun"),
    [
        (3, (), "called"),
        (lambda lock: lock, (threading.Lock(),), "lock"),
        (print, ("x" * 100_000_001,), "MB"),
    ],
)
def test_what_no_other_process_could_call_is_refused_before_a_run_is_made(
    function: Any, args: Any, noun: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=noun):
        submit_function(function, *args, cluster="local", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
