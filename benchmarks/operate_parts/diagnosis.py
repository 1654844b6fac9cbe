"""Which share of failures is named right: cause, rank and node, and nothing said that is false.

Captures of tests/reporting/captures; the cases of tests/reporting/unseen, which were written by
people who did not know the rules; and these again with what means nothing changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Figure

LEAST_SHARE = 0.95
LEAST_SHARE_OF_CHANGED = 0.99


def figures(quick: bool) -> list[Figure]:
    from tests.reporting.captures import share_named_right
    from tests.reporting.unseen.case import Case
    from tests.reporting.unseen.files import all_cases
    from tests.reporting.unseen.mutations import MUTATIONS, changed
    from tests.reporting.unseen.score import answer

    def named_right(cases: Sequence[Case]) -> int:
        with tempfile.TemporaryDirectory() as place:
            answers = [answer(one, Path(place) / str(n)) for n, one in enumerate(cases)]
        return sum(one.mark == "right" for one in answers)

    cases = all_cases()[:: 20 if quick else 1]
    found = [
        _figure(
            "diagnosis",
            "failure captures whose cause, rank and node `diagnose` names",
            *share_named_right(),
            least=1.0,
        ),
        _figure(
            "diagnosis-unseen",
            "failures written by people who did not know the rules",
            named_right(cases),
            len(cases),
            least=LEAST_SHARE,
        ),
    ]
    for mutation in MUTATIONS:
        others = list(changed(mutation, cases))
        how = (mutation.__doc__ or "").partition(".")[0]
        what = f"the unseen failures, changed: {how[:1].lower()}{how[1:]}"
        name = f"diagnosis-{mutation.__name__.replace('_', '-')}"
        found.append(
            _figure(name, what, named_right(others), len(others), least=LEAST_SHARE_OF_CHANGED)
        )
    return found


def _figure(name: str, what: str, right: int, of: int, *, least: float) -> Figure:
    return Figure(
        name=name,
        what=what,
        against=None,
        kind="count",
        bound="≥",
        target=-int(-of * least // 1),
        ours=right,
        theirs=None,
        value=right,
        of=of,
    )
