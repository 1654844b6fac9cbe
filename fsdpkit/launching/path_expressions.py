"""The value of an expression such as `Path(__file__).resolve().parent / "src"`, without running the
script that contains it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "str": str,
    "os.fspath": os.fspath,
    "os.getcwd": os.getcwd,
    "os.path.abspath": os.path.abspath,
    "os.path.dirname": os.path.dirname,
    "os.path.expanduser": os.path.expanduser,
    "os.path.join": os.path.join,
    "os.path.normpath": os.path.normpath,
    "os.path.realpath": os.path.realpath,
    "pathlib.Path": Path,
    "pathlib.Path.cwd": Path.cwd,
}
_METHODS = frozenset({"absolute", "as_posix", "expanduser", "joinpath", "resolve", "with_name"})


def path_of(
    node: ast.expr, dotted: Callable[[ast.expr], str | None], names: Mapping[str, Any]
) -> Path | None:
    """The path to which the expression evaluates; None if it is not made only of paths.

    dotted: what a name or attribute stands for, as `os.path.join`. names: values known by name.
    """
    try:
        value = _value(node, dotted, names)
        return Path(value).absolute()
    except (ValueError, TypeError, KeyError, IndexError, OSError, RuntimeError):
        return None


def value_of(
    node: ast.expr, dotted: Callable[[ast.expr], str | None], names: Mapping[str, Any]
) -> Any:
    """The text, number or path that the expression gives. Raises ValueError for anything else."""
    try:
        return _value(node, dotted, names)
    except (TypeError, KeyError, IndexError, OSError, RuntimeError) as error:
        raise ValueError(str(error)) from error


def _value(
    node: ast.expr, dotted: Callable[[ast.expr], str | None], names: Mapping[str, Any]
) -> Any:
    def value(inner: ast.expr) -> Any:
        return _value(inner, dotted, names)

    match node:
        case ast.Constant(value=str() | int() as constant):
            return constant
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return value(left) / value(right)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return value(left) + value(right)
        case ast.Attribute(value=of, attr="parent" | "parents" | "name" as attribute):
            return getattr(_path(value(of)), attribute)
        case ast.Subscript(value=of, slice=index):
            return value(of)[value(index)]
        case ast.Call(func=function, args=arguments, keywords=[]):
            given = [value(argument) for argument in arguments]
            if known := _FUNCTIONS.get(dotted(function) or ""):
                return known(*given)
            if isinstance(function, ast.Attribute) and function.attr in _METHODS:
                return getattr(_path(value(function.value)), function.attr)(*given)
    raise ValueError(f"not a path: {ast.unparse(node)}")


def _path(value: Any) -> Path:
    if not isinstance(value, Path):
        raise ValueError(f"not a path: {value!r}")
    return value
