"""Captures of real failures are diagnosed as a careful person would: cause, rank and node.

The captures and what is said of them: tests/reporting/captures/__init__.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reporting.captures import (
    HERE,
    Capture,
    all_captures,
    diagnosis_of,
    share_named_right,
    with_noise,
)
from tests.reporting.captures.changed import CHANGES, still_right

CAPTURES = all_captures()
OF_THE_ISSUE = (
    *("exception", "import-error", "version-mismatch", "head-address", "port-taken"),
    *("rendezvous-timeout", "connection-reset", "collective-mismatch", "hang"),
    *("gpu-out-of-memory", "host-out-of-memory", "time-limit", "preemption", "cancelled"),
    *("node-failure", "bad-gpu", "disk-full", "checkpoint-unreadable", "data-missing", "nan-loss"),
    *("refused", "pending-forever", "environment-missing", "script-not-visible"),
)
MOST_BYTES = 2_000_000
each = pytest.mark.parametrize("capture", CAPTURES, ids=str)


@each
def test_cause_rank_and_node_are_named(capture: Capture) -> None:
    diagnosis = diagnosis_of(capture)
    assert capture.differences(diagnosis) == [], diagnosis.sentence


@each
def test_what_is_quoted_stands_where_it_is_said_to_stand(capture: Capture) -> None:
    for quote in diagnosis_of(capture).evidence:
        if quote.file is None or quote.line is None:
            continue
        lines = quote.file.read_text(errors="replace").splitlines()
        words = quote.text.strip().splitlines()[0].strip(" .…")
        assert words in lines[quote.line - 1], f"{quote.file}:{quote.line}"


@each
def test_an_earlier_word_of_a_rank_that_lost_its_peer_changes_nothing(
    capture: Capture, tmp_path: Path
) -> None:
    noisy = with_noise(capture, tmp_path)
    if noisy is None:
        return
    diagnosis = diagnosis_of(noisy)
    assert noisy.differences(diagnosis) == [], diagnosis.sentence


@pytest.mark.parametrize("name", CHANGES)
def test_what_means_nothing_changes_nothing(name: str) -> None:
    """Nor do more ranks: 2 × 4 and 8 × 8, where the others do as the one that is not to blame."""
    right, of = still_right(CHANGES[name], show=True)
    assert of > len(CAPTURES) / 2
    assert right == of


@pytest.mark.parametrize("cause", OF_THE_ISSUE)
def test_every_cause_has_a_capture(cause: str) -> None:
    assert cause in {capture.cause for capture in CAPTURES}


def test_the_share_is_that_of_the_captures_named_right() -> None:
    right, of = share_named_right()
    assert right == of == len(CAPTURES)


def test_captures_are_small_and_hold_no_path_of_the_machine_that_made_them() -> None:
    files = [path for capture in CAPTURES for path in capture.dir.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    foreign = re.compile(r"/tmp/captures-|/tmp/pytest-|\.pkl\b.*pickle")
    found = [path for path in files if foreign.search(path.read_text(errors="replace"))]
    assert [str(path.relative_to(HERE)) for path in found] == []
