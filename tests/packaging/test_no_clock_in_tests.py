"""No test fails because a machine is slow: none asserts a duration, none gives up soon."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time"}
WAITS = {"communicate", "create_connection", "fsdpkit", "join", "ran", "run", "settimeout", "until"}
WAITS |= {"wait", "wait_for", "wait_idle", "wait_job"}
FIRST = {"join", "settimeout", "wait"}
LIMITS = {"timeout", "timeout_s", "within_s"}
SOON_S = (1, 120)
"""Up to a second is a look whether something happens that must not; minutes fail no right one."""


def called(node: ast.AST) -> str | None:
    func = node.func if isinstance(node, ast.Call) else None
    return getattr(func, "attr", getattr(func, "id", None))


def hasty(tree: ast.AST) -> Iterator[int]:
    """Lines that assert what a clock says, and lines that wait for less than minutes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and CLOCKS & {called(part) for part in ast.walk(node)}:
            yield node.lineno
        if isinstance(node, ast.Call) and called(node) in WAITS:
            given = [one.value for one in node.keywords if one.arg in LIMITS]
            given += node.args[:1] if called(node) in FIRST else []
            numbers = [one.value for one in given if isinstance(one, ast.Constant)]
            if any(type(n) in (int, float) and SOON_S[0] < n < SOON_S[1] for n in numbers):
                yield node.lineno


def test_no_test_asserts_a_duration_or_gives_up_soon() -> None:
    files = [path for path in TESTS.rglob("*.py") if path != TESTS / "programs.py"]
    found = {
        f"{path.relative_to(TESTS)}:{n}"
        for path in files
        for n in hasty(ast.parse(path.read_text()))
    }
    assert not found, "wait with `until` (tests/programs.py), compare orders, or hand in a clock"


@pytest.mark.parametrize(
    "line", ["assert time.monotonic() - a < 5", "p.wait(5)", "run(c, timeout=9.0)"]
)
def test_what_depends_on_speed_is_found(line: str) -> None:
    assert [*hasty(ast.parse(line))] == [1]
