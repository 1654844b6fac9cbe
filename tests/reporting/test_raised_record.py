"""What a rank recorded of its own end is believed before what can be read in its output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.bounded import LINE_BYTES
from fsdpkit.failures.ends import Explanation, ProcessEnd, explain
from fsdpkit.failures.tracebacks import _EXPLICIT
from fsdpkit.runs.raised import RaisedRecord, read_raised
from tests.reporting.made_run import T0
from tests.reporting.test_evidence import diagnosed, fails, log, run_with_an_attempt

OWN = ("/home/ada/train.py", 9, "save")


def record(*chain: dict[str, Any], **fields: Any) -> RaisedRecord:
    links = [{"frames": [OWN], "own": OWN, **link} for link in chain]
    return msgspec.convert({"ended": True, "status": 1, "chain": links, **fields}, RaisedRecord)


def line(*chain: dict[str, Any], **fields: Any) -> bytes:
    return msgspec.json.encode(record(*chain, **fields)) + b"\n"


def explained(raised: RaisedRecord, err: str = "", status: int = 1) -> Explanation:
    found = explain(ProcessEnd(status=status, raised=raised, err=err))
    assert found is not None
    assert found.shown.sure
    return found


BROKEN = {"type": "ValueError", "message": "broken"}
FULL = {"type": "OSError", "message": "[Errno 28] voll: '/data/x'", "errno": 28}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line(BROKEN), "broken"),
        (line(BROKEN) + line({"type": "KeyError"}, ended=False), "broken"),
        (line({"type": "KeyError"}, ended=False), None),
        (line(BROKEN) + line({"type": "OSError"})[:-9], "broken"),
        (line(BROKEN)[:-2] + b',"since_1.9":{"any":[1]}}\n', "broken"),
        (line(BROKEN).replace(b'"status":1', b'"status":"one"'), None),
        (line(BROKEN) + b"[" * 100_000 + b"\n", "broken"),
        (line(BROKEN) + b"\xff\xfe\n", "broken"),
        (b'{"ended":true,"chain":[]}\n', None),
        (line({"type": "ValueError", "message": "x" * LINE_BYTES}), None),
        (b"x" * (3 * LINE_BYTES) + b"\n" + line(BROKEN), "broken"),
        (b"", None),
    ],
)
def test_a_damaged_or_foreign_file_is_read_as_far_as_it_can_be(
    tmp_path: Path, content: bytes, message: str | None
) -> None:
    (tmp_path / "rank-0.raised.json").write_bytes(content)
    found = read_raised(tmp_path / "rank-0.raised.json")
    assert (found and found.chain[0].message) == message


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert [read_raised(tmp_path / name) for name in ("pipe", "link", "none")] == [None] * 3


def test_the_error_number_decides_in_whatever_language_the_words_are() -> None:
    found = explained(record({**BROKEN, "meant": True}, FULL))
    assert (found.shown.cause, found.where) == ("disk-full", "raised")


def test_what_a_thread_or_a_logger_printed_last_is_not_what_ended_it() -> None:
    err = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    found = explained(record(BROKEN), err)
    assert (found.shown.cause, str(found.shown.raised)) == ("exception", "ValueError: broken")


def test_the_text_adds_what_stands_above_the_exception() -> None:
    assertion = "Loss.cu:186: f: block: [0,0,0] Assertion `t >= 0 && t < n` failed."
    raised = {"type": "RuntimeError", "message": "CUDA error: device-side assert triggered"}
    traceback = f"Traceback (most recent call last):\nRuntimeError: {raised['message']}\n"
    for printed, where in ((traceback, "err"), ("my own hook\n", "raised")):
        found = explained(record(raised), f"{assertion}\n{printed}")
        assert found.where == where
        assert "t < n" in (found.shown.words or "")


def test_what_led_to_it_is_shown_where_it_was_printed() -> None:
    first = f"Traceback (most recent call last):\nOSError: {FULL['message']}\n\n"
    second = "Traceback (most recent call last):\nValueError: broken\n"
    err = f"{first}{_EXPLICIT}\n\n{second}"
    shown = explained(record({**BROKEN, "meant": True}, FULL), err).shown
    assert err[shown.begin : shown.end].startswith("OSError: ")


def test_members_of_a_group_explain_it() -> None:
    group = {"type": "ExceptionGroup", "message": "2 failed", "members": [[BROKEN], [FULL]]}
    shown = explained(record(group)).shown
    assert shown.cause == "disk-full"
    assert "voll" in str(shown.raised)
    shown = explained(record({**group, "members": [[BROKEN]]})).shown
    assert "broken" in (shown.words or "")


def test_leaving_while_an_exception_is_handled_is_ended_by_that_exception() -> None:
    found = explained(record({"type": "SystemExit"}, BROKEN))
    assert str(found.shown.raised) == "ValueError: broken"


def test_leaving_with_a_number_is_told_with_its_place() -> None:
    left = {"type": "SystemExit"}
    found = explained(record(left, left, status=3), status=3)
    assert (found.where, found.shown.words) == (
        "status",
        "exit status 3, left by /home/ada/train.py:9 in save",
    )


def test_an_exception_before_a_crash_in_the_interpreter_s_end_is_the_cause() -> None:
    assert explained(record(FULL), status=139).shown.cause == "disk-full"


def test_who_aborted_is_found_above_a_long_dump_of_threads() -> None:
    stacks = "Fatal Python error: Aborted\n\n" + '  File "/x.py", line 1 in run\n' * 900
    words = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    err = f"{words}  what():  std::bad_alloc\n{stacks}"
    found = explain(ProcessEnd(status=134, err=err))
    assert found is not None
    assert found.shown.cause == "host-out-of-memory"


def test_a_diagnosis_reads_the_record_before_any_text(tmp_path: Path) -> None:
    """Rank 1 was the first by its own clock, and left nothing else."""
    task = run_with_an_attempt(tmp_path)
    fails(task, 0, T0 + 20.5, 1, "exit status 1", rank=2)
    first = line({**BROKEN, "meant": True}, FULL, time_ns=int((T0 + 20) * 1e9))
    log(task.attempt(0).dir, "rank-1.raised.json", first.decode())
    found = diagnosed(task)
    assert (found.cause, found.rank) == ("disk-full", 1)
    assert found.evidence[0].file == task.attempt(0).rank_file(1, "raised.json", 0)
