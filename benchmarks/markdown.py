"""Markdown tables of what was measured; they follow the figures in README.md as notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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


# Named first and with a capital in the line that says where figures come from.
_SOFTWARE = {"slurm": "Slurm", "python": "Python"}


def source(about: Mapping[str, Any]) -> str:
    """The line that says where figures come from."""
    known = [(shown, about[name]) for name, shown in _SOFTWARE.items() if name in about]
    other = about.keys() - {"date", "cpus", "device", *_SOFTWARE}
    known += [(name, version) for name, version in about.items() if name in other]
    where = about.get("device") or f"{about['cpus']} CPU cores"
    software = ", ".join(f"{name} {version}" for name, version in known)
    return f"Measured {about['date']} on {where}: {software}."
