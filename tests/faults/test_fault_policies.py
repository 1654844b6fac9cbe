"""Where `[retry]` or common sense says stop, the job ends soon, says why, and how to go on.

Each run is then resumed, as its last words say, and ends with the losses of a quiet one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import injectors as by
from tests.faults.trial import STEPS, Bed, Trial

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
more = pytest.mark.skipif(
    os.environ.get("FSDPKIT_ALL_FAULTS") != "1", reason="FSDPKIT_ALL_FAULTS=1 runs it"
)
Losses = dict[int, float]


def breaks(error: str, message: str) -> dict[str, object]:
    return {"rank": 1, "step": 12, "error": error, "message": message, "once": False}


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


def resumed(trial: Trial, undisturbed: Losses) -> None:
    """`fsdpkit resume`, as the job's last words have it, takes the run to its end."""
    words = f"fsdpkit: to go on: fsdpkit resume {trial.dir}"
    assert words in trial.batch_log()
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
    trial = bed.submit(breaks=breaks("RuntimeError", "a sample that cannot be read"))
    why = ended(trial, 1, "crash")
    assert "rank 1 on node2: RuntimeError: a sample that cannot be read" in why
    assert "after step 12 again" in why
    assert len(trial.launches()) == 2
    (trial.directory / "raise.json").unlink()
    resumed(trial, undisturbed)


def test_a_job_that_is_cancelled_with_a_last_checkpoint_does_not_come_back(
    bed: Bed, undisturbed: Losses
) -> None:
    trial = bed.submit(hold="training")

    def cancel(_: Trial) -> None:
        done = bed.fsdpkit("cancel", str(trial.dir), "--save")
        assert done.returncode == 0, done.stderr

    trial.strike(cancel)
    ended(trial, 75, "cancelled")
    assert max(trial.saved()) > 12
    resumed(trial, undisturbed)
    assert trial.steps() == sorted(undisturbed), "a step was repeated"


def test_out_of_memory_is_not_tried_again(bed: Bed) -> None:
    trial = bed.submit(breaks=breaks("OutOfMemoryError", "CUDA out of memory."))
    assert "CUDA out of memory" in ended(trial, 1, "out-of-memory")
    assert len(trial.launches()) == 1


@more
def test_a_crash_ends_the_job_where_the_policy_says_stop(bed: Bed) -> None:
    trial = bed.submit(hold="training", sets=["retry.on_crash=stop"])
    trial.strike(by.kill_rank)
    assert "rank 1 on node2: ended by signal 9" in ended(trial, 137, "crash")
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


@pytest.fixture
def small_disk(bed: Bed) -> Iterator[Path]:
    """A file system that all nodes see and that is soon full; they see it once they have booted."""
    place = bed.directory / "small-disk"
    place.mkdir()
    mount(place, "size=100m", "-t", "tmpfs", "tmpfs")
    try:
        reboot(bed)
        yield place
        bed.mend()
    finally:
        for node in bed.cluster.options.node_names:
            bed.cluster.node_exec(node, ["umount", "--lazy", str(place)])
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def mount(place: Path, options: str, *words: str) -> None:
    subprocess.run(["mount", "-o", options, *words, str(place)], check=True)


def reboot(bed: Bed) -> None:
    for node in bed.cluster.options.node_names:
        bed.cluster.kill_node(node)
        bed.cluster.start_node(node)
    bed.cluster.wait_idle()


def test_a_full_disk_ends_the_job_and_leaves_the_good_checkpoints(
    small_disk: Path, bed: Bed, undisturbed: Losses
) -> None:
    trial = bed.submit(hold="training", runs=small_disk, sets=["parameters.min_free_gb=0"])
    filler = small_disk / "filler"

    def fill(_: Trial) -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    trial.strike(fill)
    job = trial.wait_end()
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "74:0"), trial.error("full disk")
    assert {5, 10} <= {*trial.saved()}
    assert trial.damage() == []
    assert "No space left on device" in trial.batch_log()
    filler.unlink()
    resumed(trial, undisturbed)


@more
def test_a_checkpoint_that_cannot_be_read_just_now_is_not_taken_for_damaged(
    bed: Bed, undisturbed: Losses
) -> None:
    trial = bed.submit(hold="training")
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


STALL_S = 40
"""Five times the silence after which a node counts as lost (retry.lost_s)."""


@pytest.fixture
def stalling_disk(bed: Bed) -> Iterator[Path]:
    """A file system that all nodes see, and that can be frozen: whoever writes waits."""
    place, image = bed.directory / "stalling-disk", bed.directory / "disk.ext4"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(200 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    try:
        subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    except subprocess.CalledProcessError:
        pytest.skip("this machine has no loop devices")
    try:
        reboot(bed)
        yield place
        bed.mend()
    finally:
        for node in bed.cluster.options.node_names:
            bed.cluster.node_exec(node, ["umount", "--lazy", str(place)])
        subprocess.run(["umount", "--lazy", str(place)], check=True)


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
