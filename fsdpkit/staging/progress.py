"""How far the copying is: a file in the run's directory, and a line of the log now and then."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fsdpkit.staging.hub import NodeProgress

SCHEMA = "fsdpkit.stage/1"
_WRITE_S, _SAY_S = 2.0, 30.0
_NODES_A_SECOND = 256


class ProgressFile:
    """Written by the first node for all of them."""

    def __init__(self, path: Path, size: int, files: int, what: list[str], nodes: int) -> None:
        """size: bytes that each node gets."""
        self._path, self._size, self._nodes = path, size, nodes
        self._head = {"schema": SCHEMA, "bytes": size, "files": files, "what": what}
        self._began_s = time.time()
        self._took_s: dict[int, float] = {}
        """By node, once it has ended."""

    def keep(
        self,
        progress: Callable[[], Mapping[int, NodeProgress]],
        over: threading.Event,
        news: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        """Write it until every node has all, or nothing more is to come. news: of this node."""
        every_s = max(_WRITE_S, self._nodes / _NODES_A_SECOND)
        said_s, last = self._began_s, False
        while not last:
            told, now_s = progress(), time.time()
            for number, node in told.items():
                if node.state != "copying":
                    self._took_s.setdefault(number, now_s - self._began_s)
            ended = len(self._took_s) >= self._nodes
            last = ended or over.is_set()
            self._write(told, now_s, ended)
            if not last and now_s - said_s >= _SAY_S:
                said_s = now_s
                say(self._in_words(told, now_s))
            if not last:
                news.wait(every_s if now_s - self._began_s > every_s else every_s / 4)
                news.clear()

    def _write(self, told: Mapping[int, NodeProgress], now_s: float, ended: bool) -> None:
        nodes = {
            node.name: {
                "bytes": min(node.bytes, self._size),
                "seconds": round(self._took_s.get(number, now_s - self._began_s), 3),
                "state": node.state,
                "reused": node.reused,
                "why": node.why,
            }
            for number, node in told.items()
        }
        times = {"began_s": self._began_s, "ended_s": now_s if ended else None}
        part = self._path.with_name(f".{self._path.name}.part")
        with contextlib.suppress(OSError):  # the disk is full; copying goes on
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(part, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump({**self._head, **times, "nodes": nodes}, file)
            part.replace(self._path)

    def _in_words(self, told: Mapping[int, NodeProgress], now_s: float) -> str:
        ready = sum(node.state == "ready" for node in told.values())
        least = min((node.bytes for node in told.values()), default=0)
        rate = least / max(now_s - self._began_s, 0.1)
        left = f", {(self._size - least) / rate:.0f} s left" if rate else ""
        return (
            f"copying: {ready} of {self._nodes} nodes ready, the slowest has "
            f"{least / max(self._size, 1):.0%}, {rate / 1e6:.0f} MB/s{left}"
        )
