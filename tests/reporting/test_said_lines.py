"""Each line of said.txt shows its cause, whoever says it, and who failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdpkit.failures.ends import ProcessEnd, explain
from tests.reporting.made_evidence import RESET, batch, found, rank
from tests.reporting.said import Said, all_said

TOP = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n    f()\n'


def said_by(who: str) -> list[Said]:
    return [one for one in all_said() if one.who == who]


def lines_of(who: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("said", said_by(who), ids=lambda said: said.words[:40])


@lines_of("rank")
def test_a_ranks_last_words_name_the_cause_and_the_rank(said: Said) -> None:
    diagnosis = found(rank(3, said.words), rank(0, RESET, time_s=1.0))
    assert (diagnosis.cause, diagnosis.rank, diagnosis.node) == (said.cause, 3, "node2")
    assert diagnosis.evidence


@lines_of("rank")
def test_a_rank_without_a_record_is_understood_by_its_log(said: Said) -> None:
    if not re.match(r"[\w.]+(: |$)", said.words):
        return  # an agent's words
    marked = said.words.replace("\n", "\n[rank3]: ")
    log = f"step 1\n[rank3]: Traceback (most recent call last):\n[rank3]: {marked}\n"
    diagnosis = found(rank(3, "exit status 1", log=log))
    assert (diagnosis.cause, diagnosis.rank) == (said.cause, 3)
    assert diagnosis.evidence[0].line in (3, 4)


@lines_of("batch")
def test_a_line_in_the_batch_shells_log_names_the_cause(said: Said) -> None:
    diagnosis = found(batch(f"fsdpkit: one node (node1)\n{said.words}\n"))
    assert diagnosis.cause == said.cause
    if said.cause != "unknown":
        quote = diagnosis.evidence[0]
        assert (quote.file, quote.line, quote.text) == (Path("slurm-7.log"), 2, said.words)


@lines_of("err")
def test_the_last_line_of_a_traceback_shows_the_cause(said: Said) -> None:
    answer = explain(ProcessEnd(status=1, err=f"{TOP}{said.words}\n"))
    assert answer is not None
    assert answer.shown.cause == said.cause
    if "SIG" in said.words:
        assert "SIG" in (answer.shown.words or "")
