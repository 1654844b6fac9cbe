"""What Python does first in a rank: pass over Slurm's warnings, and let what the rank starts heed
them.

Slurm sends SIGTERM to every process of a step, and a rank is to live on until it has saved. If it
ignored the signal, so would all that it forks or executes: `Popen.terminate()` would do nothing,
and leaving `with multiprocessing.Pool()` would wait for ever. A handler ends with exec, and forked
children take it away.

A rank that is started anew begins with the signals ignored and this directory first on PYTHONPATH
(`ranks.py`). Whatever Python it is takes this module for its site's own. Afterwards path and
environment are as before, and the site's own module runs. So this needs the standard library alone
(of Python 3.7 or later), and little of it: the script may want to be first to import the rest.
Without it (`python -I`), the signals stay ignored.
"""

import _thread
import atexit
import os
import signal
import sys

WARNINGS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def pass_over_warnings() -> None:
    """Each of these signals that is ignored has no effect here, and its usual one in processes that
    are forked or executed from here; none that is sent meanwhile is lost."""
    ours = [number for number in WARNINGS if signal.getsignal(number) is signal.SIG_IGN]
    usual = _thread._local()

    def change(before: object, after: object) -> None:
        for number in ours:
            if signal.getsignal(number) is before:
                signal.signal(number, after)  # type: ignore[arg-type]

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


def _pass_over(*_: object) -> None:
    pass


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place != here]
    sys.path_importer_cache.pop(here, None)
    first, more, others = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == here:
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
