"""Nothing that anybody wrote steers a reader's terminal: one edge, and nothing printed past it."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
import unicodedata
from dataclasses import asdict
from pathlib import Path

import pytest

from fsdpkit.cli import terminal
from fsdpkit.reporting.printable import printable
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState
from tests.cli.terminal import on_terminal
from tests.packaging.installation import ROOT
from tests.programs import Fsdpkit
from tests.reporting.log_runs import T0_S, append, attempt_of, failure, launch, make_run, raised

POISON = (
    "\x1b]0;title\x07 \x1b]52;c;Y2xpcA==\x1b\\ \x1b[2J\x1b[8mhidden\x1b[0m \x1bc \x1bP+q\x1b\\ "
    "\x9b2J \x9d0;t\x9c \x08\x08\x7f\x0b\x0c \u202eesrever\u202c \u2066x\u2069 \u200b\u061c\ufeff "
    "\U000e0041 \u3164 end"
)


def obeyed(shown: str) -> set[str]:
    """The characters in what was printed that a terminal would obey or hide."""
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return {c for c in shown if unicodedata.category(c) in unseen and c not in "\t\n"} | (
        set(shown) & set("\u034f\u115f\u1160\u3164\uffa0\u2800\U000e0100")
    )


# The rule


def test_every_character_of_unicode_is_shown_or_written_as_its_escape() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert obeyed(printable(every)) == set()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain │ é words ⚠️\n\ttab", "plain │ é words ⚠️\n\ttab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[H\x1b[?1049hgone\x1b[K", "gone"),
        ("\x1b]0;a title\x07words", r"\u001b]0;a title\u0007words"),
        ("\x1b\x1b[m[2J", r"\u001b[2J"),
        ("a\r\nb\rc", "a\nb\\u000dc"),
        ("\udc9b2J", r"\udc9b2J"),
        ("a\U000e0001b", r"a\udb40\udc01b"),
    ],
)
def test_what_a_terminal_would_obey_is_seen(text: str, shown: str) -> None:
    assert printable(text) == shown


# The commands


@pytest.fixture
def poisoned(tmp_path: Path) -> Run:
    """A run that failed, with control sequences in all that others write."""
    ended = {"12": asdict(JobState("FAILED", "sacct", exit_code=1, exit_signal=0, reason=POISON))}
    run = make_run(tmp_path / "runs" / "run", ended=ended, name="t")
    attempt = attempt_of(run)
    launch(attempt, 0, T0_S)
    failure(attempt, T0_S + 1, 0, 0, f"1 RuntimeError: {POISON}")
    raised(attempt, 0, T0_S + 1, f"RuntimeError: {POISON}")
    append(run.dir / "attempt-0/rank-0.out", f"I am 0 {POISON}\n10%\r50%\r100%\n")
    append(
        run.dir / "attempt-0/rank-0.err", f"[rank0]: Traceback {POISON}\n".encode() + b"\x9b2J\n"
    )
    append(run.dir / "attempt-0/verdict.json", json.dumps({"trouble": {"message": POISON}}))
    append(run.dir / "slurm-12.log", f"fsdpkit: {POISON}\n")
    append(run.dir / "job.json", json.dumps({"name": POISON, "training": {"steps": 5}}))
    append(run.dir / "metrics.jsonl", json.dumps({"step": 1, "loss": 2.0, "time_s": T0_S}) + "\n")
    return run


COMMANDS = [
    (["status"], 0),
    (["status", "RUN"], 0),
    (["status", "--json"], 0),
    (["diagnose", "RUN"], 0),
    (["diagnose", "RUN", "--json"], 0),
    (["watch", "RUN"], 1),
    (["logs", "RUN"], 0),
    (["logs", "RUN", "--all", "--batch"], 0),
    (["logs", "RUN", "--follow"], 0),
    (["logs", "RUN", "--errors"], 0),
    (["report", "RUN", "-o", "-"], 0),
    (["resume", POISON], 66),
    (["status", POISON], 66),
    (["checkpoint", "ls", POISON], 66),
    (["data", "show", POISON], 66),
    (["submit", POISON, "--dry-run"], 66),
    (["submit", "--cluster", POISON, "--dry-run"], 66),
    (["submit", "--set", f"resources.nodes={POISON}", "--dry-run"], 65),
    (["submit", "--nodes", POISON], 2),
    (["submit", f"--{POISON}"], 2),
    ([POISON], 2),
]


@pytest.mark.parametrize(("words", "status"), COMMANDS)
def test_no_command_prints_what_a_terminal_obeys(
    words: list[str], status: int, poisoned: Run, fsdpkit: Fsdpkit
) -> None:
    words = [str(poisoned.dir) if word == "RUN" else word for word in words]
    done = fsdpkit(*words, env={"FSDPKIT_RUNS": str(poisoned.dir.parent)}, status=status)
    assert done.stdout + done.stderr
    assert obeyed(done.stdout) == obeyed(done.stderr) == set()


def test_bytes_a_warning_and_a_traceback_pass_the_edge(tmp_path: Path) -> None:
    program = (
        "import sys, warnings\n"
        "from fsdpkit.cli import main\n"
        "def crash(**_):\n"
        "    print(sys.argv[1])\n"
        "    main.click.echo(sys.argv[1].encode())\n"
        "    warnings.warn(sys.argv[1])\n"
        "    raise RuntimeError(sys.argv[1])\n"
        "main.fsdpkit = crash\n"
        "main.main()\n"
    )
    words = [sys.executable, "-c", program, POISON]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (done.stdout.count("hidden"), done.stderr.count("hidden")) == (2, 2)
    assert obeyed(done.stdout) == obeyed(done.stderr) == set()


# Nothing is printed past it

OPEN_TO_ALL = {"write", "flush", "isatty", "encoding"}


def past_the_edge(source: str) -> list[str]:
    """Uses of the streams beneath, or of a console of rich's own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr="__stdout__" | "__stderr__"):
                pass
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"), attr=attr
            ) if attr not in OPEN_TO_ALL:
                pass
            case ast.Call(
                func=ast.Name(id="open") | ast.Attribute(attr="open" | "fdopen" | "write"),
                args=[number, *_],
            ) if ast.unparse(number) in ("1", "2", "'/dev/tty'"):
                pass
            case ast.Call(func=ast.Name(id="Console") | ast.Attribute(attr="Console")):
                pass
            case ast.Attribute(attr="get_binary_stream" | "get_text_stream" | "beneath"):
                pass
            case ast.alias(name="_beneath" | "__stdout__" | "__stderr__"):
                pass
            case _:
                continue
        found.append(ast.unparse(node))
    return found


def test_only_the_edge_reaches_the_streams_beneath() -> None:
    rooms = ("cli", "reporting", "scheduling", "config", "rendering", "runs", "data")
    files = [path for room in rooms for path in (ROOT / "fsdpkit" / room).rglob("*.py")]
    edge = ROOT / "fsdpkit" / "cli" / "terminal.py"
    files.remove(edge)
    assert {str(p): found for p in files if (found := past_the_edge(p.read_text("utf-8")))} == {}


def test_a_reader_who_leaves_ends_the_command_with_141() -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "fsdpkit", "skill"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", [["--help"], ["status", "--json"], ["status"]])
def test_output_that_cannot_be_written_is_one_sentence_and_74(
    words: list[str], tmp_path: Path
) -> None:
    line = shlex.join([sys.executable, "-m", "fsdpkit", *words])
    done = subprocess.run(
        ["sh", "-c", f"{line} > /dev/full"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (74, "fsdpkit: No space left on device\n")
    closed = subprocess.run(
        ["sh", "-c", f"{line} >&-"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_refusal_is_wrapped_for_a_terminal_and_what_is_to_be_copied_stays_whole(
    fsdpkit: Fsdpkit,
) -> None:
    words = ("submit", "--cluster", "nosuch")
    said = on_terminal(*words, columns=60, status=66)
    assert [line for line in said.splitlines() if len(line) > 60 and "/" not in line] == []
    (in_a_pipe,) = fsdpkit(*words, cwd=Path.cwd()).stderr.splitlines()
    assert (len(said.splitlines()) > 3, said.split()) == (True, in_a_pipe.split())
    copied = "fsdpkit submit train.py --nodes 2 --gpus 4"
    told = f"fsdpkit: why: {'word ' * 6}({copied}), or {'word ' * 8}{copied}, or --set a=b"
    assert sum(copied in line for line in terminal.wrap(told, 60, rest="  ")) == 2
