"""The expressions of Jinja's tree that the language has, as records; every other is refused.

What an expression may hold is decided here and once, whether or not its line is ever rendered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes

from fsdpkit.rendering.evaluation import FUNCTIONS, PLAIN_FILTERS, TESTS
from fsdpkit.rendering.expressions import (
    And,
    Called,
    Comparison,
    ComparisonChain,
    Computed,
    Concatenation,
    Conditional,
    Constant,
    Expression,
    Filtered,
    IsTest,
    Items,
    Lookup,
    Negative,
    Not,
    Operator,
    Or,
    VariableName,
)
from fsdpkit.rendering.quoting import QUOTERS


class Refused(ValueError):
    """An expression that is not part of the language, and the line of the template it is on."""

    def __init__(self, node: nodes.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.lineno


def expression_of(node: nodes.Node) -> Expression:
    """Raises Refused for what `evaluation` does not know."""
    if convert := _CONVERT.get(type(node)):
        return convert(node)
    raise Refused(node, f"{type(node).__name__} is not part of our templates' language")


def _all(found: list[nodes.Expr]) -> tuple[Expression, ...]:
    return tuple(map(expression_of, found))


def _name(node: nodes.Name) -> VariableName:
    if node.name in FUNCTIONS:
        raise Refused(node, f"{node.name} is a function: {node.name}(…)")
    return VariableName(node.name)


def _filtered(node: nodes.Filter) -> Filtered:
    if node.node is None or node.name not in (*PLAIN_FILTERS, *QUOTERS):
        known = ", ".join((*QUOTERS, *PLAIN_FILTERS))
        raise Refused(node, f"there is no filter {node.name!r} here; there are {known}")
    wanted = 1 if node.name == "default" else 0
    if len(node.args) != wanted or node.kwargs or node.dyn_args or node.dyn_kwargs:
        raise Refused(node, f"the filter {node.name} takes {'one value' if wanted else 'nothing'}")
    given = expression_of(node.args[0]) if wanted else None
    return Filtered(expression_of(node.node), node.name, given)


def _tested(node: nodes.Test) -> IsTest:
    if node.name not in TESTS:
        raise Refused(node, f"there is no test {node.name!r} here; there are {', '.join(TESTS)}")
    wanted = 0 if node.name in ("defined", "none", "string", "number") else 1
    if len(node.args or ()) != wanted or node.kwargs or node.dyn_args or node.dyn_kwargs:
        raise Refused(node, f"the test {node.name} takes {'one value' if wanted else 'nothing'}")
    other = expression_of(node.args[0]) if wanted else None
    return IsTest(expression_of(node.node), node.name, other)


_COMPARISONS: dict[str, Comparison] = {
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "lteq": "le",
    "gt": "gt",
    "gteq": "ge",
    "in": "in",
    "notin": "notin",
}


def _compared(node: nodes.Compare) -> ComparisonChain:
    rest = tuple((_COMPARISONS[each.op], expression_of(each.expr)) for each in node.ops)
    return ComparisonChain(expression_of(node.expr), rest)


def _choice(node: nodes.CondExpr) -> Conditional:
    otherwise = None if node.expr2 is None else expression_of(node.expr2)
    return Conditional(expression_of(node.test), expression_of(node.expr1), otherwise)


def _called(node: nodes.Call) -> Called:
    """The name of a function that is called is no value."""
    name = node.node.name if isinstance(node.node, nodes.Name) else None
    if name not in FUNCTIONS or node.kwargs or node.dyn_args or node.dyn_kwargs:
        raise Refused(node, f"only {' and '.join(FUNCTIONS)} can be called")
    return Called(name, _all(node.args))


_OPERATORS: dict[type[nodes.BinExpr], Operator] = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
}


def _computed(node: nodes.BinExpr) -> Computed:
    return Computed(_OPERATORS[type(node)], expression_of(node.left), expression_of(node.right))


_CONVERT: dict[type[nodes.Node], Callable[[Any], Expression]] = {
    nodes.Const: lambda node: Constant(node.value),
    nodes.Name: _name,
    nodes.Getattr: lambda node: Lookup(expression_of(node.node), node.attr),
    nodes.Getitem: lambda node: Lookup(expression_of(node.node), expression_of(node.arg)),
    nodes.List: lambda node: Items(_all(node.items)),
    nodes.Tuple: lambda node: Items(_all(node.items)),
    nodes.Filter: _filtered,
    nodes.Test: _tested,
    nodes.Compare: _compared,
    nodes.And: lambda node: And(expression_of(node.left), expression_of(node.right)),
    nodes.Or: lambda node: Or(expression_of(node.left), expression_of(node.right)),
    nodes.Not: lambda node: Not(expression_of(node.node)),
    nodes.CondExpr: _choice,
    nodes.Concat: lambda node: Concatenation(_all(node.nodes)),
    nodes.Neg: lambda node: Negative(expression_of(node.node)),
    nodes.Call: _called,
    **dict.fromkeys(_OPERATORS, _computed),
}
