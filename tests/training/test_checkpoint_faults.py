"""What a checkpoint directory looks like after something went wrong in a save."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from launch import findings
from torch.distributed.checkpoint import state_dict_saver

from fsdpkit.errors import StorageError
from fsdpkit.training.checkpoint_files import CheckpointReader, Writer
from fsdpkit.training.checkpoint_loading import weights_in

KILLED = 9


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("disturbed")
    (folder / "runs").mkdir()
    return findings(1, "checkpoint_faults.py", folder, str(folder / "runs"))


@pytest.mark.torch
def test_killed_at_any_moment_of_a_save_every_named_checkpoint_is_whole(disturbed):
    *killed, undisturbed = disturbed["killed"]
    assert len(killed) > 12
    assert [case["status"] for case in killed] == [KILLED] * len(killed)
    assert undisturbed["status"] == 0
    for case in killed:
        assert set(case["left"]) in ({"step-1", "step-2"}, {"step-1", "step-2", "step-3"},
                                     {"step-2", "step-3"})  # fmt: skip
        assert not any(case["left"].values()), case
    before_the_name = [case for case in killed if "step-3" not in case["left"]]
    assert 0 < len(before_the_name) < len(killed)


@pytest.mark.torch
def test_a_run_that_was_killed_in_a_save_goes_on_and_cleans_up(disturbed):
    for case in disturbed["killed"]:
        newest = max(int(name.removeprefix("step-")) for name in case["left"])
        assert case["again"] == [0, f"resumed after step {newest}"]
        names = [f"step-{newest}", f"step-{newest + 1}", "writer.json"]
        assert case["names"] == names
        assert not any(case["after"].values())


DAMAGE = {
    "flipped shard": "step-2/__0_0.distcp is not what was written",
    "flipped index": "step-2/.metadata is not what was written",
    "flipped description": "step-2/checkpoint.json is not what was written",
    "flipped sums": "step-2/SHA256SUMS is (?:torn|incomplete or was changed)|"
    "step-2/.* is not what was written",
    "truncated shard": "step-2/__0_0.distcp is not what was written",
    "missing shard": "step-2/__0_0.distcp is missing",
    "missing sums": "step-2/SHA256SUMS is missing",
}


@pytest.mark.torch
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_whole_is_refused_by_name_and_the_one_before_taken(disturbed, damage):
    case = disturbed["damaged"][damage]
    status, said = case["again"]
    assert (status, said.partition("\n")[0]) == (0, "resumed after step 1")
    assert re.search(f"checkpoint step-2 is refused: .*{DAMAGE[damage]}", said), said
    assert case["after"] == {"step-1": [], "step-2": []}  # made again, in the place of the bad one


@pytest.mark.torch
def test_a_checkpoint_of_a_newer_version_ends_the_run_instead_of_being_passed_over(disturbed):
    said = disturbed["damaged"]["newer format"]["again"][1]
    assert re.search(r"ConfigError: .*step-2/checkpoint.json has format 7", said), said


@pytest.mark.torch
def test_what_is_written_is_what_was_there_when_it_was_saved(disturbed):
    assert disturbed["copied"] == [-2.0, -3.0]


@pytest.mark.torch
def test_a_full_disk_costs_the_new_checkpoint_only(disturbed):
    case = disturbed["no room"]
    assert case["first"] == [0, "resumed after step 0"]
    assert "checkpoint of step 2 could not be written" in case["second"][1]
    assert "No space left on device" in case["second"][1]
    assert case["left"] == {"step-1": []}
    assert case["names"] == ["step-1", "writer.json"]  # the draft has made room
    assert case["third"] == [0, "resumed after step 1"]


@pytest.mark.torch
def test_a_directory_that_cannot_be_written_is_told_before_the_first_step(disturbed):
    case = disturbed["read-only"]
    assert "StorageError" in case["second"][1]
    assert "read-only/checkpoints cannot be written (Read-only file system)" in case["second"][1]
    assert case["left"] == {"step-1": []}


@pytest.mark.torch
def test_of_two_jobs_that_write_one_run_the_later_one_goes_on(disturbed):
    case = disturbed["two jobs"]
    assert "belongs to another job of the same run (process " in case["first"][1]
    assert "has overwritten nothing" in case["first"][1]
    assert case["left"] == {"step-1": [], "step-2": []}
    assert case["third"] == [0, "resumed after step 2"]


@pytest.mark.torch
def test_all_ranks_hear_that_one_could_not_write(tmp_path):
    found = findings(2, "failing_writes", tmp_path)
    # Nothing is sent by each rank to each, and one reads the index for all.
    assert found["counts"] == [[0, 1], [0, 0]]
    first, second = found["messages"]
    assert first == second
    assert "checkpoint of step 3 could not be written" in first  # the second in a row
    assert "File too large" in first
    assert "checkpoint of step 2 could not be written" in found["said"]
    assert found["said"].count("The run ends if the next one cannot be, either.") == 1
    assert "File too large" in found["answer"]  # to whoever had asked for it
    assert found["left"] == ["step-1", "writer.json"]
    assert found["after"] == {"step-4": [], "step-6": []}  # 5 failed, and the run went on


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


def written(directory: Path, state: dict) -> Path:
    state_dict_saver.save(state, storage_writer=Writer(directory), no_dist=True)
    return directory


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_index_cannot_run_code(tmp_path):
    path = written(tmp_path / "step-1", {"model": {"w": torch.ones(2)}})
    assert weights_in(path) == {"w": (torch.Size([2]), torch.float32)}
    (path / ".metadata").write_bytes(pickle.dumps(Malicious(tmp_path / "owned")))
    with pytest.raises(StorageError, match=r"\.metadata asks for posix\.mkdir"):
        CheckpointReader(path).read_metadata()
    assert not (tmp_path / "owned").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_value_cannot_run_code(tmp_path):
    bad = Malicious(tmp_path / "owned")
    path = written(tmp_path / "step-1", {"model": {"w": torch.ones(2), "x": bad}})
    with pytest.raises(StorageError):
        load_anything(path)
    assert not (tmp_path / "owned").exists()


def load_anything(path: Path) -> None:
    """Loads the value beside the weight, as a run whose optimizer has such a value would."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException

    from fsdpkit.training.checkpoint_files import LoadPlanner

    try:
        state_dict_loader.load(
            {"model": {"x": 0}},
            storage_reader=CheckpointReader(path),
            planner=LoadPlanner(),
            no_dist=True,
        )
    except CheckpointException as error:
        raise StorageError(str(error)) from None
