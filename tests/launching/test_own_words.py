"""No decision depends on a sentence: what agents say is free, and what ranks say is theirs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec import structs

from fsdpkit.launching.policy import came_back, cause_of, first_trouble, trouble_of
from fsdpkit.reporting.diagnosis.sources import Voice
from fsdpkit.runs.failures import CHECK, HEAD_SILENT, HUNG, REFUSED, FailureRecord, Level
from fsdpkit.runs.log_ends import LogText
from tests.launching.made_reports import record, report
from tests.reporting.made_evidence import found

OWN_PHRASES = [
    "steps.before ended with status ",
    "all nodes must see the same environment",
    "is taken on the head node",
    "the head node's name '",
    "no route to the head node's address",
    "no agent after ",
    "the head node's agent does not answer any more",
    "no sign of life",
    "cannot load the module ",
    "cannot write to the run directory ",
    "torch cannot be imported by ",
    "MB of memory are free, ",
    "another process holds GPU",
    "waiting for other ranks",
    "wrong world: train.py, line 5, makes a process group of 1",
    "rank 0 made no step for 60 s (after step 5)",
    "srun: error: Node failure on n2",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some tasks were OOM Killed.",
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T00:14:34 ***",
    "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T00:14:34 DUE TO TIME LIMIT ***",
]


@pytest.mark.parametrize("words", OWN_PHRASES)
def test_what_a_rank_raises_in_our_words_is_an_exception(words: str) -> None:
    raised = f"RuntimeError: loader: {words} 3"
    told = record(1, raised, rank=1, name="node1")
    assert told.cause == "exception"
    assert cause_of(told) == "crash"
    trouble = first_trouble([report(0, message=raised, rank=1)], [], 5.0)
    assert trouble is not None
    assert (trouble.cause, trouble.lost) == ("crash", ())
    voice = Voice(
        kind="rank",
        rank=1,
        node="node1",
        status=1,
        time_s=9.0,
        logs=(LogText(f"Traceback (most recent call last):\n{raised}\n", Path("rank-1.err")),),
        told=told,
        message=LogText(raised, Path("failures/1")),
    )
    said = found(voice)
    assert (said.cause, said.rank) == ("exception", 1)


JUDGED = [
    FailureRecord(by="agent", rule=HUNG, name="n1", status=124, cause="hang", rank=0),
    FailureRecord(by="agent", rule=HUNG, status=124, cause="hang", level=Level.WAITED),
    FailureRecord(by="agent", rule=CHECK, name="n2", status=71, cause="bad-gpu"),
    FailureRecord(by="agent", rule=CHECK, name="n2", status=78, cause="disk-full"),
    FailureRecord(by="agent", rule=HEAD_SILENT, status=71, cause="connection-reset", level=1),
    FailureRecord(by="agent", status=78, cause="wrong-world", rank=2),
    FailureRecord(by="shell", rule=REFUSED, status=71, cause="refused"),
    FailureRecord(by="shell", status=79, cause="own-step"),
]


@pytest.mark.parametrize("judged", JUDGED, ids=lambda one: f"{one.rule}-{one.cause}-{one.level}")
def test_a_hundred_other_sentences_change_no_decision(judged: FailureRecord) -> None:
    made = random.Random(7)
    alphabet = "abcdefghij klmnop:.,()'\"{}[]é\n"
    sentences = ["".join(made.choices(alphabet, k=made.randint(1, 80))) for _ in range(93)]
    decided, named = set(), set()
    for words in [*sentences, *OWN_PHRASES[:7]]:
        told = structs.replace(judged, words=words)
        trouble = trouble_of(told, lasted_s=1.0)
        decided.add((cause_of(told), trouble.cause, trouble.status, came_back(trouble, trouble)))
        kind = "agent" if told.rank is None else "rank"
        voice = Voice(kind=kind, rank=told.rank, node="n1", status=told.status, time_s=1.0)
        message = LogText(words, Path("failures/1"))
        named.add(found(structs.replace(voice, told=told, message=message)).cause)
    assert len(decided) == len(named) == 1
