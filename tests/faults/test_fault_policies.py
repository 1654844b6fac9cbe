"""Where `[retry]` or common sense says stop, the job ends soon, says why, and how to go on.

Each run is then resumed, as its last words say, and ends with the losses of a quiet one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import injectors as by
from tests.faults.trial import LIGHT, STEPS, T5, Bed, Trial
from tests.slurm.conftest import T5_LANE

pytestmark = pytest.mark.slurm
Losses = dict[int, float]


def breaks(error: str, message: str, *once: int) -> dict[str, object]:
    """At the steps `once` one time each; without any, at step 12 always."""
    steps = [*once] or [12]
    return {"rank": 1, "steps": steps, "error": error, "message": message, "once": bool(once)}


def ended(trial: Trial, status: int, cause: str) -> str:
    """The sentence with which the job has ended, with this status; nothing was queued again."""
    job = trial.wait_end()
    ending = trial.ending(trial.task.attempts()[-1])
    try:
        assert (job["JobState"], job["ExitCode"]) == ("FAILED", f"{status}:0")
        assert ending is not None
        assert (ending["action"], ending["cause"], ending["status"]) == ("end", cause, status)
        assert trial.task.attempts() == [0]
    except AssertionError as error:
        raise trial.error(str(error)) from error
    return str(ending["why"])


def resumed(trial: Trial, undisturbed: Losses, *, told: bool = True) -> None:
    """`fsdpkit resume`, as the job's last words have it, takes the run to its end."""
    words = f"fsdpkit: to go on: fsdpkit resume {trial.dir}"
    assert words in trial.batch_log() or not told
    done = trial.bed.fsdpkit("resume", str(trial.dir), "--wait")
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert trial.losses() == undisturbed
        assert max(trial.saved()) == STEPS
        assert trial.damage() == []
    except AssertionError as error:
        raise trial.error(str(error)) from error


def test_a_crash_that_comes_back_at_the_same_step_ends_the_job_with_the_diagnosis(
    bed: Bed, undisturbed: Losses
) -> None:
    """And no job that is chained behind it starts, which would only meet the same."""
    trial = bed.submit(breaks=breaks("RuntimeError", "a sample that cannot be read"))
    behind = trial.chain()
    why = ended(trial, 1, "crash")
    assert bed.cluster.wait_job(behind, timeout_s=60)["JobState"] == "CANCELLED"
    assert re.search(rf"cancelled.*\b{behind}\b", trial.batch_log())
    status = json.loads(bed.fsdpkit("status", str(trial.dir), "--json").stdout)
    assert status["states"] == {trial.job_id: "FAILED"}
    assert json.loads(bed.fsdpkit("diagnose", str(trial.dir), "--json").stdout)["rank"] == 1
    assert "rank 1 on node2: RuntimeError: a sample that cannot be read" in why
    assert "step 12 again" in why
    assert len(trial.launches()) == 2
    (trial.directory / "raise.json").unlink()
    resumed(trial, undisturbed)


def test_no_more_restarts_than_the_policy_allows(bed: Bed, undisturbed: Losses) -> None:
    breaks_twice = breaks("RuntimeError", "a loose cable", 6, 12)
    trial = bed.submit(breaks=breaks_twice, sets=["retry.restarts=1"])
    assert "retry.restarts" in ended(trial, 1, "crash")
    assert len(trial.launches()) == 2
    resumed(trial, undisturbed)


def test_a_job_that_is_cancelled_with_a_last_checkpoint_does_not_come_back(
    bed: Bed, undisturbed: Losses
) -> None:
    trial = bed.submit(hold="training")

    def cancel(_: Trial) -> None:
        done = bed.fsdpkit("cancel", str(trial.dir), "--save")
        assert done.returncode == 0, done.stderr
        trial.wait_warned()

    trial.strike(cancel)
    ended(trial, 75, "cancelled")
    assert max(trial.saved()) > 12
    resumed(trial, undisturbed)
    assert trial.steps() == sorted(undisturbed), "a step was repeated"


def test_out_of_memory_is_not_tried_again(bed: Bed) -> None:
    trial = bed.submit(breaks=breaks("OutOfMemoryError", "CUDA out of memory."))
    assert "CUDA out of memory" in ended(trial, 1, "out-of-memory")
    assert len(trial.launches()) == 1


def test_a_crash_ends_the_job_where_the_policy_says_stop(bed: Bed) -> None:
    trial = bed.submit(hold="training", sets=["retry.on_crash=stop"])
    trial.strike(by.kill_rank)
    assert "rank 1 on node2: " in ended(trial, 137, "crash")
    assert len(trial.launches()) == 1


def test_a_warning_ends_the_job_after_a_checkpoint_where_the_policy_says_stop(
    bed: Bed, undisturbed: Losses
) -> None:
    trial = bed.submit(hold="training", sets=["retry.on_time_limit=stop"])
    trial.strike(by.warn_shell)
    ended(trial, 75, "time-limit")
    assert max(trial.saved()) > 12
    assert f"to go on: fsdpkit resume {trial.dir}" in trial.batch_log()
    assert trial.losses().items() <= undisturbed.items()


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


def ends_for_want_of_room(place: Path, bed: Bed, trainer: Path, *, told: bool = True) -> Trial:
    """The run ends with the status for storage, keeps its good checkpoints, and can go on."""
    undisturbed = bed.undisturbed(trainer)
    sets = ["parameters.min_free_gb=0"]
    trial = bed.submit(trainer=trainer, hold="training", runs=place, sets=sets)
    trial.strike(lambda _: fill(place))
    job = trial.wait_end()
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "74:0"), trial.error("full disk")
    assert {5, 10} <= {*trial.saved()}
    assert trial.damage() == []
    (place / "filler").unlink()
    os.sync()
    resumed(trial, undisturbed, told=told)
    return trial


@pytest.mark.torch
@T5_LANE
def test_a_full_disk_ends_the_job_and_leaves_the_good_checkpoints(
    small_disk: Path, bed: Bed
) -> None:
    trial = ends_for_want_of_room(small_disk, bed, T5)
    assert "No space left on device" in trial.batch_log()


def test_a_used_up_quota_ends_the_job_and_leaves_the_good_checkpoints(
    small_quota: Path, bed: Bed
) -> None:
    """Not a byte can be written then: no log, no verdict, only Slurm hears of it."""
    ends_for_want_of_room(small_quota, bed, LIGHT, told=False)


@pytest.mark.torch
@T5_LANE
def test_a_checkpoint_that_cannot_be_read_just_now_is_not_taken_for_damaged(bed: Bed) -> None:
    undisturbed = bed.undisturbed(T5)
    trial = bed.submit(trainer=T5, hold="training")
    away: list[tuple[Path, Path]] = []

    def hide_and_kill(_: Trial) -> None:
        """The newest checkpoint's tensors answer with an error of the file system (ELOOP)."""
        for file in (trial.task.checkpoints / f"step-{max(trial.good)}").glob("*.distcp"):
            hidden = trial.directory / file.name
            file.rename(hidden)
            file.symlink_to(file)
            away.append((file, hidden))
        by.kill_rank(trial)

    trial.strike(hide_and_kill)
    ended(trial, 74, "storage")
    for file, hidden in away:
        file.unlink()
        hidden.rename(file)
    resumed(trial, undisturbed)
    assert trial.resumed_after()[-1] == max(trial.good)


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
