"""The one exception hierarchy, and what each kind of failure exits with.

An error is written for the person who reads it: what was wrong, where, what to do. The exit codes
follow sysexits.h where it has a word for the case, so a script can tell "you typed something
wrong" from "the cluster said no" without reading the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FsdpkitError(Exception):
    """Base of all errors that fsdpkit raises on purpose; `exit_code` is the process's status.

    Its text says what was wrong, where, and what to do; `cause` is what `diagnose` calls it where
    it ends a job (failures/causes.py).
    """

    exit_code = 70  # EX_SOFTWARE: only for kinds that name none of their own
    cause = "exception"


class UsageError(FsdpkitError):
    """The command line or a Python call asks for something that does not exist or fit."""

    exit_code = 2
    cause = "settings"


class ConfigError(FsdpkitError):
    """A job, site or template file, or a `--set`, is wrong; names file, key and remedy."""

    exit_code = 65  # EX_DATAERR
    cause = "settings"


class NotFoundError(FsdpkitError):
    """An unknown job, site, template or run, or a script that does not exist."""

    exit_code = 66  # EX_NOINPUT
    cause = "settings"


class RenderError(FsdpkitError):
    """A template cannot be trusted or does not render."""

    exit_code = 65


class SchedulerError(FsdpkitError):
    """Slurm (or the local cluster) refused, or could not be asked."""

    exit_code = 69  # EX_UNAVAILABLE


class SubmissionInterrupted(KeyboardInterrupt):
    """Ctrl-C while sbatch was called: Slurm may have the job, so its run is kept."""


class RemoteError(FsdpkitError):
    """The login node could not be reached, or has no fsdpkit that understands this one."""

    exit_code = 69


class TrackerError(FsdpkitError):
    """A tracker (MLflow, W&B) refused what it was sent, or could not be reached."""

    exit_code = 69


class StorageError(FsdpkitError):
    """The run directory cannot be made, written or read."""

    exit_code = 74  # EX_IOERR
    cause = "storage"


class DamagedError(StorageError):
    """A file is not what was written: missing, torn or changed."""


@contextmanager
def storage_errors(
    what: object, verb: str, kind: type[FsdpkitError] = StorageError
) -> Iterator[None]:
    """Raises an OSError as `kind`, which says that `what` cannot be read, written or the like."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} cannot be {verb}: {error.strerror}") from error


class NodeError(FsdpkitError):
    """A node failed its check before training; nothing was started on it."""

    exit_code = 78  # EX_CONFIG

    def __init__(self, message: str, cause: str = "settings") -> None:
        super().__init__(message)
        self.cause = cause


class NodeLostError(FsdpkitError):
    """A node of the job, or the way to it, is gone."""

    exit_code = 71  # EX_OSERR
    cause = "node-failure"


class BrokenNodeError(NodeError):
    """A node failed its check in a way that speaks against the node: another one may do."""

    exit_code = NodeLostError.exit_code


class NotMetError(NodeError):
    """A node waited in vain for the agent of another, which may be where it failed."""


class PortTakenError(NodeError):
    """Somebody took the head node's port after it had been found free. It speaks against no node,
    and the job's next attempt has another port."""

    exit_code = NodeLostError.exit_code

    def __init__(self, port: int, why: str) -> None:
        super().__init__(
            f"port {port} is taken on the head node ({why}) although it was free a moment ago; the "
            "next attempt has another one; to keep away from whoever takes them, move "
            "rendezvous.port_base in the site profile",
            "port-taken",
        )


class FunctionError(FsdpkitError):
    """A function that ranks called did not return on all of them.

    Attributes:
        rank: The first rank that failed; None where it is not known.
        traceback: That rank's traceback, as text; empty where it is not known.
    """

    exit_code = 1

    def __init__(self, message: str, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback


STEP_FAILED = 79
"""Exit status of a job one of whose own `[steps]` failed; the template's script exits with it."""

STOPPED_EARLY = 75
"""Exit status (EX_TEMPFAIL) of a trainer that was asked to stop and saved a checkpoint first."""
