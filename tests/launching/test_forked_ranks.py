"""A forked rank is its script's `__main__` as `python -u script.py` would have started it.

Each program runs twice, forked and started anew by torchelastic's command, and has to tell the
same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fsdpkit.launching.at_start import sitecustomize
from fsdpkit.launching.set_aside import WITH_TORCH
from tests.launching.forking import Ended, Forking, started_anew
from tests.programs import until

pytestmark = pytest.mark.torch
PROBE = Path(__file__).parent / "programs" / "probe.py"
PYTHON = (sys.executable, "-u")
OF_A_RANK = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    with Forking(tmp_path_factory.mktemp("forked")) as forking:
        forking.load(*WITH_TORCH)
        yield forking


def both(
    forking: Forking, command: tuple[str, ...], cwd: Path, environ: dict[str, str] = OF_A_RANK
) -> tuple[Ended, Ended]:
    """The same command forked, and started anew."""
    forked = forking.run(command, environ, cwd=str(cwd))
    return forked, started_anew(command, {**forking.environ, **environ}, cwd)


def told_by(ended: Ended) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    first, *rest = ended.out.splitlines()
    assert rest == ["atexit ran"]
    return dict(json.loads(first))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


# Found by whoever looks long enough: libraries that are loaded already have run their own start,
# and a fork has one stack frame more below the script.
KNOWN = {"frames", "gc"}


@pytest.mark.parametrize("form", ["relative", "absolute", "linked", "module", "package"])
def test_a_forked_rank_finds_what_a_started_one_finds(
    forking: Forking, tmp_path: Path, form: str
) -> None:
    (tmp_path / "probe.py").write_bytes(PROBE.read_bytes())
    write(tmp_path / "own" / "__init__.py", "")
    (tmp_path / "own" / "__main__.py").write_bytes(PROBE.read_bytes())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.py").symlink_to(tmp_path / "probe.py")
    words = {
        "relative": ("probe.py", "--lr", "1e-3", "a b", "ä"),
        "absolute": (str(tmp_path / "probe.py"),),
        "linked": ("elsewhere/link.py",),
        "module": ("-m", "own.__main__", "x"),
        "package": ("-m", "own", "-x"),
    }[form]
    forked, anew = (told_by(e) for e in both(forking, (*PYTHON, *words), tmp_path))
    assert forked.keys() == anew.keys()
    anew["environ_shown"].remove(f"PYTHONPATH={Path(sitecustomize.__file__).parent}")
    different = {key for key in forked if forked[key] != anew[key]} - KNOWN
    assert {key: forked[key] for key in different} == {key: anew[key] for key in different}


# How a program ends: what its last line does, and what its parent, its log and torchrun see of it.
ENDINGS = {
    "the end of the file": "print('done')",
    "sys.exit(3)": "import sys; sys.exit(3)",
    "sys.exit with words": "import sys; sys.exit('no data: /x')",
    "sys.exit(None)": "import sys; sys.exit()",
    "os._exit, nothing flushed": "import os, sys; sys.stdout.write('x'); os._exit(7)",
    "an exception": "def f():\n    raise ValueError('a sample')\n\n\nf()",
    "an exception group of causes": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('x') from e"
    ),
    "a syntax error": "print('never')\nx = = 1",
    "a missing module": "import no_such_module",
    "an exception in atexit": "import atexit\natexit.register(lambda: 1 / 0)\nprint('main')",
    "a hook that asks what is handled": (
        "import sys\nsys.excepthook = lambda *a: print(sys.exc_info())\n1 / 0"
    ),
    "a hook that fails": "import sys\ndef hook(*a): return {}['x']\nsys.excepthook = hook\n1 / 0",
    "a hook that is none": "import sys\nsys.excepthook = None\n1 / 0",
    "no hook": "import sys\ndel sys.excepthook\n1 / 0",
    "a hook of its own": "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\n1 / 0",
    "SIGKILL": "import os\nos.kill(os.getpid(), 9)",
    "SIGSEGV": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "import os\nos.abort()",
    "Ctrl-C": "raise KeyboardInterrupt",
    "Ctrl-C beside a thread and an object": (
        "import threading\nmain = threading.main_thread()\n"
        "threading.Thread(target=lambda: (main.join(), print('thread'))).start()\n"
        "class A:\n    def __del__(self):\n        print('gone')\n\n\na = A()\n"
        "raise KeyboardInterrupt"
    ),
    "SIGINT": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(9)",
    "SIGTERM is ignored": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('on')",
    "a thread that goes on": (
        "import threading\nmain = threading.main_thread()\n"
        "threading.Thread(target=lambda: (main.join(), print('thread'))).start()\nprint('main')"
    ),
    "an error in a thread": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\n"
        "t.start()\nt.join()"
    ),
    "an object that speaks when it goes": (
        "class A:\n    def __del__(self):\n        print('gone')\n\n\na = A()\nprint('main')"
    ),
    "what C prints and does at the end": (
        "import ctypes\nc = ctypes.CDLL(None)\nc.strdup.restype = ctypes.c_void_p\n"
        "c.__cxa_atexit(c.puts, ctypes.c_void_p(c.strdup(b'last')), None)\nc.printf(b'first ')"
    ),
    "output that cannot be written": "import os\nos.close(1)\nprint('x')",
    "faulthandler": "import faulthandler, os\nfaulthandler.enable()\nos.kill(os.getpid(), 11)",
}


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda e: e.replace(" ", "-"))
def test_it_ends_as_it_would_have(forking: Forking, tmp_path: Path, ending: str) -> None:
    (tmp_path / "train.py").write_text(ENDINGS[ending] + "\n")
    forked, anew = both(forking, (*PYTHON, "train.py"), tmp_path)
    assert (forked.status, forked.out) == (anew.status, anew.out)
    assert said(forked) == said(anew)


def said(ended: Ended) -> list[str]:
    """Standard error without addresses; of faulthandler's stacks what the script itself was in."""
    lines = re.sub("0x[0-9a-f]+", "0x0", ended.err).splitlines()
    if any("Fatal Python error" in line for line in lines):
        return [line for line in lines if "/fsdpkit/" not in line and "Extension" not in line][:4]
    return lines


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_processes_that_it_starts_end_when_they_are_told_to(
    forking: Forking, tmp_path: Path, how: str
) -> None:
    """A rank passes over SIGTERM, by which multiprocessing ends pools and processes that it then
    waits for."""
    write(
        tmp_path / "train.py",
        f"""
        import multiprocessing as mp
        import signal
        import subprocess
        import time

        if __name__ == "__main__":
            own = mp.get_context({how!r})
            process = own.Process(target=time.sleep, args=(60,))
            process.start()
            process.terminate()
            process.join()
            with own.Pool(2) as pool:
                print(pool.map(abs, [-1, -2]))
            program = subprocess.Popen(["sleep", "60"])
            program.terminate()
            signal.raise_signal(signal.SIGTERM)
            print(process.exitcode, program.wait())
        """,
    )
    for ended in both(forking, (*PYTHON, "train.py"), tmp_path):
        assert (ended.status, ended.out, ended.err) == (0, "[1, 2]\n-15 -15\n", "")


def test_a_loader_s_workers_and_a_process_group_work(forking: Forking, tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            print([batch.tolist() for batch in DataLoader(range(8), 4, num_workers=2)])
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            total = torch.ones(3)
            dist.all_reduce(total)
            print(total.tolist(), torch.get_num_threads())
            dist.destroy_process_group()
        """,
    )
    forked, anew = both(forking, (*PYTHON, "train.py"), tmp_path)
    assert forked.status == 0, forked.err
    assert forked == anew


def test_a_file_beside_the_script_wins_over_a_loaded_library_by_a_cold_start(
    forking: Forking, tmp_path: Path
) -> None:
    write(tmp_path / "train.py", "import torch.utils.data\n")
    write(tmp_path / "fractions.py", "mine = True\n")
    command = (*PYTHON, str(tmp_path / "train.py"))
    assert "fractions.py" in forking.start(command)["cold"]
    (tmp_path / "fractions.py").unlink()
    assert forking.run(command).status == 0


def test_a_variable_that_torch_read_when_it_was_loaded_makes_it_a_cold_start(
    forking: Forking, tmp_path: Path
) -> None:
    script = write(tmp_path / "train.py", "print('x')\n")
    answer = forking.start((*PYTHON, str(script)), {"TORCH_LOGS": "+dynamo"})
    assert "TORCH_LOGS" in answer["cold"]


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-u", "-O", "train.py"),
        (sys.executable, "-c", "print(1)"),
        ("/bin/bash", "train.sh"),
        (sys.executable, "-u", "no-such.py"),
    ],
    ids=["options", "-c", "another-program", "no-file"],
)
def test_what_this_interpreter_cannot_become_is_started_anew(
    forking: Forking, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    assert "cold" in forking.start(command, cwd=str(tmp_path))


def test_a_rank_runs_on_when_the_server_is_killed_and_the_next_starts_anew(
    tmp_path: Path,
) -> None:
    script = write(tmp_path / "train.py", "import time, sys\ntime.sleep(1)\nsys.exit(4)\n")
    with Forking(tmp_path) as forking:
        rank = forking.start((*PYTHON, str(script)))
        os.kill(forking.server, signal.SIGKILL)
        assert forking.wait(rank).status == 4
        assert "ended" in forking.start((*PYTHON, str(script)))["cold"]


UNSAFE = {
    "a thread": (
        "import threading\nend = threading.Event()\n"
        "threading.Thread(target=end.wait, daemon=True).start()"
    ),
    "a socket": "import socket\nkept = socket.create_server(('127.0.0.1', 0))",
    "a process": "import subprocess\nkept = subprocess.Popen(['sleep', '30'])",
    "a lock": "import multiprocessing\nlock = multiprocessing.Lock()",
    "the rank's number": "import os\nrank = os.environ.get('RANK')",
    "an end": "import os\nos._exit(5)",
    "an error": "raise RuntimeError('not on this machine')",
}


def test_a_library_that_cannot_be_loaded_ahead_is_loaded_by_each_rank(tmp_path: Path) -> None:
    """The server goes on with torch alone; the rank meets the library itself."""
    names = {what: f"unsafe_{number}" for number, what in enumerate(UNSAFE)}
    for what, name in names.items():
        write(tmp_path / "installed" / f"{name}.py", UNSAFE[what])
    found = {}
    with Forking(tmp_path, {"PYTHONPATH": f"{tmp_path / 'installed'}:{os.getcwd()}"}) as forking:
        for what, name in names.items():
            script = write(tmp_path / "own" / "train.py", f"import torch\nimport {name}\nprint(1)")
            forking.load(name)
            rank = forking.start((*PYTHON, str(script)), {"RANK": "1"})
            assert "pid" in rank, (what, rank)
            ended = forking.wait(rank)
            found[what] = (ended.status, ended.out)
    ends = {"an end": (5, ""), "an error": (1, "")}
    assert found == {what: ends.get(what, (0, "1\n")) for what in UNSAFE}


def test_nothing_outlives_the_agent(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "import time\nprint('on', flush=True)\ntime.sleep(600)")
    forking = Forking(tmp_path)
    rank = forking.start((*PYTHON, str(script)))
    forking.process.kill()
    forking.process.wait()
    for pid in (forking.server, int(rank["pid"])):
        wait_gone(pid)


def wait_gone(pid: int) -> None:
    """Until it has ended; whoever is its parent by then may not have asked how."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        until(lambda: process.status() == psutil.STATUS_ZOMBIE, f"end of process {pid}")
