"""docs/planning.md has each question's answer as `fsdpkit plan` prints it now."""

from __future__ import annotations

import re

import pytest

from tests.docs.plan_answers import COMMAND, QUESTIONS, alone, answer, shown

pytestmark = pytest.mark.torch


def words_of(text: str) -> list[str]:
    """Without numbers, which another torch or a better prediction changes."""
    return re.sub(r"\d[\d,.]*", "0", text).split()


def test_every_question_is_answered_there() -> None:
    assert list(shown()) == [each.asks for each in QUESTIONS]


def test_the_answers_are_those_that_are_printed() -> None:
    there = shown()
    with alone():
        for each in QUESTIONS[::8]:  # one plan, several, a large one's speed; each takes seconds
            now = answer(each)
            assert words_of(there[each.asks]) == words_of(now), f"{COMMAND}: {now}"
