"""A forged claim lacks the secret, and nothing else: what tests/slurm/test_attacks.py tries."""

from __future__ import annotations

from fsdpkit.launching.head_port import HeadPort
from fsdpkit.launching.message_log import MessageLog
from fsdpkit.staging.wire import AttemptKeys
from tests.attackers.attacks import forge


def test_whoever_knows_the_secret_is_believed() -> None:
    secret = bytes(range(32))
    head_port = HeadPort(MessageLog(3), AttemptKeys(secret, "7_1"))
    port = head_port.open("127.0.0.1", 0)
    try:
        assert forge("127.0.0.1", port, "7_1")[1] == 0
        tried, believed = forge("127.0.0.1", port, "7_1", secret.hex())
        assert (tried > believed, believed) == (True, 2)  # of two other nodes
    finally:
        head_port.close()
