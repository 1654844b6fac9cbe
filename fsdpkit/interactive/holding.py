"""`fsdpkit.hold`: nodes that one function after another runs on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.interactive.running import outcome, watching
from fsdpkit.scheduling.functions import submit_function
from fsdpkit.scheduling.holding import HOLD_JOB, hold_args, until_ready
from fsdpkit.scheduling.kept import KeptRanks, start_kept
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.submission import submit

if TYPE_CHECKING:
    from typing_extensions import Self


def hold(
    name: str | os.PathLike[str] | None = None,
    /,
    *,
    idle_s: int | None = None,
    runs: str | os.PathLike[str] | None = None,
    **options: Any,
) -> HeldNodes:
    """Get nodes once, as `fsdpkit hold` does, and wait until they are there.

    Args:
        name: Id or path of a hold that exists already; leaving `with` does not release it.
        idle_s: Seconds without a run after which the nodes are given back; None: 900, or what the
            cluster allows.
        runs: Directory of runs; None: `$FSDPKIT_RUNS`, else `./runs`.
        **options: Of `submit`: nodes, gpus, time, cluster, partition, account, sets.

    Returns:
        The nodes, to be used with `with`, or until `release()`.

    Raises:
        UsageError: The cluster lets nobody hold nodes for so long, or the run is no hold.
        SchedulerError: The hold ended before its nodes were there.
        FsdpkitError: What else `submit` raises.

    Examples:
        >>> import fsdpkit
        >>> with fsdpkit.hold(nodes=2, gpus=4) as nodes:    # doctest: +SKIP
        ...     nodes.run(print, "on each rank")
        ...     nodes.run(print, "again, at once")
    """
    if name is not None:
        run = Run.open(name, runs=runs)
        if not run.record.holds or options:
            raise UsageError(f"{run.id} is no hold, or has its nodes already: ask nothing of it")
    else:
        own = hold_args(idle_s, options.get("cluster"))
        run = submit(HOLD_JOB, args=own, runs=runs, **options)
    try:
        with watching(run) as tell:
            state = until_ready(run, tell)
            tell(state)
    except BaseException:
        if name is None:
            run.cancel()
        raise
    if state.phase != "running":
        why = run.first_failure() or "see its log"
        raise SchedulerError(f"the hold {run.id} has no nodes: {state.describe()}; {why}")
    return HeldNodes(run, _is_own=name is None)


@dataclass
class HeldNodes:
    """Nodes that wait for functions. Leaving `with` releases them if `hold` got them.

    Attributes:
        hold: The run whose nodes they are.
    """

    hold: Run
    _is_own: bool
    _kept: list[KeptRanks] = field(default_factory=list)

    def run(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> list[Any]:
        """Call `function(*args)` on new ranks, as `fsdpkit.run` does.

        An interrupt ends the ranks, not the hold.

        Args:
            function: Called on each rank; it is pickled with the variables it uses.
            *args: Its arguments.
            **options: Of `submit_function`; nodes and gpus are all that are free by default.

        Returns:
            What each rank returned, in rank order.

        Raises:
            FunctionError: A rank raised or ended without returning.
            FsdpkitError: What `submit` raises, as when no node is free.
        """
        run = submit_function(function, *args, **{**self._place, **options})
        try:
            return outcome(run)
        except KeyboardInterrupt:
            run.cancel()
            run.wait(poll_s=1.0)
            raise

    def keep(self, **options: Any) -> KeptRanks:
        """Start ranks that stay: what one function makes is there for the next.

        They end by their `end()`, with the hold, and when no call has come for 0.9 of the time that
        the hold may be idle; while they wait the hold counts as idle.

        Args:
            **options: Of `submit_function`; nodes and gpus are all that are free by default.

        Returns:
            The ranks, which start in the background.

        Raises:
            FsdpkitError: What `submit` raises, as when no node is free.
        """
        self._kept.append(start_kept(self.hold, watching, **{**self._place, **options}))
        return self._kept[-1]

    def release(self) -> None:
        """Give the nodes back; what runs on them ends. Does nothing if they are gone.

        Raises:
            SchedulerError: Slurm could not be asked.
            StorageError: The request cannot be written.
        """
        try:
            for ranks in self._kept:
                ranks.end()
        finally:
            state = self.hold.state()
            if state is None or not state.over:
                self.hold.cancel(save=True)

    @property
    def _place(self) -> dict[str, Any]:
        """What to submit with; what is not said are the free nodes."""
        record = self.hold.record
        at = {"runs": self.hold.dir.parent, "cluster": record.site_file or record.site}
        return {"on": str(self.hold.dir), "nodes": None, "gpus": None, **at}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_own:
            self.release()
