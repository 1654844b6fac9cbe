"""A forked rank's script meets torch, and other libraries that are loaded, when it imports them.

In each case the script has to print what the same one prints that is started anew.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.launching.set_aside import WITH_TORCH
from fsdpkit.runs.heartbeat import HeartbeatDir
from tests.launching.forking import Ended, Forking, started_anew

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("aside")
    library = "import os\nread = os.environ.get('LIBRARY_SIZE')\nos.environ['LIBRARY'] = 'loaded'\n"
    for name, text in {
        "installed/library/__init__.py": f"{library}from library import part\n",
        "installed/library/part.py": "class Part: pass\n",
        "own/env.py": "import os\nos.environ['OMP_NUM_THREADS'] = '2'\n",
        "own/src/profile.py": "mine = True\n",
        "own/src/library.py": "read = 'mine'\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "node").mkdir()
    return place


@pytest.fixture(scope="module")
def forking(where: Path) -> Iterator[Forking]:
    path = f"{where / 'installed'}:{os.getcwd()}"
    with Forking(where, {"PYTHONPATH": path, "FSDPKIT_HEARTBEAT_DIR": str(where / "node")}) as it:
        it.load(*WITH_TORCH)
        it.load("library")
        yield it


def run(
    forking: Forking, where: Path, text: str, *, cold: bool = True, **more: str
) -> tuple[Ended, str | None]:
    """How the forked rank ended, which is how one started anew ends, and what it noted."""
    node = HeartbeatDir(where / "node")
    (node.dir / "anew").unlink(missing_ok=True)
    (where / "own" / "train.py").write_text(textwrap.dedent(text))
    command = (sys.executable, "-u", "train.py")
    forked = forking.run(command, {"RANK": "0", **more}, cwd=str(where / "own"))
    noted = node.why_start_anew()
    if cold:
        assert forked == started_anew(command, {**forking.environ, "RANK": "0"}, where / "own")
    return forked, noted


SAME = {
    "what is loaded before and after": """
        import sys, warnings
        def seen():
            names = ("numpy", "torch", "sympy", "torch._dynamo", "torch.distributed.fsdp")
            print([n for n in names if n in sys.modules], len(warnings.filters))
        seen()
        import numpy
        seen()
        import torch
        seen()
        print(hasattr(torch.distributed, "fsdp"))
        torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
        seen()
        import library
        seen()
        """,
    "a question whether there is one": """
        import importlib.util, os, sys
        found = importlib.util.find_spec("library")
        os.environ["LIBRARY_SIZE"], before = "1", os.environ.get("LIBRARY")
        del os.environ["LIBRARY_SIZE"]
        import library
        print(found.origin, before, os.environ["LIBRARY"], library.__spec__.loader.name)
        print(library.part.Part.__module__)
        """,
    "a process that is forked": """
        import os
        if not os.fork():
            import torch
            print(torch.ones(2).sum())
        else:
            os.wait()
        """,
    "loggers of after its configuration, and a module that only torch's compiler needs": """
        import logging.config, sys
        logging.config.dictConfig({"version": 1})
        import torch
        print(logging.getLogger("torch").disabled)
        sys.path.insert(0, "src")
        import profile
        print(profile.mine)
        """,
    "no import of it": "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nos.chdir('/')\nprint(1)",
    "an import when all is done": """
        import atexit, os
        os.environ["OMP_NUM_THREADS"] = "2"
        print("done")
        @atexit.register
        def last():
            import library
        """,
}


@pytest.mark.parametrize("what", SAME, ids=lambda what: what.replace(" ", "-"))
def test_what_is_as_it_was_when_the_rank_was_forked_is_put_back(
    forking: Forking, where: Path, what: str
) -> None:
    ended, noted = run(forking, where, SAME[what])
    assert (ended.status, ended.err, noted) == (0, "", None)


def test_what_has_changed_makes_a_start_of_its_own_of_which_nothing_else_is_left(
    forking: Forking, where: Path
) -> None:
    """No output twice, no signal ignored, no file inherited, no process left."""
    ended, noted = run(
        forking,
        where,
        """
        import os, signal, subprocess, sys, threading
        print("begins")
        print("errors", file=sys.stderr)
        print(os.listdir("/proc/self/fd"), signal.getsignal(signal.SIGUSR2).__name__, os.getcwd())
        print(signal.getsignal(signal.SIGHUP), os.umask(0o77), os.environ.get("PYTHONPATH"))
        with open("/proc/self/task/%d/children" % os.getpid()) as file:
            print(file.read())
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        os.dup2(1, 44)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        left = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL)
        os.chdir("/")
        sys.path.insert(0, os.path.dirname(__file__))
        import env
        import torch
        print(torch.get_num_threads())
        left.kill()
        """,
    )
    assert ended.out.startswith("begins\n")
    assert ended.err == "errors\n"
    assert noted == "OMP_NUM_THREADS changed before torch was imported, at train.py:16"


def test_a_process_of_the_script_s_ends_rather_than_take_torch_from_elsewhere(
    forking: Forking, where: Path
) -> None:
    """It cannot be started anew, for the process that started it goes on."""
    ended, noted = run(
        forking,
        where,
        """
        import os, sys
        if not os.fork():
            sys.path[:] = [place for place in sys.path if "site-packages" not in place]
            try:
                import torch
            except ImportError:
                pass
        else:
            print(os.wait()[1] >> 8)
        """,
        cold=False,
    )
    assert (ended.status, ended.out) == (0, "1\n")
    assert "was taken from sys.path" in (noted or "")
