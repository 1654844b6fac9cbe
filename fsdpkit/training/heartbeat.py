"""What a rank tells the agent on its node, and hears from it: progress, a wish to stop, a hang."""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.runs.heartbeat import HeartbeatDir, HeartbeatFile, Phase, own_heart
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.stacks import leave_when_asked
from fsdpkit.training.debugging import dump_flight_recorder
from fsdpkit.training.distributed import Ranks

_LOOK_EVERY_S = 1.0


class Heartbeat:
    """Tells the agent on the node that this rank lives; without an agent it does nothing.

    A rank whose steps stop coming is taken for hung: the agent then asks for its stacks
    (`rank-<r>.stacks` in the attempt's directory) and its flight recorder, and ends it.

    Args:
        paths: Where the run's files are.
        ranks: From `process_group`.
        step: Steps done so far.
    """

    def __init__(self, paths: TaskPaths, ranks: Ranks, step: int = 0) -> None:
        self._step = step
        self._file: HeartbeatFile | None = None
        found = HeartbeatDir.of_this_node()
        if found is None:
            return
        with contextlib.suppress(OSError):  # without room for it; a hang is then not noticed
            self._file = own_heart(ranks.local_rank)
        self._beat("starting")
        with contextlib.suppress(OSError):
            leave_when_asked(found.stacks(ranks.local_rank))
        watch = threading.Thread(
            target=_leave_flight_recorder_when_asked,
            args=(weakref.ref(self), found.dump, paths, ranks),
            name="fsdpkit-heartbeat",
            daemon=True,
        )
        watch.start()

    def step(self, step: int) -> None:
        """A step is done, and the next one begins.

        Args:
            step: Steps done.
        """
        self._step = step
        self._beat("training")

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Around what takes longer than a step: the agent is ten times as patient.

        Args:
            phase: `"starting"`, `"evaluating"` or `"saving"`.

        Yields:
            Nothing: use it with `with`.
        """
        self._beat(phase)
        yield
        self._beat("training")

    def resumed(self, step: int) -> None:
        """A checkpoint was loaded; the first step, slower than others, is to come.

        Args:
            step: Steps done in the checkpoint.
        """
        self._step = step
        self._beat("starting")

    def ending(self) -> None:
        """The last step is done."""
        self._beat("ending")

    def _beat(self, phase: Phase) -> None:
        if self._file is not None:
            self._file.beat(self._step, phase)


def outlive_warnings(_: int = 0) -> None:
    """In a process of a rank, such as a DataLoader's worker (`worker_init_fn`): ignore what Slurm
    sends to every process of a step when the end is near, so that the last steps have their data.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _leave_flight_recorder_when_asked(
    owner: weakref.ref[Heartbeat], asked: Path, paths: TaskPaths, ranks: Ranks
) -> None:
    pause = threading.Event()
    while owner() is not None:
        if asked.exists():
            with contextlib.suppress(OSError):
                dump_flight_recorder(paths, ranks)
            return
        pause.wait(_LOOK_EVERY_S)
