"""What the expressions of a template can do: a list of operations on plain data, each with a price.

Nothing of a template becomes Python. A name means a value of the context or one that
the template set, `a.b` an entry of a table, and the only functions are the two in `FUNCTIONS`,
found by their syntax, so no attribute or method of a Python object can be reached. Every operation
is paid for by what it may cost at worst before it runs, so a template's processor time is bounded
by `MAX_WORK` units of about a microsecond, whatever it holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgspec

from fsdpkit.errors import RenderError
from fsdpkit.rendering.expressions import (
    And,
    Called,
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
    Or,
    VariableName,
)
from fsdpkit.rendering.quoting import QUOTERS, Quoted
from fsdpkit.rendering.variables import Undecided, Variable

MAX_WORK = 300_000
_MAX_TEXT = 65_536
_MAX_NUMBER = 1e12
_CHARACTERS = 64  # that are copied, compared or quoted for one unit of work

TESTS = ("defined", "none", "eq", "ne", "lt", "le", "gt", "ge", "in", "string", "number")
FUNCTIONS = ("range", "refuse")


class Missing(msgspec.Struct, frozen=True):
    """What a name or entry is that does not exist: good for `default` and `defined` alone."""

    name: str


def _present(value: Any) -> Any:
    if isinstance(value, Missing):
        raise RenderError(f"'{value.name}' is undefined")
    return value


def _kind(value: Any) -> str:
    names = {str: "text", list: "list", dict: "table", bool: "truth value", type(None): "nothing"}
    return names.get(type(value), type(value).__name__.lower())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _size(value: Any) -> int:
    return len(value) // _CHARACTERS + 1 if isinstance(value, str) else 1


class Evaluation:
    """One rendering's names and what is left of its budget."""

    def __init__(self, context: dict[str, Any]) -> None:
        self.scopes: list[dict[str, Any]] = [context, {}]
        self.left = MAX_WORK

    def pay(self, work: int) -> None:
        """Raises RenderError when the budget is spent."""
        self.left -= work
        if self.left < 0:
            raise RenderError("it takes too much work: its loops, or the texts it handles")

    def of(self, node: Expression) -> Any:
        """The value of an expression that the language allows; may be Missing."""
        self.pay(1)
        return _VALUES[type(node)](self, node)

    def present(self, node: Expression) -> Any:
        return _present(self.of(node))

    def truth(self, node: Expression) -> bool:
        value = self.present(node)
        if isinstance(value, Quoted):
            raise RenderError("what a quoter made can only be printed")
        if isinstance(value, Variable):
            if value.kind == "number":
                return value.compared("ne", 0)
            return True  # a text that is checked is not empty; no words expand to none
        return bool(value)

    def set(self, name: str, value: Any) -> None:
        self.scopes[-1][name] = value

    # ---- Prices

    def pay_for(self, *values: Any) -> None:
        self.pay(sum(_size(value) for value in values))

    def items(self, value: Any, what: str) -> list[Any]:
        """A list, or the keys of a table, paid for with the text in it."""
        if isinstance(value, Variable):
            raise Undecided(value)
        if not isinstance(value, list | dict):
            raise RenderError(f"{what} is for a list or a table, not a {_kind(value)}")
        self.pay(len(value))
        found = list(value)
        self.pay_for(*found)
        return found


def _scalar(value: Any, what: str) -> Any:
    if isinstance(_present(value), Quoted | list | dict):
        raise RenderError(f"{what} is for text, numbers and truth values, not a {_kind(value)}")
    return value


# ---- Expressions


def _name(run: Evaluation, node: VariableName) -> Any:
    for scope in reversed(run.scopes):
        if node.name in scope:
            return scope[node.name]
    return Missing(node.name)


def _entry(run: Evaluation, node: Lookup) -> Any:
    whole = run.present(node.whole)
    key = node.key if isinstance(node.key, str) else run.present(node.key)
    if isinstance(whole, dict) and isinstance(key, str):
        return whole.get(key, Missing(key[:60]))
    if isinstance(whole, list) and type(key) is int:
        return whole[key] if -len(whole) <= key < len(whole) else Missing(f"[{key}]")
    raise RenderError(f"a {_kind(whole)} has no part {str(key)[:60]!r}")


def _items(run: Evaluation, node: Items) -> Any:
    return [_scalar(run.of(item), "a list in a template") for item in node.items]


def _filtered(run: Evaluation, node: Filtered) -> Any:
    value = run.of(node.value)
    if node.default is not None:
        return run.present(node.default) if isinstance(value, Missing) else value
    value = _present(value)
    if isinstance(value, Quoted):
        raise RenderError("what a quoter made can only be printed")
    if isinstance(value, Variable) and node.name not in QUOTERS:
        raise Undecided(value)
    if quoter := QUOTERS.get(node.name):
        run.pay_for(*(run.items(value, node.name) if isinstance(value, list) else [value]))
        return quoter(value)
    return _FILTERS[node.name](run, value)


def _tested(run: Evaluation, node: IsTest) -> bool:
    value = run.of(node.value)
    if node.name == "defined":
        return not isinstance(value, Missing)
    value = _present(value)
    if isinstance(value, Variable) and node.name in ("string", "number"):
        return (value.kind == "text") if node.name == "string" else (value.kind == "number")
    if node.name == "none":
        return value is None
    if node.name == "string":
        return isinstance(value, str)
    if node.name == "number":
        return _is_number(value)
    assert node.other is not None
    return _compare(run, node.name, value, run.present(node.other))


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _compare(run: Evaluation, name: str, left: Any, right: Any) -> bool:
    if isinstance(left, Variable) and name not in ("in", "notin"):
        return left.compared(name, right)
    if isinstance(right, Variable) and name not in ("in", "notin"):
        return right.compared(_TURNED.get(name, name), left)
    if name in ("in", "notin"):
        return _contains(run, left, right) == (name == "in")
    _scalar(left, "a comparison")
    _scalar(right, "a comparison")
    run.pay_for(left)
    if name not in ("eq", "ne") and _kind(left) != _kind(right) and not _both_numbers(left, right):
        raise RenderError(f"a {_kind(left)} and a {_kind(right)} have no order")
    return _COMPARISONS[name](left, right)


_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _both_numbers(left: Any, right: Any) -> bool:
    return _is_number(left) and _is_number(right)


def _contains(run: Evaluation, part: Any, whole: Any) -> bool:
    _scalar(part, "`in`")
    for each in (part, whole):
        if isinstance(each, Variable):
            raise Undecided(each)
    if isinstance(whole, str):
        if not isinstance(part, str):
            raise RenderError(f"a text holds no {_kind(part)}")
        # Python's search compares every place with up to a hundred characters where it is naive.
        run.pay(_size(whole) * min(len(part) + 1, 100))
        return part in whole
    return part in [each for each in run.items(whole, "`in`") if not isinstance(each, list | dict)]


def _compared(run: Evaluation, node: ComparisonChain) -> bool:
    left = run.present(node.first)
    for comparison, operand in node.rest:
        right = run.present(operand)
        if not _compare(run, comparison, left, right):
            return False
        left = right
    return True


def _either(run: Evaluation, node: Or) -> Any:
    left = run.present(node.left)
    true = run.truth(node.left) if isinstance(left, Variable) else left
    return left if true else run.of(node.right)


def _chosen(run: Evaluation, node: Conditional) -> Any:
    if run.truth(node.test):
        return run.of(node.then)
    if node.otherwise is None:
        return Missing("the other case of `if`")
    return run.of(node.otherwise)


def _joined(run: Evaluation, node: Concatenation) -> str:
    texts = []
    for part in node.parts:
        value = run.present(part)
        if isinstance(value, Quoted):
            raise RenderError("~ joins text before it is quoted, not after")
        if isinstance(value, Variable):
            raise Undecided(value)
        if not (isinstance(value, str) or _is_number(value)):
            raise RenderError(f"~ joins text and numbers, not a {_kind(value)}")
        run.pay_for(value)
        texts.append(str(value))
    if sum(map(len, texts)) > _MAX_TEXT:
        raise RenderError(f"~ makes a text of more than {_MAX_TEXT} characters")
    return "".join(texts)


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _number(value: Any) -> Any:
    if isinstance(value, Variable):
        raise Undecided(value)
    if not _is_number(value) or not abs(value) <= _MAX_NUMBER:
        raise RenderError("arithmetic is only for numbers of up to 10^12; join text with ~")
    return value


def _computed(run: Evaluation, node: Computed) -> Any:
    left, right = _number(run.present(node.left)), _number(run.present(node.right))
    if right == 0 and node.operator in ("//", "%"):
        raise RenderError("a division by zero")
    return _ARITHMETIC[node.operator](left, right)


def _called(run: Evaluation, node: Called) -> Any:
    arguments = [run.present(argument) for argument in node.arguments]
    if node.name == "refuse":
        raise RenderError(f"refuses: {' '.join(str(_scalar(a, 'refuse')) for a in arguments)}")
    if not 1 <= len(arguments) <= 3 or any(type(a) is not int for a in arguments):
        raise RenderError("range takes one to three whole numbers")
    if len(arguments) == 3 and arguments[2] == 0:
        raise RenderError("range goes nowhere in steps of 0")
    numbers = range(*map(_number, arguments))
    run.pay(len(numbers))
    return list(numbers)


_VALUES: dict[type[Expression], Callable[[Evaluation, Any], Any]] = {
    Constant: lambda run, node: node.value,
    VariableName: _name,
    Lookup: _entry,
    Items: _items,
    Filtered: _filtered,
    IsTest: _tested,
    ComparisonChain: _compared,
    And: lambda run, node: run.of(node.right) if run.truth(node.left) else False,
    Or: _either,
    Not: lambda run, node: not run.truth(node.value),
    Conditional: _chosen,
    Concatenation: _joined,
    Negative: lambda run, node: -_number(run.present(node.value)),
    Computed: _computed,
    Called: _called,
}


# ---- Filters besides the quoters


def _length(run: Evaluation, value: Any) -> int:
    return len(value) if isinstance(value, str) else len(run.items(value, "length"))


def _end(at: int) -> Callable[[Evaluation, Any], Any]:
    def pick(run: Evaluation, value: Any) -> Any:
        found = run.items(value, "first" if at == 0 else "last")
        return found[at] if found else Missing("the end of an empty list")

    return pick


def _sorted(run: Evaluation, value: Any) -> list[Any]:
    found = run.items(value, "sort")
    if not (all(isinstance(v, str) for v in found) or all(_is_number(v) for v in found)):
        raise RenderError("sort is for a list of texts or of numbers")
    for _ in range(len(found).bit_length()):
        run.pay_for(*found)
    return sorted(found)


def _pairs(run: Evaluation, value: Any) -> list[Any]:
    if not isinstance(value, dict):
        raise RenderError(f"dictsort is for a table, not a {_kind(value)}")
    return [[key, value[key]] for key in _sorted(run, value)]


def _whole(run: Evaluation, value: Any) -> int:
    if (isinstance(value, str) and len(value) <= 20) or _is_number(value):
        try:
            return int(value)
        except (ValueError, OverflowError):
            pass
    raise RenderError(f"{str(_scalar(value, 'int'))[:40]!r} is no whole number")


def _case(change: Callable[[str], str]) -> Callable[[Evaluation, Any], str]:
    def changed(run: Evaluation, value: Any) -> str:
        if not isinstance(value, str):
            raise RenderError(f"upper and lower are for text, not a {_kind(value)}")
        run.pay_for(value)
        if len(made := change(value)) > _MAX_TEXT:
            raise RenderError(f"makes a text of more than {_MAX_TEXT} characters")
        return made

    return changed


_FILTERS: dict[str, Callable[[Evaluation, Any], Any]] = {
    "dictsort": _pairs,
    "first": _end(0),
    "int": _whole,
    "last": _end(-1),
    "length": _length,
    "lower": _case(str.lower),
    "sort": _sorted,
    "upper": _case(str.upper),
}
PLAIN_FILTERS = ("default", *_FILTERS)
