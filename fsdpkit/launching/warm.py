"""`launch.warm` of a job on this node: its fork server, or why its ranks get a cold start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdpkit.config.launch import LaunchSettings
from fsdpkit.errors import NodeError, StorageError
from fsdpkit.launching import fork_server, preloading
from fsdpkit.launching.fork_server import ForkServer
from fsdpkit.launching.preloading import Preload
from fsdpkit.launching.program import ColdStartError, Program, ServerLostError
from fsdpkit.launching.saying import say
from fsdpkit.runs.job_file import table_of_job
from fsdpkit.runs.layout import AttemptPaths

if TYPE_CHECKING:
    from fsdpkit.launching.ranks import RankForks


@dataclass
class _Here:
    """This process's fork server, or why it has none (None: nobody wants one)."""

    server: ForkServer | None = None
    why_not: str | None = None
    program: Program | None = None
    preload: Preload | None = None
    """What the server has loaded because of the program."""


_here = _Here()


def start(environ: Mapping[str, str]) -> Program | None:
    """Start this node's fork server, unless the job says `off`.

    Returns None to the agent, and to each rank the program that it is to run. The checks before
    training report any problem with torch or the run's directory.
    """
    try:
        if _launch(environ).warm == "off":
            return None
        started = fork_server.start()
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


def prepare(arguments: list[str], attempt: AttemptPaths, environ: Mapping[str, str]) -> None:
    """Let the server load what the script will import; end it where that is not safe.

    arguments: torchrun's. Does not wait.
    """
    if _here.server is None:
        return
    try:
        from fsdpkit.launching.ranks import Torchrun

        program = Program.parse(Torchrun.parse(arguments, attempt).command)
        preloads = preloading.preloads_of(program, _launch(environ).preload)
        _here.program, _here.preload = program, preloads[0]
        for preload in preloads:
            _here.server.preload(preload)
    # torch lacks something we need, which the checks will report; or a file cannot be read.
    except (ColdStartError, ImportError, OSError, StorageError) as error:
        _here.server.close()
        _here.server, _here.why_not = None, str(error)


def forks(environ: Mapping[str, str], record: Callable[..., Any]) -> RankForks:
    """How this node starts its ranks. Each reason why one cannot be forked is reported once.

    Raises NodeError, now or at a launch, if the job insists on forked ranks.
    """
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
    return RankForks(_here.server, refused, _read_again)


def _read_again() -> None:
    """Heed what has changed in the program's source since the server read it: people edit a script
    while it runs. Raises ColdStartError if what is loaded may no longer be loaded before it."""
    if _here.server is None or _here.program is None or _here.preload is None:
        return
    now, before = preloading.preload_of(_here.program), _here.preload
    if gone := [name for name in before.modules if name not in now.modules]:
        raise ColdStartError(f"the program has changed, and {gone[0]} is already loaded")
    if now.directories != before.directories:
        _here.server.preload(Preload((), now.directories))
        _here.preload = Preload(before.modules, now.directories)


def _launch(environ: Mapping[str, str]) -> LaunchSettings:
    return table_of_job(Path(environ["FSDPKIT_RUN_DIR"]), "launch", LaunchSettings)
