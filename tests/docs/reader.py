"""Somebody who follows the pages: an ordinary user at home, who types into bash what stands there.
Their cluster is the local one; the machine's Slurm, pip and make are out of their reach.

`fsdpkit` is forked from a process that has imported it (tests/warm.py), because starting a Python
takes longer than most commands.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.slurm_cluster.users import FIRST_ID, Session, User, lay_out
from tests.warm import ROOT

GROUP = "pas1234"
ABSENT = (
    *("pip", "make", "npm", "torchrun", "pytest", "ssh", "shellcheck"),
    *("sbatch", "salloc", "sacct", "squeue", "sinfo", "scontrol", "sacctmgr"),
)
CLIENT = """#!{python} -IS
import json, os, socket, sys
talk = socket.socket(socket.AF_UNIX)
talk.connect({place!r})
socket.send_fds(talk, [b"x"], [0, 1, 2])
asked = {{"words": sys.argv[1:], "cwd": os.getcwd(), "environ": dict(os.environ)}}
talk.sendall(json.dumps(asked).encode() + b"\\n")
sys.exit(int(talk.makefile().readline()))
"""
BEFORE = "# ---- This run ---"
"""Where the script of a template begins its work."""
DONE = """
attempt=$FSDPKIT_RUN_DIR${SLURM_ARRAY_TASK_ID:+/task-$SLURM_ARRAY_TASK_ID}/attempt-${SLURM_RESTART_COUNT:-0}
mkdir -p "$attempt"
echo '{"step": 1, "loss": 2.5, "eval_loss": 2.5}' > "${attempt%/*}/metrics.jsonl"
[[ ! -e ${SLURM_SUBMIT_DIR:-.}/unfinished ]] || exit 75
echo '{}' > "$attempt/verdict.json"
exit 0
"""
"""What a job of theirs does in place of its work, which takes minutes: it is done, or left
unfinished if there is a file of that name."""


class Typed(NamedTuple):
    """A line, and what came of it."""

    line: str
    status: int
    output: str


class Reader:
    """Has two configurations: by the usual one a job is queued, starts and is done at once;
    `at_work`, in front of a command, has it do its work."""

    def __init__(self, root: Path) -> None:
        self.home = root / "alex"
        self.at_work = f"FSDPKIT_CONFIG_DIR={self.home}/at-work "
        (root / "etc").mkdir(parents=True)
        mounts = {f"/etc/{name}": root / "etc" / name for name in ("passwd", "group")}
        user = User("alex", FIRST_ID, self.home)
        lay_out(root, [user], mounts)
        with open(root / "etc" / "group", "a") as groups:
            groups.write(f"{GROUP}:x:{FIRST_ID + 100}:alex\n")
        entering = ("unshare", "--mount", "sh", str(root / "etc" / "entering"))
        self._session = Session(user, entering, root)
        self._write_template()
        self._write_tools()
        self.own()
        self._server = self._session.start(
            [sys.executable, "-m", "tests.warm", str(self.home / "socket")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout.readline() == b"listens\n"

    def end(self) -> None:
        self._server.kill()
        self._server.communicate()

    def own(self) -> None:
        """Everything in the home is the user's."""
        subprocess.run(["chown", "-Rh", f"{FIRST_ID}:{FIRST_ID}", str(self.home)], check=True)

    def types(self, lines: Sequence[str], directory: Path) -> list[Typed]:
        """One after another into one shell that starts in `directory`."""
        script = [f"echo '@@ begins'\n{line}\necho \"@@ $? ends\"\n" for line in lines]
        path = f"{self.home}/bin:/usr/bin:/bin"
        env = {**self._session.env(), "PATH": path, "FSDPKIT_CLUSTER": "local"}
        argv = ["bash", "-c", "exec 2>&1\n" + "".join(script)]
        self.own()
        done = self._session.run(argv, cwd=directory, env=env, timeout=550)
        found = re.findall(r"@@ begins\n(.*?)@@ (\d+) ends\n", done.stdout, re.DOTALL)
        assert len(found) == len(lines), done.stdout + done.stderr
        return [
            Typed(line, int(status), said)
            for line, (said, status) in zip(lines, found, strict=True)
        ]

    def _write_template(self) -> None:
        template = self.home / ".config" / "fsdpkit" / "templates" / "torchrun"
        shutil.copytree(ROOT / "templates" / "torchrun", template)
        script = template / "job.sbatch.j2"
        before, mark, after = script.read_text(encoding="utf-8").partition(BEFORE)
        assert mark
        script.write_text(f"{before}{DONE}{mark}{after}", encoding="utf-8")

    def _write_tools(self) -> None:
        tools = self.home / "bin"
        tools.mkdir()
        texts = dict.fromkeys(ABSENT, "#!/bin/sh\nexit 127\n")
        texts["fsdpkit"] = CLIENT.format(python=sys.executable, place=f"{self.home}/socket")
        for name, text in texts.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        (tools / "python").symlink_to(sys.executable)
