"""A file system that is full, used up, unreadable or slow costs no checkpoint that was whole.

Where nothing can be written the job ends; the run is then resumed, as its last words say, and ends
with the losses of a quiet one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import injectors as by
from tests.faults.outcomes import Losses, ended, resumed, resumed_until
from tests.faults.trial import LIGHT, T5, Bed, Trial
from tests.slurm.conftest import T5_LANE

pytestmark = [pytest.mark.slurm, pytest.mark.torch, T5_LANE]


@contextlib.contextmanager
def disk(bed: Bed, name: str, *words: str) -> Iterator[Path]:
    """What `mount WORDS…` mounts, seen by all nodes: they see it once they have booted."""
    place = bed.directory / name
    place.mkdir()
    try:
        subprocess.run(["mount", *words, str(place)], check=True)
    except subprocess.CalledProcessError:
        pytest.skip(f"this machine cannot mount {' '.join(words)}")
    try:
        for node in bed.cluster.options.node_names:
            bed.cluster.kill_node(node)
            bed.cluster.start_node(node)
        bed.cluster.wait_idle()
        yield place
        bed.mend()
    finally:
        for node in bed.cluster.options.node_names:
            bed.cluster.node_exec(node, ["umount", "--lazy", str(place)])
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def image(bed: Bed, kind: str, size_mb: int) -> Path:
    """A file that holds an empty file system."""
    path = bed.directory / f"disk.{kind}"
    with path.open("wb") as file:
        file.truncate(size_mb << 20)
    subprocess.run([f"mkfs.{kind}", "-q", str(path)], check=True, capture_output=True)
    return path


@pytest.fixture
def small_disk(bed: Bed) -> Iterator[Path]:
    """A file system that is soon full."""
    with disk(bed, "small-disk", "-o", "size=100m", "-t", "tmpfs", "tmpfs") as place:
        yield place


@pytest.fixture
def small_quota(bed: Bed) -> Iterator[Path]:
    """A file system with room, of which the person may use little."""
    with disk(bed, "small-quota", "-o", "loop", str(image(bed, "btrfs", 300))) as place:
        for words in ("quota enable", "qgroup limit 100M"):
            subprocess.run(["btrfs", *words.split(), str(place)], check=True)
        yield place


@pytest.fixture
def stalling_disk(bed: Bed) -> Iterator[Path]:
    """A file system that can be frozen: whoever writes waits."""
    with disk(bed, "stalling-disk", "-o", "loop", str(image(bed, "ext4", 200))) as place:
        yield place


def fill(place: Path) -> Path:
    """A file that takes all the room there is."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def ends_for_want_of_room(place: Path, bed: Bed, trainer: Path) -> Trial:
    """The job ends with the status for storage, and its good checkpoints are left. Then there is
    room again."""
    sets = ["parameters.min_free_gb=0"]
    trial = bed.submit(trainer=trainer, hold="training", runs=place, sets=sets)
    trial.strike(lambda _: fill(place))
    job = trial.wait_end()
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "74:0"), trial.error("full disk")
    assert {5, 10} <= {*trial.saved()}
    assert trial.damage() == []
    (place / "filler").unlink()
    os.sync()
    return trial


def test_neither_a_full_disk_nor_one_that_cannot_be_read_just_now_costs_a_good_checkpoint(
    small_disk: Path, bed: Bed
) -> None:
    """Two jobs of one run end: the first cannot write, the second cannot read and takes nothing for
    damaged. The third gets to the end."""
    undisturbed = bed.undisturbed(T5)
    trial = ends_for_want_of_room(small_disk, bed, T5)
    assert "No space left on device" in trial.batch_log()

    words = f"fsdpkit: to go on: fsdpkit resume {trial.dir}"
    assert words in trial.batch_log()
    trial = resumed_until(trial, "training", 16)
    away: list[tuple[Path, Path]] = []

    def hide_and_kill(_: Trial) -> None:
        """The newest checkpoint's tensors answer with an error of the file system (ELOOP)."""
        for file in (trial.task.checkpoints / f"step-{max(trial.good)}").glob("*.distcp"):
            hidden = small_disk / file.name
            file.rename(hidden)
            file.symlink_to(file)
            away.append((file, hidden))
        by.kill_rank(trial)

    trial.strike(hide_and_kill)
    ended(trial, 74, "storage", attempt=1)
    assert away
    for file, hidden in away:
        file.unlink()
        hidden.rename(file)
    resumed(trial, undisturbed)
    assert trial.resumed_after()[-1] == max(trial.good)


def test_a_used_up_quota_ends_the_job_and_leaves_the_good_checkpoints(
    small_quota: Path, bed: Bed, undisturbed: Losses
) -> None:
    """Not a byte can be written then: no log, no verdict, only Slurm hears of it."""
    trial = ends_for_want_of_room(small_quota, bed, LIGHT)
    resumed(trial, undisturbed, told=False)


STALL_S = 30
"""Several times the silence after which a node counts as lost (retry.lost_s)."""


def test_a_file_system_that_stalls_is_waited_for(
    stalling_disk: Path, bed: Bed, undisturbed: Losses
) -> None:
    trial = bed.submit(hold="training", runs=stalling_disk, sets=["parameters.min_free_gb=0"])
    freeze = 'fsfreeze -f "$1" && touch "$2"; sleep "$3"; fsfreeze -u "$1"'
    frozen = bed.directory / "frozen"
    words = ["sh", "-c", freeze, "-", str(stalling_disk), str(frozen), str(STALL_S)]
    stalls: list[subprocess.Popen[bytes]] = []

    def stall(_: Trial) -> None:
        stalls.append(subprocess.Popen(words))
        while not frozen.exists():
            time.sleep(0.05)

    trial.strike(stall)
    try:
        job = trial.wait_end()
    finally:
        assert stalls[0].wait(timeout=STALL_S + 60) == 0
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), trial.error("stall")
    assert trial.task.attempts() == [0]
    assert [order["event"] for order in trial.orders(0)] == ["launch"]
    assert trial.losses() == undisturbed
    assert trial.damage() == []
