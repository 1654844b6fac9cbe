"""A trainer without torch, for faults in which only launching decides.

To agents, batch shell and Slurm it is what the T5 trainer is: it reads the same variables and
settings, beats the same heart, logs the same metrics, stops when it is asked to with the same
status, leaves its stack when it is asked to, and writes checkpoints in the background through
fsdpkit.runs.checkpoint_writing. It starts in a tenth of a second; what is about torch itself is
tried with T5.

Its loss is no loss, but as exacting as one: each rank's shard depends on its whole past and on what
all other ranks had, so that a step done twice, left out, or from another state shows in all that
follow. Ranks wait for each other in every step, through sockets: one that is stopped stops all, one
that is killed ends all.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from breakpoints import DIRECTORY, LOOK_S, RANK, break_down, hold

import fsdpkit
from fsdpkit.config.training.settings import TrainingSettings
from fsdpkit.errors import STOPPED_EARLY, StorageError
from fsdpkit.runs.checkpoint_writing import Claim, WrittenFile, abandon, claim, now, publish
from fsdpkit.runs.checkpoints import Description, checkpoints_in, describe, problems_of
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.heartbeat import HeartbeatDir, HeartbeatFile
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import SaveAnswer, answer, wish
from fsdpkit.runs.stacks import leave_when_asked
from fsdpkit.training.command_line import read_settings

WORLD_SIZE = int(os.environ["WORLD_SIZE"])
LAUNCH = "-".join(
    os.environ.get(name, "0")
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
)
SHARD_BYTES = 1 << 16
EXIT_TIMEOUT_S = 60.0
"""How long a process that failed stays for a checkpoint that is being written."""


class OutOfMemoryError(RuntimeError):
    """What torch calls it."""


ERRORS = {"RuntimeError": RuntimeError, "OutOfMemoryError": OutOfMemoryError}


class Group:
    """All ranks of this launch, which tell each other what they have."""

    def __init__(self, name: str) -> None:
        place = DIRECTORY / f"meet-{name}-{LAUNCH}"
        self._peers = _accept_all(place) if RANK == 0 else [_connect(place)]

    def gather(self, own: Any) -> list[Any]:
        """What all ranks have, by rank. Raises ConnectionError when one is gone."""
        if RANK:
            _send(self._peers[0], own)
            return list(_receive(self._peers[0]))
        all_of_them = [own, *(_receive(peer) for peer in self._peers)]
        for peer in self._peers:
            _send(peer, all_of_them)
        return all_of_them

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Every rank's result. Raises StorageError on all ranks when one could not do it."""
        try:
            own: dict[str, Any] = {"result": action()}
        except (OSError, StorageError) as error:
            own = {"error": f"{error}"}
        found = self.gather(own)
        for each in found:
            if "error" in each:
                raise StorageError(each["error"])
        return [each["result"] for each in found]

    def first(self, action: Callable[[], Any]) -> Any:
        """What rank 0 finds, on all ranks."""
        return self.together(lambda: action() if RANK == 0 else None)[0]


def _accept_all(place: Path) -> list[Any]:
    server = socket.create_server(("", 0), backlog=WORLD_SIZE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards_head:
        towards_head.connect((os.environ["MASTER_ADDR"], 9))
        address = towards_head.getsockname()[0]
    draft = place.with_suffix(".new")
    draft.write_text(f"{address} {server.getsockname()[1]}")
    draft.rename(place)
    peers = {}
    while len(peers) < WORLD_SIZE - 1:
        peer = server.accept()[0].makefile("rw")
        peers[_receive(peer)] = peer
    return [peers[rank] for rank in sorted(peers)]


def _connect(place: Path) -> Any:
    while not place.exists():
        time.sleep(LOOK_S)
    address, port = place.read_text().split()
    peer = socket.create_connection((address, int(port))).makefile("rw")
    _send(peer, RANK)
    return peer


def _send(peer: Any, told: Any) -> None:
    peer.write(json.dumps(told) + "\n")
    peer.flush()


def _receive(peer: Any) -> Any:
    line = peer.readline()
    if not line:
        raise ConnectionError("Connection closed by peer")
    return json.loads(line)


@dataclass
class Progress:
    step: int = 0
    position: int = 0
    """Samples that all ranks have consumed."""


class Model:
    """One rank's shard: a number that depends on all that it has seen."""

    def __init__(self, seed: int) -> None:
        self.shard = _mixed(seed, RANK)

    def train(self, ranks: Group, progress: Progress) -> float:
        """One step of all ranks, and its loss."""
        gradient = sum(ranks.gather(_mixed(self.shard, progress.position + RANK)))
        self.shard = _mixed(self.shard, gradient)
        return gradient / (WORLD_SIZE << 64)

    def save(self, file: Path) -> WrittenFile:
        data = self.shard.to_bytes(8, "big") * (SHARD_BYTES // 8)
        with file.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        return WrittenFile(len(data), hashlib.sha256(data).hexdigest())

    def load(self, file: Path) -> None:
        data = file.read_bytes()
        if data != data[:8] * (SHARD_BYTES // 8):
            raise ValueError(f"{file} is torn, and was not refused")
        self.shard = int.from_bytes(data[:8], "big")


def _mixed(*numbers: int) -> int:
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


class Checkpointer:
    """`resume` from the newest whole checkpoint, `save` while training goes on, `close`."""

    def __init__(self, paths: TaskPaths, settings: TrainingSettings, model: Model) -> None:
        self._paths, self._directory, self._model = paths, paths.checkpoints, model
        self._keep_last = settings.checkpoint.keep_last
        self._ranks = Group("checkpoints")
        self._refused: list[Path] = []
        self._writing: threading.Thread | None = None
        self._failure: Exception | None = None
        self._wish: str | None = None
        atexit.register(self._let_finish)

    def resume(self) -> Progress:
        found = self._ranks.first(self._newest_whole)
        self._claim = Claim(
            self._directory, self._ranks.first(lambda: claim(self._directory).writer)
        )
        if found is None:
            return Progress()
        path = Path(found)
        self._ranks.together(lambda: self._model.load(path / f"__{RANK}_0.distcp"))
        return Progress(**describe(path).progress)

    def _newest_whole(self) -> str | None:
        for path in reversed(checkpoints_in(self._directory)):
            if not (wrong := problems_of(path)):
                return str(path)
            print(f"checkpoint {path.name} is refused: {'; '.join(wrong)}.")
            self._refused.append(path)
        if self._refused:
            raise StorageError("No checkpoint is whole.")
        return None

    def asked(self) -> bool:
        """Whether somebody has asked for a checkpoint since we last looked."""
        before, self._wish = self._wish, wish(self._paths)
        return self._wish not in (None, before)

    def save(self, progress: Progress) -> None:
        self.close()
        copy = Model(0)
        copy.shard = self._model.shard
        description = Description(
            step=progress.step,
            saved_at=now(),
            world_size=WORLD_SIZE,
            optimizer="none",
            versions={"fsdpkit": fsdpkit.__version__, "python": platform.python_version()},
            progress=asdict(progress),
            files={},
        )
        arguments = (copy, description, wish(self._paths) if RANK == 0 else None)
        self._writing = threading.Thread(target=self._write, args=arguments, daemon=True)
        self._writing.start()

    def close(self) -> None:
        """Until what was saved has its name. Raises StorageError when it could not be written."""
        if self._writing:
            self._writing.join()
        if self._failure:
            raise self._failure

    def _write(self, copy: Model, description: Description, asked: str | None) -> None:
        draft = self._claim.draft(description.step)
        name = f"__{RANK}_0.distcp"

        def write() -> tuple[str, WrittenFile]:
            draft.mkdir(exist_ok=True)
            return name, copy.save(draft / name)

        def give_name() -> None:
            hold("checkpointing", description.step)
            files = {each: WrittenFile(*written) for each, written in parts}
            publish(
                self._claim,
                description,
                files,
                {},
                keep_last=self._keep_last,
                refused=self._refused,
            )

        try:
            parts = self._ranks.together(write)
            self._ranks.first(give_name)
        except (OSError, StorageError) as error:
            if RANK == 0:
                abandon(self._claim, description.step)
            self._failure = error
            answer(self._paths, asked, SaveAnswer(problem=str(error)))
            return
        answer(self._paths, asked, SaveAnswer(step=description.step))

    def _let_finish(self) -> None:
        if self._writing:
            self._writing.join(EXIT_TIMEOUT_S)


def train() -> int:
    settings = read_settings("Train without torch.")
    paths = TaskPaths.of_this_job("light-run")
    ranks = Group("steps")
    node = HeartbeatDir.of_this_node()
    assert node is not None
    hold("start-up")
    local_rank = int(os.environ["LOCAL_RANK"])
    leave_when_asked(node.stacks(local_rank))
    heart = HeartbeatFile(node.rank(local_rank))
    heart.beat(0, "starting")
    model = Model(settings.seed)
    saves = Checkpointer(paths, settings, model)
    progress = saves.resume()
    heart.beat(progress.step, "starting")
    metrics = JsonLines(paths.metrics) if RANK == 0 else None
    if metrics and progress.step:
        print(f"resumed    after step {progress.step}")
    if any(ranks.gather(node.stop.exists())):
        return STOPPED_EARLY
    while progress.step < settings.steps:
        hold("training", progress.step)
        break_down(progress.step, ERRORS)
        stop = any(ranks.gather(node.stop.exists()))
        asked = any(ranks.gather(RANK == 0 and saves.asked()))
        loss = model.train(ranks, progress)
        progress = Progress(progress.step + 1, progress.position + WORLD_SIZE)
        heart.beat(progress.step, "training")
        if metrics:
            metrics.write(step=progress.step, loss=loss)
        last = progress.step == settings.steps
        if stop or asked or last or progress.step % settings.checkpoint.every_steps == 0:
            saves.save(progress)
        if stop and not last:
            hold("shutdown")
            heart.beat(progress.step, "ending")
            saves.close()
            return STOPPED_EARLY
    hold("shutdown")
    heart.beat(progress.step, "ending")
    saves.close()
    ranks.gather(None)
    return 0


if __name__ == "__main__":
    sys.exit(train())
