"""What runs and people do to a hold: each end has its true cause, and nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import fsdpkit
from fsdpkit import Run
from fsdpkit.reporting.diagnosis.diagnose import Diagnosis, diagnose
from fsdpkit.reporting.diagnosis.evidence import gather
from fsdpkit.runs import outcomes
from fsdpkit.scheduling.local.supervisor import nodes_of
from tests.programs import until

pytestmark = pytest.mark.local

RANK = """
import subprocess, sys, time
import fsdpkit
how = sys.argv[1]
if how == "daemons":
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
print("begun", flush=True)
while how != "well":
    time.sleep(0.1)
    if how == "saves" and fsdpkit.stop_requested():
        sys.exit(75)
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "rank.py").write_text(RANK)
    run = fsdpkit.submit(
        "hold", nodes=2, gpus=1, cluster="local", time="20", runs=tmp_path / "runs"
    )
    until(lambda: all(run.paths.busy(node).exists() for node in range(2)))
    yield run
    run.cancel()
    run.wait(poll_s=0.2)


def begun(hold: Run, how: str) -> Run:
    runs = hold.dir.parent
    run = fsdpkit.submit(
        str(runs.parent / "rank.py"),
        args=(how,),
        on=hold.id,
        cluster="local",
        runs=runs,
        sets=["retry.on_crash=stop"],
    )
    outputs = [run.paths.task().attempt(0).dir / f"rank-{rank}.out" for rank in range(2)]
    until(lambda: all(path.exists() and "begun" in path.read_text() for path in outputs))
    return run


def ended(run: Run) -> Diagnosis:
    run.wait(poll_s=0.2)
    return diagnose(gather(run))


def holders(hold: Run) -> list[psutil.Process]:
    """By node."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "fsdpkit.launching.holder" in words and words[-2].startswith(f"{hold.dir}/"):
            found[words[-2]] = process
    return [found[name] for name in sorted(found)]


def heartbeats_of(agent: psutil.Process) -> list[Path]:
    return list(Path("/dev/shm").glob(f"fsdpkit-{agent.pid}-*"))


def test_runs_leave_nothing_and_end_with_their_hold(hold: Run) -> None:
    node0, node1 = holders(hold)
    before = node0.num_fds()
    assert ended(begun(hold, "well")).cause == "done"
    # An agent that is killed cannot tidy up.
    run = begun(hold, "daemons")
    (agent,) = node0.children()
    left = node0.children(recursive=True)
    assert {"sleep"} < {process.name() for process in left}
    assert heartbeats_of(agent)
    agent.kill()
    assert hold.id not in ended(run).sentence
    until(lambda: not any(process.is_running() for process in left))
    assert not heartbeats_of(agent)
    # Nor can one that ignores a request to stop, and is cancelled.
    run = begun(hold, "daemons")
    left = node0.children(recursive=True)
    run.cancel()
    assert ended(run).cause == "cancelled"
    until(lambda: not any(process.is_running() for process in left))
    assert (node0.num_fds(), node0.children()) == (before, [])
    # What a run is on, on one of its nodes, is killed.
    run = begun(hold, "deaf")
    node1.kill()
    found = ended(run)
    assert hold.id in found.sentence
    ending = outcomes.read(run.newest_attempt().ending, outcomes.Ending)
    assert ending is not None
    assert ending.avoid == ()
    hold.wait(poll_s=0.2)
    assert ended(hold).node == ended(run).node == nodes_of(int(hold.job_id or 0) * 7, 2)[1]


def test_a_release_lets_a_run_save(hold: Run) -> None:
    run = begun(hold, "saves")
    hold.cancel(save=True)
    found = ended(run)
    assert (found.cause, hold.id in found.sentence) == ("cancelled", True)
    state = run.state()
    assert state is not None
    assert state.outcome == "stopped"
    hold.wait(poll_s=0.2)
    assert ended(hold).cause == "done"
