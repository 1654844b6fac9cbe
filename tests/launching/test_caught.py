"""A rank records the exception that ends it, forked or started anew, and ends as it would have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fsdpkit.errors import STOPPED_EARLY
from fsdpkit.failures.ends import ProcessEnd, explain
from fsdpkit.runs.layout import error_file, raised_beside
from fsdpkit.runs.raised import RaisedRecord, read_raised
from tests.launching.forking import Ended, Forking, started_anew
from tests.launching.test_forked_ranks import ENDINGS, said

pytestmark = pytest.mark.torch
COMMAND = (sys.executable, "-u", "train.py")


class Rank(NamedTuple):
    """A rank that runs `train.py` in a directory, where its node's memory lies, too."""

    dir: Path
    start: Callable[[dict[str, str]], Ended]

    def run(self, script: str, *, recorded: bool = True) -> Ended:
        (self.dir / "train.py").write_text(script + "\n")
        memory = self.dir / "memory"
        memory.mkdir(exist_ok=True)
        environ = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}
        environ["FSDPKIT_HEARTBEAT_DIR"] = str(memory)
        if recorded:
            environ["TORCHELASTIC_ERROR_FILE"] = str(error_file(memory, 2, 0))
        return self.start(environ)

    @property
    def file(self) -> Path:
        return raised_beside(error_file(self.dir / "memory", 2, 0))

    def record(self) -> RaisedRecord:
        record = read_raised(self.file)
        assert record is not None
        return record


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    with Forking(tmp_path_factory.mktemp("forked")) as forking:
        yield forking


@pytest.fixture
def forked(forking: Forking, tmp_path: Path) -> Rank:
    return Rank(tmp_path, lambda environ: forking.run(COMMAND, environ, cwd=str(tmp_path)))


@pytest.fixture(params=["forked", "anew"])
def rank(request: pytest.FixtureRequest, forking: Forking, tmp_path: Path) -> Rank:
    if request.param == "forked":
        return Rank(tmp_path, lambda environ: forking.run(COMMAND, environ, cwd=str(tmp_path)))
    return Rank(
        tmp_path, lambda environ: started_anew(COMMAND, {**forking.environ, **environ}, tmp_path)
    )


FULL = """
import sys
def save():
    try:
        raise OSError(28, "No space left on device", "/data/x")
    except OSError as error:
        raise ValueError("not saved") from error
sys.excepthook = {hook}
save()
"""
HOOKS = {
    "python's": "sys.excepthook",
    "a silent one": "lambda *_: None",
    "one that fails": "lambda *_: {}['x']",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_what_led_to_it_is_recorded_whatever_the_script_s_hook_prints(
    rank: Rank, hook: str
) -> None:
    assert rank.run(FULL.format(hook=HOOKS[hook])).status == 1
    record = rank.record()
    newest, oldest = record.chain
    assert (record.status, newest.type, newest.meant) == (1, "ValueError", True)
    assert (oldest.type, oldest.errno) == ("OSError", 28)
    assert newest.own == (str(rank.dir / "train.py"), 7, "save")
    assert newest.source == 'raise ValueError("not saved") from error'
    assert [function for *_, function in newest.frames] == ["<module>", "save"]


def test_what_ends_a_thread_has_not_ended_the_rank(rank: Rank) -> None:
    script = "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()\n"
    assert rank.run(script).status == 0
    assert not rank.file.exists()
    assert rank.run(script + "raise RuntimeError('later')").status == 1
    assert rank.record().chain[0].message == "later"


ODD = {
    "its str() raises": (
        "class Odd(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise Odd",
        "str() failed",
    ),
    "10 MB of words": ("raise ValueError('begin' + 'x' * 10 ** 7 + 'end')", "end"),
    "neither text nor UTF-8": ("raise ValueError('\\udc80 \\x1b[31m \\0')", "\\udc80 \x1b[31m \0"),
    "too deep": ("def f(): f()\nf()", "recursion"),
    "a circle": (
        "a, b = ValueError('a'), ValueError('b')\na.__context__, b.__context__ = b, a\nraise a",
        "a",
    ),
    "no source": ("exec(compile('1 / 0', '/gone.py', 'exec'))", "zero"),
    "Ctrl-C": ("import json, linecache\nraise KeyboardInterrupt('asked')", "asked"),
    "not Python": ("x = = 1", "invalid syntax"),
    "no memory": ("raise MemoryError('none')", "none"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_exception_is_recorded_in_bounds(rank: Rank, odd: str) -> None:
    script, words = ODD[odd]
    rank.run(script)
    record = rank.record()
    assert words in record.chain[0].message
    assert (record.status == 1) == (odd != "Ctrl-C")
    assert rank.file.stat().st_size < 64 << 10


@pytest.mark.skipif(sys.version_info < (3, 11), reason="it has no groups")
def test_members_of_a_group_are_recorded(rank: Rank) -> None:
    rank.run(
        "wide = [ValueError(str(i)) for i in range(100)]\n"
        "raise ExceptionGroup('all', [ExceptionGroup('some', [OSError(5, 'EIO')]), *wide])"
    )
    inner, second, *_ = rank.record().chain[0].members
    assert (inner[0].members[0][0].errno, second[0].message) == (5, "0")
    assert rank.file.stat().st_size < 64 << 10


QUIET = {
    "os._exit": ("import os\nos._exit(3)", 3),
    "the end": ("print()", 0),
    "sys.exit(None)": ("import sys\nsys.exit()", 0),
    "sys.exit(False)": ("import sys\nsys.exit(False)", 0),
    "stopping as asked": (f"import sys\nsys.exit({STOPPED_EARLY})", STOPPED_EARLY),
    "a forked child": (
        "import os\nif os.fork() == 0:\n    1 / 0\nos._exit(os.wait()[1] >> 8)",
        1,
    ),
    "a hook that is called": (
        "import sys\ntry:\n    1 / 0\nexcept Exception:\n    sys.excepthook(*sys.exc_info())",
        0,
    ),
    "an exception in a subinterpreter": (
        "import _xxsubinterpreters as s\n"
        "try:\n    s.run_string(s.create(), '1 / 0')\nexcept s.RunFailedError: pass",
        0,
    ),
    "an exception in atexit": ("import atexit\natexit.register(lambda: 1 / 0)", 0),
}


@pytest.mark.parametrize("quiet", QUIET)
def test_what_no_exception_ended_has_no_record(rank: Rank, quiet: str) -> None:
    if "subinterpreter" in quiet and sys.version_info >= (3, 13):
        pytest.skip("the module has another name")
    script, status = QUIET[quiet]
    ended = rank.run(script)
    assert ended.status == status
    assert "Error in sitecustomize" not in ended.err
    assert not rank.file.exists()


LEAVES = {
    "sys.exit('no data')": (1, "no data"),
    "sys.exit(-1)": (255, "exit status 255"),
    "sys.exit(True)": (1, "exit status 1"),
    "argparse.ArgumentParser().parse_args(['--lr'])": (2, "unrecognized arguments: --lr"),
    "print('shard 3 is torn', file=sys.stderr); sys.exit(3)": (3, "shard 3 is torn"),
}


@pytest.mark.parametrize("leaves", LEAVES)
def test_leaving_is_told_with_status_and_words_and_by_a_forked_rank_its_place(
    rank: Rank, leaves: str
) -> None:
    """Where one that is started anew left, only the interpreter knows."""
    status, words = LEAVES[leaves]
    ended = rank.run(f"import argparse, sys\n{leaves}")
    found = explain(ProcessEnd(status=status, raised=read_raised(rank.file), err=ended.err))
    assert ended.status == status
    assert found is not None
    assert words in (found.shown.words or str(found.shown.raised or ended.err))
    if rank.file.exists():
        newest = rank.record().chain[0]
        assert (rank.record().status, newest.type) == (status, "SystemExit")
        assert newest.own == (str(rank.dir / "train.py"), 2, "<module>")
        assert words[:4] != "exit" or "train.py:2" in (found.shown.words or "")


def test_leaving_in_a_handler_records_what_was_handled(forked: Rank) -> None:
    forked.run("import sys\ntry:\n    {}['x']\nexcept KeyError:\n    sys.exit(1)")
    assert [link.type for link in forked.record().chain] == ["SystemExit", "KeyError"]


def test_a_crash_in_native_code_names_the_line(rank: Rank) -> None:
    ended = rank.run("import ctypes\nctypes.string_at(0)")
    assert ended.status == -11
    assert "Segmentation fault" in ended.err
    assert 'train.py", line 2 in <module>' in ended.err


def test_a_script_s_own_crash_report_stays(rank: Rank) -> None:
    ended = rank.run("import faulthandler, os\nfaulthandler.enable(open('crash', 'w'))\nos.abort()")
    assert (ended.status, ended.err) == (-6, "")
    assert "Aborted" in (rank.dir / "crash").read_text()


def test_a_library_still_finds_python_s_own_hooks_in_place(rank: Rank) -> None:
    ended = rank.run(
        "import sys, threading\n"
        "print(sys.excepthook is sys.__excepthook__)\n"
        "print(threading.excepthook is threading.__excepthook__)"
    )
    assert ended.out == "True\nTrue\n"


WITHOUT_CRASHES = sorted(ENDINGS.keys() - {"SIGSEGV", "abort"})
BY_EXCEPTIONS = [one for one in WITHOUT_CRASHES if "hook" in one or "exception" in one]


@pytest.mark.parametrize(
    ("rank", "ending"),
    [*(("forked", one) for one in WITHOUT_CRASHES), *(("anew", one) for one in BY_EXCEPTIONS)],
    indirect=["rank"],
)
def test_recording_changes_neither_words_nor_status(rank: Rank, ending: str) -> None:
    on, off = (rank.run(ENDINGS[ending], recorded=recorded) for recorded in (True, False))
    assert (on.status, on.out, said(on)) == (off.status, off.out, said(off))


def test_without_room_for_a_record_the_end_is_the_same(rank: Rank) -> None:
    rank.file.mkdir(parents=True)
    ended = rank.run("1 / 0")
    assert ended == rank.run("1 / 0", recorded=False)
    assert "ZeroDivisionError" in ended.err
