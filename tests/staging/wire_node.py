"""A node that copies, as a process of its own: nothing but the standard library is in its reach.

    python -I -S wire_node.py ROOT SECRET NUMBER HUB_PORT BLOCKS [FAULT]

Prints its parent, the SHA-256 of what it got, and, when its input ends, how many blocks it gave.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from fsdpkit.staging import peers
from fsdpkit.staging.peers import BlockServer, Growing, HubLink, fetch
from fsdpkit.staging.port import Line
from fsdpkit.staging.wire import AttemptKeys

AT = 3
"""The block at which something goes wrong."""


class Memory:
    """Instead of a disk. fault: what it does at block AT."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.blocks: list[tuple[bytes, bytes]] = []
        self.reads = 0

    @property
    def done(self) -> int:
        return len(self.blocks)

    def read(self, index: int) -> bytes:
        self.reads += 1
        data = self.blocks[index][0]
        return bytes(len(data)) if (index, self.fault) == (AT, "lies") else data

    def sha256(self, index: int) -> bytes:
        return self.blocks[index][1]

    def write(self, index: int, data: bytes | memoryview, sha256: bytes) -> None:
        assert index == self.done
        if index == AT and self.fault.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[self.fault])
        self.blocks.append((bytes(data), sha256))

    def content(self) -> str:
        return hashlib.sha256(b"".join(data for data, _ in self.blocks)).hexdigest()


def keep_telling(link: HubLink, memory: Memory, blocks: int) -> None:
    while (done := memory.done) < blocks:
        link.tell(done, "copying")
        time.sleep(0.05)


def main() -> None:
    _, secret, number, hub_port, blocks, silent_s, *fault = sys.argv[1:]
    Line.silent_s, peers._NEWS_S = float(silent_s), 0.5
    keys, memory = AttemptKeys(bytes.fromhex(secret), "job"), Memory(*fault)
    growing = Growing(memory)
    server = BlockServer(keys, int(number), [growing].__getitem__)
    link = HubLink(keys, int(number), f"node-{number}", ("127.0.0.1", int(hub_port)))
    link.hello(server.open(""))
    print(link.parent(), flush=True)
    threading.Thread(target=keep_telling, args=[link, memory, int(blocks)], daemon=True).start()
    fetch(link, keys, 0, growing, int(blocks) - 1)
    link.tell(memory.done, "ready")
    print(memory.content(), flush=True)
    sys.stdin.read()
    print(memory.reads, flush=True)


if __name__ == "__main__":
    main()
