"""A node's part in copying as a job's script runs it: a zip, the node's own Python, the end."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from fsdpkit.launching.stager import packed
from fsdpkit.staging.node import bring_back
from tests.programs import until

CORPUS = {"a.txt": b"a" * 9_000_000, "-b\n.txt": b"", "sub/c": b"c"}


class StagedJob:
    """Its nodes are processes here, each with a disk of its own."""

    def __init__(self, at: Path, nodes: int, *words: str) -> None:
        self.at, self.nodes = at, nodes
        self.zip, self.data = at / "stager.zip", at / "data"
        self.run = at / f"run-{len([*at.iterdir()])}"
        self.run.mkdir()
        if not self.zip.exists():
            self.zip.write_bytes(packed())
            for name, text in CORPUS.items():
                (self.data / name).parent.mkdir(parents=True, exist_ok=True)
                (self.data / name).write_bytes(text)
        self.words = ["--local=$DISK", f"--data=corpus={self.data}", "--back=logs", *words]
        self.shells = [Popen(["sleep", "600"]) for _ in range(nodes)]
        self.started: list[Popen[str]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def disk(self, node: int) -> Path:
        return self.at / f"disk-{node}"

    def left(self, node: int) -> list[str]:
        """What is on its disk."""
        ours = self.disk(node) / f"fsdpkit-{os.geteuid()}"
        return sorted(each.name for kind in ("trees", "jobs") for each in (ours / kind).iterdir())

    def start(self, command: str, number: int, node: int, **more: str) -> Popen[str]:
        slurm = {"NODEID": node, "JOB_NUM_NODES": self.nodes, "JOB_ID": 7}
        environ = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        environ |= {"DISK": str(self.disk(node)), "SLURMD_NODENAME": f"n{node}"}
        environ |= {"RDZV_HOST": "127.0.0.1", "STAGE_PORT": str(self.port)}
        environ |= {"FSDPKIT_PORTS": "10000-10999"}
        environ |= {"FSDPKIT_SECRET": "ab" * 32, "FSDPKIT_ATTEMPT_DIR": str(self.run)}
        environ |= {"FSDPKIT_NODES": str(self.nodes), "FSDPKIT_RANKS_PER_NODE": "2", **more}
        program = [sys.executable, "-I", "-S", str(self.zip), command, str(number), *self.words]
        started = Popen(program, env=environ, stdout=PIPE, text=True)
        self.started.append(started)
        return started

    def get(self) -> list[tuple[int, Path]]:
        """Of each node: the process that stays, and what the program sees."""
        waiting = [self.start("get", self.shells[n].pid, n) for n in range(self.nodes)]
        told = [each.stdout.read().splitlines() for each in waiting if each.stdout]
        assert [each.wait() for each in waiting] == [0] * self.nodes
        return [(int(server), Path(stage)) for server, stage, *_ in told]

    def end(self, got: list[tuple[int, Path]], first: int = 0) -> list[Popen[str]]:
        """The end of nodes from this one on."""
        return [
            self.start("end", server, node, FSDPKIT_STAGE=str(stage))
            for node, (server, stage) in enumerate(got, first)
        ]

    def close(self) -> None:
        for each in self.shells:
            each.kill()
            each.wait()
        for started in self.started:
            started.kill()
            started.communicate()


@pytest.fixture
def at_close() -> Iterator[list[StagedJob]]:
    jobs: list[StagedJob] = []
    yield jobs
    for job in jobs:
        job.close()


@pytest.mark.parametrize("nodes", [1, 4])
def test_nodes_get_all_and_keep_nothing(
    tmp_path: Path, at_close: list[StagedJob], nodes: int
) -> None:
    at_close.append(job := StagedJob(tmp_path, nodes))
    got = job.get()
    for node, (_, stage) in enumerate(got):
        found = {name: (stage / "corpus" / name).read_bytes() for name in CORPUS}
        assert found == CORPUS
        (stage / "logs").mkdir()
        (stage / "logs" / "text").write_text(str(node))
    assert [each.wait() for each in job.end(got)] == [0] * nodes
    for node, (server, _) in enumerate(got):
        assert (job.run / f"back/node-{node}/logs/text").read_text() == str(node)
        assert not job.left(node)
        assert not os.path.exists(f"/proc/{server}/exe")
    progress = json.loads((job.run / "stage.json").read_text())["nodes"]
    assert {each["bytes"] for each in progress.values()} == {9_000_001}


def test_what_is_kept_is_found_again(tmp_path: Path, at_close: list[StagedJob]) -> None:
    for reused in (False, True):
        at_close.append(job := StagedJob(tmp_path, 2, "--kept-h=1"))
        assert [each.wait() for each in job.end(job.get())] == [0, 0]
        for node in range(2):
            assert len(job.left(node)) == 3, "the tree, its lock and its blocks"
        told = json.loads((job.run / "stage.json").read_text())["nodes"]
        assert [each["reused"] for each in told.values()] == [reused] * 2


def test_nothing_is_left_when_the_script_is_gone(tmp_path: Path, at_close: list[StagedJob]) -> None:
    at_close.append(job := StagedJob(tmp_path, 1))
    [(server, _)] = job.get()
    os.kill(server, signal.SIGTERM)  # to all processes of a step: ranks still use what is there
    time.sleep(0.3)
    assert len(job.left(0)) > 3
    job.shells[0].kill()
    job.shells[0].wait()
    until(lambda: not os.path.exists(f"/proc/{server}/exe"), "the end of the server")
    assert not job.left(0)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_copy_that_is_interrupted(
    tmp_path: Path, at_close: list[StagedJob], how: signal.Signals
) -> None:
    at_close.append(job := StagedJob(tmp_path, 2))
    waiting = job.start("get", job.shells[1].pid, 1)  # for the first node, which never comes
    children = f"/proc/{waiting.pid}/task/{waiting.pid}/children"
    found = until(lambda: Path(children).read_text().split(), "the process that copies")
    until(lambda: (job.disk(1) / f"fsdpkit-{os.geteuid()}" / "jobs").exists(), "its disk")
    time.sleep(0.5)  # by now it waits; if it does not yet, the test only shows less
    os.kill(int(found[0]), how)
    assert waiting.stdout
    said = waiting.stdout.read()
    waiting.wait()
    if how == signal.SIGTERM:
        assert (waiting.returncode, said) == (143, ""), "Slurm ends the step, and that is on record"
    else:
        assert waiting.returncode == 78
        assert said.startswith("unknown ")
    assert not job.left(1)


def test_all_nodes_say_what_is_missing(tmp_path: Path, at_close: list[StagedJob]) -> None:
    at_close.append(job := StagedJob(tmp_path, 2))
    (job.data / "link").symlink_to("nothing")
    waiting = [job.start("get", job.shells[n].pid, n) for n in range(2)]
    for each, cause in zip(waiting, ["data-missing", "connection-reset"], strict=True):
        assert each.stdout
        assert re.match(f"{cause} .*/data/link", each.stdout.read())
        assert each.wait() == 78


def test_it_fits_into_a_variable() -> None:
    assert len(base64.b64encode(packed())) < 100 * 1024 < 128 * 1024


def test_what_cannot_be_copied_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "stage" / "logs"
    logs.mkdir(parents=True)
    os.mkfifo(logs / "a\npipe")
    (logs / "out").symlink_to("/etc")
    (logs / "text").write_text("text")
    said = list(bring_back(logs.parent, ["logs"], tmp_path / "back"))
    assert len(said) == 2
    assert "\n" not in said[0]
    assert (tmp_path / "back/logs/text").read_text() == "text"
    assert os.readlink(tmp_path / "back/logs/out") == "/etc"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfileobj", full)
    for number in range(5):
        (logs / f"{number}").write_text("text")
    to = tmp_path / "full"
    said = list(bring_back(logs.parent, ["logs"], to))
    assert sum("No space" in each for each in said) == 1
    assert not list(to.rglob("*.part"))


def test_a_python_is_tried(tmp_path: Path) -> None:
    zip_file = tmp_path / "stager.zip"
    zip_file.write_bytes(packed())
    program = [sys.executable, "-I", "-S", str(zip_file), "try"]
    assert subprocess.run(program, stdin=subprocess.DEVNULL, check=False).returncode == 0
