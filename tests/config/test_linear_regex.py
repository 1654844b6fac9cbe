"""Patterns that are matched in linear time: with the answers of Python's, and without its waits."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.config.linear_regex import LinearRegex

ATOMS = ("a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "(?:ab|a)", "(a|bb)", "(?i:A)")
BORDERS = ("^", "$", r"\b", "")
REPEATS = ("", "*", "+", "?", "*?", "+?", "{1,3}", "{2}", "{0,2}?")


@st.composite
def patterns(draw: st.DrawFn) -> str:
    part = st.sampled_from(ATOMS).flatmap(lambda a: st.sampled_from([a + r for r in REPEATS]))
    parts = draw(st.lists(part | st.sampled_from(BORDERS), min_size=1, max_size=5))
    return f"(?P<all>{''.join(parts)})"


@settings(max_examples=500, deadline=None)
@given(patterns(), st.text("ab1 A", max_size=12))
def test_it_finds_what_python_finds(pattern: str, text: str) -> None:
    found = re.search(pattern, text)
    assert LinearRegex(pattern).search(text) == (found.groupdict() if found else None)


@settings(max_examples=500, deadline=None)
@given(patterns(), st.text("ab1 A", max_size=12))
def test_it_matches_the_whole_of_what_python_does(pattern: str, text: str) -> None:
    assert LinearRegex(pattern).matches(text) == bool(re.fullmatch(pattern, text))


def test_a_text_that_would_take_long_does_not_match() -> None:
    assert not LinearRegex("(?:a?){400}").matches("a" * 400)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a*)*b", "(a|a)*c", "(.*)*.*=.*", "(a?){40}a{40}b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    LinearRegex(pattern).search("a" * 400 + "!")  # Python's engine would take years


def test_a_deadline_is_kept() -> None:
    with pytest.raises(TimeoutError):
        LinearRegex("(?:a?){200}b").search("a" * 400, time.monotonic())


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a)\\1", "a reference to a group cannot be used here"),
        ("(?=a)", "(?=…) or (?<=…) cannot be used here"),
        ("a{9999}", "too large"),
        ("(?:(?:a{99}){99}){99}", "too large"),
        ("(", "no regular expression"),
        ("(" * 400, "no regular expression"),
        ("a" * 501, "more than 500 characters"),
    ],
)
def test_what_it_cannot_do_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        LinearRegex(pattern)
