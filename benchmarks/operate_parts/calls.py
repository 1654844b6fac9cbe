"""How often each command that watches a run asks Slurm, minute by minute.

The commands in Slurm's place note each call; once they answer themselves, that a job runs, and once
they hand the question to a real Slurm, in which a job sleeps. All commands watch at the same time,
each with a log of its own. What counts is what a watch costs that goes on: its last two minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Figure
from tests.scheduling.bare_template import write_bare_template
from tests.slurm.conftest import write_profile
from tests.slurm_cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
MINUTES, MOST = 6, 2
WATCHING: dict[str, tuple[str, ...]] = {
    "submit --wait": (),
    "submit --follow": (),
    "watch": ("watch", "{run}"),
    "status --watch": ("status", "--watch", "1", "{run}"),
    "status --watch, all runs": ("status", "--watch", "1"),
}
_COMMANDS = ("squeue", "sacct", "scontrol")
_ANSWERS = {
    "sbatch": "echo 7",
    "squeue": "echo '7|RUNNING|None|node1|2|3|4'",
    "sacct": "true",
    "scontrol": "echo 'JobId=7 JobState=RUNNING Reason=None NumNodes=1'",
}
_SLEEPS = "import time; time.sleep(7200)\n"


def figures(quick: bool) -> list[Figure]:
    """Of each command, with a stand-in and with a real Slurm; quick: of one minute."""
    minutes = 1 if quick else MINUTES
    with tempfile.TemporaryDirectory(prefix="fsdpkit-calls-") as work:
        top = Path(work)
        (top / "train.py").write_text(_SLEEPS)
        with SlurmCluster(top / "slurm", nodes=1, cpus=64, gpus=16) as cluster:
            running = [
                *_started(top / "stand-in", _ANSWERS, dict(os.environ)),
                *_started(top / "real", _handing_on(cluster.env()), cluster.env()),
            ]
            time.sleep(60 * minutes)
            ended = [one.end() for one in running]
        return [_figure(name, kind, calls[:minutes]) for name, kind, calls in ended]


class _Watching:
    """A command that watches, and the log of what it asked."""

    def __init__(self, name: str, home: Path, argv: list[str], env: Mapping[str, str]) -> None:
        self.name, self.kind, self.log = name, home.parent.name, home / "asked"
        self.log.unlink(missing_ok=True)  # what came before the watch is not the watch's
        self.began_s = time.time()
        self.process = subprocess.Popen(
            argv,
            env={**env, "FSDPKIT_COUNTED": str(self.log)},
            cwd=home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> tuple[str, str, list[int]]:
        """Its name, of which kind its Slurm was, and how often it asked in each minute."""
        assert self.process.poll() is None, f"{self.name} ended by itself"
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(30)
        counts = [0] * (MINUTES + 2)
        for line in self.log.read_text().splitlines() if self.log.exists() else []:
            command, _, time_s = line.partition(" ")
            if command in _COMMANDS:
                counts[int((float(time_s) - self.began_s) / 60)] += 1
        return self.name, self.kind, counts


def _started(top: Path, answers: Mapping[str, str], env: Mapping[str, str]) -> Iterator[_Watching]:
    for name, words in WATCHING.items():
        home = top / name.replace(" ", "-").replace(",", "")
        with _counting(home, answers, env) as here:
            fsdpkit = [sys.executable, "-m", "fsdpkit"]
            job = ["../../train.py", "--nodes", "1", "--gpus", "1", "--account", "pas1234"]
            submit = [*fsdpkit, "submit", *job, "--set", "template=bare", "--time", "60"]
            if not words:
                yield _Watching(name, home, [*submit, name.split()[1]], here)
                continue
            told = subprocess.run(
                [*submit, "--json"], env=here, cwd=home, capture_output=True, text=True, check=True
            )
            run = json.loads(told.stdout)["dir"]
            argv = [word.format(run=run) for word in words]
            yield _Watching(name, home, [*fsdpkit, *argv], here)


@contextmanager
def _counting(
    home: Path, answers: Mapping[str, str], env: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """A person's own home and commands, and the variables with which they are found."""
    (home / "bin").mkdir(parents=True)
    for command, answer in answers.items():
        note = f'echo "{command} $EPOCHREALTIME" >>"${{FSDPKIT_COUNTED:-/dev/null}}"'
        script = home / "bin" / command
        script.write_text(f"#!/bin/bash\n{note}\n{answer}\n")
        script.chmod(0o755)
    site = write_profile(home)
    write_bare_template(home / "centre")
    yield {
        **env,
        **site,
        "PATH": f"{home / 'bin'}:{env['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FSDPKIT_RUNS": str(home / "runs"),
        "FSDPKIT_CONFIG_DIR": str(home / "config"),
        "FSDPKIT_STATE_DIR": str(home / "state"),
    }


def _handing_on(env: Mapping[str, str]) -> dict[str, str]:
    found = {name: shutil.which(name, path=env["PATH"]) for name in _ANSWERS}
    return {name: f'exec {path} "$@"' for name, path in found.items()}


def _figure(name: str, kind: str, calls: list[int]) -> Figure:
    slurm = "a stand-in for Slurm" if kind == "stand-in" else "a real Slurm"
    what = f"calls to Slurm in a minute of `{name}` that goes on, {slurm}"
    most = max(calls[-2:])
    short = f"calls-{kind}-{name.replace(' --', '-').replace(', ', '-').replace(' ', '-')}"
    kept = {"ours": [float(count) for count in calls]}
    return Figure(
        short, what, None, "count", "≤", MOST, most, None, most, unit="calls", samples=kept
    )
