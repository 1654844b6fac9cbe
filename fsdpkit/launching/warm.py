"""`launch.warm` of a job on this node: its fork server, or why its ranks get a cold start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdpkit.config.launch import LaunchSettings
from fsdpkit.errors import NodeError, StorageError
from fsdpkit.launching.job_log import say
from fsdpkit.launching.program import ColdStartError, Program, ServerLostError
from fsdpkit.runs.job_file import table_of_job

if TYPE_CHECKING:
    from fsdpkit.launching.fork_server import ForkServer, LoadedTorch
    from fsdpkit.launching.ranks import RankForks


@dataclass
class _Here:
    """This process's fork server, or why it has none (None: nobody wants one)."""

    server: ForkServer | None = None
    why_not: str | None = None


_here = _Here()


def start(environ: Mapping[str, str], loaded: LoadedTorch | None = None) -> Program | None:
    """Start this node's fork server, unless the job says `off`. loaded: what this process was
    forked with. Returns None to the agent, and to each rank the program that it is to run. The
    checks before training report any problem with torch or the run's directory."""
    try:
        if _launch(environ).warm == "off":
            return None
        from fsdpkit.launching import fork_server

        started = fork_server.start(loaded)
    except ColdStartError as error:
        _here.why_not = str(error)
        return None
    except (KeyError, OSError, ImportError, AttributeError, StorageError) as error:
        _here.why_not = f"{type(error).__name__}: {error}"
        return None
    if isinstance(started, Program):
        return started
    _here.server = started
    return None


def prepare(environ: Mapping[str, str]) -> None:
    """Let the server load what ranks come to need, and what the job names. Does not wait."""
    if (server := _here.server) is None:
        return
    from fsdpkit.launching.set_aside import TRAINER, WITH_TORCH

    run = Path(environ["FSDPKIT_RUN_DIR"])
    trainer = TRAINER if table_of_job(run, "training", dict[str, Any]) else ()
    server.preload(*WITH_TORCH, *trainer)
    for name in _launch(environ).preload:  # one that turns out to be unsafe affects only itself
        server.preload(name)


def forks(environ: Mapping[str, str], record: Callable[..., Any]) -> RankForks:
    """How this node starts its ranks. Each reason why one cannot be forked is reported once. Raises
    NodeError, now or at a launch, if the job insists on forked ranks."""
    from fsdpkit.launching.ranks import RankForks

    wanted, told = _launch(environ).warm, set[str]()

    def refused(error: ColdStartError) -> None:
        why = str(error)
        if wanted == "on" and not isinstance(error, ServerLostError):
            raise NodeError(
                f'launch.warm = "on", but ranks cannot be forked: {why}; with "auto" they are '
                "started anew"
            )
        if why not in told:
            told.add(why)
            record(event="ranks-not-forked", reason=why)
            say(f"ranks are started anew, not forked: {why}")

    if _here.server is None and _here.why_not is not None:
        refused(ColdStartError(_here.why_not))
    return RankForks(_here.server, refused)


def _launch(environ: Mapping[str, str]) -> LaunchSettings:
    return table_of_job(Path(environ["FSDPKIT_RUN_DIR"]), "launch", LaunchSettings)
