"""Counts how many cases `diagnose` names right: `python -m tests.reporting.unseen.score --show`.

Right: an accepted cause with the rank and the node as wanted, and no word that is forbidden.
Unknown: it says that it does not know, where an expert does. Wrong: anything else. Another
directory with files of cases may be given.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsdpkit.reporting.diagnosis.diagnose import Diagnosis, diagnose
from fsdpkit.reporting.diagnosis.evidence import gather_from
from fsdpkit.runs import outcomes
from fsdpkit.runs.outcomes import AttemptVerdict
from tests.reporting.unseen.build import build
from tests.reporting.unseen.case import Case, Want
from tests.reporting.unseen.files import CASES, cases_below


@dataclass(frozen=True)
class Answer:
    """What fsdpkit says of a case. taken_for: the cause in the agents' verdict."""

    case: Case
    diagnosis: Diagnosis
    taken_for: str | None
    run: str

    @property
    def mark(self) -> Literal["right", "unknown", "wrong"]:
        want, got = self.case.want, self.diagnosis
        if got.cause not in want.causes:
            return "unknown" if got.cause == "unknown" else "wrong"
        right = _named(want, got) and not self.forbidden
        return "right" if right else "wrong"

    @property
    def forbidden(self) -> str | None:
        """What it says and may not."""
        told = f"{self.diagnosis.sentence}\n{self.diagnosis.action or ''}"
        told = told.replace(self.run, "RUN")  # the case's own name is in it
        found = re.search(self.case.want.forbid, told, re.I) if self.case.want.forbid else None
        return found[0] if found else None

    @property
    def retried_right(self) -> bool | None:
        """None: not judged."""
        want = self.case.want.retry
        return None if want == "any" or self.taken_for is None else self.taken_for == want


def _named(want: Want, got: Diagnosis) -> bool:
    """Whether rank and node are as wanted; an answer that it cannot be known may name none."""
    free = {"any", None} if got.cause == "unknown" else {"any"}
    rank = want.rank in free or got.rank == want.rank
    node = want.node in free or got.node == want.node
    if got.cause == "unknown" and "unknown" in want.causes:
        return (rank or got.rank is None) and (node or got.node is None)
    return rank and node


def answer(case: Case, directory: Path) -> Answer:
    run, scheduler = build(case, directory)
    verdict = outcomes.read(run / "attempt-0" / "verdict.json", AttemptVerdict)
    taken_for = verdict.trouble.cause if verdict and verdict.trouble else None
    return Answer(case, diagnose(gather_from(run, scheduler)), taken_for, run.name)


def _lines_about(one: Answer) -> Iterator[str]:
    want, got = one.case.want, one.diagnosis
    wanted = "|".join(sorted(want.causes, key=lambda cause: (cause != want.best, cause)))
    yield f"{one.mark:8}{one.case.name}"
    yield f"    wanted  {wanted}, rank {want.rank}, {want.node}"
    yield f"    got     {got.cause}, rank {got.rank}, {got.node}"
    if one.forbidden:
        yield f"    says    {one.forbidden!r}, which is forbidden"
    if one.retried_right is False:
        yield f"    agents  {one.taken_for} instead of {want.retry}"
    yield f"    sentence  {got.sentence}"
    yield f"    action    {got.action}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=CASES)
    parser.add_argument("--show", action="store_true", help="show each case that is not right")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        cases = enumerate(cases_below(asked.directory))
        answers = [answer(case, Path(place) / str(number)) for number, case in cases]
    for one in answers:
        if asked.show and (one.mark != "right" or one.retried_right is False):
            print("\n".join(_lines_about(one)), end="\n\n")
    marks = Counter(one.mark for one in answers)
    judged = [one.retried_right for one in answers if one.retried_right is not None]
    print(
        f"{len(answers)} cases: {marks['right']} right, {marks['unknown']} unknown, "
        f"{marks['wrong']} wrong; the agents took {sum(judged)} of {len(judged)} for what they were"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
