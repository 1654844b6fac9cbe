"""Which exceptions a function can raise, as far as its own module says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdpkit.reference import public
from fsdpkit.reference.public import Function

_ALL = frozenset({"Exception", "BaseException"})


def raised_in(module: str, function: Function) -> set[str]:
    """Names of the exceptions that `function` raises, or what it calls in its own module."""
    functions = {
        node.name: node for node in ast.walk(public.tree(module)) if isinstance(node, Function)
    }
    found: set[str] = set()
    waiting, seen = [function], {function.name}
    while waiting:
        for node, caught in _walk(waiting.pop(), frozenset()):
            if isinstance(node, ast.Raise) and node.exc is not None and not caught & _ALL:
                found |= _named(node.exc, functions) - caught
            if isinstance(node, ast.Call) and (name := _called(node)) in functions.keys() - seen:
                seen.add(name)
                waiting.append(functions[name])
    return found


def _walk(node: ast.AST, caught: frozenset[str]) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Each node, with the names of the exceptions that a `try` around it catches."""
    yield node, caught
    for field, value in ast.iter_fields(node):
        inside = caught
        if isinstance(node, ast.Try) and field == "body":
            inside |= {name for each in node.handlers for name in _caught(each)}
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, inside)


def _caught(handler: ast.ExceptHandler) -> Iterator[str]:
    if handler.type is None:
        yield "BaseException"
    elif isinstance(handler.type, ast.Tuple):
        yield from map(ast.unparse, handler.type.elts)
    else:
        yield ast.unparse(handler.type)


def _named(raised: ast.expr, functions: dict[str, Function]) -> set[str]:
    """Of `raise X(…)` X; of `raise made(…)` what `made` returns; of a variable nothing."""
    if isinstance(raised, ast.IfExp):
        return _named(raised.body, functions) | _named(raised.orelse, functions)
    if not isinstance(raised, ast.Call):
        return set()
    name = _called(raised)
    if name in functions:
        returns = functions[name].returns
        return {ast.unparse(returns)} if returns is not None else set()
    return {name} if name and name[0].isupper() else set()


def _called(call: ast.Call) -> str:
    """`f` of `f(…)` and `self.f(…)`."""
    function = call.func
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self":
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
