"""Whether this node's own cable is unplugged: then this node was cut off, not the others."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from fsdpkit.launching.listening import own_address


def carrier_of(host: str) -> Callable[[], bool]:
    """Asks whether the interface with the address of `host` here has a carrier; True: unknown."""
    address = own_address(host)
    name = next(
        (
            name
            for name, entries in psutil.net_if_addrs().items()
            if any(entry.address.partition("%")[0] == address for entry in entries)
        ),
        None,
    )

    def has_carrier() -> bool:
        found = psutil.net_if_stats().get(name) if name else None
        return found is None or bool(found.isup)

    return has_carrier
