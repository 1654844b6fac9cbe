"""What Python does first in a rank: pass over Slurm's warnings, and let what the rank starts heed
them.

Slurm sends SIGTERM to every process of a step, and a rank is to live on until it has saved. If it
ignored the signal, so would all that it forks or executes: `Popen.terminate()` would do nothing,
and leaving `with multiprocessing.Pool()` would wait for ever. A handler ends with exec, and forked
children take it away. A rank that replaces its program by exec is still the rank.

A rank that is started anew (`ranks.py`), or goes on as another program, begins with the signals
ignored and this directory first on PYTHONPATH. Whatever Python it is takes this module for its
site's own. Afterwards path and environment are as before, and the site's own module runs. So this
needs the standard library alone (of Python 3.7 or later), and little of it: the script may want to
be first to import the rest. Without it (`python -I`), the signals stay ignored.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any

WARNINGS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def pass_over_warnings() -> None:
    """Each of these signals that is ignored has no effect here, and its usual one in processes that
    are forked from here or are other programs; none that is sent meanwhile is lost."""
    ours = [number for number in WARNINGS if signal.getsignal(number) is signal.SIG_IGN]
    usual = _thread._local()

    def change(before: Any, after: Any) -> list[signal.Signals]:
        changed = [number for number in ours if signal.getsignal(number) is before]
        for number in changed:
            signal.signal(number, after)
        return changed

    def hold() -> None:
        usual.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ours)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual.mask)

    def heed() -> None:
        change(_pass_over, signal.SIG_DFL)
        release()

    change(signal.SIG_IGN, _pass_over)
    for number in ours:
        signal.siginterrupt(number, False)
    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=heed)
    # Python gives its handlers up while it ends.
    atexit.register(change, _pass_over, signal.SIG_IGN)
    _remain_a_rank_in_exec(change)


def _pass_over(number: int, _: object) -> None:
    """The agent's own warning, SIGUSR1, goes to the script's handler for SIGTERM if it has one. Who
    has none says so: its end has nothing to do with the warning."""
    directory = os.environ.get("FSDPKIT_HEARTBEAT_DIR")
    if number != signal.SIGUSR1 or directory is None:
        return
    handler = signal.getsignal(signal.SIGTERM)
    if handler is _pass_over or not callable(handler):
        mark = os.path.join(directory, "unheard-" + os.environ.get("LOCAL_RANK", ""))
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError:
            return
    elif not os.path.exists(os.path.join(directory, "terminated")):  # Slurm has sent it one
        os.kill(os.getpid(), signal.SIGTERM)


def _remain_a_rank_in_exec(change: Callable[[Any, Any], list[signal.Signals]]) -> None:
    """Let this process's next program begin as the rank that it is."""
    execv, execve = os.execv, os.execve

    def execute(environ: MutableMapping[Any, Any], call: Callable[[], object]) -> None:
        before = environ.get("PYTHONPATH")
        try:
            ignored = change(_pass_over, signal.SIG_IGN)
        except ValueError:  # only the main thread may do that
            ignored = []
        if ignored:
            others = os.fsdecode(before or "")
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_HERE, others)))
        try:
            call()
        finally:  # there is no such program
            for number in ignored:
                signal.signal(number, _pass_over)
            if ignored and before is None:
                del environ["PYTHONPATH"]
            elif ignored:
                environ["PYTHONPATH"] = before

    def with_own(path: Any, argv: Any) -> None:
        execute(os.environ, lambda: execv(path, argv))

    def with_given(path: Any, argv: Any, env: Any) -> None:
        given = {os.fsdecode(name): value for name, value in dict(env).items()}
        execute(given, lambda: execve(path, argv, given))

    os.execv, os.execve = with_own, with_given  # type: ignore[assignment]


_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    if "FSDPKIT_HEARTBEAT_DIR" in os.environ:
        import caught  # type: ignore  # this directory is still on the path
        import in_rank  # type: ignore

        caught.begin()
        caught.watch_interpreter()
        in_rank.begin()
        del sys.modules["in_rank"], sys.modules["caught"]
    sys.path[:] = [place for place in sys.path if place != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    first, more, others = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == _HERE:
        if more:
            os.environ["PYTHONPATH"] = others
        else:
            del os.environ["PYTHONPATH"]
    pass_over_warnings()
    del sys.modules["sitecustomize"]
    # If there is none, the error is what Python expects.
    import sitecustomize  # type: ignore  # noqa: F401


if __name__ == "sitecustomize":
    _begin()
