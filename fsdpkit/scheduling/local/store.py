"""Local jobs on disk: `$XDG_STATE_HOME/fsdpkit/local/<job id>/`."""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fsdpkit.config.private_files import make_dir, make_private_dir, set_mode
from fsdpkit.config.published.memory import state_dir
from fsdpkit.errors import storage_errors
from fsdpkit.runs.layout import Named, write_atomically
from fsdpkit.scheduling.states import JobState


def top() -> Path:
    return state_dir() / "local"


@dataclass(frozen=True)
class LocalJob:
    """One job's directory."""

    dir: Path

    cancel_requested = Named("cancel")

    @property
    def id(self) -> str:
        return self.dir.name

    @property
    def description(self) -> dict[str, Any]:
        """What the client wrote: script, working directory, environment, array tasks."""
        return dict(json.loads((self.dir / "job.json").read_text()))

    @property
    def comment(self) -> str | None:
        """None where what the client wrote cannot be read."""
        try:
            return str(self.description["options"].get("comment", ""))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def save_state(self, state: JobState, task: int | None = None) -> None:
        write_atomically(self._state_file(task), json.dumps(asdict(state)))

    def state(self, task: int | None = None) -> JobState | None:
        state = self.saved_state(task)
        if not _goes_on(state) or self._supervisor_alive():
            return state
        state = self.saved_state(task)  # it may have saved the end and gone since the first look
        if _goes_on(state):
            return JobState("NODE_FAIL", "local", reason="the job's supervisor was ended")
        return state

    def saved_state(self, task: int | None = None) -> JobState | None:
        """As it was last written, whether or not the supervisor lives."""
        try:
            return JobState(**json.loads(self._state_file(task).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _state_file(self, task: int | None) -> Path:
        return self.dir / ("state.json" if task is None else f"state-{task}.json")

    def save_supervisor(self, pid: int) -> None:
        import psutil

        created = psutil.Process(pid).create_time()
        write_atomically(self.dir / "supervisor.json", json.dumps([pid, created]))

    def _supervisor_alive(self) -> bool:
        import psutil  # only here: a dry run does without

        try:
            pid, created = json.loads((self.dir / "supervisor.json").read_text())
            process = psutil.Process(pid)
            # The same id may by now be another process.
            return bool(abs(process.create_time() - created) < 1 and process.status() != "zombie")
        except FileNotFoundError:
            return True  # it is being started
        except (OSError, ValueError, psutil.NoSuchProcess):
            return False


def on_hold(job_id: str) -> list[LocalJob]:
    """Jobs that run on the nodes of this one."""
    found = (LocalJob(path) for path in top().glob("[0-9]*") if path.name.isdecimal())
    return [
        job
        for job in found
        if (job.dir / "job.json").exists()
        and job.description.get("hold") == job_id
        and _goes_on(job.state())
    ]


def _goes_on(state: JobState | None) -> bool:
    return state is not None and state.phase in ("pending", "running")


def create() -> LocalJob:
    """A directory for a new job; its name is the job's id. Raises StorageError."""
    directory = top()
    with storage_errors(directory, "written"):
        _make_top(directory)
        taken = [int(p.name) for p in directory.iterdir() if p.name.isdigit()]
        # Ports and rendezvous ids come from job ids, and another person's jobs on this machine are
        # counted elsewhere: everybody starts somewhere else.
        number = max(taken, default=random.randrange(1_000_000)) + 1
        while True:
            try:
                make_dir(directory / str(number), 0o700)
                return LocalJob(directory / str(number))
            except FileExistsError:
                number += 1


def _make_top(directory: Path) -> None:
    """For this user alone, though an earlier release may have made it by the umask: what jobs run
    lies in it."""
    make_private_dir(directory)
    own = [directory] if os.environ.get("FSDPKIT_STATE_DIR") else [directory.parent, directory]
    for place in own:
        set_mode(place.resolve(), 0o700)


def find(job_id: str) -> LocalJob | None:
    """The job of this number; None also where one may not look, such as in another's home."""
    directory = top() / job_id
    try:
        return LocalJob(directory) if job_id.isdecimal() and directory.is_dir() else None
    except OSError:
        return None
