"""Everything that a node gets on its disk, from the shared file system or from other nodes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.hub import Hub, NodeProgress
from fsdpkit.staging.listing import listed
from fsdpkit.staging.manifest import BlockSource, Manifest, StageError
from fsdpkit.staging.peers import BlockServer, Growing, HubLink, fetch
from fsdpkit.staging.relocate import relocate
from fsdpkit.staging.source import PackFile, SharedFiles
from fsdpkit.staging.tree import StagedTree
from fsdpkit.staging.wire import AttemptKeys

if TYPE_CHECKING:
    from argparse import Namespace


_SCHEMA = "fsdpkit.stage/1"
_WRITE_S, _SAY_S = 2.0, 30.0
_NODES_A_SECOND = 256


class _ProgressFile:
    """Written by the first node for all of them."""

    def __init__(self, path: Path, size: int, files: int, what: list[str], nodes: int) -> None:
        """size: bytes that each node gets."""
        self._path, self._size, self._nodes = path, size, nodes
        self._head = {"schema": _SCHEMA, "bytes": size, "files": files, "what": what}
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


Say = Callable[[str], None]
LISTED = ".staged.json"
_PREFIX = "prefix"
"""The fact that an environment's pack has."""
_TELL_S, _HEAR_S = 1.0, 10.0
_TRIES = 64


class HubPlace(NamedTuple):
    """How the nodes of a job find and know each other."""

    hub: tuple[str, int]
    keys: AttemptKeys
    ports: list[int]
    """Those at which a node may serve others, as many as are tried; none: any."""


@dataclass(frozen=True)
class Place:
    """A node's place in its job."""

    number: int
    name: str
    nodes: int
    ranks: int
    """Of a node."""
    training: int
    """How many of the nodes train; the others are in reserve."""
    attempt: Path
    job: str
    """Names this part of the job among all that this disk has seen."""
    meeting: HubPlace | None
    """None: there is one node."""
    held: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place:
        """Raises StageError where the script has not said what it should."""
        try:
            number, nodes = int(environ["SLURM_NODEID"]), int(environ["SLURM_JOB_NUM_NODES"])
            attempt = Path(environ["FSDPKIT_ATTEMPT_DIR"])
            start = f"{environ['SLURM_JOB_ID']}_{environ.get('SLURM_RESTART_COUNT', '0')}"
            meeting = None
            if nodes > 1:
                hub = environ["RDZV_HOST"], int(environ["STAGE_PORT"])
                keys = AttemptKeys(bytes.fromhex(environ["FSDPKIT_SECRET"]), start)
                meeting = HubPlace(hub, keys, _ports(environ.get("FSDPKIT_PORTS", "")))
            return cls(
                number,
                environ.get("SLURMD_NODENAME", f"node {number}"),
                nodes,
                int(environ["FSDPKIT_RANKS_PER_NODE"]),
                int(environ["FSDPKIT_NODES"]),
                attempt,
                f"{start}_{number}_{hashlib.sha256(os.fsencode(attempt)).hexdigest()[:12]}",
                meeting,
                "FSDPKIT_HOLD" in environ,
            )
        except (KeyError, ValueError) as error:
            raise StageError("settings", f"the script does not say: {error}") from error

    @property
    def back(self) -> Path:
        return self.attempt / "back" / f"node-{self.number}"

    @property
    def progress(self) -> Path:
        """Where it is said how far all nodes are."""
        return self.attempt / "stage.json"


def get(asked: Namespace, place: Place, at_end: contextlib.ExitStack, say: Say) -> dict[str, str]:
    """Have everything on this node's disk, and serve it to other nodes until `at_end` is closed.

    Returns the directory that the job's program sees (`stage`) and the environment's copy
    (`prefix`, or nothing). Raises StageError.
    """
    began_s = time.monotonic()
    store = StageStore.open(asked.local)
    part = _Part(asked, place, store, at_end, say)
    at_end.push(part.leave)
    part.get()
    part.make_room()
    answer = {"stage": str(part.program_sees()), "prefix": part.prefix()}
    part.tell("ready")
    how = "had already" if part.reused else "has"
    seconds = time.monotonic() - began_s
    say(f"{place.name} {how} {gigabytes(part.size)}, after {seconds:.1f} s, in {answer['stage']}")
    return answer


class _Part:
    """What this node does of it."""

    def __init__(
        self,
        asked: Namespace,
        place: Place,
        store: StageStore,
        at_end: contextlib.ExitStack,
        say: Say,
    ) -> None:
        self._asked, self._place, self._store, self._say = asked, place, store, say
        self._at_end = at_end
        self._trees: list[StagedTree] = []
        """In the same order on all nodes."""
        self._link: HubLink | None = None
        self._over, self._news = threading.Event(), threading.Event()
        self._writing: threading.Thread | None = None
        self._state, self._why = "copying", ""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(tree.manifest.size for tree in self._trees)

    @property
    def done(self) -> int:
        """Bytes that are here."""
        return sum(tree.done for tree in self._trees)

    @property
    def reused(self) -> bool:
        """Whether all was here before."""
        return all(tree.reused for tree in self._trees)

    def get(self) -> None:
        """Raises StageError."""
        self._at_end.callback(self._write_no_more)
        hub = None
        try:
            if self._place.meeting is None:
                self._read_lists()
            else:
                hub = self._join(self._place.meeting)
            threading.Thread(target=self._keep_telling, daemon=True).start()
            if self._place.number == 0:
                self._write_progress(hub)
            for number, tree in enumerate(self._trees):
                tree.begin()
                tree.fill(partial(self._fetch, number))
        except StageError as error:
            self.tell("failed", str(error))
            if hub is not None:
                _tell_all(hub, error, self._place.nodes)
            raise

    def leave(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """The disk as it was, where nothing is to be kept. At a usual end another process did it
        before."""
        full = isinstance(error, StageError) and error.cause == "disk-full"
        with contextlib.suppress(StageError):
            self._store.remove_job(self._place.job)
            if full or not (self._asked.kept_h or self._place.held):
                for tree in self._trees:
                    self._store.remove(tree.manifest)

    def _join(self, meeting: HubPlace) -> Hub | None:
        """Meet the other nodes; returns the hub where this is the first node."""
        place, hub = self._place, None
        server = BlockServer(meeting.keys, place.number, self._growing)
        port = server.open("", *meeting.ports)
        self._at_end.callback(server.close)
        self._link = HubLink(meeting.keys, place.number, place.name, meeting.hub)
        self._at_end.callback(self._link.close)
        if place.number == 0:
            hub = Hub(meeting.keys, place.nodes, *meeting.hub)
            hub.open()
            self._at_end.callback(hub.close)
            try:
                self._read_lists()
                # Before others hear of them: on a disk that nodes share, the first one fills.
                for tree in self._trees:
                    tree.begin()
            except StageError as error:
                _tell_all(hub, error, self._place.nodes)
                raise
            hub.offer([tree.manifest.encode() for tree in self._trees])
        for each in self._link.hello(port):
            if place.number:
                self._want(Manifest.decode(each), None)
        if self._asked.share == "sharded":
            self._list_data()
        return hub

    def _growing(self, number: int) -> Growing:
        """Raises LookupError."""
        if (growing := self._trees[number].growing) is None:
            raise LookupError(number)
        return growing

    def _read_lists(self) -> None:
        """What there is to copy, from the shared file system."""
        if self._asked.environment:
            self._list_environment()
        if self._asked.share == "each" or self._place.meeting is None:
            self._list_data()
        files = sum(tree.manifest.files for tree in self._trees)
        nodes = self._place.nodes
        where = f"the disks of {nodes} nodes" if nodes > 1 else "the disk of its node"
        what = f" {gigabytes(self.size)} in {files:,} files" if self._trees else " each node's part"
        self._say(f"copying{what} to {where}")

    def _list_environment(self) -> None:
        try:
            pack = PackFile(self._asked.environment)
        except StageError as error:
            self._say(f"the shared environment is used: {error}")
        else:
            self._want(pack.manifest, lambda: PackFile(self._asked.environment))

    def _list_data(self) -> None:
        """The data that this node reads by itself: all of it, or its share."""
        if not self._asked.data:
            return
        place, share = self._place, None
        if self._asked.share == "sharded":
            share = place.number, place.ranks, place.ranks * place.training
        items = [*map(_parts, self._asked.data)]
        manifest, sources = listed(items, share)
        self._want(manifest, lambda: SharedFiles(manifest, sources))

    def _want(self, manifest: Manifest, reader: Callable[[], BlockSource] | None) -> None:
        self._trees.append(StagedTree(self._store, manifest, reader, self.make_room))

    def make_room(self) -> None:
        """Remove what other jobs have left here."""
        if not self._place.held:
            self._store.prune(self._asked.kept_h)

    def _fetch(self, number: int, growing: Growing) -> None:
        """From other nodes."""
        assert self._link is not None
        assert self._place.meeting is not None
        last = self._trees[number].manifest.block_count - 1
        fetch(self._link, self._place.meeting.keys, number, growing, last)

    def program_sees(self) -> Path:
        """$FSDPKIT_STAGE: a directory of the job's own, with a link to each thing that was asked
        for."""
        directory = self._store.job_dir(self._place.job)
        items = []
        for name, pattern in map(_parts, self._asked.data):
            (directory / name).symlink_to(self._trees[-1].path / name)
            items.append({"name": name, "source": pattern})
        trees = [tree.path.name for tree in self._trees]
        listing = json.dumps({"items": items, "trees": trees})
        (directory / LISTED).write_text(listing, encoding="utf-8")
        return directory

    def prefix(self) -> str:
        """Where the environment's copy is; nothing if it cannot be used, which is said."""
        if not self._trees or _PREFIX not in self._trees[0].manifest.facts:
            return ""
        try:
            return str(relocate(self._trees[0].path, self._trees[0].manifest).prefix)
        except StageError as error:
            self._say(f"{self._place.name}: the shared environment is used: {error}")
            return ""

    def _write_progress(self, hub: Hub | None) -> None:
        """From now on, in the run's directory."""
        files = sum(tree.manifest.files for tree in self._trees)
        kinds = [kind for kind in ("environment", "data") if getattr(self._asked, kind)]
        told = hub.progress if hub is not None else lambda: {0: self.progress()}
        file = _ProgressFile(self._place.progress, self.size, files, kinds, self._place.nodes)
        args = [told, self._over, self._news, self._say]
        self._writing = threading.Thread(target=file.keep, args=args, daemon=True)
        self._writing.start()

    def _write_no_more(self) -> None:
        """After a last time, which tells how far the others are now."""
        self._over.set()
        self._news.set()
        if self._writing is not None:
            self._writing.join(_TELL_S)

    def tell(self, state: str, why: str = "") -> None:
        """Let the first node know how far this one is."""
        self._state, self._why = state, why
        if self._link is not None:
            self._link.tell(self.done, state, why, self.reused)
        if state != "copying":
            self._news.set()

    def progress(self) -> NodeProgress:
        """How far this node is."""
        name = self._place.name
        return NodeProgress(self.done, self._state, self._why, self.reused, name, True)

    def _keep_telling(self) -> None:
        while self._state == "copying" and not self._over.wait(_TELL_S):
            if self._state == "copying":
                self.tell("copying")


def _tell_all(hub: Hub, error: StageError, nodes: int) -> None:
    """Why nothing more is copied; who has not come yet has some seconds to hear it."""
    hub.fail(error)
    until_s = time.monotonic() + _HEAR_S
    while time.monotonic() < until_s:
        others = [each for number, each in hub.progress().items() if number]
        if len(others) >= nodes - 1 and not any(e.here and e.state == "copying" for e in others):
            break
        time.sleep(0.1)


def _ports(told: str) -> list[int]:
    """Some of the site's ports FIRST-LAST, if it names any."""
    if not told:
        return []
    first, last = map(int, told.split("-"))
    return random.sample(range(first, last + 1), min(_TRIES, last - first + 1))


def _parts(text: str) -> tuple[str, str]:
    """The name and the pattern of `NAME=PATTERN`, which is a whole path."""
    name, _, pattern = text.partition("=/")
    return name, f"/{pattern}"


def gigabytes(size: int) -> str:
    """For people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"
