"""Everything that a node gets on its disk, from the shared file system or from other nodes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fsdpkit.staging.disk import StageStore, TreeLock
from fsdpkit.staging.hub import Hub, NodeProgress
from fsdpkit.staging.link import HubLink
from fsdpkit.staging.listing import listed
from fsdpkit.staging.manifest import BLOCK, BlockSource, Manifest, StageError
from fsdpkit.staging.peers import BlockServer, Growing, fetch
from fsdpkit.staging.progress import ProgressFile
from fsdpkit.staging.relocate import relocate
from fsdpkit.staging.source import PackFile, SharedFiles
from fsdpkit.staging.wire import StageKeys

if TYPE_CHECKING:
    from argparse import Namespace

Say = Callable[[str], None]
LISTED = ".staged.json"
_TELL_S = 1.0
_LOCK_S = 0.1
_FOREVER_S = 86400.0 * 30
_AT_ONCE, _AHEAD = 4, 8
"""Blocks that are read at the same time, and that wait for their turn to be written."""


class Meeting(NamedTuple):
    """How the nodes of a job find and know each other."""

    hub: tuple[str, int]
    keys: StageKeys


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
    meeting: Meeting | None
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
                meeting = Meeting(hub, StageKeys(environ["FSDPKIT_SECRET"], start))
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
    part.get()
    if not place.held:
        store.prune(asked.kept_h)
    answer = {"stage": str(part.program_sees()), "prefix": part.prefix()}
    part.tell("ready")
    how = "was there" if part.reused else "is there"
    seconds = time.monotonic() - began_s
    say(f"{place.name}: {gigabytes(part.size)} {how}, after {seconds:.1f} s, in {answer['stage']}")
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
        self._manifests: list[Manifest] = []
        self._readers: dict[int, Callable[[], BlockSource]] = {}
        """Of what this node reads itself, by number; other nodes have the rest."""
        self._growing: list[Growing] = []
        self._trees: list[Path] = []
        self._link: HubLink | None = None
        self._over = threading.Event()
        self._state, self._why = "copying", ""
        self.reused = True

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(manifest.size for manifest in self._manifests)

    @property
    def done(self) -> int:
        """Bytes that are here."""
        both = zip(self._growing, self._manifests)  # noqa: B905 # new in Python 3.10
        return sum(min(growing.done * BLOCK, manifest.size) for growing, manifest in both)

    def get(self) -> None:
        """Raises StageError."""
        self._at_end.callback(self._over.set)
        hub = None
        try:
            if self._place.meeting is None:
                self._read_lists()
            else:
                hub = self._join(self._place.meeting)
            threading.Thread(target=self._keep_telling, daemon=True).start()
            if self._place.number == 0:
                self._write_progress(hub)
            for number, manifest in enumerate(self._manifests):
                self._obtain(number, manifest)
        except StageError as error:
            self.tell("failed", str(error))
            if hub is not None:
                hub.fail(error)
            raise

    def _join(self, meeting: Meeting) -> Hub | None:
        """Meet the other nodes; returns the hub where this is the first node."""
        place, hub = self._place, None
        server = BlockServer(meeting.keys, place.number, lambda number: self._growing[number])
        self._at_end.callback(server.close)
        self._link = HubLink(meeting.keys, place.number, place.name, meeting.hub)
        self._at_end.callback(self._link.close)
        if place.number == 0:
            hub = Hub(meeting.keys, place.nodes, *meeting.hub)
            self._at_end.callback(hub.close)
            hub.open()
            try:
                self._read_lists()
            except StageError as error:
                hub.fail(error)
                raise
            hub.offer([manifest.encode() for manifest in self._manifests])
        told = self._link.hello(server.open(""))
        if place.number:
            self._manifests = [Manifest.decode(each) for each in told]
        if self._asked.share == "sharded":
            self._list_data()
        return hub

    def _read_lists(self) -> None:
        """What there is to copy, from the shared file system."""
        if self._asked.environment:
            pack = PackFile(self._asked.environment)
            self._manifests.append(pack.manifest)
            self._readers[0] = lambda: PackFile(self._asked.environment)
        if self._asked.share == "each" or self._place.meeting is None:
            self._list_data()
        files = sum(manifest.files for manifest in self._manifests)
        where = f"the disks of {self._place.nodes} nodes"
        self._say(f"copying {gigabytes(self.size)} in {files} files to {where}")

    def _list_data(self) -> None:
        """The data that this node reads by itself: all of it, or its share."""
        if not self._asked.data:
            return
        place, share = self._place, None
        if self._asked.share == "sharded":
            share = place.number, place.ranks, place.ranks * place.training
        items = [*map(_parts, self._asked.data)]
        manifest, sources = listed(items, share)
        self._readers[len(self._manifests)] = lambda: SharedFiles(manifest, sources)
        self._manifests.append(manifest)

    def _obtain(self, number: int, manifest: Manifest) -> None:
        """Have the tree, under a lock that is shared from then on."""
        lock = self._store.lock(manifest.digest)
        while not self._found(manifest, lock):
            if lock.take(exclusive=True) and self._store.find(manifest) is None:
                self.reused = False
                self._trees.append(self._fill(number, manifest))
                break
            time.sleep(_LOCK_S)
        lock.take(exclusive=False, wait_s=_FOREVER_S)

    def _found(self, manifest: Manifest, lock: TreeLock) -> bool:
        if not lock.take(exclusive=False):
            return False
        tree = self._store.find(manifest)
        if tree is None:
            return False
        self._trees.append(tree)
        self._growing.append(Growing(self._store.reader(manifest)))
        return True

    def _fill(self, number: int, manifest: Manifest) -> Path:
        copy = self._store.begin(manifest)
        growing = Growing(copy)
        self._growing.append(growing)
        if (reader := self._readers.get(number)) is not None:
            for index, data in enumerate(_read(reader, copy.done, manifest.block_count), copy.done):
                whole = data or bytes(manifest.length(index))
                growing.write(index, data, hashlib.sha256(whole).digest())
        elif manifest.block_count and self._link and self._place.meeting:
            fetch(self._link, self._place.meeting.keys, number, growing, manifest.block_count - 1)
        copy.finish()
        tree = self._store.find(manifest)
        if tree is None:
            raise StageError("storage", f"{self._place.name}: what was copied is not there")
        return tree

    def program_sees(self) -> Path:
        """$FSDPKIT_STAGE: a directory of the job's own, with a link to each thing that was asked
        for."""
        directory = self._store.job_dir(self._place.job)
        items = []
        for name, pattern in map(_parts, self._asked.data):
            (directory / name).symlink_to(self._trees[-1] / name)
            items.append({"name": name, "source": pattern})
        trees = [manifest.digest for manifest in self._manifests]
        listing = json.dumps({"items": items, "trees": trees})
        (directory / LISTED).write_text(listing, encoding="utf-8")
        return directory

    def prefix(self) -> str:
        """Where the environment's copy is; nothing if it cannot be used, which is said."""
        if not self._asked.environment:
            return ""
        try:
            return str(relocate(self._trees[0], self._manifests[0]).prefix)
        except StageError as error:
            self._say(f"{self._place.name}: the shared environment is used: {error}")
            return ""

    def _write_progress(self, hub: Hub | None) -> None:
        """From now on, in the run's directory."""
        files = sum(manifest.files for manifest in self._manifests)
        kinds = [kind for kind in ("environment", "data") if getattr(self._asked, kind)]
        told = hub.progress if hub is not None else lambda: {0: self.progress()}
        file = ProgressFile(self._place.progress, self.size, files, kinds, self._place.nodes)
        args = [told, self._over, self._say]
        threading.Thread(target=file.keep, args=args, daemon=True).start()

    def tell(self, state: str, why: str = "") -> None:
        """Let the first node know how far this one is."""
        self._state, self._why = state, why
        if self._link is not None:
            self._link.tell(self.done, state, why, self.reused)

    def progress(self) -> NodeProgress:
        """How far this node is."""
        name = self._place.name
        return NodeProgress(self.done, self._state, self._why, self.reused, name, True)

    def _keep_telling(self) -> None:
        while self._state == "copying" and not self._over.wait(_TELL_S):
            if self._state == "copying":
                self.tell("copying")


def _parts(text: str) -> tuple[str, str]:
    """The name and the pattern of `NAME=PATTERN`."""
    name, _, pattern = text.partition("=")
    return name, pattern


def _read(reader: Callable[[], BlockSource], first: int, end: int) -> Iterator[bytes]:
    """Blocks in order, several of them read at once. Raises StageError."""
    own = threading.local()

    def read(index: int) -> bytes:
        if not hasattr(own, "source"):
            own.source = reader()
        return bytes(own.source.read(index))

    with ThreadPoolExecutor(_AT_ONCE, "fsdpkit-read") as pool:
        coming = deque(pool.submit(read, index) for index in range(first, min(end, first + _AHEAD)))
        for index in range(first, end):
            if index + _AHEAD < end:
                coming.append(pool.submit(read, index + _AHEAD))
            try:
                yield coming.popleft().result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def gigabytes(size: int) -> str:
    """For people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"
