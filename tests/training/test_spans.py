"""Span corruption: nothing is lost, everything fits, and what is hidden changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.data.spans import SHORTEST, Recipe, Windows, corrupt

EOS = 1
SENTINELS = np.arange(32099, 31999, -1)

recipes = st.builds(
    Recipe,
    noise_density=st.floats(0.01, 0.99),
    mean_span=st.floats(1, 50),
    sentinels=st.integers(1, 100),
)


def filled_in(source: list[int], target: list[int], marks: list[int]) -> list[int]:
    """The text that a source and the answer to it make together."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in marks:
            assert token not in spans, "a sentinel stands once in a target"
            spans[token] = open_span = []
        else:
            open_span.append(token)
    return [t for token in source for t in (spans.pop(token) if token in marks else [token])]


@given(recipe=recipes, length=st.integers(2, 700), seed=st.integers(0, 2**31))
@settings(max_examples=200)
def test_source_and_target_hold_every_token_once(recipe, length, seed):
    ids = np.arange(100, 100 + length, dtype=np.uint16)
    source, target = (
        part.tolist() for part in corrupt(ids, recipe, SENTINELS, EOS, np.random.default_rng(seed))
    )
    marks = [t for t in source if t >= 32000]
    assert source.pop() == target.pop() == EOS
    assert filled_in(source, target, marks) == ids.tolist()
    assert marks == [t for t in target if t >= 32000] == SENTINELS[: len(marks)].tolist()
    assert 1 <= len(marks) <= recipe.sentinels
    expected = [int(n) for n in recipe.lengths(np.array(length))]
    assert [len(source) + 1, len(target) + 1] == expected
    assert all(target[i + 1] < 32000 for i, t in enumerate(target[:-1]) if t >= 32000)


@given(recipe=recipes, source=st.integers(2, 1500), target=st.integers(2, 1500))
@settings(max_examples=200)
def test_a_window_is_the_largest_that_fits(recipe, source, target):
    size, longest = recipe.window(source, target), source + target + 1
    lengths = recipe.lengths(np.arange(longest + 1).clip(2))
    fits = (lengths[0] <= source) & (lengths[1] <= target)
    assert size < SHORTEST or fits[: size + 1].all()
    assert not fits[max(SHORTEST, size + 1) :].any()


@pytest.mark.parametrize(
    ("source", "target", "mean_span", "window"),
    # 512 → 568 tokens is what T5's own recipe expands its inputs to (114 targets).
    [(512, 114, 3.0, 568), (1024, 189, 20.0, 1193)],
)
def test_windows_are_t5_s_and_byt5_s(source, target, mean_span, window):
    assert Recipe(mean_span=mean_span).window(source, target) == window


@given(lengths=st.lists(st.integers(0, 200), max_size=20), size=st.integers(SHORTEST, 60))
def test_windows_cut_every_text_without_gap_or_overlap(lengths, size):
    windows = Windows(np.array(lengths, np.int64), size)
    row, start, end = windows.locate(np.arange(len(windows)))
    pieces = [(int(r), i) for r, a, b in zip(row, start, end, strict=True) for i in range(a, b)]
    texts = [(r, i) for r, n in enumerate(lengths) if n >= SHORTEST for i in range(n)]
    assert pieces == texts
    sizes = end - start
    assert (sizes <= size).all()
    for r in set(row.tolist()):
        assert np.ptp(sizes[row == r]) <= 1, "a text's windows are as equal as possible"
