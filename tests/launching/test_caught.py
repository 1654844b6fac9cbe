"""A rank records the exception that ends it, forked or started anew, and ends as it would have."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fsdpkit.errors import STOPPED_EARLY
from fsdpkit.runs.layout import raised_beside
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
            environ["TORCHELASTIC_ERROR_FILE"] = str(memory / "rank-2.error.json")
        return self.start(environ)

    @property
    def file(self) -> Path:
        return raised_beside(str(self.dir / "memory" / "rank-2.error.json"))

    def record(self) -> RaisedRecord:
        record = read_raised(self.file)
        assert record is not None
        return record

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


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
    assert (oldest.type, oldest.errno, oldest.filename) == ("OSError", 28, "/data/x")
    assert newest.own == (str(rank.dir / "train.py"), 7, "save")
    assert newest.source == 'raise ValueError("not saved") from error'
    assert [function for *_, function in newest.frames] == ["<module>", "save"]


ODD = {
    "its str() raises": (
        "class Odd(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise Odd",
        "str() failed",
    ),
    "100 MB of words": ("raise ValueError('begin' + 'x' * 10 ** 8 + 'end')", "end"),
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


@pytest.mark.parametrize(("code", "status"), [("'no data'", 1), ("3", 3), ("True", 1), ("-1", 255)])
def test_a_forked_rank_records_where_it_left(forked: Rank, code: str, status: int) -> None:
    """Of one started anew only the interpreter knows."""
    assert forked.run(f"import sys\nsys.exit({code})").status == status
    record = forked.record()
    newest = record.chain[0]
    assert (record.status, newest.type) == (status, "SystemExit")
    assert newest.message == ("no data" if status == 1 and code != "True" else "")
    assert newest.own == (str(forked.dir / "train.py"), 2, "<module>")


def test_a_crash_in_native_code_names_the_line(rank: Rank) -> None:
    ended = rank.run("import ctypes\nctypes.string_at(0)")
    assert ended.status == -11
    assert "Segmentation fault" in ended.err
    assert 'train.py", line 2 in <module>' in ended.err


@pytest.mark.parametrize("ending", sorted(ENDINGS.keys() - {"SIGSEGV", "abort"}))
def test_recording_changes_neither_words_nor_status(rank: Rank, ending: str) -> None:
    on, off = (rank.run(ENDINGS[ending], recorded=recorded) for recorded in (True, False))
    assert (on.status, on.out, said(on)) == (off.status, off.out, said(off))
