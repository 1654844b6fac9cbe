"""Where everything lies in a run directory. The only module that spells these names.

    <runs>/<run id>/
        run.json                    the record: what was asked, what Slurm answered
        job.json                    the resolved job, as the trainer reads it
        job.sbatch                  the script, byte for byte as sbatch got it
        job.<job id>.sbatch .json   what an earlier job of a run that was resumed was given, as
                                    provenance.<job id>.json and source.<job id>.diff
        call.pkl                    the function that ranks call, of a run of fsdpkit.run
        calls/                      calls to ranks that stay, and their answers (runs/calls.py)
        plan.json                   what was predicted of the job; plan.<job id>.json of an earlier
        provenance.json             what was submitted: script, commit, packages, settings with
                                    their origin (runs/provenance.py)
        audit.json                  what a shared run tells its centre (runs/shared_record.py)
        source.diff                 how the sources differed from that commit; its owner's alone
        snapshot/                   the work tree as it was, where the job runs, if asked for
        run.json.lock               while somebody changes the record
        here/                       of `submit --here`: how its step stands (scheduling/here)
        submitit/                   submitit's folder: pickles, results, the nodes' own logs
        slurm-<job id>.log          the batch shell's output, all attempts
        task-<k>/                   only in arrays: what follows, once for each array task
        attempt-<n>/                one start of the job by Slurm (SLURM_RESTART_COUNT = n)
            node-<i>.events.jsonl   what the agent on node i saw and did
            node-<i>.samples.jsonl  the machine, every few seconds
            node-<i>.room           room for the record of a failure, in case the disk gets full
            node-<i>.stacks.json    where its ranks were when somebody last asked
            node-<i>.still.json     where they are, while they do nothing (runs/stack_requests.py)
            rank-<r>.out .err       a rank's output (rank-<r>.restart-<k>.out after torchrun's k-th)
            rank-<r>.raised.json    the exceptions that nobody caught in it (runs/raised.py)
            rank-<r>.stacks         where its threads were when it, or who waited for it, was ended
            ranks-1024-2047/        from the 1,024th rank on, a folder for each 1,024 of them
            software.json           the first node's versions, which all others must have
            stage.json              how far the copies on the nodes' own disks are (runs/staging.py)
            back/node-<i>/          what came back from there at the end (`stage.back`)
            failures/               one file a failure, named so that the first sorts first
            verdict.json            how the agents ended the attempt, and why
            orders.jsonl            what the head node's agent told the agents to do, and when
            flight.json             what the flight recorders say of a launch that hung
                                    (flight.restart-<k>.json; runs/flight_record.py)
            ending.json             what the batch shell then did: end, or queue the job again
            account.json            what the attempt used of its grant (runs/account.py)
            idle.json               that its GPUs do nothing, or only wait (runs/outcomes.py)
            result-<r>.pkl          what a rank of fsdpkit.run returned; raised-<r>.json: why not
            check.json              what the job `check` measured (runs/node_report.py)
        metrics.jsonl               one line a logged step, written by rank 0
        checkpoints/step-<s>/       complete when its name has no leading dot (runs/checkpoints.py)
        export/                     the trained model for Hugging Face, when it was asked for
        tensorboard/ wandb/         the metrics again, where they were asked for
        track.json                  what `fsdpkit track` has sent (tracking/sending.py)
        debug/                      profiles, memory snapshots, the flight recorder's dumps, which
                                    are their owner's alone: attempt-<n>/flight-<launch>/
        stop-requested              makes the job save and stop; `warning` in it: and come back
        guests.json                 of a hold: which nodes the newest runs on it took
        busy-<i>                    of a hold: there once its node i waits for runs, and touched
                                    while one is on it
        ends-at                     seconds since the epoch: the job's end, once Slurm has warned
        save-requested              makes it save and go on (runs/save_requests.py)
        save-answered               what became of the request
        save-heard                  that a script's trainer of another make looks for requests
        trainer/ lightning/ accelerate/  what such a trainer saves (script/checkpoints.py)
        stacks-requested            makes agents say where ranks are (runs/stack_requests.py)

    <runs>/avoided-nodes/<node>.json    nodes that failed, which new jobs avoid for a while

The directory lies on NFS, GPFS or Lustre and has many writers: every file has exactly one of them,
which appends whole lines or writes a temporary name and renames it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fsdpkit.config.private_files import make_dir

HUGGINGFACE, LIGHTNING, ACCELERATE = "trainer", "lightning", "accelerate"
"""Below a task's directory: what such a trainer saves, by itself or because it was asked for."""

RankFileKind = Literal["out", "err", "raised.json", "stacks"]
RANKS_A_FOLDER = 1024
"""A directory with the files of all ranks of a large job would be a queue before its server."""
_RANK_FILE = re.compile(
    r"rank-(\d{1,9})(?:\.restart-(\d{1,9}))?\.(out|err|raised\.json|stacks)", re.ASCII
)


class Named:
    """The path of a name below the directory `dir` of whoever has it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, holder: Any, kind: type) -> Path:
        return Path(holder.dir, self.name)


class Numbered(Named):
    """The same of a name with a number in the place of `{}`."""

    def __get__(self, holder: Any, kind: type) -> Callable[[int], Path]:  # type: ignore[override]
        return lambda number: Path(holder.dir, self.name.format(number))


class RankFile(NamedTuple):
    """A rank's file in the n-th start by torchrun within its attempt (0: the first)."""

    rank: int
    restart: int
    kind: str
    path: Path


@dataclass(frozen=True)
class AttemptPaths:
    """The directory of one attempt (`attempt-<n>`)."""

    dir: Path

    node_events = Numbered("node-{}.events.jsonl")
    node_samples = Numbered("node-{}.samples.jsonl")
    node_room = Numbered("node-{}.room")
    node_stacks = Numbered("node-{}.stacks.json")
    node_still = Numbered("node-{}.still.json")
    result = Numbered("result-{}.pkl")
    raised = Numbered("raised-{}.json")
    software = Named("software.json")
    stage = Named("stage.json")
    failures = Named("failures")
    orders = Named("orders.jsonl")
    verdict = Named("verdict.json")
    ending = Named("ending.json")
    account = Named("account.json")
    idle = Named("idle.json")

    @property
    def number(self) -> int:
        return int(self.dir.name.removeprefix("attempt-"))

    def rank_file(self, rank: int, kind: RankFileKind, restart: int) -> Path:
        """A rank's file in the n-th start by torchrun within this attempt (0: the first)."""
        again = f".restart-{restart}" if restart else ""
        folder = self.rank_folder(rank)
        if folder != self.dir and not _is_directory(folder):  # as releases before had it
            folder = self.dir
        return folder / f"rank-{rank}{again}.{kind}"

    def rank_folder(self, rank: int) -> Path:
        """Where a rank's files belong."""
        first = rank - rank % RANKS_A_FOLDER
        return self.dir / f"ranks-{first}-{first + RANKS_A_FOLDER - 1}" if first else self.dir

    def rank_files(self, ranks: Iterable[int] | None = None) -> Iterator[RankFile]:
        """Those that are there, of these ranks (None: of all), in no order. Raises OSError."""
        asked = None if ranks is None else frozenset(ranks)
        if asked is None:
            folders = {self.dir, *self.dir.glob("ranks-*-*")}
        else:
            folders = {self.dir, *map(self.rank_folder, asked)}
        for folder in filter(_is_directory, folders):
            for name in os.listdir(folder):
                found = _RANK_FILE.fullmatch(name)
                if found and (asked is None or int(found[1]) in asked):
                    yield RankFile(int(found[1]), int(found[2] or 0), found[3], folder / name)

    def flight_dumps(self, launch: int) -> Path:
        """The directory of the flight recorder's dumps: pickles, only for their owner."""
        return self.dir.parent / "debug" / self.dir.name / f"flight-{launch}"

    def flight_record(self, launch: int) -> Path:
        return self.dir / f"flight{f'.restart-{launch}' if launch else ''}.json"


def _is_directory(path: Path) -> bool:
    """No link, which may lead to what the reader alone can read."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


@dataclass(frozen=True)
class TaskPaths:
    """The directory of one training job: the run itself, or one task of an array.

    Attributes:
        dir: The directory.
    """

    dir: Path

    metrics = Named("metrics.jsonl")
    """Metrics: one JSON object per logged step, appended by rank 0."""
    checkpoints = Named("checkpoints")
    """Where a Checkpointer saves `step-<s>/`."""
    export = Named("export")
    """The trained model for Hugging Face, if one was asked for."""
    tensorboard = Named("tensorboard")
    """The metrics as TensorBoard events, if they were asked for."""
    track = Named("track.json")
    """What `fsdpkit track` has sent."""
    debug = Named("debug")
    """Profiles, memory snapshots and flight recorder dumps; for their owner alone."""
    stop_requested = Named("stop-requested")
    """A file that makes the job save and stop while it exists."""
    ends_at = Named("ends-at")
    """When Slurm ends the job, which the batch shell asks after the warning."""
    save_requested = Named("save-requested")
    """A file that asks for a checkpoint."""
    save_answered = Named("save-answered")
    """What became of that request."""
    save_heard = Named("save-heard")
    """A mark that an attached trainer looks for such requests."""
    stacks_requested = Named("stacks-requested")
    """A file that makes the agents say where the ranks are."""

    @classmethod
    def of_this_job(cls, otherwise: str) -> TaskPaths:
        """The paths of the run that this process is a rank of.

        Args:
            otherwise: The directory where fsdpkit did not start the process.

        Returns:
            Paths below `FSDPKIT_TASK_DIR`, else below `otherwise`.
        """
        return cls(Path(os.environ.get("FSDPKIT_TASK_DIR", otherwise)))

    def attempt(self, number: int) -> AttemptPaths:
        """Paths of one attempt.

        Args:
            number: Index of the attempt, from 0.

        Returns:
            Paths of its files, whether they exist or not.
        """
        return AttemptPaths(self.dir / f"attempt-{number}")

    def attempts(self) -> list[int]:
        """Which attempts have started.

        Returns:
            Their indices, in order.
        """
        # A link may lead to what the reader alone can read.
        found = (p for p in self.dir.glob("attempt-*") if not p.is_symlink())
        names = (p.name.removeprefix("attempt-") for p in found)
        return sorted(int(n) for n in names if n.isdecimal())


@dataclass(frozen=True)
class RunPaths:
    """The directory of a run."""

    dir: Path

    record = Named("run.json")
    job = Named("job.json")
    script = Named("job.sbatch")
    call = Named("call.pkl")
    calls = Named("calls")
    plan = Named("plan.json")
    provenance = Named("provenance.json")
    shared_record = Named("audit.json")
    source_diff = Named("source.diff")
    snapshot = Named("snapshot")
    here = Named("here")
    guests = Named("guests.json")
    busy = Numbered("busy-{}")
    submitit = Named("submitit")

    def task(self, array_task: int | None = None) -> TaskPaths:
        return TaskPaths(self.dir if array_task is None else self.dir / f"task-{array_task}")

    def array_tasks(self) -> list[int]:
        """Array tasks that have started, in order."""
        names = (p.name.removeprefix("task-") for p in self.dir.glob("task-*"))
        return sorted(int(n) for n in names if n.isdecimal())


def error_file(memory: Path, rank: int, launch: int) -> Path:
    """A rank's $TORCHELASTIC_ERROR_FILE, in the node's memory."""
    return memory.joinpath(f"rank-{rank}.restart-{launch}")


def raised_beside(error_file: Path) -> Path:
    """What a rank with this error file writes of its exceptions (launching/at_start/caught.py)."""
    return Path(f"{error_file}.raised")


SUBMISSION_PICKLE = "submission.pkl"
"""What submitit unpickles on each node; written once, before sbatch is called."""


def name_submission(path: Path) -> None:
    """Give the submission's pickle the name that submitit derives from the job id."""
    # The submitter, or another node of this job, may have been first.
    with contextlib.suppress(FileExistsError):
        path.symlink_to(SUBMISSION_PICKLE)


def make_directory(directory: Path) -> None:
    """Make it if need be, as open as the one above, never for others to write. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        make_dir(directory, 0o700 | os.stat(directory.parent).st_mode & 0o2050)


def write_atomically(
    path: Path, content: str | bytes, *, by_umask: bool = False, private: bool = False
) -> None:
    """Replace `path` by `content`, never leaving a half-written file under that name.

    It can be read by whom the directory it lies in is open to, and written by its owner alone,
    whatever the umask, unless it is to go `by_umask`; one that is `private` can be read by its
    owner alone, too. Raises OSError; the old content then stands.
    """
    with _written_beside(path, content, by_umask, private) as temporary:
        os.replace(temporary, path)


def write_new(path: Path, content: str | bytes) -> None:
    """Make `path` with `content`, atomically. Raises FileExistsError if it is there, OSError."""
    with _written_beside(path, content, False) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # no hard links here; creating an empty file first is the best option
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            try:
                os.replace(temporary, path)
            except OSError:
                path.unlink(missing_ok=True)
                raise
        else:
            temporary.unlink()


@contextlib.contextmanager
def _written_beside(
    path: Path, content: str | bytes, by_umask: bool, private: bool = False
) -> Iterator[Path]:
    """A file of another name with the content on disk, to be given that of `path`."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(temporary, flags, 0o666 if by_umask else 0o600)
    try:
        with open(number, "wb") as file:
            open_to = 0 if private else os.stat(path.parent).st_mode & 0o044
            if open_to and not by_umask:
                os.fchmod(number, 0o600 | open_to)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(number)
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
