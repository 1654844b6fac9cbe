"""A training script as text: read and syntax_of, never run."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

_MOST_BYTES = 4 << 20
_READER = "fsdpkit.training.command_line"
"""Who imports this reads the settings in `[training]`, through `--job`."""


def read_source(entry: Path) -> bytes | None:
    """None for what is too large to be a script that a person wrote. Raises OSError."""
    with open(entry, "rb") as file:
        source = file.read(_MOST_BYTES + 1)
    return source if len(source) <= _MOST_BYTES else None


def syntax_of(source: bytes) -> ast.Module | None:
    """None where this Python cannot parse it; the script's own may."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def reads_settings(tree: ast.Module) -> bool:
    """Whether a script reads `[training]`: it imports who does, or names the option itself."""
    return any(_reads_them(node) for node in ast.walk(tree))


def _reads_them(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        through = node.module == "fsdpkit.training" and names & {"read_settings", "command_line"}
        return node.module == _READER or bool(through)
    if isinstance(node, ast.Import):
        return any(alias.name == _READER for alias in node.names)
    if isinstance(node, ast.Attribute):
        return node.attr == "read_settings"
    return isinstance(node, ast.Constant) and node.value == "--job"
