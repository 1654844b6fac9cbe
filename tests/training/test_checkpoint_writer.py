"""What the writer of a checkpoint says of its files, for tensors small and large."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from fsdpkit.runs.checkpoints import sha256_of
from fsdpkit.training import checkpoint_files
from fsdpkit.training.checkpoint_files import CheckpointReader, LoadPlanner, Writer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

PIECE = 1000
TENSORS = {
    "empty": torch.zeros(0, 3),
    "one": torch.tensor(3.5),
    "a piece": torch.arange(PIECE, dtype=torch.uint8),
    "pieces and a rest": torch.arange(PIECE * 3 + 1, dtype=torch.int64),
    "bfloat16": torch.arange(2049).bfloat16(),
    "every other": torch.arange(4096.0).view(64, 64)[:, ::2],
    "rows of a larger one": torch.arange(4096.0).view(64, 64)[:40],
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "_LARGE_BYTES", 500)
    monkeypatch.setattr(checkpoint_files, "_PIECE_BYTES", PIECE)


def write(writer: Writer) -> None:
    state_dict_saver.save({"model": TENSORS}, storage_writer=writer, no_dist=True)


def assert_as_written(writer: Writer) -> None:
    directory = Path(writer.path)
    assert sorted(writer.written) == sorted(file.name for file in directory.iterdir())
    for name, (size, sha256) in writer.written.items():
        assert (directory / name).stat().st_size == size
        assert sha256_of(directory / name) == sha256
    state = {"model": {name: torch.full_like(tensor, 7) for name, tensor in TENSORS.items()}}
    state_dict_loader.load(
        state, storage_reader=CheckpointReader(directory), planner=LoadPlanner(), no_dist=True
    )
    for name, tensor in TENSORS.items():
        assert torch.equal(state["model"][name], tensor), name


@pytest.mark.parametrize("copied", [True, False])
def test_size_and_digest_are_those_of_the_bytes_on_disk(tmp_path, copied):
    before = threading.active_count()
    write(writer := Writer(tmp_path / "draft", copied=copied))
    assert_as_written(writer)
    for thread in threading.enumerate():
        if thread.name == "checkpoint digest":
            thread.join()
    assert threading.active_count() == before


def test_a_full_disk_is_what_is_told(tmp_path):
    (tmp_path / "__0_0.distcp").symlink_to("/dev/full")
    writer = Writer(tmp_path)
    with pytest.raises(CheckpointException) as caught:
        write(writer)
    (failure, _) = caught.value.failures[0]
    assert "No space left on device" in str(failure)
    assert not writer.written
