"""How long a rank waits for data is known for any script that uses torch's DataLoader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.launching.heartbeats import RankHeartbeats
from fsdpkit.launching.sampling import loading_s
from fsdpkit.runs.heartbeat import HeartbeatDir
from tests.launching.forking import Ended, Forking, started_anew

pytestmark = pytest.mark.torch
BEGIN = """import sys, threading, time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
real, time.monotonic_ns, now_ns = time.monotonic_ns, lambda: now_ns, 0
def work():
    global now_ns
    now_ns += 10**8
    time.sleep(0.1 if get_worker_info() else 0)
class Slow(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        work()
        return index
class Stream(IterableDataset):
    def __iter__(self):
        for index in range(4):
            work()
            yield index
class Within(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return sum(map(int, DataLoader(Slow())))
def seen(loader):
    return [value for batch in loader for value in batch.tolist()]
"""
"""A wait takes 0.1 s by the rank's own clock; a worker's takes real time, for `real` is its
rank's."""
CASES = {
    "without workers": ("print(seen(DataLoader(Slow())))", 0.4, "[0, 1, 2, 3]"),
    "a stream": ("print(seen(DataLoader(Stream(), batch_size=2)))", 0.4, "[0, 1, 2, 3]"),
    "a loader within a loader": ("print(seen(DataLoader(Within())))", 0.4, "[6]"),
    "a loader within a worker": (
        "time.monotonic_ns = real\nprint(seen(DataLoader(Within(), num_workers=1)))",
        0.4,
        "[6]",
    ),
    "workers that live on": (
        "time.monotonic_ns = real\n"
        "loader = DataLoader(Slow(), num_workers=1, persistent_workers=True)\n"
        "print(seen(loader) + seen(loader))",
        0.8,
        "[0, 1, 2, 3, 0, 1, 2, 3]",
    ),
    "a subclass that has its own iterator": (
        "class Own(DataLoader):\n"
        "    def __iter__(self):\n"
        "        work()\n"
        "        for batch in super().__iter__():\n"
        "            yield batch + 1\n"
        "print(seen(Own(Slow())))",
        0.4,
        "[1, 2, 3, 4]",
    ),
    "a thread that loads ahead": (
        "thread = threading.Thread(target=lambda: print(seen(DataLoader(Slow()))))\n"
        "thread.start(); thread.join()",
        0.0,
        "[0, 1, 2, 3]",
    ),
    "within a compiled function": (
        "@torch.compile(backend='eager')\n"
        "def total(loader):\n"
        "    return sum(batch.sum() for batch in loader)\n"
        "print(int(total(DataLoader(Slow()))))",
        0.4,
        "6",
    ),
    "a child of the rank": (
        "import os\n"
        "if not (child := os.fork()):\n"
        "    seen(DataLoader(Slow())); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])",
        0.0,
        "0",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    with Forking(tmp_path_factory.mktemp("server")) as server:
        server.load("torch")
        yield server


def run(server: Forking, how: str, directory: Path, script: str, local_rank: str = "0") -> Ended:
    (directory / "train.py").write_text(script)
    environ = {"RANK": "0", "LOCAL_RANK": local_rank, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environ |= {"FSDPKIT_HEARTBEAT_DIR": str(directory)}
    command = (sys.executable, "-u", str(directory / "train.py"))
    if how == "forked":
        return server.run(command, environ)
    return started_anew(command, {**server.environ, **environ}, directory)


@pytest.mark.parametrize(
    ("case", "how"), [*((case, "forked") for case in CASES), ("without workers", "anew")]
)
def test_only_waits_of_the_rank_itself_count_and_each_once(
    server: Forking, how: str, tmp_path: Path, case: str
) -> None:
    body, waited_s, printed = CASES[case]
    ended = run(server, how, tmp_path, BEGIN + body)
    assert (ended.status, ended.out) == (0, f"{printed}\n"), ended.err
    found = loading_s(tmp_path)
    assert found is not None
    # Workers need a while to start, which is waiting, too.
    assert found >= waited_s if "real" in body else found == pytest.approx(waited_s)


def test_a_loader_s_errors_and_ends_are_the_script_s(server: Forking, tmp_path: Path) -> None:
    """An exception comes as it is, its time counts, and the next wait is counted as well."""
    body = """class Broken(Slow):
    def __getitem__(self, index):
        super().__getitem__(index)
        raise LookupError(index)
for _ in range(2):
    try:
        next(iter(DataLoader(Broken())))
    except LookupError as error:
        print(repr(error))
next(iter(DataLoader(Broken())))
"""
    ended = run(server, "forked", tmp_path, BEGIN + body)
    assert (ended.status, ended.out) == (1, "LookupError(0)\n" * 2)
    assert loading_s(tmp_path) == pytest.approx(0.3)


def test_other_ranks_and_scripts_without_a_loader_count_nothing(
    server: Forking, tmp_path: Path
) -> None:
    assert run(server, "forked", tmp_path, BEGIN + CASES["a stream"][0], "1").status == 0
    assert loading_s(tmp_path) is None
    assert run(server, "anew", tmp_path, "import sys; print('torch' in sys.modules)").out == (
        "False\n"
    )
    assert loading_s(tmp_path) == 0


def test_a_launch_begins_at_0(tmp_path: Path) -> None:
    (tmp_path / "steps-0").write_bytes(bytes(8) + (10**9).to_bytes(8, sys.byteorder))
    assert loading_s(tmp_path) == 1
    RankHeartbeats(HeartbeatDir(tmp_path), 60)
    assert not os.listdir(tmp_path)
