"""No job ends well whose ranks trained in another world than the job's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpkit.launching import node_launch
from fsdpkit.launching.sampling import Sampler
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import HeartbeatDir
from tests.launching.forking import Ended, Forking, started_anew

pytestmark = pytest.mark.torch
RANKS = [RankProcess(0, 2, os.getpid())]
MAKE = "import os, torch.distributed as dist\n"
STORE = "store=dist.HashStore()"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    with Forking(tmp_path_factory.mktemp("server")) as server:
        yield server


def run(server: Forking, how: str, directory: Path, script: str, *words: str, **more: str) -> Ended:
    """A script as global rank 2 of 4, on the second of two nodes."""
    (directory / "train.py").write_text(script)
    environ = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    environ |= {"GROUP_WORLD_SIZE": "2", "FSDPKIT_HEARTBEAT_DIR": str(directory), **more}
    command = (sys.executable, "-u", str(directory / "train.py"), *words)
    if how == "forked":
        return server.run(command, environ)
    return started_anew(command, {**server.environ, **environ}, directory)


WRONG = {
    "by its arguments": (
        f"dist.init_process_group('gloo', rank=0, world_size=1, {STORE})",
        "train.py, line 3, makes a process group of 1 as rank 0, but this is rank 2 of 4",
    ),
    "by variables that it sets": (
        "os.environ.update(RANK='0', WORLD_SIZE='2')\ndist.init_process_group('gloo')",
        "(the script has set WORLD_SIZE=2 and RANK=0), but this is rank 2 of 4",
    ),
    "by an address of the node itself": (
        "os.environ['MASTER_ADDR'] = 'localhost'\ndist.init_process_group('gloo')",
        "meet at localhost:, where each node finds only itself",
    ),
    "by a method": (
        "dist.init_process_group('gloo', 'tcp://127.0.0.1:2345', rank=2, world_size=4)",
        "meet at 127.0.0.1:2345, where each",
    ),
    "by none at all": (
        "import torch\nw = torch.nn.Parameter(torch.ones(1))\ntorch.optim.SGD([w], 0.1).step()",
        "train.py, line 5, trains, but the script has made no process group: each of the",
    ),
    "from a function's copy of the call": (
        "from torch.distributed.device_mesh import init_process_group\n"
        f"init_process_group('gloo', rank=0, world_size=1, {STORE})",
        "train.py, line 4, makes a process group of 1",
    ),
}


@pytest.mark.parametrize(
    ("case", "started"), [*((case, "forked") for case in WRONG), ("by its arguments", "anew")]
)
def test_a_rank_in_another_world_ends_whatever_its_script_catches(
    server: Forking, started: str, tmp_path: Path, case: str
) -> None:
    call, told = WRONG[case]
    caught = "".join(f"    {line}\n" for line in call.splitlines())
    script = f"{MAKE}try:\n{caught}except BaseException: pass\nprint('trains')\n"
    ended = run(server, started, tmp_path, script)
    assert (ended.status, ended.out) == (78, "")
    found = node_launch.wrong_world(HeartbeatDir(tmp_path), RANKS)
    assert found is not None
    assert found[0] == 2
    assert told in found[1]
    assert told in ended.err


@pytest.mark.parametrize(("world", "started"), [("checked", "forked"), ("any", "forked")])
def test_a_group_is_made_as_the_script_says_where_that_is_right_or_allowed(
    server: Forking, started: str, tmp_path: Path, world: str
) -> None:
    size, rank = ("4", "2") if world == "checked" else ("1", "0")
    make = f"{MAKE}from torch.testing._internal.distributed.fake_pg import FakeStore\n"
    make += f"dist.init_process_group('fake', rank={rank}, world_size={size}, store=FakeStore())\n"
    step = "import torch\ntorch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1).step()\n"
    step += "from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks\n"
    script = f"{make}{step}print(dist.get_rank(), dist.init_process_group.__name__, len(hooks))"
    ended = run(server, started, tmp_path, script, FSDPKIT_WORLD=world)
    assert ended == Ended(0, f"{rank} init_process_group 0\n", ended.err)
    assert node_launch.made_a_group(HeartbeatDir(tmp_path), RANKS) is True


BELOW = """
import os, sys, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
def train(local, size):
    os.environ.update(WORLD_SIZE="2", RANK="1", MASTER_ADDR=sys.argv[2])
    dist.init_process_group('fake', rank=local, world_size=size, store=FakeStore())
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1).step()
    print('trained', 'in_rank' in sys.modules)
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (int(sys.argv[1]),))
"""


@pytest.mark.parametrize(
    ("started", "size", "address", "found"),
    [
        ("forked", 2, "n1", True),
        ("anew", 2, "n1", True),
        ("forked", 4, "n1", False),
        ("forked", 4, "localhost", True),
        ("forked", 8, "n1", False),
    ],
)
def test_processes_that_a_rank_starts_train_in_the_job_s_world(
    server: Forking, started: str, tmp_path: Path, size: int, address: str, found: bool
) -> None:
    words = (str(size), address)
    ended = run(server, started, tmp_path, BELOW, *words, FSDPKIT_GPUS_PER_NODE="4")
    said = node_launch.wrong_world(HeartbeatDir(tmp_path), RANKS)
    assert (ended.status, ended.out) == ((1, "") if found else (0, "trained False\n"))
    assert (
        said is not None and f"train.py, line 7, trains in a process group of {size}" in said[1]
    ) == found


PARSE = """
import argparse, sys
p = argparse.ArgumentParser()
p.add_argument("--local_rank", type=int, default=-1)
p.add_argument("--lr")
print(p.parse_args().local_rank, sys.argv[1:])
"""
FIRST = "first = argparse.ArgumentParser(add_help=False)\nfirst.add_argument('-c')\n"
TWO = PARSE.replace("parse_args()", "parse_args(first.parse_known_args()[1])")
TWO = TWO.replace("p = ", f"{FIRST}p = ")
MAIN = "main = argparse.ArgumentParser()\np = main.add_subparsers().add_parser('fit')"
UNDER = PARSE.replace("p.parse", "main.parse").replace("p = argparse.ArgumentParser()", MAIN)


@pytest.mark.parametrize(
    ("started", "script", "words", "printed"),
    [
        ("forked", PARSE, ["--lr", "1"], "0 ['--lr', '1']"),
        ("anew", PARSE, ["--lr", "1"], "0 ['--lr', '1']"),
        ("forked", PARSE, ["--local_rank=3"], "3 ['--local_rank=3']"),
        ("forked", PARSE.replace("--local_rank", "--local-rank"), [], "0 []"),
        ("forked", PARSE.replace("parse_args()", "parse_args([])"), [], "-1 []"),
        ("forked", TWO, ["-c", "f"], "0 ['-c', 'f']"),
        ("forked", TWO, ["-c", "f", "--lr", "1"], "0 ['-c', 'f', '--lr', '1']"),
        ("forked", TWO, ["--local_rank", "3"], "3 ['--local_rank', '3']"),
        ("forked", UNDER, ["fit", "--lr", "1"], "0 ['fit', '--lr', '1']"),
    ],
)
def test_a_parser_that_wants_local_rank_gets_it(
    server: Forking, started: str, tmp_path: Path, script: str, words: list[str], printed: str
) -> None:
    assert run(server, started, tmp_path, script, *words) == Ended(0, f"{printed}\n", "")


STEPS = """import torch
from torch.optim import SGD
generator, discriminator = (SGD([torch.nn.Parameter(torch.ones(1))]) for _ in range(2))
for step in range(7):
    generator.step()
    for _ in range(2):
        discriminator.step()
"""


@pytest.mark.parametrize(
    ("started", "alone"),
    [("forked", {"FSDPKIT_WORLD": "any"}), ("anew", {"WORLD_SIZE": "1", "RANK": "0"})],
)
def test_the_steps_of_an_optimizer_are_counted(
    server: Forking,
    started: str,
    alone: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FSDPKIT_HEARTBEAT_DIR", str(tmp_path))
    assert "optimizer_steps" not in Sampler().sample()
    assert run(server, started, tmp_path, STEPS, **alone).status == 0
    assert Sampler().sample()["optimizer_steps"] == 7
