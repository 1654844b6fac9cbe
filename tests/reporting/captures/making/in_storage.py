"""Full disks, quotas, damaged checkpoints, and memory that ends on the host."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

from tests.faults.trial import Trial

from .stage import HOLD_AT, STOP, Stage, scenario

HELD = {"hold": HOLD_AT}


def small_disk(stage: Stage) -> Path:
    """A file system of 100 MB that login node and nodes see, until the capture is made."""
    place = stage.directory / f"small-disk-{stage.count}"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(place)], check=True)
    unmount = ["umount", "--lazy", str(place)]
    stage.undo.callback(subprocess.run, unmount, check=True)
    reboot(stage)
    for node in stage.cluster.options.node_names:
        stage.undo.callback(stage.cluster.node_exec, node, unmount)
    return place


def reboot(stage: Stage) -> None:
    """Nodes see what was mounted once they have booted."""
    for node in stage.cluster.options.node_names:
        stage.cluster.kill_node(node)
        stage.cluster.start_node(node)
    stage.cluster.wait_idle()


def fill(place: Path) -> None:
    with (place / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with (place / "crumbs").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))


@scenario("disk-full", "disk-full", undecided=("rank", "node"))
def disk_full(stage: Stage) -> Trial:
    """The file system of the runs is filled while T5 trains."""
    place = small_disk(stage)
    trial = stage.t5(HELD, runs=place, sets=("parameters.min_free_gb=0", *STOP))
    return stage.strike(trial, lambda _: fill(place))


@scenario(
    "disk-full-quota",
    "disk-full",
    rank=1,
    node="node2",
    source="https://github.com/KennthShang/HostG/issues/7",
)
def quota(stage: Stage) -> Trial:
    """A rank raises what Python says where a person's quota is used up."""
    return stage.linear("--break", "quota", "--ranks", "1", sets=STOP)


@scenario("disk-full-from-the-start", "disk-full", undecided=("node",))
def too_little_space(stage: Stage) -> Trial:
    """There is less space than the job wants before it begins."""
    return stage.linear(sets=("parameters.min_free_gb=1000000.0", *STOP))


@scenario("checkpoint-unreadable", "checkpoint-unreadable", undecided=("rank", "node"))
def checkpoint_damaged(stage: Stage) -> Trial:
    """Bytes of all checkpoints have changed on disk when the run is resumed."""
    trial = stage.t5()
    assert trial.wait_end()["JobState"] == "COMPLETED"
    for file in trial.task.checkpoints.glob("step-*/*.distcp"):
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 4096] = bytes(b ^ 0xFF for b in content[middle : middle + 4096])
        file.write_bytes(content)
    return resumed(stage, trial)


@scenario("checkpoint-unreadable-torn", "checkpoint-unreadable", undecided=("rank", "node"))
def checkpoint_torn(stage: Stage) -> Trial:
    """All checkpoints are shorter than they were written when the run is resumed."""
    trial = stage.t5()
    assert trial.wait_end()["JobState"] == "COMPLETED"
    for file in trial.task.checkpoints.glob("step-*/*.distcp"):
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size // 2)
    return resumed(stage, trial)


def resumed(stage: Stage, trial: Trial) -> Trial:
    """The next job of the run."""
    words = ("--set", "training.steps=12", "--json")
    done = stage.bed.fsdpkit("resume", str(trial.dir), *words)
    assert done.returncode == 0, done.stderr
    job_id = str(json.loads(done.stdout)["job_id"])
    return Trial(trial.bed, trial.directory, trial.dir, job_id, None)
