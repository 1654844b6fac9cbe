"""A refusal proposes nothing that is refused again. What it says of each limit: test_limits.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import NodeType, Partition
from fsdpkit.config.placement import place
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import UsageError
from tests.config.limit_requests import beyond, made_up


def refusal(asked: Resources, site: LoadedSite) -> str:
    """Empty: it is placed."""
    try:
        place(asked, site)
    except UsageError as error:
        return str(error)
    return ""


def offered(message: str, asked: Resources) -> Iterator[Resources]:
    """The requests that a refusal proposes, each as a person would type it after reading."""
    _, _, others = message.partition("As asked it fits with")
    for name in re.findall(r"--partition (\S+?)(?=[;.]|$)", others.partition("\n")[0]):
        yield msgspec.structs.replace(asked, partition=name)
    for words in re.findall(r"(--nodes .+?) on ", message):
        found = re.findall(r"--(?:set resources\.)?(\w+)[ =](\S+)", words)
        keys: dict[str, Any] = {k: int(v) if v.isdigit() and k != "time" else v for k, v in found}
        yield msgspec.structs.replace(asked, **keys)


@pytest.mark.parametrize("more", [{}, {"spare": 1}, {"partition": None}, {"time": "400:00:00"}])
def test_what_a_refusal_offers_is_taken(more: dict[str, Any]) -> None:
    site = LoadedSite("made-up", made_up(), ())
    requests = [msgspec.structs.replace(edge, **more) for edge in beyond()]
    offers = [offer for one in requests for offer in offered(refusal(one, site), one)]
    assert [offer for offer in offers if refusal(offer, site)] == []
    assert len(offers) > len(requests) / 2


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
