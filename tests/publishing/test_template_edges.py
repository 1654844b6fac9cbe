"""Which values a template is tried with: every edge, every pair of edges, few sets."""

from __future__ import annotations

import re
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.config.template import Parameter, load_template
from fsdpkit.publishing.export.posix_pattern import for_bash
from fsdpkit.publishing.template_edges import edges, value_sets
from fsdpkit.publishing.template_pattern import LONG, allowed_texts
from tests.programs import ran

PATTERNS = [
    "[a-z]+", r"\w{1,8}", "(a|bc){2,3}x?", ".*", "[^/]+", r"^[A-Z]{2}\d{4}$", r"[\w.@:/+-]{1,64}",
    r"a\.b", r"\[\^\\-\]", "it's|x", r"(?:ab)?c", r"[^\d]",
    r"\d+(\.\d+)?", "[^'\"]*", r"x{3}", "a|b|c", "[.$*]{2}", r"x{2,}", r"\$[(]\)",
]  # fmt: skip


def parameter(**about: object) -> Parameter:
    return Parameter(help="x", **about)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("about", "wanted"),
    [
        ({"type": "int", "minimum": 1, "maximum": 9, "default": 3}, [None, 1, 9]),
        ({"type": "int", "minimum": 0, "default": 3}, [None, 0, 10**9, 1]),
        ({"type": "int", "minimum": 1, "maximum": 9}, [None, 1, 9]),
        ({"type": "bool", "default": True}, [None, False]),
        ({"type": "bool"}, [None, True, False]),
        ({"type": "str", "choices": ["a", "b"], "default": "a"}, [None, "b"]),
        ({"type": "int", "choices": [2, 4]}, [None, 2, 4]),
    ],
)
def test_edges(about: dict[str, object], wanted: list[object]) -> None:
    assert edges(parameter(**about)) == wanted


def test_text_edges_are_empty_nasty_and_long() -> None:
    found = edges(parameter(type="str"))
    assert "" in found
    assert any(isinstance(t, str) and "$(" in t for t in found)
    assert any(isinstance(t, str) and "'" in t and '"' in t and "`" in t for t in found)
    assert max(len(t) for t in found if isinstance(t, str)) == LONG


def test_a_pattern_gives_its_longest_and_its_nastiest_text() -> None:
    assert max(map(len, allowed_texts("[a-z]{2,64}"))) == 64
    assert max(map(len, allowed_texts("[a-z]+"))) == LONG
    assert any("'" in text for text in allowed_texts("[^/]+"))


def grep(posix: str, texts: list[str]) -> list[bool]:
    """What bash says of each text, by its own expressions."""
    program = 'LC_ALL=C re="^($RE)$"; for t; do [[ $t =~ $re ]] && printf 1 || printf 0; done'
    done = ran(["bash", "-c", program, "bash", *texts], env={"RE": posix}, status=0)
    return [char == "1" for char in done.stdout]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bash_reads_its_form_of_a_pattern_as_python_reads_the_pattern(pattern: str) -> None:
    posix = for_bash(pattern)
    assert posix is not None
    texts = [
        *allowed_texts(pattern),
        *(chr(n) for n in range(32, 127)),
        "",
        "ab",
        "xxx",
        "--",
    ]
    texts = [t for t in texts if t.isascii()]
    python = [bool(re.fullmatch(pattern, t, re.ASCII)) for t in texts]
    assert grep(posix, texts) == python


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)b", r"(a)\1", "(?i:a)", "é", "a{300}", r"a\b", "a*?", "(a|)", "a||b", r"\S", "[[:x]"],
)
def test_what_bash_cannot_say_is_not_said(pattern: str) -> None:
    assert for_bash(pattern) is None


def pairs(tables: dict[str, list[object]]) -> set[object]:
    return {
        (a, b, repr(x), repr(y))
        for a, b in combinations(tables, 2)
        for x, y in product(tables[a], tables[b])
    }


@settings(max_examples=30)
@given(st.lists(st.integers(min_value=1, max_value=6), min_size=2, max_size=12))
def test_every_pair_of_edges_is_in_some_set(maxima: list[int]) -> None:
    parameters = {
        f"p{n}": parameter(type="int", choices=list(range(most))) for n, most in enumerate(maxima)
    }
    tables = {name: edges(p) for name, p in parameters.items()}
    sets = value_sets(parameters)
    found = {
        (a, b, repr(one.get(a)), repr(one.get(b)))
        for one in sets
        for a, b in combinations(tables, 2)
    }
    assert pairs(tables) == found
    assert sets[0] == {}


def test_the_packaged_template_has_every_edge_in_some_set() -> None:
    parameters = load_template("torchrun").manifest.parameters
    sets = value_sets(parameters)
    for name, each in parameters.items():
        assert {repr(one.get(name)) for one in sets} == {repr(value) for value in edges(each)}
