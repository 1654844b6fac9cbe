"""Whether the nodes reach each other where their ranks will: tried once, before ranks start.

The batch script chooses on each node by itself the interface for NCCL and gloo, and ranks listen on
ports that the kernel picks. The head node's agent therefore opens two such ports, one on the
interface that it would use and one on that of its own address, and each other agent tries to
connect from its own. Where the first way does not lead from all nodes to the head, ranks take the
second; where that does not either, they would wait for each other in vain.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import psutil

from fsdpkit.errors import NodeError
from fsdpkit.launching.listening import listen, own_address

WAIT_S = 15.0
"""How long an agent may take to say what it has reached; it tries two ports for 5 s each."""
_CONNECT_S = 5.0

CHOSEN, RENDEZVOUS = "chosen", "rendezvous"


class Door(msgspec.Struct, frozen=True):
    """A port of the head node that others try."""

    way: str
    """CHOSEN: on the interface that the script chose; RENDEZVOUS: on that of the head's address."""
    host: str
    port: int


class Reached(msgspec.Struct, frozen=True):
    """What a node's agent met."""

    interface: str
    """The one that the script chose on this node."""
    failed: dict[str, str] = {}
    """By way: why it leads nowhere."""


@dataclass(frozen=True)
class Way:
    """How the ranks are to meet."""

    rendezvous: bool = False
    """On the interface of the rendezvous, in place of the chosen one."""
    blocked: bool = False
    words: str = ""
    """Empty: nothing is to be said about it."""


@dataclass(frozen=True)
class Interfaces:
    """A node's own: the one that the script chose, and that of its address for the rendezvous."""

    chosen: str
    rendezvous: str
    address: str
    """That on `rendezvous`, or a name that resolves to it."""

    @classmethod
    def of(cls, environ: Mapping[str, str], address: str) -> Interfaces | None:
        """None where the script chose none: then a person or the site did."""
        chosen = environ.get("GLOO_SOCKET_IFNAME", "")
        rendezvous = environ.get("FSDPKIT_RDZV_INTERFACE", "")
        return cls(chosen, rendezvous, address) if chosen and rendezvous else None

    def host(self, way: str) -> str:
        """This node's address on that way; empty if there is none. Raises NodeError."""
        return _address_on(self.chosen) if way == CHOSEN else own_address(self.address)

    def variables(self) -> dict[str, str]:
        """What makes ranks take the rendezvous's interface."""
        return {"GLOO_SOCKET_IFNAME": self.rendezvous, "NCCL_SOCKET_IFNAME": f"={self.rendezvous}"}


class Ways:
    """The head's side. Its doors are open until `close`; none where nothing was chosen, or one
    cannot be opened, which is no reason to refuse the job."""

    def __init__(self, interfaces: Interfaces | None) -> None:
        self.doors: tuple[Door, ...] = ()
        self._interfaces = interfaces
        self._listening: list[socket.socket] = []
        if interfaces is not None:
            with contextlib.suppress(OSError, NodeError):
                self.doors = tuple(self._open(way, interfaces) for way in (CHOSEN, RENDEZVOUS))
        self._over = False
        for listening in self._listening:
            accepting = threading.Thread(target=self._accept, args=(listening,), daemon=True)
            accepting.start()

    def _open(self, way: str, interfaces: Interfaces) -> Door:
        if not (host := interfaces.host(way)):
            raise NodeError(f"no address of this node is on the {way} interface")
        listening = listen(host, 0)
        listening.settimeout(0.5)
        self._listening.append(listening)
        return Door(way, host, listening.getsockname()[1])

    def _accept(self, listening: socket.socket) -> None:
        with listening:
            while not self._over:
                with contextlib.suppress(OSError):
                    listening.accept()[0].close()

    def close(self) -> None:
        self._over = True

    def way(self, head: str, tried: Mapping[str, Reached]) -> Way:
        """What follows from what other nodes met, by name. Who did not answer says nothing."""
        assert self._interfaces is not None
        if not (failed := _of_first(tried, CHOSEN)):
            return Way()
        node, interface, why = failed
        mine = self._interfaces
        words = f"{node} does not reach {head} from {interface} to {mine.chosen} ({why})"
        if blocked := _of_first(tried, RENDEZVOUS):
            node, _, why = blocked
            door = next(door for door in self.doors if door.way == RENDEZVOUS)
            words = (
                f"{node} reaches the agent on {head}, but no port that ranks take there, such as "
                f"{door.host}:{door.port} ({why}): a packet filter between the nodes keeps them "
                "apart"
            )
            return Way(blocked=True, words=words)
        return Way(rendezvous=True, words=f"{words}: all ranks use {mine.rendezvous} instead")


def _of_first(tried: Mapping[str, Reached], way: str) -> tuple[str, str, str] | None:
    """A node for which that way leads nowhere, its chosen interface, and why."""
    found = (
        (node, each.interface, each.failed[way])
        for node, each in tried.items()
        if way in each.failed
    )
    return next(found, None)


def try_doors(doors: Sequence[Door], interfaces: Interfaces) -> Reached:
    """Connect to each from this node's own address on the same way."""
    failed, met = {}, {}
    for door in doors:
        try:
            source = interfaces.host(door.way)
        except NodeError as error:
            failed[door.way] = str(error)
            continue
        # The same twice where no faster interface was found on either node.
        if (door.host, source) not in met:
            met[door.host, source] = _problem(door, source)
        if problem := met[door.host, source]:
            failed[door.way] = problem
    return Reached(interfaces.chosen, failed)


def _problem(door: Door, source: str) -> str:
    try:
        socket.create_connection(
            (door.host, door.port), timeout=_CONNECT_S, source_address=(source, 0)
        ).close()
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _address_on(interface: str) -> str:
    addresses = psutil.net_if_addrs().get(interface, [])
    found = [
        entry.address
        for entry in addresses
        if entry.family == socket.AF_INET
        or (entry.family == socket.AF_INET6 and not entry.address.startswith("fe80:"))
    ]
    return min(found, key=lambda address: ":" in address, default="").partition("%")[0]
