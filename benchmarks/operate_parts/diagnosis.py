"""Which share of the failures in tests/reporting/captures is named right: cause, rank and node."""

from __future__ import annotations

from benchmarks.report import Figure


def figures(quick: bool) -> list[Figure]:
    from tests.reporting.captures import share_named_right

    right, of = share_named_right()
    return [
        Figure(
            name="diagnosis",
            what="failure captures whose cause, rank and node `diagnose` names",
            against=None,
            kind="count",
            bound="≥",
            target=of,
            ours=right,
            theirs=None,
            value=right,
            samples={"ours": [1.0] * right + [0.0] * (of - right)},
        )
    ]
