"""The edges of a template's parameters, and few sets of values that hold every pair of edges.

All combinations of ten parameters are millions of scripts; nearly every mistake needs no more than
two parameters (Kuhn, Wallace and Gallo, IEEE Transactions on Software Engineering 30(6), 2004).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

from fsdpkit.config.fields import Scalar
from fsdpkit.config.template import Parameter
from fsdpkit.publishing.template_pattern import allowed_texts

_FEW = 7
"""Edges of one parameter that meet each edge of every other; further choices come once each."""
_MOST = 64  # sets, for which all combinations are made
_LARGE = 10**9

Values = Mapping[str, Scalar]
"""Of one script. A parameter that is left out is unset, or has its default."""


def edges(parameter: Parameter) -> list[Scalar | None]:
    """The values at which something may change; None is to leave it to its default."""
    found: list[Scalar | None] = [None]
    if parameter.choices:
        found += parameter.choices
    elif parameter.type == "bool":
        found += [True, False]
    elif parameter.type == "str":
        found += allowed_texts(parameter.pattern)
    else:
        whole = parameter.type == "int"
        least = -_LARGE if parameter.minimum is None else parameter.minimum
        most = _LARGE if parameter.maximum is None else parameter.maximum
        bounds = [least, most, *(n for n in (0, 1) if least <= n <= most)]
        found += [int(n) if whole and n == int(n) else n for n in bounds]
        if not whole:
            found += [n for n in (0.5, 1e-7, 12345.678) if least <= n <= most]
    kept: list[Scalar | None] = [None]
    for each in found[1:]:
        same = [k for k in (parameter.default, *kept) if k == each and type(k) is type(each)]
        if not same:
            kept.append(each)
    return kept


def value_sets(parameters: Mapping[str, Parameter]) -> list[Values]:
    """Sets of values, the defaults first, that hold each edge and each pair of edges."""
    tables = {name: edges(parameter) for name, parameter in parameters.items()}
    counts = [len(table) for table in tables.values()]
    if prod(counts) <= _MOST:
        rows = [list(turns) for turns in product(*map(range, counts))]
    else:
        rows = [[0] * len(counts), *_pairs(len(counts), min(max(counts), _FEW))]
        rows += [[turn] * len(counts) for turn in range(_FEW, max(counts))]
    made: dict[tuple[object, ...], Values] = {}
    for row in rows:
        values: dict[str, Scalar] = {}
        for (name, table), turn in zip(tables.items(), row, strict=True):
            if (value := table[turn % len(table)]) is not None:
                values[name] = value
        made.setdefault(tuple((k, type(v), v) for k, v in values.items()), values)
    return list(made.values())


def _pairs(columns: int, levels: int) -> list[list[int]]:
    """Rows in which any two columns hold every pair of levels.

    For a prime p two columns (a*x + b) mod p and (a*y + b) mod p with x != y take all p*p pairs as
    a and b run. Written in base p, the numbers of two columns differ in some digit, so one block of
    p*p rows a digit is enough: 147 for 200 columns of seven levels.
    """
    p = next(n for n in range(max(levels, 2), 2 * levels + 3) if _is_prime(n))
    rows, weight = [], 1
    while weight < max(columns, 2):
        digits = [column // weight % p for column in range(columns)]
        rows += [[(a * digit + b) % p for digit in digits] for a in range(p) for b in range(p)]
        weight *= p
    return rows


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
