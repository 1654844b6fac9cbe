"""What to say of a run whose ranks do nothing while it runs: since when, where they are, for which
address they wait. Pure.

Ranks may also wait for a good reason, so the words say what was seen, and not that it hangs.
"""

from __future__ import annotations

from typing import NamedTuple

from fsdpkit.listing import first_of, spans
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.printable import one_line
from fsdpkit.reporting.stacks import CodePlace, places
from fsdpkit.reporting.words import moment

_MOST_PLACES = 3


class StalledRanks(NamedTuple):
    sentence: str
    others: tuple[str, ...]
    """`ranks 0-3 are at …`: places for which the sentence has no room."""
    rank: int | None
    """The only one that is elsewhere than the others."""
    node: str | None


def stalled_ranks(attempt: AttemptEvidence | None) -> StalledRanks | None:
    """None unless all ranks of the last launch stand still that have not ended."""
    if attempt is None or not attempt.still or not attempt.ranks:
        return None
    found = attempt.still
    busy = any(machine.gpus_busy for machine in attempt.machines.values())
    ended = len(attempt.done) * attempt.ranks // max(1, attempt.nodes)
    if busy or sum(len(node.ranks) for node in found) < attempt.ranks - ended:
        return None
    others = f" (those of {first_of(attempt.done, 2)} have ended)" if attempt.done else ""
    since = moment(max(node.since_s for node in found))
    where = places(found)
    addresses = {rank: one_line(a) for node in found for rank, a in node.addresses.items()}
    said = tuple(_in_words(place, addresses) for place in where)
    if not said:
        why = {one_line(rank.why_not) for node in found for rank in node.ranks if rank.why_not}
        said = (f"where they are is unknown: {', '.join(sorted(why)[:2]) or 'none answered'}",)
    odd = where[0] if len(where) == 2 and len(where[0].ranks) == 1 < len(where[1].ranks) else None
    return StalledRanks(
        sentence=f"The job is running, but its ranks have not computed, read, written or printed "
        f"anything since {since}{others}: {first_of(said, _MOST_PLACES, '; ')}.",
        others=said[_MOST_PLACES:],
        rank=odd.ranks[0] if odd else None,
        node=odd.nodes[0] if odd else None,
    )


def _in_words(place: CodePlace, addresses: dict[int, str]) -> str:
    who = f"rank{'s' * (len(place.ranks) > 1)} {spans(place.ranks)}"
    be = "is" if len(place.ranks) == 1 else "are"
    called = f", called from {place.caller}" if place.caller else ""
    state = f", in state {place.state}" if place.state else ""
    to = sorted({addresses[rank] for rank in place.ranks if rank in addresses})
    tries = f", to meet at {', '.join(to[:2])}" if to else ""
    return one_line(f"{who} {be} at {place.words}{called}{state}{tries}")
