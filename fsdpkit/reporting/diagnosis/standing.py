"""What to say of a run whose ranks do nothing while it runs: since when, where they are, for which
address they wait. Pure.

Ranks may also wait for a good reason, so the words say what was seen, and not that it hangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from fsdpkit.listing import first_of
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence
from fsdpkit.reporting.printable import one_line
from fsdpkit.reporting.scales import moment
from fsdpkit.reporting.stacks import CodePlace, numbers, places
from fsdpkit.runs.standing import StandingStill

_MOST_PLACES = 3


class StandingRanks(NamedTuple):
    sentence: str
    action: str
    others: tuple[str, ...]
    """`ranks 0-3 are at …`: places for which the sentence has no room."""
    rank: int | None
    """The only one that is elsewhere than the others."""
    node: str | None


def standing_ranks(attempt: AttemptEvidence | None) -> StandingRanks | None:
    """None unless all ranks of the last launch stand still."""
    if attempt is None or not attempt.still or not attempt.ranks:
        return None
    found = attempt.still
    busy = any(machine.gpus_busy for machine in attempt.machines.values())
    if busy or sum(len(node.ranks) for node in found) < attempt.ranks:
        return None
    since = moment(max(node.since_s for node in found))
    where = places(found)
    addresses = {rank: one_line(a) for node in found for rank, a in node.addresses.items()}
    said = tuple(_in_words(place, addresses) for place in where)
    if not said:
        why = {one_line(rank.why_not) for node in found for rank in node.ranks if rank.why_not}
        said = (f"where they are is unknown: {', '.join(sorted(why)[:2]) or 'none answered'}",)
    odd = where[0] if len(where) == 2 and len(where[0].ranks) == 1 < len(where[1].ranks) else None
    return StandingRanks(
        sentence=f"The job is running, but its ranks have not computed, read, written or printed "
        f"anything since {since}: {first_of(said, _MOST_PLACES, '; ')}.",
        action=_action(found, sorted(set(addresses.values()))),
        others=said[_MOST_PLACES:],
        rank=odd.ranks[0] if odd else None,
        node=odd.nodes[0] if odd else None,
    )


def _in_words(place: CodePlace, addresses: dict[int, str]) -> str:
    who = f"rank{'s' * (len(place.ranks) > 1)} {numbers(place.ranks)}"
    be = "is" if len(place.ranks) == 1 else "are"
    called = f", called from {place.caller}" if place.caller else ""
    state = f", in state {place.state}" if place.state else ""
    to = sorted({addresses[rank] for rank in place.ranks if rank in addresses})
    tries = f", to meet at {', '.join(to[:2])}" if to else ""
    return one_line(f"{who} {be} at {place.words}{called}{state}{tries}")


def _action(found: Sequence[StandingStill], addresses: Sequence[str]) -> str:
    end = "If they wait in vain: fsdpkit cancel {run}."
    local = [address for address in addresses if _is_loopback(address)]
    if local and len(found) > 1:
        return (
            f"{local[0]} is another machine on each node, so that ranks of several nodes never "
            "meet there. Leave address and port to the launcher: init_process_group() without "
            f"arguments takes MASTER_ADDR and MASTER_PORT as they are. {end}"
        )
    if addresses:
        return (
            f"Ranks that are to meet at {addresses[0]} wait until all have come: one is missing, "
            "or nothing listens there. If the script sets that address, leave it to the launcher: "
            "init_process_group() without arguments takes MASTER_ADDR and MASTER_PORT as they are. "
            f"{end}"
        )
    return f"Where each is now: fsdpkit stacks {{run}}. {end}"


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
