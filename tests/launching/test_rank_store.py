"""The store in which a launch's ranks exchange addresses, and torchelastic's numbers for them."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch.distributed as dist

from fsdpkit.launching.rendezvous import KnownNodes, RankStore

pytestmark = pytest.mark.torch


def listening() -> set[tuple[str, int]]:
    """Addresses and ports at which this process listens."""
    return {
        (c.laddr.ip, c.laddr.port)
        for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    }


def test_it_is_torchs_own_at_one_address_for_one_launch() -> None:
    store = RankStore.open("127.0.0.7")
    host, port = store.address()
    assert {address for address, p in listening() if p == port} == {"127.0.0.7"}
    rank: Any = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    rank.set("key", "value")
    assert rank.get("key") == b"value"
    other = RankStore.open("127.0.0.7")
    assert other.port != port
    other.close()
    del rank
    store.close()
    assert not {port, other.port} & {p for _, p in listening()}


def test_torchelastic_is_told_the_nodes_place_and_nothing_is_negotiated() -> None:
    handler = KnownNodes("7_0", 2, 4, lambda: ("10.0.0.1", 29500))
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size, handler.get_run_id()) == (2, 4, "7_0")
    assert info.bootstrap_store_info is not None
    assert info.bootstrap_store_info.master_addr == "10.0.0.1"
    assert info.bootstrap_store_info.master_port == 29500
    assert isinstance(info.store, dist.HashStore)  # type: ignore[attr-defined]
    assert handler.num_nodes_waiting() == 0
    assert handler.use_agent_store
    assert not handler.is_closed()
