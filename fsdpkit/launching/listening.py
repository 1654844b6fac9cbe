"""Ports of this node that others are to reach."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket

from fsdpkit.errors import NodeError

BACKLOG = 1024
"""Connections that may wait to be accepted: all agents may come at once."""
_TRIES = 64


def own_address(host: str) -> str:
    """The address to listen on for connections to `host`, which is this machine.

    For a name, its first address that is not loopback, IPv4 before IPv6. If a name resolves only to
    loopback here, as in some set-ups, the answer is "" for all interfaces. Raises NodeError for an
    unknown name.
    """
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        why = f"the node's own name {host} has no address: {error}"
        raise NodeError(why, "head-address") from error
    addresses = [str(info[4][0]).partition("%")[0] for info in found]
    outside = [a for a in addresses if not ipaddress.ip_address(a).is_loopback]
    return min(outside, key=lambda a: ":" in a, default="")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at `own_address(host)`; port 0 takes a free one. Raises OSError."""
    address = own_address(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=BACKLOG)


def listen_among(host: str, ports: str) -> socket.socket:
    """On a free one of the site's ports FIRST-LAST, if it names any. Raises OSError."""
    if not ports:
        return listen(host, 0)
    first, last = map(int, ports.split("-"))
    for port in random.sample(range(first, last + 1), min(_TRIES, last - first + 1)):
        with contextlib.suppress(OSError):
            return listen(host, port)
    return listen(host, first)  # says why not
