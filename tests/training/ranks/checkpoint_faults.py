"""One rank whose saves are disturbed: killed at each moment, no room, no right to write.

argv: the file for the findings, and an empty folder. What is mounted there is mounted for this
process alone. Each case is a forked child, because most of them end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch._dynamo  # every optimizer imports it
import torch.distributed as dist

# Imported here once for all children.
from torch.distributed.checkpoint import (  # noqa: F401
    staging,
    state_dict,
    state_dict_loader,
    state_dict_saver,
)

from fsdpkit.config.training import CheckpointSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.checkpoints import checkpoints_in, problems_of, sha256_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.checkpoint_loading import read_weights
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.progress import Progress

ALONE = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
KILLED = 9
WATCHED = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")


def in_child(case: Callable[[], object]) -> tuple[int, str]:
    """Exit status of a forked child that ran `case`, and what it returned or raised, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status, printed = 0, io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                said = str(case())
            said += "\n" + printed.getvalue()
        except FsdpkitError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException:
            said, status = traceback.format_exc(), 1
        os.write(writing, said.strip().encode())
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def training(folder: Path, steps: int, *, before_last: Callable[[], None] = lambda: None) -> str:
    """Resume, take steps and save after each; weights count the steps. Returns where it resumed."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
    saves = Checkpointer(TaskPaths(folder), ALONE, model, optimizer, CheckpointSettings())
    progress = saves.resume() or Progress()
    resumed = progress.step
    assert torch.equal(model.weight, torch.full_like(model.weight, -float(resumed))), (
        "other weights"
    )
    while progress.step < resumed + steps:
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        progress.step += 1
        if progress.step == resumed + steps:
            saves.wait()
            before_last()
        saves.save(progress)
    saves.close()
    return f"resumed after step {resumed}"


def die_at(call: int) -> Callable[[], None]:
    """From now on count calls to the file system, and end the process before the n-th."""
    count = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        if event in WATCHED and not str(arguments[0]).endswith(".py"):
            count += 1
            if count == call:
                os._exit(KILLED)

    return lambda: sys.addaudithook(hook)


def state_of(folder: Path) -> dict[str, list[str]]:
    found = checkpoints_in(TaskPaths(folder).checkpoints)
    return {path.name: problems_of(path) for path in found}


def killed_at_each_moment(folder: Path) -> list[dict]:
    """A third save of a run with two, killed before each of its calls; then the run goes on."""
    found = []
    in_child(lambda: training(folder / "before", 2))
    for call in range(1, 200):
        run = folder / f"killed-{call}"
        shutil.copytree(folder / "before", run)
        status, said = in_child(
            lambda run=run, call=call: training(run, 1, before_last=die_at(call))
        )
        left = state_of(run)
        again = in_child(lambda run=run: training(run, 1))
        found.append(
            {
                "status": status,
                "said": said,
                "left": left,
                "again": again,
                "after": state_of(run),
                "names": sorted(p.name for p in TaskPaths(run).checkpoints.iterdir()),
            }
        )
        if status != KILLED:  # the save made fewer calls: all have had their turn
            return found
    raise AssertionError("a save does not make two hundred calls")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "flipped shard": lambda path: flip(path / "__0_0.distcp"),
    "flipped index": lambda path: flip(path / ".metadata"),
    "flipped description": lambda path: flip(path / "checkpoint.json"),
    "flipped sums": lambda path: flip(path / "SHA256SUMS"),
    "truncated shard": lambda path: os.truncate(path / "__0_0.distcp", 1000),
    "missing shard": lambda path: (path / "__0_0.distcp").unlink(),
    "missing sums": lambda path: (path / "SHA256SUMS").unlink(),
}


def damaged(folder: Path) -> dict[str, dict]:
    """The newest of two checkpoints is not what was written any more; the run goes on."""
    found = {}
    for name, damage in DAMAGE.items():
        run = folder / name
        shutil.copytree(folder / "before", run)
        damage(TaskPaths(run).checkpoints / "step-2")
        again = in_child(lambda run=run: training(run, 1))
        found[name] = {"again": again, "after": state_of(run)}
    newer = folder / "newer format"
    shutil.copytree(folder / "before", newer)
    description = TaskPaths(newer).checkpoints / "step-2" / "checkpoint.json"
    sums, before_it = description.with_name("SHA256SUMS"), sha256_of(description)
    description.write_text(description.read_text().replace('"format": 1', '"format": 7'))
    sums.write_text(sums.read_text().replace(before_it, sha256_of(description)))
    return {
        **found,
        "newer format": {"again": in_child(lambda: training(newer, 1))},
    }


def copied_before_it_changes(folder: Path) -> list[float]:
    """The copy is slow; the next step follows at once. What each checkpoint says of its step."""
    stage = staging.DefaultStager._stage

    def slow(*arguments: object, **options: object) -> object:
        time.sleep(0.2)
        return stage(*arguments, **options)

    staging.DefaultStager._stage = slow
    try:
        in_child(lambda: training(folder, 3))
    finally:
        staging.DefaultStager._stage = stage
    paths = checkpoints_in(TaskPaths(folder).checkpoints)
    return [float(read_weights(path, ["weight"])["weight"].mean()) for path in paths]


def mount_for_oneself() -> None:
    """From now on mounts are of this process and its children, and end with the last of them."""
    new_mounts = 0x00020000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(new_mounts):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("--make-rprivate", at=Path("/"))


def mount(*options: str, at: Path) -> None:
    subprocess.run(["mount", *options, str(at)], check=True)


def no_room(folder: Path) -> dict:
    """The file system fills up after the first checkpoint."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", at=folder)
    first = in_child(lambda: training(folder, 1))

    def fill() -> None:
        with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass

    second = in_child(lambda: training(folder, 1, before_last=fill))
    left, names = state_of(folder), sorted(os.listdir(folder / "checkpoints"))
    (folder / "filler").unlink()
    third = in_child(lambda: training(folder, 1))
    return {"first": first, "second": second, "left": left, "names": names, "third": third}


def read_only(folder: Path) -> dict:
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", at=folder)
    first = in_child(lambda: training(folder, 1))
    mount("-o", "remount,ro", at=folder)
    return {
        "first": first,
        "second": in_child(lambda: training(folder, 1)),
        "left": state_of(folder),
    }


def two_jobs(folder: Path, other: OtherJob) -> dict:
    """A second job begins to write to the same run while the first is still training."""
    second: list[tuple[int, str]] = []
    first = in_child(lambda: training(folder, 2, before_last=lambda: second.append(other(folder))))
    return {
        "first": first,
        "left": state_of(folder),
        "third": in_child(lambda: training(folder, 1)),
    }


class OtherJob:
    """Takes a step of the run in a folder, in a process that has no process group yet."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        if os.fork() == 0:
            self._pipe.close()
            with contextlib.suppress(EOFError):
                self._serve(theirs)
            os._exit(0)
        theirs.close()

    @staticmethod
    def _serve(pipe: Connection) -> None:
        while True:
            folder = pipe.recv()
            pipe.send(in_child(lambda folder=folder: training(folder, 1)))

    def __call__(self, folder: Path) -> tuple[int, str]:
        self._pipe.send(folder)
        answer: tuple[int, str] = self._pipe.recv()
        return answer


def main() -> None:
    torch.set_num_threads(1)  # threads do not survive a fork
    mount_for_oneself()
    other = OtherJob()
    result, folder = Path(sys.argv[1]), Path(sys.argv[2])
    found = {
        "killed": killed_at_each_moment(folder),
        "damaged": damaged(folder),
        "copied": copied_before_it_changes(folder / "copied"),
        "no room": no_room(folder / "full"),
        "read-only": read_only(folder / "read-only"),
        "two jobs": two_jobs(folder / "shared", other),
    }
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
