"""Markdown tables of what was measured; they follow the figures in README.md as notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MIB, GIB = 2**20, 2**30


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    ruled = [columns, ["-" * max(3, len(column)) for column in columns], *rows]
    return "\n".join("| " + " | ".join(row).rstrip() + " |" for row in ruled)


def digits(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 1 else f"{value:.2f} s"


def gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def mib(size: float) -> str:
    return f"{digits(size / MIB)} MiB"
