"""No test fails because a machine is slow: none asserts a duration, none gives up soon."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time"}
FIRST = {"join", "settimeout", "wait"}
"""Calls whose first argument may be a limit in seconds."""
LIMITS = {"timeout", "timeout_s", "within_s"}
BAD = "assert monotonic() < 5\np.wait(5)\nrun(c, timeout=9.0)\np.wait(1)\nrun(c, timeout=300)"


def called(node: ast.AST) -> str | None:
    func = node.func if isinstance(node, ast.Call) else None
    return getattr(func, "attr", getattr(func, "id", None))


def hasty(tree: ast.AST) -> Iterator[int]:
    """Lines that assert what a clock says, or wait for more than a second (a look whether something
    happens that must not) and less than minutes (which fail no right program)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and CLOCKS & {called(part) for part in ast.walk(node)}:
            yield node.lineno
        if isinstance(node, ast.Call) and (name := called(node)) not in ("Debugging", "hello"):
            given = [one.value for one in node.keywords if one.arg in LIMITS]
            for limit in given + node.args[:1] * (name in FIRST):
                value = limit.value if isinstance(limit, ast.Constant) else None
                if isinstance(value, (int, float)) and 1 < value < 120:
                    yield node.lineno


def test_no_test_asserts_a_duration_or_gives_up_soon() -> None:
    """They wait with `until`, compare orders, or hand in a clock."""
    assert [*hasty(ast.parse(BAD))] == [1, 2, 3]
    files = {*TESTS.rglob("*.py")} - {TESTS / "programs.py"}
    found = {file: [*hasty(ast.parse(file.read_text()))] for file in files}
    assert {str(file): lines for file, lines in found.items() if lines} == {}
