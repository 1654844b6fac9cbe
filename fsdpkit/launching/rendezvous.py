"""How the ranks of a launch find each other: a rendezvous for torchelastic with known nodes.

torchrun's own, c10d, lets nodes come and go through a store that anybody who reaches its port can
write to, and it unpickles what is written there. Here the head's order tells the agents which nodes
take part and in which order, so nothing is negotiated. The first of these nodes opens the store in
which the ranks then exchange their addresses: torch's own, new for each launch, and only on the
node's own address.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from fsdpkit.errors import NodeError
from fsdpkit.launching.listening import listen_among

LOOPBACK = "127.0.0.1"


@dataclass
class RankStore:
    """The store of one launch's ranks."""

    host: str
    port: int
    _server: Any

    @classmethod
    def open(cls, host: str) -> RankStore:
        """On a free port of this node's address. Raises NodeError."""
        try:
            listening = listen_among(host, os.environ.get("FSDPKIT_PORTS", ""))
            port = listening.getsockname()[1]
            server = dist.TCPStore(  # type: ignore[attr-defined]
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        except (OSError, RuntimeError, ValueError) as error:
            why = str(error).splitlines()[0]
            told = f"cannot open a port at {host} for the ranks' store: {why}"
            raise NodeError(told, "network-setup") from error
        return cls(host, port, server)

    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        self._server = None


class KnownNodes(RendezvousHandler):
    """place: this node's number among those of the launch. meet: where their ranks meet; blocks.
    agent_store: whether an agent has opened the store there, else the first rank does."""

    def __init__(
        self,
        run_id: str,
        place: int,
        nodes: int,
        meet: Callable[[], tuple[str, int]],
        agent_store: bool = True,
    ) -> None:
        self._run_id, self._place, self._nodes, self._meet = run_id, place, nodes, meet
        self._agent_store = agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        host, port = self._meet()
        store = dist.HashStore()  # type: ignore[attr-defined]  # nothing is left to agree on
        return RendezvousInfo(store, self._place, self._nodes, RendezvousStoreInfo(host, port))

    def get_backend(self) -> str:
        return "fsdpkit"

    @property
    def use_agent_store(self) -> bool:
        return self._agent_store

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True
