"""A plain script hangs on the local cluster; what its agent leaves for whoever asks why.

What the agents of several nodes leave, tests/slurm/test_hung_script.py sees on Slurm.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.flight_record import in_words, read_flight_record
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.rank_ends import read_rank_ends
from fsdpkit.runs.stacks import EVENT
from tests.programs import Fsdpkit, Write

pytestmark = pytest.mark.torch
# What NCCL's watchdog does by itself, the script does with gloo's recorder.
HANGS = """
    import os, pickle, time
    from datetime import timedelta
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    def dump():
        path = Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(c10d._dump_fr_trace())
    def load_batch():
        store.set("loads", "")
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
    while not all(one["retired"] for one in pickle.loads(c10d._dump_fr_trace())["entries"]):
        time.sleep(0.1)  # gloo closes an entry a moment after its call
    if os.environ["RANK"] == "1":
        dump()
        load_batch()
    store.wait(["loads"])
    try:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        dist.all_reduce(torch.ones(5))
    except RuntimeError:
        dump()
        raise
"""


def test_the_rank_that_others_waited_for_is_looked_at_before_it_is_ended(
    fsdpkit: Fsdpkit, write_script: Write
) -> None:
    script = write_script("train.py", HANGS)
    shape = ("--cluster", "local", "--nodes", "1", "--gpus", "2", "--wait")
    policy = ("--set", "retry.restarts=0", "--set", "launch.warm=auto")
    fsdpkit("submit", str(script), *shape, *policy, status=1)
    (run,) = (script.parent / "runs").iterdir()
    check_what_is_left(run, 1, "signal")


def check_what_is_left(run: Path, nodes: int, by: str) -> str:
    """Stacks, ends and collectives of the two ranks; what the flight recorder says, in the log,
    too."""
    attempt = RunPaths(run).task(None).attempt(0)
    assert "in load_batch" in attempt.rank_file(1, "stacks", 0).read_text()
    events = [attempt.node_events(node) for node in range(nodes)]
    (asked,) = (line for line in read_json_lines(events[-1]) if line["event"] == EVENT)
    assert asked["why"] in ("time-out", "hang"), "the other node's agent takes it for a hang"
    assert (asked["taken"], asked["missing"]) == ({"1": by}, {})
    ends = {rank: end for path in events for rank, end in read_rank_ends(path, 0).items()}
    assert {rank: (e.status, e.killed) for rank, e in ends.items()} == {
        0: (1, False),
        1: (137, True),
    }
    record = read_flight_record(attempt.flight_record(0))
    assert record is not None
    assert (record.dumps, record.world_size) == ([0, 1], 2)
    said = in_words(record)
    assert said is not None
    assert said.startswith("rank 1 has not called all_reduce number 2 of group default_pg (5), in")
    logs = (run / "submitit").glob("*_log.out")
    assert f"flight recorder: {said}" in "".join(log.read_text() for log in logs)
    return said
