"""A hold on the local cluster: what is forked for whom, and that no run takes the hold with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist

import fsdpkit
from fsdpkit import FunctionError, Run
from fsdpkit.cli.cancel import say_what_would_end
from fsdpkit.config.job import Resources
from fsdpkit.config.placement import for_trying_out
from fsdpkit.config.site import choose_site
from fsdpkit.errors import NotFoundError, UsageError
from fsdpkit.launching.held import address_of
from fsdpkit.reporting.report.page import page
from fsdpkit.reporting.status.overview import one_status
from fsdpkit.scheduling import kept
from fsdpkit.scheduling.here.held import idle_limit_s
from fsdpkit.scheduling.local.supervisor import nodes_of
from fsdpkit.scheduling.submission import SubmitRequest, plan, submit_plan
from tests.json_answers import checked

pytestmark = pytest.mark.local

SCRIPT = """
import os, signal, sys, time
import torch.distributed as dist
if sys.argv[1:] == ["end", os.environ["RANK"]]:
    os.kill(os.getppid(), signal.SIGKILL)
dist.init_process_group("gloo")
time.sleep(600 * (sys.argv[1:] == ["wait"]))
print(dist.get_world_size(), "ranks,", os.environ["OMP_NUM_THREADS"], "threads", flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def hold(place: Path) -> Iterator[Run]:
    with fsdpkit.hold(nodes=2, gpus=2, cluster="local", time="20", runs=place / "runs") as nodes:
        yield nodes.hold
    assert nodes.hold.wait(poll_s=0.2).state == "COMPLETED"


def started(hold: Run, place: Path, *sets: str, args: tuple[str, ...] = ()) -> Run:
    run = fsdpkit.submit(
        str(place / "train.py"),
        on=hold.id,
        runs=place / "runs",
        sets=["retry.on_crash=stop", *sets],
        args=args,
    )
    run.wait(poll_s=0.2)
    return run


def agents_said(run: Run) -> str:
    return "".join(path.read_text() for path in run.paths.submitit.glob("*_log.*"))


def test_runs_on_a_hold(hold: Run, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hold.job_id is not None
    nodes = nodes_of(int(hold.job_id) * 7, 2)
    # Who says nothing is let go, and another user is not answered.
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(address_of(hold.id, nodes[0]))
        silent.sendall(b"\xff" * 8)
        if os.getuid() == 0:
            assert another_user_hears(address_of(hold.id, nodes[1])) == "b''\n"
        # Agents are forked, on the hold's nodes; what torch does not read is no obstacle.
        run = started(hold, place, "environment.variables.MY_OWN=1")
    assert run.record.on == hold.id
    assert "4 ranks" in printed(run)
    assert [node in agents_said(run) for node in nodes] == [True, True]
    assert "imported anew" not in agents_said(run)
    # What it reads is obeyed.
    run = started(hold, place, "environment.variables.OMP_NUM_THREADS=3")
    assert "3 threads" in printed(run)
    assert "OMP_NUM_THREADS differ" in agents_said(run)
    # Its page and its status list the runs with what they used.
    held = one_status(hold.dir).held
    assert held is not None
    assert {(one.state, one.nodes) for one in held.runs} == {("COMPLETED", 2)}
    assert len(held.runs) == 2
    assert sum(one.gpu_hours for one in held.runs) == pytest.approx(held.used_h)
    assert min(held.used_h, held.idle_h) > 0
    shown = page(Run.open(hold.dir))
    assert [one.run in shown for one in held.runs] == [True, True]
    # A run that ends its agent leaves the hold.
    state = started(hold, place, args=("end", "1")).state()
    assert state is not None
    assert not state.succeeded
    run = started(hold, place)
    assert "imported anew" not in agents_said(run)
    with pytest.raises(UsageError, match="is no hold of yours"):
        started(run, place)
    # Of two that were planned while both nodes were free, the second is refused.
    request = SubmitRequest(
        str(place / "train.py"), cluster="local", on=hold.id, runs=place / "runs", args=("wait",)
    )
    plans = [plan(request)[0] for _ in range(2)]
    first = submit_plan(plans[0], place / "runs")
    with pytest.raises(UsageError, match="has just taken"):
        submit_plan(plans[1], place / "runs")
    capsys.readouterr()
    say_what_would_end(hold, as_json=True)
    assert checked(capsys.readouterr().out)["runs_on_it"] == [first.id]
    first.cancel()
    first.wait(poll_s=0.2)
    # It goes on where it is told to.
    again = first.resume(on=hold.id, sets=["args=[]"])
    assert again.wait(poll_s=0.2).succeeded
    assert "imported anew" not in agents_said(again)
    # Once it is released, nothing more begins on it.
    hold.cancel(save=True)
    with pytest.raises(UsageError, match=r"giving its nodes back|no nodes now"):
        started(hold, place)


def test_functions_on_a_hold(hold: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_GRACE_S", 300.0)
    nodes = fsdpkit.hold(hold.dir)
    assert nodes.run(lambda x: x * int(os.environ["RANK"]), 3) == [0, 3, 6, 9]
    ranks = nodes.keep()
    ranks.run(build, 5)
    assert ranks.run(step) == 4 * [20]
    # All are where they were, so nothing is lost.
    with pytest.raises(FunctionError, match="a typo") as raised:
        ranks.run(breaks, range(4))
    assert "breaks" in raised.value.traceback
    assert ranks.run(step) == 4 * [24]
    # One has left the other alone.
    monkeypatch.setattr(kept, "_GRACE_S", 1.0)
    with pytest.raises(FunctionError, match="a typo") as raised:
        ranks.run(breaks, [1])
    assert raised.value.rank == 1
    with pytest.raises(FunctionError, match=r"gone: rank 1 .*a typo"):
        ranks.run(step)
    monkeypatch.setattr(kept, "_GRACE_S", 300.0)
    ranks = nodes.keep()
    ranks.run(build, 5)
    # What the other raises because of it is not the cause.
    with pytest.raises(FunctionError, match="SIGKILL") as raised:
        ranks.run(dies)
    assert raised.value.rank == 1
    with pytest.raises(FunctionError, match=r"gone: rank 1 .*SIGKILL"):
        ranks.run(step)
    again = nodes.keep()
    assert again.run(lambda kept: [*kept]) == 4 * [[]]
    again.end()
    state = hold.state()
    assert state is not None
    assert state.phase == "running"


def build(kept: dict[str, Any], size: int) -> None:
    dist.init_process_group("gloo")
    kept["size"] = size


def step(kept: dict[str, Any]) -> float:
    total = torch.ones(1) * kept["size"]
    dist.all_reduce(total)
    kept["size"] += 1
    return total.item()


def breaks(kept: dict[str, Any], ranks: Collection[int]) -> None:
    if dist.get_rank() in ranks:
        raise ValueError(f"a typo, on {dist.get_rank()}")
    dist.barrier()


def dies(kept: dict[str, Any]) -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def printed(run: Run) -> str:
    return (run.newest_attempt().dir / "rank-0.out").read_text()


def another_user_hears(address: str) -> str:
    """In answer to a request that the holder refuses in words if it is its own user's."""
    program = """
        import json, os, socket, struct, sys
        address = sys.stdin.read()
        os.setgid(65534); os.setuid(65534)
        s = socket.socket(socket.AF_UNIX); s.settimeout(30); s.connect(address)
        body = json.dumps({"executable": sys.executable, "path": []}).encode()
        try:
            socket.send_fds(s, [struct.pack("<Q", len(body))], [0, 1, 2])
            s.sendall(body)
            print(s.recv(1))
        except ConnectionError:
            print(b"")
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(argv, input=address, capture_output=True, text=True, check=True).stdout


def test_it_ends_when_it_is_idle(place: Path) -> None:
    run = fsdpkit.submit(
        "hold", gpus=1, cluster="local", time="20", runs=place / "idle", args=("--idle", "3")
    )
    assert run.wait(poll_s=0.2).state == "COMPLETED"
    assert "idle for" in (run.newest_attempt().dir / "rank-0.out").read_text()


def test_a_name_that_is_empty_queues_nothing(place: Path) -> None:
    request = SubmitRequest(str(place / "train.py"), cluster="local", on="", runs=place)
    with pytest.raises(NotFoundError):
        plan(request)


def test_a_profile_bounds_how_long_it_is_idle(tmp_path: Path) -> None:
    text = (fsdpkit.config.assets.packaged_dir() / "site" / "profiles" / "generic.toml").read_text()

    def limit_s(wanted_s: int | None, policy: str) -> int:
        path = tmp_path / "site.toml"
        path.write_text(f"{text}\n[policy]\nhold_idle_s = {policy}\n")
        return idle_limit_s(wanted_s, choose_site(str(path))[0])

    assert [limit_s(None, "60"), limit_s(30, "60"), limit_s(None, "3600")] == [60, 30, 900]
    for wanted_s, policy in ((120, "60"), (None, "0")):
        with pytest.raises(UsageError):
            limit_s(wanted_s, policy)


def test_partitions_for_trying_out_are_named_where_the_request_fits() -> None:
    daint = choose_site("cscs-daint")[0].profile  # its debug partition: 2 nodes, half an hour

    def named(**asked: object) -> list[str]:
        return for_trying_out(msgspec.convert({"nodes": 2, "gpus": 4, **asked}, Resources), daint)

    assert named(time="25") == ["debug"]
    assert named(time="60") == named(time="25", nodes=3) == []
    assert named(time="25", partition="normal") == []
