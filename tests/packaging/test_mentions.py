"""A file of this project that a docstring or a comment names is there."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

from tests.packaging.installation import ROOT
from tests.packaging.test_documentation import read, tracked

_FILE = re.compile(r"(?<![\w/.~$}<>*-])(?:[\w.-]+/)*[\w.-]+\.(?:py|md|toml|j2|svg)(?![\w/])")
_DOCUMENT = re.compile(r"[A-Z]{4,}\.md")
_OTHERS = {"doc/PERFORMANCE.md"}
"""Of NVIDIA's nccl-tests."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prose(source: str) -> Iterator[str]:
    """Comments, docstrings, and what stands below a name to explain it."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        for one in node.body if isinstance(node, _DOCUMENTED) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                yield str(one.value.value)


@cache
def endings() -> frozenset[str]:
    """Every file's path, from each of the folders that it lies in."""
    paths = (PurePosixPath(name).parts for name in tracked())
    return frozenset("/".join(parts[at:]) for parts in paths for at in range(len(parts)))


@cache
def folders() -> frozenset[str]:
    """Of the project and of the package: what begins so is meant to be ours."""
    return frozenset(name.partition("/")[0] for name in endings() if "/" in name)


def missing(source: str) -> list[str]:
    named = {word for text in prose(source) for word in _FILE.findall(text)}
    ours = {w for w in named if w.split("/")[0] in folders() or _DOCUMENT.fullmatch(w)}
    return sorted(ours - endings() - _OTHERS)


def test_every_file_that_the_code_names_is_there() -> None:
    found = {
        name: lost
        for name in tracked()
        if name.endswith(".py") and (ROOT / name).is_file() and (lost := missing(read(name)))
    }
    assert found == {}
