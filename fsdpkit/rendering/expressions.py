"""What an expression of a template consists of: plain records, which can be kept and read again.

`rendering.jinja` makes them of Jinja's tree, `rendering.evaluation` says what each comes to. The
tags are what a kept template is read by; a new kind of record is a new tag, never another's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Comparison = Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "notin"]
Operator = Literal["+", "-", "*", "//", "%"]


class ExpressionNode(msgspec.Struct, frozen=True, array_like=True):
    """What all of them share."""


class Constant(ExpressionNode, frozen=True, tag="constant"):
    value: bool | int | float | str | None


class VariableName(ExpressionNode, frozen=True, tag="name"):
    name: str


class Lookup(ExpressionNode, frozen=True, tag="entry"):
    """`whole.key`, or `whole[key]` with any expression as key."""

    whole: Expression
    key: str | Expression


class Items(ExpressionNode, frozen=True, tag="items"):
    """`[a, b]`, or `(a, b)`."""

    items: tuple[Expression, ...]


class Filtered(ExpressionNode, frozen=True, tag="filtered"):
    """`value | name`; default: what `default(…)` is given."""

    value: Expression
    name: str
    default: Expression | None


class IsTest(ExpressionNode, frozen=True, tag="tested"):
    """`value is name`, with `other` for the tests that compare."""

    value: Expression
    name: str
    other: Expression | None


class ComparisonChain(ExpressionNode, frozen=True, tag="compared"):
    """`first < a <= b`, each with its left neighbour."""

    first: Expression
    rest: tuple[tuple[Comparison, Expression], ...]


class And(ExpressionNode, frozen=True, tag="and"):
    left: Expression
    right: Expression


class Or(ExpressionNode, frozen=True, tag="or"):
    left: Expression
    right: Expression


class Not(ExpressionNode, frozen=True, tag="not"):
    value: Expression


class Conditional(ExpressionNode, frozen=True, tag="choice"):
    """`then if test else otherwise`."""

    test: Expression
    then: Expression
    otherwise: Expression | None


class Concatenation(ExpressionNode, frozen=True, tag="joined"):
    """`a ~ b`."""

    parts: tuple[Expression, ...]


class Negative(ExpressionNode, frozen=True, tag="negative"):
    value: Expression


class Computed(ExpressionNode, frozen=True, tag="computed"):
    operator: Operator
    left: Expression
    right: Expression


class Called(ExpressionNode, frozen=True, tag="called"):
    """`range(…)` or `refuse(…)`."""

    name: str
    arguments: tuple[Expression, ...]


Expression = (
    Constant
    | VariableName
    | Lookup
    | Items
    | Filtered
    | IsTest
    | ComparisonChain
    | And
    | Or
    | Not
    | Conditional
    | Concatenation
    | Negative
    | Computed
    | Called
)
