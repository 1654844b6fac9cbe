"""What runs used of what they were granted, against an account kept by hand, on real Slurm.

Every rank writes a diary of what it does and when; the driver is a stand-in for `pynvml` whose
counters are known functions of time. All of it runs at once, for cluster time is dear: a rank is
killed and the ranks start again, a job is queued again, two tasks of an array share their node with
the first, and a job that fsdpkit knows nothing of.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from fsdpkit.runs.account import Account, Use
from tests.conftest import COLD, ROOT, answer_of
from tests.slurm.conftest import ACCOUNT, USERS_LANE, Person, everything_said, wait_accounted

pytestmark = [pytest.mark.slurm, USERS_LANE]

DRIVER = """
import os, pathlib, time
from types import SimpleNamespace

class NVMLError(Exception):
    pass

NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
_PLACE = pathlib.Path(os.environ["DRIVER"], os.environ.get("SLURMD_NODENAME", ""))

def nvmlInit():
    pass

def nvmlDeviceGetCount():
    return 4

def nvmlDeviceGetHandleByIndex(number):
    return number

def nvmlDeviceGetName(gpu):
    return "Fake H100"

def nvmlDeviceGetUtilizationRates(gpu):
    return SimpleNamespace(gpu=100 if _PLACE.with_name(f"{_PLACE.name}-{gpu}").exists() else 0)

def nvmlDeviceGetMemoryInfo(gpu, version=None):
    return SimpleNamespace(total=80 << 30, used=(gpu + 1) << 30)

def nvmlDeviceGetPowerUsage(gpu):
    return 100_000 * (gpu + 1)

def nvmlDeviceGetTotalEnergyConsumption(gpu):
    return int(time.time() * 100_000) * (gpu + 1)

if os.environ.get("MEANS"):
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_GRAPHICS_UTIL, NVML_GPM_METRIC_SM_UTIL = 1, 1, 2
    nvmlGpmSampleAlloc = object

    def nvmlGpmQueryDeviceSupport(gpu):
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleGet(gpu, sample):
        pass

    def c_nvmlGpmMetricsGet_t():
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0) for _ in range(2)])

    def nvmlGpmMetricsGet(asked):
        for metric in asked.metrics:
            metric.value = {1: 80.0, 2: 40.0}[metric.metricId]
"""
"""100 W for the first GPU of a node, 200 W for the second, …; it is busy while a file says so, or
80 % of the time with 40 % of its multiprocessors where it counts that."""

RANKS = """
import contextlib, json, os, pathlib, signal, subprocess, sys, time
import fsdpkit
from fsdpkit.runs.events import JsonLines

plan = json.loads(sys.argv[1])
rank, task = int(os.environ["RANK"]), fsdpkit.task_dir()
gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
busy = pathlib.Path(os.environ["DRIVER"], f"{os.environ['SLURMD_NODENAME']}-{gpu}")
diary = open(task / f"diary-{rank}", "a", buffering=1)
metrics = JsonLines(task / "metrics.jsonl") if rank == 0 and plan["by"] == "trainer" else None
saved, disturbed = task / "checkpoint", task / "disturbed"
done = int(saved.read_text()) if saved.exists() else 0

def note(what):
    row = {"time_s": time.time(), "what": what, "step": done, "gpu": int(gpu)}
    row["attempt"] = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    diary.write(json.dumps(row) + "\\n")
    return row["time_s"]

def logged(began_s, loaded_s, ended_s):
    line = {"step": done, "loss": 1.0, "step_time_s": ended_s - began_s}
    line["loading_s"] = loaded_s - began_s
    if metrics:
        own_s = ended_s - loaded_s
        metrics.write(**line, rank_compute_s=[own_s - plan["waiting"], own_s])
    else:
        fsdpkit.log(**line)

def save():
    began_s = note("saving")
    time.sleep(plan["saving"])
    saved_s = note("saved") - began_s
    if rank == 0:
        saved.write_text(str(done))
        metrics.write(step=done, checkpoint_blocked_s=saved_s, checkpoint_written_s=saved_s)

def load():
    time.sleep(plan["loading"])

if os.environ.get("SLURM_ARRAY_TASK_ID") == "1":
    from torch.utils.data import DataLoader

    slow = {"collate_fn": lambda _: time.sleep(plan["loading"])}
    batches = iter(DataLoader(range(plan["steps"]), **slow))
    load, logged = batches.__next__, lambda *_: None

busy.unlink(missing_ok=True)
note("starting")
time.sleep(plan["starting"])
if plan["busy"]:
    busy.touch()
while done < plan["steps"]:
    began_s = note("loading")
    load()
    loaded_s = note("computing")
    time.sleep(plan["computing"])
    ended_s = note("logging")
    done += 1
    logged(began_s, loaded_s, ended_s)
    if done % plan["every"] == 0:
        save()
    if done == plan["disturbed_at"] and not disturbed.exists():
        note("broken")
        time.sleep(1)
        if plan["disturbed"] == "killed" and rank == 1:
            disturbed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if plan["disturbed"] == "queued" and rank == 0:
            disturbed.touch()
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        if plan["disturbed"] == "gone":
            for words in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):  # others' processes, and what has ended
                    if b"slurm_script" in words.read_bytes():
                        os.kill(int(words.parent.name), signal.SIGKILL)
        time.sleep(60)
busy.unlink(missing_ok=True)
note("ending")
time.sleep(plan["ending"])
note("ended")
"""
PLAN: dict[str, Any] = {
    "by": "trainer",
    "steps": 6,
    "every": 3,
    "disturbed": "",
    "disturbed_at": 5,
    "busy": True,
    "starting": 1.0,
    "loading": 0.3,
    "computing": 0.7,
    "waiting": 0.2,
    "saving": 0.8,
    "ending": 1.5,
}
NEAR_S = 1.5
"""What two neighbouring lines of one process may lie apart, and Slurm's whole seconds."""


@dataclass(frozen=True)
class Diary:
    """What rank 0 noted, of all attempts, in order."""

    rows: Sequence[Mapping[str, Any]]

    def of(self, attempt: int) -> Diary:
        return Diary([row for row in self.rows if row["attempt"] == attempt])

    def seconds(self, what: str, *, counted: bool | None = None) -> float:
        """From each row that is called so to the next one. counted: only of steps that were not, or
        were, done again later."""
        last = {row["step"]: row["time_s"] for row in self.rows if row["what"] == what}
        return sum(
            float(later["time_s"] - row["time_s"])
            for row, later in pairwise(self.rows)
            if row["what"] == what
            and (counted is None or counted == (row["time_s"] == last[row["step"]]))
        )

    @property
    def busy_s(self) -> float:
        """How long the file was there: from each launch's first step to its end."""
        edges = [row for row in self.rows if row["what"] in ("starting", "loading", "ending")]
        began = [b["time_s"] for a, b in pairwise(edges) if a["what"] == "starting"]
        ended = [b["time_s"] for a, b in pairwise(edges) if a["what"] == "loading" != b["what"]]
        return float(sum(ended) - sum(began))

    def time_of(self, what: str, place: int = 0) -> float:
        """Of the first row that is called so, or another."""
        return [float(row["time_s"]) for row in self.rows if row["what"] == what][place]


@dataclass(frozen=True)
class Trained:
    """A run that is over, or a task of an array."""

    dir: Path
    job_id: str

    @cached_property
    def diary(self) -> Diary:
        lines = (self.dir / "diary-0").read_text().splitlines()
        return Diary([json.loads(line) for line in lines])

    @cached_property
    def gpus(self) -> set[int]:
        """Of each node, which its ranks noted."""
        rows = [json.loads(line) for path in self.dir.glob("diary-*") for line in path.open()]
        return {row["gpu"] for row in rows}

    @cached_property
    def accounts(self) -> list[Account]:
        """As the nodes have left them, by attempt."""
        paths = sorted(self.dir.glob("attempt-*/account.json"))
        assert len(paths) == len([*self.dir.glob("attempt-*")]), everything_said(self.dir)
        return [msgspec.json.decode(path.read_bytes(), type=Account) for path in paths]


class Granted(NamedTuple):
    """What Slurm gave one start of a job. Unix times, in whole seconds."""

    began_s: int
    ended_s: int
    gpus: int

    @property
    def gpu_s(self) -> int:
        return self.gpus * (self.ended_s - self.began_s)


@dataclass(frozen=True)
class Afternoon:
    """All that alex has run."""

    person: Person
    killed: Trained
    queued: Trained
    gone: Trained
    """Killed with its batch shell, which left no account."""
    tasks: Sequence[Trained]
    foreign: str

    @cached_property
    def sacct(self) -> dict[str, list[Granted]]:
        """Each start of each of alex's jobs, by Slurm's accounting."""
        words = ["-X", "-D", "-n", "-P", "-S", "now-1days", "-o", "JobID,Start,End,AllocTRES"]
        ask = ["env", "SLURM_TIME_FORMAT=%s", "sacct", *words]
        found: dict[str, list[Granted]] = {}
        assert self.person.session is not None
        for line in self.person.session.run(ask).stdout.splitlines():
            job_id, began_s, ended_s, tres = line.split("|")
            counts = dict(word.split("=") for word in tres.split(",") if "=" in word)
            gpus = int(counts.get("gres/gpu", 0))
            found.setdefault(job_id, []).append(Granted(int(began_s), int(ended_s), gpus))
        return found


@pytest.fixture(scope="module")
def afternoon(alex: Person) -> Afternoon:
    assert alex.session is not None
    top = Path(tempfile.mkdtemp(prefix="accounts-", dir=alex.home))
    (top / "driver").mkdir()
    (top / "driver" / "pynvml.py").write_text(DRIVER)
    (top / "ranks.py").write_text(RANKS)
    for path in (top, *top.rglob("*")):
        os.chown(path, 61001, 61001)

    def submit(*words: str, **plan: object) -> tuple[Path, str]:
        means = ', MEANS="1"' if plan.get("by") else ""
        own = f'{{PYTHONPATH="{top}/driver:{ROOT}", DRIVER="{top}/driver"{means}}}'
        sets = (f"environment.variables={own}", "parameters.sample_s=1", "retry.backoff_s=0.5")
        given = [word for each in sets for word in ("--set", each)]
        argv = [str(top / "ranks.py"), *words, *ACCOUNT, *COLD, *given, "--runs", str(top / "runs")]
        done = alex.fsdpkit("submit", *argv, "--json", "--", json.dumps({**PLAN, **plan}))
        answer = answer_of(done)
        return Path(answer["dir"]), str(answer["job_id"])

    def on(nodes: str) -> tuple[str, ...]:
        return ("--set", f"resources.nodelist={nodes}")

    two = ("--nodes", "2", "--gpus", "1", *on("node2,node3"))
    queued = submit(*two, disturbed="queued")
    gone = submit("--nodes", "1", "--gpus", "1", *on("node3"), disturbed="gone")
    one = ("--nodes", "1", "--gpus", "2", *on("node1"))
    killed = submit(*one, disturbed="killed")
    tasks = ("--nodes", "1", "--gpus", "1", "--array", "0-1", *on("node1"))
    plan = {
        "by": "fsdpkit.log",
        "busy": False,
        "waiting": 0,
        "every": 100,
        "steps": 4,
        "disturbed_at": 0,
    }
    array, array_id = submit(*tasks, **plan)
    wrap = ["sbatch", "--parsable", "-A", "pas1234", "-w", "node2", "--gpus=1", "--wrap=sleep 4"]
    foreign = alex.session.run(wrap).stdout.strip()
    wait_accounted(alex.cluster, gone[1], alex.cluster.wait_job(gone[1])["JobState"])
    for job_id in (queued[1], killed[1], f"{array_id}_0", f"{array_id}_1", foreign):
        wait_accounted(alex.cluster, job_id, "COMPLETED")
    found = [Trained(array / f"task-{n}", f"{array_id}_{n}") for n in (0, 1)]
    runs = Trained(*killed), Trained(*queued), Trained(*gone)
    return Afternoon(alex, *runs, found, foreign)


def used(accounts: Sequence[Account]) -> Mapping[str, float]:
    """Node-seconds by use."""
    return Counter({use: sum(a.used_s.get(use, 0.0) for a in accounts) for use in get_args(Use)})


def booked(run: Trained, nodes: int = 1, waiting_s: float = 0.0) -> None:
    """Steps, loading, waiting, repeating and saving are where the diary has them. waiting_s: each
    rank's on average, of a step."""
    for account in run.accounts:
        assert sum(account.used_s.values()) == pytest.approx(account.granted_s, abs=0.1)
    found, diary = used(run.accounts), run.diary
    loading_s, computing_s, again_s = (
        *(diary.seconds(what, counted=True) for what in ("loading", "computing")),
        sum(diary.seconds(what, counted=False) for what in ("loading", "computing")),
    )
    waited_s = waiting_s * len({row["step"] for row in diary.rows if row["what"] == "computing"})
    assert found["loading"] == pytest.approx(loading_s * nodes, abs=0.1)
    assert found["waiting"] == pytest.approx(waited_s * nodes, abs=0.1)
    assert found["training"] == pytest.approx((computing_s - waited_s) * nodes, abs=0.1)
    assert found["repeated"] == pytest.approx(again_s * nodes, abs=0.1)
    saving_s = diary.seconds("saving")
    assert found["checkpoints"] == pytest.approx(saving_s * nodes, abs=0.5 * nodes)


def test_what_a_killed_rank_costs_is_lost_or_repeated(afternoon: Afternoon) -> None:
    run = afternoon.killed
    booked(run, waiting_s=PLAN["waiting"] / 2)
    (account,), diary = run.accounts, run.diary
    broken_s = diary.time_of("starting", 1) - diary.time_of("broken")
    first_s = diary.time_of("loading") - account.began_s
    found = used(run.accounts)
    assert found["repeated"] > 1.9
    # Ranks are started again somewhere between; from then on it is start-up.
    assert 1.0 < found["lost"] < broken_s + NEAR_S
    assert first_s + PLAN["starting"] - NEAR_S < found["startup"] < first_s + broken_s
    started_s = first_s + broken_s + PLAN["starting"]
    assert found["lost"] + found["startup"] == pytest.approx(started_s, abs=2 * NEAR_S)
    assert found["pauses"] == pytest.approx(account.ended_s - diary.time_of("ending"), abs=NEAR_S)
    assert {"unknown", "unused", "idle"} & account.used_s.keys() == set()


def test_loading_is_known_of_a_script_that_logs_nothing(afternoon: Afternoon) -> None:
    """One task of the array logs its steps, one has torch's DataLoader."""
    logs, silent = afternoon.tasks
    booked(logs)
    assert used(logs.accounts)["loading"] > 1.1
    found, loading_s = used(silent.accounts), silent.diary.seconds("loading")
    assert loading_s > 1.1
    assert found["loading"] == pytest.approx(loading_s, abs=0.3)
    assert found["training"] == 0
    assert found["unknown"] > silent.diary.seconds("computing")


def test_a_job_that_is_queued_again_has_two_accounts_which_slurm_has_too(
    afternoon: Afternoon,
) -> None:
    run = afternoon.queued
    booked(run, nodes=2, waiting_s=PLAN["waiting"] / 2)
    first, second = run.accounts
    assert [each.nodes * each.gpus for each in run.accounts] == [2, 2]
    assert second.queued_s == pytest.approx(second.began_s - first.ended_s, abs=0.01)
    assert first.used_s["repeated"] > 2 * 1.9
    tail_s = first.ended_s - run.diary.time_of("broken")
    tail = first.used_s.get("lost", 0.0) + first.used_s["pauses"]
    assert tail == pytest.approx(2 * tail_s, abs=2 * NEAR_S)
    assert "lost" not in second.used_s


def test_what_the_driver_counted_is_each_run_s_own(afternoon: Afternoon) -> None:
    """Three of them share a node."""
    runs = [afternoon.killed, *afternoon.tasks]
    numbers = [number for run in runs for number in run.gpus]
    assert sorted(numbers) == [0, 1, 2, 3]
    for run in runs:
        (account,), diary = run.accounts, run.diary
        assert account.measured is not None
        assert account.measured.nodes == 1
        found, gpus = account.measured, len(run.gpus)
        lived_s = diary.time_of("ended") - diary.time_of("starting")
        assert lived_s - NEAR_S < found.gpu_s / gpus < account.granted_s
        watts = sum(100 * (gpu + 1) for gpu in run.gpus)
        assert found.energy_j == pytest.approx(watts * found.gpu_s / gpus, abs=watts)
        assert found.gpu_memory_bytes == (max(run.gpus) + 1) << 30
        assert (account.gpu, found.gpu_memory_total_bytes) == ("Fake H100", 80 << 30)
    second = afternoon.queued.accounts[1].measured
    assert second is not None
    assert second.nodes == 2
    again = afternoon.queued.diary.of(1)
    lived_s = again.time_of("ended") - again.time_of("starting")
    assert 2 * (lived_s - NEAR_S) < second.gpu_s < afternoon.queued.accounts[1].granted_s
    killed, *tasks = [run.accounts[0].measured for run in runs]
    assert killed is not None
    assert killed.busy_s == pytest.approx(2 * afternoon.killed.diary.busy_s, abs=2 * 2 * NEAR_S)
    assert killed.active_s is None
    for task in filter(None, tasks):
        assert task.busy_s == pytest.approx(0.8 * task.gpu_s, rel=0.02)
        assert task.active_s == pytest.approx(0.4 * task.gpu_s, rel=0.02)


def test_accounts_are_what_slurm_granted(afternoon: Afternoon) -> None:
    """For Slurm a job begins before its batch shell does, and ends after it; one that is queued
    again has ended when its processes are told so, not when they have."""
    for run in (afternoon.killed, afternoon.queued, *afternoon.tasks):
        theirs = afternoon.sacct[run.job_id]
        assert [a.nodes * a.gpus for a in run.accounts] == [granted.gpus for granted in theirs]
        for account, granted in zip(run.accounts, theirs, strict=True):
            own = run.diary.of(account.attempt).rows
            assert granted.began_s <= account.began_s < own[0]["time_s"]
            assert own[-1]["time_s"] < account.ended_s
            if account is run.accounts[-1]:
                assert account.ended_s < granted.ended_s + 1


def test_usage_and_slurm_count_the_same_gpu_hours(afternoon: Afternoon) -> None:
    """Each start once, with the job that was killed, and what is no run of fsdpkit beside."""
    gone, top = afternoon.gone, afternoon.killed.dir.parent
    last_s = max(path.stat().st_mtime for path in gone.dir.rglob("*"))  # of what outlived its shell
    answer = answer_of(
        afternoon.person.fsdpkit("usage", "--runs", str(top), "--by", "run", "--json")
    )
    (total,) = answer["total"]
    assert (total["attempts"], total["runs"], total["users"]) == (6, 5, 1)
    assert sum(total["used"].values()) == pytest.approx(total["hours"])
    found = {row["by"]["run"]: row["hours"] * 3600 for row in answer["rows"]}
    runs = [afternoon.killed, afternoon.queued, *afternoon.tasks]
    expected: dict[str, float] = defaultdict(float)
    for run in runs:
        granted_s = sum(account.granted_s * account.gpus for account in run.accounts)
        expected[run.dir.relative_to(top).parts[0]] += granted_s
    (granted,) = afternoon.sacct[gone.job_id]
    assert not (gone.dir / "attempt-0" / "account.json").exists()
    lived_s = gone.diary.time_of("broken") - gone.diary.time_of("starting")
    assert lived_s < found.pop(gone.dir.name) < last_s - granted.began_s + 1
    assert found == pytest.approx(expected, abs=1)
    ours = {run.job_id for run in (*runs, gone)}
    theirs = [row for job_id, rows in afternoon.sacct.items() if job_id not in ours for row in rows]
    assert afternoon.sacct[afternoon.foreign][0] in theirs
    others_s = 3600 * sum(other["gpu_hours"] for other in answer["others"])
    assert others_s == pytest.approx(sum(each.gpu_s for each in theirs), abs=1)
