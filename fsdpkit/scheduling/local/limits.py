"""How large a job of the local cluster may be on any machine; what one holds says client.py."""

from fsdpkit.config.job import Resources
from fsdpkit.errors import UsageError

MOST_NODES = 250
"""Each is a loopback address of one /24."""


def check_nodes(resources: Resources) -> None:
    """Raises UsageError for more nodes than there can be."""
    if resources.nodes > MOST_NODES:
        raise UsageError(f"the local cluster has at most {MOST_NODES} nodes")
