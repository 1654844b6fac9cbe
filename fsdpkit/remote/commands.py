"""What each command sends to the login node, and brings back.

All run there at home, and paths are the login node's, with two exceptions. `submit` of a job file
or a script with a relative path sends the work tree around it first and runs inside. `report`
writes its file here.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fsdpkit.errors import NotFoundError, RemoteError, UsageError, storage_errors
from fsdpkit.remote import tree
from fsdpkit.remote.connection import LoginConnection, connect
from fsdpkit.remote.hosts import Host
from fsdpkit.remote.protocol import MARK, RemoteRequest, answer_in

HERE = ("completion", "skill")
"""Commands about this machine's own shell and files."""


def run_there(host: Host, words: Sequence[str], options: dict[str, Any]) -> int:
    """Run `fsdpkit WORDS…` on the host; its exit status. options: what click read of the words.
    Raises RemoteError, UsageError, StorageError."""
    request = RemoteRequest(
        "run",
        tuple(words),
        via=host.name,
        runs=host.runs,
        columns=None if sys.stdout.isatty() else shutil.get_terminal_size().columns,
        terminal=all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)),
    )
    request.encode()
    if words[0] == "submit" and (job := options.get("job")) is not None and _lies_here(job):
        _refuse_runs_in_tree(options.get("runs"))
        sent = tree.tree_of(Path.cwd(), host.tree_mb)
        _refuse_missing(job, sent)
        connection = connect(host)
        there = Path(_place(connection, sent))
        inside = Path.cwd().resolve().relative_to(sent.top.resolve())
        return connection.run(replace(request, work_dir=str(there / inside)))
    connection = connect(host)
    if words[0] == "report" and options.get("output") != "-":
        return _bring_report(connection, request, options)
    return connection.run(request)


def _lies_here(job: str) -> bool:
    """Whether JOB is a file here: a name, and a path from the root, are the login node's."""
    return not job.startswith("/") and (job.endswith((".py", ".toml")) or "/" in job)


def _refuse_runs_in_tree(runs: str | None) -> None:
    """Raises UsageError: other commands would look for them at home."""
    if runs is not None and not runs.startswith(("/", "~")):
        raise UsageError(
            f"--runs {runs}: with --host give the whole path on the login node, or leave it out "
            "and name it once, as `runs` of the host in hosts.toml"
        )


def _refuse_missing(job: str, sent: tree.Tree) -> None:
    """Raises NotFoundError for a job that does not go along."""
    path = Path.cwd() / job
    if not path.is_file():
        raise NotFoundError(
            f"there is no {job} here; of a file on the login node give the whole path"
        )
    top = sent.top.resolve()
    inside = path.parent.resolve() / path.name
    known = {entry.path for entry in sent.entries}
    if not inside.is_relative_to(top) or str(inside.relative_to(top)) not in known:
        raise NotFoundError(
            f"{job} is not sent: it is outside of the work tree {top}, or git ignores it"
        )


def _place(connection: LoginConnection, sent: tree.Tree) -> str:
    """The tree's directory on the login node, where it is sent unless it is there."""
    there = connection.ask(RemoteRequest("hello", tree=sent.digest)).get("tree")
    if there is None:
        size = f"{len(sent.entries):,} files, {sent.size_bytes / 1e6:,.1f} MB"
        click.echo(f"fsdpkit: sending {sent.top} ({size}) to {connection.host.name}", err=True)
        request = RemoteRequest("receive", tree=sent.digest)
        there = connection.ask(request, lambda to: tree.write_stream(sent, to))["tree"]
    return str(there)


def _bring_report(
    connection: LoginConnection, request: RemoteRequest, options: dict[str, Any]
) -> int:
    """`report`, whose file is written here."""
    from fsdpkit.runs.layout import write_atomically

    if options.get("follow"):
        raise UsageError("--follow writes where it runs: with --host, leave it out")
    words = ["report"]
    for name in ("run", "runs", "task"):
        if (value := options.get(name)) is not None:
            words += [str(value)] if name == "run" else [f"--{name}", str(value)]
    request = replace(request, do="collect", words=tuple(words), terminal=False)
    with tempfile.TemporaryFile() as output:
        status = connection.run(request, output)
        if status != 0:
            return status
        output.seek(0)
        content = output.read()
    head, name, size = _header(content)
    if len(content) - head != size:
        raise RemoteError("the report did not arrive whole; run the command again")
    path = Path(options.get("output") or report_name(options))
    with storage_errors(path, "written"):
        write_atomically(path, content[head:], by_umask=True)
    if options.get("as_json"):
        # Spelt out, as the laptop has no msgspec; cli/report.py has its fields.
        answer = {
            "schema": "fsdpkit.report/1",
            "run": re.sub(r"(-task-\d+)?\.html$", "", name),
            "path": str(path.absolute()),
            "predictions": None,
        }
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        click.echo(path)
    return 0


def report_name(options: dict[str, Any]) -> str:
    """A file's name from what was typed here: another machine's word is no path of this one."""
    run = re.sub(r"[^A-Za-z0-9._+-]", "-", Path(options.get("run") or "").name).lstrip(".-")
    task = options.get("task")
    return f"{run or 'fsdpkit-report'}{'' if task is None else f'-task-{task}'}.html"


def _header(content: bytes) -> tuple[int, str, int]:
    """Where the file begins behind its answer, its name and its size. Raises RemoteError."""
    at = content.find(f"\n{MARK}".encode())
    end = content.find(b"\n", at + 1) + 1
    said = answer_in(content[:end].decode("utf-8", errors="replace")) if at >= 0 and end else None
    name = str(said and said.get("file"))
    if said is None or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,160}\.html", name):
        raise RemoteError("the login node sent no report")
    return end, name, int(said["bytes"])
