"""The rules that decide failures which no pattern names, each with what it must not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.failures.ends import ProcessEnd, explain
from fsdpkit.runs.log_ends import part_from
from fsdpkit.runs.outcomes import AttemptVerdict, Trouble
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_evidence import agent, batch, found, rank

TOP = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n    f()\n'
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
SHELL = "/var/spool/slurmd/job7/slurm_script: "


def cause_of(err: str, status: int = 1) -> str:
    answer = explain(ProcessEnd(status=status, err=err))
    assert answer is not None
    return answer.shown.cause


@pytest.mark.parametrize(
    ("state", "cause"),
    [("TIMEOUT", "time-limit"), ("PREEMPTED", "preemption"), ("CANCELLED", "cancelled")],
)
def test_an_interrupt_follows_from_what_slurm_did(state: str, cause: str) -> None:
    first = "rank 0 on node1: KeyboardInterrupt"
    told = found(
        rank(0, "KeyboardInterrupt"),
        rank(1, "SignalException: Process 41 got signal: 15"),
        state=JobState(state, "sacct", exit_code=0, exit_signal=15),
        verdict=AttemptVerdict(trouble=Trouble(cause="crash", status=1, message=first)),
    )
    assert told.cause == cause


def test_an_interrupt_is_told_where_nobody_says_who_sent_it() -> None:
    assert found(rank(0, "KeyboardInterrupt")).cause == "exception"


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("OSError: [Errno 122] Der zugewiesene Plattenplatz ist überschritten", "disk-full"),
        ("OSError: [Errno 116] Descripteur de fichier périmé", "storage"),
        ("ConnectionRefusedError: [Errno 111] Verbindungsaufbau abgelehnt", "connection-reset"),
        ("socket.gaierror: [Errno -2] Nom ou service inconnu", "head-address"),
        ("Exception: kein Platz (os error 28)", "disk-full"),
        ("ValueError: row 3 holds '[Errno 28]'", "exception"),
    ],
)
def test_errno_decides_in_any_language(last: str, cause: str) -> None:
    assert cause_of(f"{TOP}{last}\n") == cause


def test_a_missing_symbol_is_the_linkers_whatever_exception_carries_it() -> None:
    words = "/lib64/libm.so.6: version `GLIBC_2.29' not found (required by /env/libpyg.so)"
    assert cause_of(f"{TOP}OSError: {words}\n") == "version-mismatch"


def test_a_file_missed_while_a_full_disk_is_handled_follows_from_the_disk() -> None:
    full = "OSError: [Errno 28] No space left on device\n"
    missed = "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/a.tmp'\n"
    assert cause_of(TOP + full + HANDLING + TOP + missed) == "disk-full"
    assert cause_of(TOP + missed + HANDLING + TOP + "KeyError: 'mask'\n") == "exception"


def test_a_gpus_memory_is_not_the_nodes_though_its_exception_has_the_same_end() -> None:
    handled = f"{TOP}KeyError: 'cache'\n" + "".join(f"step {n} loss 2\n" for n in range(9))
    last = "OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n"
    assert cause_of(handled + last, status=3) == "gpu-out-of-memory"


def test_a_quoted_line_is_data_but_for_one_that_is_quoted_as_a_whole() -> None:
    words = '"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"\n'
    assert cause_of(words, status=134) == "version-mismatch"
    assert cause_of(f"{TOP}ValueError: cannot parse 'CUDA out of memory'\n") == "exception"


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("==> Error: Spec 'cuda@12.4' matches no installed packages.", "environment-missing"),
        (f"{SHELL}Zeile 4: conda: Kommando nicht gefunden.", "environment-missing"),
        ("srun: error: Something is wrong with the boot of the nodes.", "refused"),
        ("srun: error: node1: task 0: Exited with exit code 1", "unknown"),
        ("+ echo Error: nothing", "unknown"),
    ],
)
def test_a_job_that_failed_before_its_ranks_is_told_by_its_shells_last_error(
    last: str, cause: str
) -> None:
    assert found(batch(f"fsdpkit: one node (node1)\n{last}\n")).cause == cause


def test_it_is_told_as_perhaps_and_only_where_nobody_else_speaks() -> None:
    shell = batch("error: no interpreter found\n")
    assert found(shell).sentence.startswith("Perhaps: ")
    assert found(shell, rank(0, "KeyError: 'mask'")).cause == "exception"
    assert found(shell, agent("node1", "CUDA error: uncorrectable ECC error")).cause == "bad-gpu"


def test_a_part_of_a_file_begins_with_the_last_line_that_has_the_words(tmp_path: Path) -> None:
    log = tmp_path / "rank-5.err"
    log.write_text("step\n[rank5]: Traceback\none\n[rank5]: Traceback\ntwo\n" + "noise\n" * 99)
    part = part_from(log, b"]: Traceback", 1 << 20, 30)
    assert part is not None
    assert (part.text.splitlines()[:2], part.line) == (["[rank5]: Traceback", "two"], 4)
    assert part_from(log, b"]: Traceback", 60, 30) is None
    assert part_from(tmp_path / "none", b"x", 60, 30) is None
