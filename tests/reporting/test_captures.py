"""Captures of real failures are diagnosed as a careful person would: cause, rank and node.

The captures and what is said of them: tests/reporting/captures/__init__.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reporting.captures import (
    Capture,
    all_captures,
    diagnosis_of,
    with_noise,
)

CAPTURES = all_captures()
each = pytest.mark.parametrize("capture", CAPTURES, ids=str)


@each
def test_cause_rank_and_node_are_named_and_quotes_stand_where_they_are_said_to(
    capture: Capture,
) -> None:
    diagnosis = diagnosis_of(capture)
    assert capture.differences(diagnosis) == [], diagnosis.sentence
    for quote in diagnosis.evidence:
        if quote.file is None or quote.line is None:
            continue
        lines = quote.file.read_text(errors="replace").splitlines()
        words = quote.text.strip().splitlines()[0].strip(" .…")
        assert words in lines[quote.line - 1].replace('\\"', '"'), f"{quote.file}:{quote.line}"


@each
def test_an_earlier_word_of_a_rank_that_lost_its_peer_changes_nothing(
    capture: Capture, tmp_path: Path
) -> None:
    noisy = with_noise(capture, tmp_path)
    if noisy is None:
        return
    diagnosis = diagnosis_of(noisy)
    assert noisy.differences(diagnosis) == [], diagnosis.sentence
