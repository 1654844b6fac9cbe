"""A refusal names a limit that the request exceeds, and proposes nothing that is refused for it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from fsdpkit.config.job import Resources
from fsdpkit.config.limits import shortest_s
from fsdpkit.config.partition import NodeType, Partition
from fsdpkit.config.placement import place
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import UsageError
from tests.config.limit_requests import made_up, sites, ways
from tests.config.refused_requests import At, closest, drawn, offered, reasons, untrue

KINDS = {
    "account": r"needs an account|is not an account of",
    "partition": r"has no partition|has no partition that is chosen",
    "time": r"leaves no time to train",
    "spare": r"leave out --spare",
    "limits": r"does not fit",
}
"""The ways to refuse, by what their first line says."""

SHORT = msgspec.structs.replace(
    made_up(),
    partitions={
        **made_up().partitions,
        "short": Partition(node_type="node", max_time="5"),
        "shorter": Partition(node_type="small", max_time="1:00:00", max_time_multinode="4"),
    },
)
"""Partitions where nothing can train, and where only jobs of one node can."""
EVERY = [pytest.param(one, id=one.id) for one in (*sites(), LoadedSite("short", SHORT, ()))]


def refusal(asked: Resources, site: LoadedSite) -> str:
    """Empty: it is placed."""
    try:
        place(asked, site)
    except UsageError as error:
        return str(error)
    return ""


def kind_of(message: str) -> str:
    (kind,) = [kind for kind, words in KINDS.items() if re.search(words, message.split("\n")[0])]
    return kind


@pytest.mark.parametrize("site", EVERY)
def test_what_is_drawn_is_refused_for_true_reasons_with_offers_that_fit(site: LoadedSite) -> None:
    known = {name or site.profile.title: way for name, *way in ways(site.profile)}
    for asked in drawn(site, 60):
        if not (message := refusal(asked, site)):
            continue
        if kind_of(message) == "limits":
            check_limits(message, asked, site, known)
        else:
            check_remedy(message, asked, site)


def check_limits(message: str, asked: Resources, site: LoadedSite, known: dict[str, Any]) -> None:
    least_s = shortest_s(site.profile)
    against = reasons(message, known)
    assert against, message
    for name, told in against.items():
        false = [untrue(reason, At(asked, *known[name], least_s)) for reason in told]
        assert not any(false), (false, message, asked)
    offers = [*offered(message, asked)]
    for one in offers:
        assert refusal(one, site) == "", (one, message)
    fits = [closest(asked, *known[name], least_s) for name in against]
    gaps = [abs(ranks - asked.ranks) for ranks in fits if ranks is not None]
    shapes = [abs(one.ranks - asked.ranks) for one in offers if one.partition == asked.partition]
    assert not gaps or min(shapes) <= min(gaps), (message, fits)


def check_remedy(message: str, asked: Resources, site: LoadedSite) -> None:
    kind = kind_of(message)
    remedies = {
        "account": ("account", r"\(such as (\S+?)\)"),
        "partition": ("partition", r"Did you mean '(.+?)'"),
        "time": ("time", r"ask for (\S+) or more"),
        "spare": ("spare", r"leave out --(spare)"),
    }
    key, pattern = remedies[kind]
    if found := re.search(pattern, message):
        value = 0 if key == "spare" else found[1]
        after = refusal(msgspec.structs.replace(asked, **{key: value}), site)
        assert not after or kind_of(after) != kind, (message, after)


def made(**partitions: Partition) -> LoadedSite:
    profile = SiteProfile(
        schema="fsdpkit.site/1",
        title="C",
        node_types={"n": NodeType(gpus=4)},
        partitions={
            name: msgspec.structs.replace(one, node_type="n") for name, one in partitions.items()
        },
    )
    return LoadedSite("c", profile, ())


def test_another_partition_that_takes_it_as_it_is_is_named() -> None:
    site = made(
        debug=Partition(max_time="30"),
        day=Partition(max_time="1-0"),
        week=Partition(max_time="7-0", automatic=False),
    )
    asked = Resources(nodes=2, gpus=4, time="2:00:00", partition="debug")
    assert refusal(asked, site).splitlines()[-2:] == [
        "As asked it fits with --partition day; --partition week.",
        "What would fit: --nodes 2 --gpus 4 --time 00:30:00 on debug.",
    ]
    longer = msgspec.structs.replace(asked, time="3-0", partition=None)
    assert "As asked it fits with --partition week.\n" in refusal(longer, site)
