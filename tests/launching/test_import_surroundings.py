"""What of a script's first lines a library could notice when it is imported after them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.programs import ran

UNNOTICED = [
    "os.environ['RANK'] = '7'",
    "os.environ['CUDA_VISIBLE_DEVICES'] = '0'; os.environ.setdefault('NCCL_DEBUG', 'INFO')",
    "os.environ['A'] = 'b'; del os.environ['A']",
    "sys.path.insert(0, '/opt/own'); sys.path.append('own'); sys.path.insert(0, 'own')",
    "sys.path.append('shadow')",
    "sys.path.pop(0)",
    "sys.path = list(sys.path)",
    "sys.meta_path.append(Hook('msgspec'))",
    "sys.meta_path.insert(0, Hook('model'))",
    "warnings.simplefilter('ignore'); warnings.filterwarnings('always', module='x')",
    "import multiprocessing; multiprocessing.set_start_method('spawn')",
    "import logging; logging.basicConfig(level='DEBUG')",
    "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
]
NOTICED = {
    "os.environ['OMP_NUM_THREADS'] = '4'": "OMP_NUM_THREADS changed",
    "os.environ.pop('PATH')": "PATH changed",
    "os.environ |= {'B': '1', 'A': '1'}": "A, B changed",
    "os.environb[b'A'] = b'\\xff'": "A changed",
    "os.putenv('A', 'b')": "A changed",
    "import ctypes; ctypes.CDLL(None).setenv(b'A', b'b', 1)": "A changed",
    "os.environ = {'A': 'b'}": "changed",
    "os.chdir('/')": "the working directory changed",
    "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})": "the CPUs that it may use changed",
    "sys.setdlopenflags(2 | 256)": "the flags of dlopen changed",
    "warnings.simplefilter('error')": "warnings were made errors",
    "sys.path.insert(0, 'shadow')": "shadow/msgspec.py was added to what is found",
    "sys.path.append('more')": "more/absent was added to what is found",
    "sys.path.insert(0, 'zipped.egg')": "zipped.egg was added to sys.path",
    "sys.path.reverse()": "sys.path was put in another order",
    "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]": "was taken from sys.path",
    "sys.meta_path.insert(0, Hook('msgspec'))": "sys.meta_path changed",
    "builtins.__import__ = lambda *a, **k: None": "builtins.__import__ changed",
}
TRIALS = """
import builtins, json, os, sys, warnings
import msgspec
from fsdpkit.launching.import_surroundings import ImportSurroundings
class Hook:
    def __init__(self, name):
        self.name = name
    def find_spec(self, name, path=None, target=None):
        return name if name == self.name else None
before = ImportSurroundings.now()
for text in json.load(sys.stdin):
    reads, writes = os.pipe()
    if not os.fork():
        exec(text)
        found = before.modules_changed({"msgspec": msgspec}, {"absent"})
        found = found or before.settings_changed()
        os.write(writes, f"{found}\\n".encode())
        os._exit(0)
    os.wait()
    print(os.read(reads, 4096).decode(), end="", flush=True)
"""


def test_what_an_import_would_notice_and_nothing_else_is_a_difference(tmp_path: Path) -> None:
    for name in ("own/model.py", "shadow/msgspec.py", "more/absent/__init__.py", "zipped.egg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "trials.py").write_text(TRIALS)
    done = ran(
        [sys.executable, "trials.py"],
        input=json.dumps([*UNNOTICED, *NOTICED]),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    found = dict(zip([*UNNOTICED, *NOTICED], done.stdout.splitlines(), strict=True))
    assert done.stderr == ""
    assert {text: found[text] for text in UNNOTICED} == dict.fromkeys(UNNOTICED, "None")
    assert {text: why for text, why in NOTICED.items() if why not in found[text]} == {}, found
