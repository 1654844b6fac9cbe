"""GPUs that do nothing: what is said of them, and when a run is stopped because of that."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.retry import Retry
from fsdpkit.launching.idle_gpus import IdleWatch, NodeState, judgement
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.outcomes import IdleGpus
from fsdpkit.runs.reading import record_in
from tests.conftest import answer_of
from tests.programs import Fsdpkit, Write, until

LIMIT_S = 1200
NOTHING: dict[str, Any] = {"util": 0}
REST = NodeState(idle_s=1300, rested_s=1300)


@pytest.mark.parametrize(
    ("nodes", "kind", "works"),
    [
        ([REST, REST], "idle", False),
        ([REST, NodeState(idle_s=1300, rested_s=3)], "idle", True),
        ([REST, NodeState(idle_s=1300)], "idle", None),
        ([REST, NodeState(idle_s=30, rested_s=1300)], None, None),
        ([REST, NodeState()], None, None),
        ([REST, NodeState(idle_s=0, waits_s=1250)], "waiting", None),
        ([NodeState(idle_s=0, waits_s=900), NodeState(idle_s=0, waits_s=1250)], None, None),
        ([], None, None),
    ],
)
def test_all_nodes_must_agree(nodes: list[NodeState], kind: str | None, works: object) -> None:
    found = judgement(nodes, LIMIT_S)
    assert (found and found[1].kind, found and found[1].works) == (kind, works)


class Cluster:
    """Nodes whose samples the test writes, in a launch that begins now."""

    def __init__(self, path: Path, **retry: Any) -> None:
        self.run, self.now, self.told = RunPaths(path), 5000.0, list[str]()
        self.attempt = AttemptPaths(path / "attempt-0")
        self.attempt.dir.mkdir()
        self.training: tuple[int, tuple[int, ...], float] = (0, (0, 1), self.now)
        self.sums = [
            [{"observed_s": 0.0, "busy_s": 0.0, "active_s": 0.0, "idle_s": 0.0}] for _ in "ab"
        ]
        self.watch = IdleWatch(
            Retry(**{"on_idle_gpus": "stop", **retry}),
            self.run,
            self.attempt,
            lambda: self.training,
            self.told.append,
            lambda: self.now,
        )

    def live(self, seconds: float, *nodes: dict[str, Any], pace_s: float = 30.0) -> None:
        """Time passes, on each node as it says: `util` of its GPU in percent, None: silent."""
        for _ in range(round(seconds / pace_s)):
            self.now += pace_s
            for number, node in enumerate(nodes):
                self._sample(number, pace_s, **node)
            self.watch.look()

    def _sample(
        self,
        node: int,
        pace_s: float,
        *,
        util: float | None,
        active: float | None = None,
        launch: int = 0,
        **more: Any,
    ) -> None:
        if util is None:
            return
        gpu = self.sums[node][0]
        gpu["observed_s"] += pace_s
        gpu["busy_s"] += pace_s * util / 100
        gpu["idle_s"] = 0.0 if util else gpu["idle_s"] + pace_s
        if active is not None:
            gpu["active_s"] += pace_s * active / 100
        known = {k: v for k, v in gpu.items() if k != "active_s" or active is not None}
        more = {k: next(v) if isinstance(v, itertools.count) else v for k, v in more.items()}
        line = {
            "time_s": self.now,
            "launch": launch,
            "gpus": [{"utilization_percent": util}],
            "sums": {"since_s": 1.0, "observed_s": self.now, "gpus": [known]},
            "rested_s": gpu["idle_s"],
            **more,
        }
        with self.attempt.node_samples(node).open("a") as file:
            print(json.dumps(line), file=file)

    @property
    def found(self) -> tuple[str, bool | None] | None:
        record = record_in(self.attempt.idle, IdleGpus)
        return (record.kind, record.works) if record and record.until_s is None else None

    @property
    def request(self) -> str | None:
        path = self.run.task(None).stop_requested
        return path.read_text() if path.exists() else None


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_a_run_that_does_nothing_is_asked_to_save_and_ended_later(cluster: Cluster) -> None:
    cluster.live(LIMIT_S - 60, NOTHING, NOTHING)
    assert (cluster.found, cluster.told) == (None, [])
    cluster.live(90, NOTHING, NOTHING)
    assert cluster.found == ("idle", False)
    assert len(cluster.told) == 1
    assert cluster.request is not None
    assert cluster.request.startswith("idle: ")
    cluster.live(240, NOTHING, NOTHING)
    assert not cluster.watch.over, "it has time to save"
    cluster.live(120, NOTHING, NOTHING)
    assert cluster.watch.over
    assert len(cluster.told) == 1


def test_who_saves_when_asked_is_not_ended_meanwhile(cluster: Cluster) -> None:
    cluster.live(LIMIT_S + 60, NOTHING, NOTHING)
    cluster.live(1200, NOTHING, {"util": 0, "rested_s": 2.0})
    assert cluster.found == ("idle", True)
    assert not cluster.watch.over


STEPS: dict[str, Any] = {"util": 100, "optimizer_steps": 7}


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (NOTHING, {"util": 0, "rested_s": 5.0}, ("idle", True)),
        (
            NOTHING,
            {"util": 0, "rested_s": 5.0, "optimizer_steps": itertools.count(1)},
            ("idle", True),
        ),
        (NOTHING, {"util": 40}, None),
        (NOTHING, {"util": None}, None),
        (NOTHING, {"util": 0, "launch": 1}, None),
        (NOTHING, {"util": 0, "gpus": [{}]}, None),
        (NOTHING, {"util": 0, "sums": None}, None),
        ({"util": 100, "active": 0.7}, NOTHING, ("waiting", None)),
        ({"util": 100, "active": 9}, NOTHING, None),
        ({"util": 30, "active": 0.7}, NOTHING, None),
        (STEPS, STEPS, None),
    ],
    ids=[
        *(
            "compiles",
            "trains on the CPU",
            "computes",
            "silent",
            "other launch",
            "GPU lost",
            "no sums",
            "spins",
        ),
        *("works little", "little in use", "evaluates"),
    ],
)
def test_what_is_not_idle_is_never_stopped(
    first: dict[str, Any], second: dict[str, Any], found: object, cluster: Cluster
) -> None:
    cluster.live(2 * LIMIT_S, first, second)
    assert cluster.found == found
    assert (cluster.request, cluster.watch.over) == (None, "")
    assert len(cluster.told) == (found is not None)


def test_steps_that_stand_still_for_long_are_reported_and_a_step_takes_that_back(
    cluster: Cluster,
) -> None:
    cluster.live(3 * LIMIT_S + 60, STEPS, STEPS)
    assert cluster.found == ("waiting", None)
    cluster.live(30, {**STEPS, "optimizer_steps": 8}, STEPS)
    assert cluster.found is None
    assert cluster.request is None


def test_gpus_in_use_prove_no_wait_where_neither_steps_nor_shares_are_known(
    cluster: Cluster,
) -> None:
    cluster.live(4 * LIMIT_S, {"util": 100}, {"util": 100})
    assert cluster.found is None


def test_a_node_that_falls_silent_takes_back_what_was_said(cluster: Cluster) -> None:
    cluster.live(LIMIT_S + 60, NOTHING, {"util": 0, "rested_s": None})
    assert cluster.found == ("idle", None)
    cluster.live(180, NOTHING, {"util": None})
    assert cluster.request is None
    assert not cluster.found


def test_few_samples_of_a_moment_prove_nothing(cluster: Cluster) -> None:
    cluster.live(2 * LIMIT_S, NOTHING, NOTHING, pace_s=600)
    assert cluster.found is None
    cluster.live(LIMIT_S, NOTHING, NOTHING, pace_s=600)
    assert cluster.found == ("idle", False)


def test_by_default_it_is_only_reported(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, on_idle_gpus="warn")
    cluster.live(3 * LIMIT_S, NOTHING, NOTHING)
    assert cluster.found == ("idle", False)
    assert (cluster.request, cluster.watch.over, len(cluster.told)) == (None, "", 1)


def test_time_counts_from_the_launch_and_from_the_last_wait_for_a_call(cluster: Cluster) -> None:
    cluster.live(LIMIT_S - 60, NOTHING, NOTHING)
    cluster.training = (1, (0,), cluster.now)
    cluster.live(LIMIT_S - 60, {**NOTHING, "launch": 1})
    assert cluster.found is None, "the second node stands by"
    waiting = cluster.run.calls / "waiting"
    waiting.parent.mkdir()
    waiting.touch()
    cluster.live(LIMIT_S, {**NOTHING, "launch": 1})
    waiting.unlink()
    cluster.live(LIMIT_S - 60, {**NOTHING, "launch": 1})
    assert cluster.found is None
    cluster.live(90, {**NOTHING, "launch": 1})
    assert cluster.found == ("idle", False)


def test_a_stop_that_somebody_else_has_asked_for_is_left_to_them(cluster: Cluster) -> None:
    cluster.run.task(None).stop_requested.write_text("")
    cluster.live(3 * LIMIT_S, NOTHING, NOTHING)
    assert (cluster.request, cluster.watch.over) == ("", "")


FAKE = """
import json, os
from types import SimpleNamespace as N
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(i): return i
def nvmlDeviceGetUtilizationRates(h): return N(gpu=0)
def nvmlDeviceGetMemoryInfo(h, version=None): return N(total=80 << 30, used=4 << 20)
"""


@pytest.mark.torch
def test_a_run_that_sleeps_is_ended_and_diagnosed(
    fsdpkit: Fsdpkit, write_script: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nvml"))
    script = write_script("train.py", "import time; time.sleep(600)")
    told = tmp_path / "told"
    settings = {
        "parameters.sample_s": "1",
        "retry.on_idle_gpus": "stop",
        "retry.idle_gpus_s": "6",
        "notify.command": json.dumps(["sh", "-c", f"echo $FSDPKIT_EVENT >> {told}"]),
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    shape = ("--cluster", "local", "--nodes", "1", "--gpus", "1")
    fsdpkit("submit", str(script), *shape, *sets, status=0)
    (run,) = (script.parent / "runs").iterdir()
    try:
        until(lambda: told.exists() and "failure" in told.read_text())
    finally:
        fsdpkit("cancel", run.name)
    found = answer_of(fsdpkit("diagnose", run.name, "--json"))
    assert (found["cause"], found["page"]) == ("idle", "docs/failures/idle.md")
    assert told.read_text().split() == ["idle", "failure"]
