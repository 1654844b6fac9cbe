"""How MPI libraries print the error for which they end a process."""

from __future__ import annotations

import itertools
import re

from fsdpkit.failures.tracebacks import PrintedException, goes_on, is_aftermath, lines_of

_HEADLINE = re.compile(
    r"^(?:Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): |"
    r"\[\S+:\d+\] \*\*\* (?=MPI_ERR_\w+: ))(.+)"
)
"""Of MPICH and its kin, and of Open MPI."""
_MORE = re.compile(r"^[A-Za-z_]\w+\(.*\)\.*: |^\[\S+:\d+\] \*\*\*")
_MOST_OTHERS = 3
"""Lines of other processes that may stand behind the end."""


def ended_by(text: str) -> PrintedException | None:
    """The error of MPI that ended the process which wrote the text."""
    lines = [line for line in lines_of(text) if line.text.strip()]
    places = [place for place, line in enumerate(lines) if _HEADLINE.match(line.text)]
    if not places or (match := _HEADLINE.match(lines[places[-1]].text)) is None:
        return None
    first, behind = lines[places[-1]], [line.text for line in lines[places[-1] + 1 :]]
    more = [*itertools.takewhile(_MORE.match, behind)]
    others = [said for said in behind[len(more) :] if not (_MORE.match(said) or is_aftermath(said))]
    if len(others) > _MOST_OTHERS or any(map(goes_on, others)):
        return None
    message = "\n".join([match[1], *more])
    return PrintedException(type="", message=message, begin=first.begin, end=first.end)
