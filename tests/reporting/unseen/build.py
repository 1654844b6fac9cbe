"""Makes the run directory that fsdpkit's agents would have left of a case.

In the form of the captures (tests/reporting/captures): what is of the case stands there word for
word, what agents and batch shell decide comes from agents.py. The same case always makes the same
bytes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.launching.policy import Report
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.outcomes import AttemptVerdict
from fsdpkit.runs.record import RunRecord, save
from tests.reporting.unseen import agents
from tests.reporting.unseen.agents import LASTED_S, RETRY, Scene
from tests.reporting.unseen.case import Case

RUN = "train-20261122-003000-4b1a"
"""Of every case alike: a name must not help to name the cause."""
JOB = "4711"
SUBMITTED_S = 1_795_307_000.0
BEGAN_S = SUBMITTED_S + 5.0
LAUNCHED_S = BEGAN_S + 20.0
FIRST_END_S = LAUNCHED_S + LASTED_S
ENDED_S = FIRST_END_S + 40.0
_MEMORY_BYTES = 540_000_000_000
_SOFTWARE = {"python": "3.11.7", "torch": "2.13.0+cu130", "fsdpkit": "0.1.0"}
_BY_SLURM = ("TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "DEADLINE", "BOOT_FAIL")
"""States in which the batch shell did not live to write an ending."""
_NOT_OVER = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED")
_REASONS = {
    "FAILED": "NonZeroExitCode",
    "TIMEOUT": "TimeLimit",
    "OUT_OF_MEMORY": "OutOfMemory",
    "NODE_FAIL": "NodeDown",
}


def build(case: Case, directory: Path) -> tuple[Path, dict[str, str]]:
    """Make the case's run directory below `directory`; it, and what Slurm's commands print."""
    run = directory / case.name / RUN
    run.mkdir(parents=True)
    _write_run(case, run)
    state = case.slurm.split("|")[0].split()[0]
    status = 0
    if state != "PENDING":
        scene = Scene(case, AttemptPaths(run / "attempt-0"), FIRST_END_S)
        status = _before_ranks(scene, run) if case.before_ranks else _with_ranks(scene, run, state)
    _write_files(case, run)
    return run, _scheduler(case, run, state, status)


def _write_run(case: Case, run: Path) -> None:
    record = RunRecord(
        id=run.name,
        state="submitted",
        created_s=SUBMITTED_S,
        name="train",
        site="testbed",
        site_file="/home/ada/centre/site/profiles/testbed.toml",
        kind="slurm",
        job_id=JOB,
        nodes=case.nodes,
        ranks_per_node=case.gpus,
        submitted_s=SUBMITTED_S,
        work_dir="/home/ada",
        command=["fsdpkit", "submit", "/home/ada/t5/train.py"],
        version="0.1.0",
        template="torchrun 2.1.0",
        digests={},
    )
    save(RunPaths(run), record)
    job = {
        "schema": "fsdpkit.job/1",
        "name": "train",
        "entry": "/home/ada/t5/train.py",
        "resources": {"nodes": case.nodes, "gpus": case.gpus, "time": "60", "account": "pas1234"},
        "retry": msgspec.to_builtins(RETRY),
    }
    _put(run / "job.json", json.dumps(job, indent=2) + "\n")


def _write_files(case: Case, run: Path) -> None:
    for name, text in case.files.items():
        _put(run / name, text)


def _before_ranks(scene: Scene, run: Path) -> int:
    """The batch shell's part, and the agents' as far as the case says that they came to be."""
    case = scene.case
    _write_files(case, run)
    _write_node_logs(scene, run, None)
    status = int(case.slurm.split("|")[1].partition(":")[0]) or 1
    if not re.search(r"^srun: ", case.batch, re.MULTILINE) and not scene.attempt.dir.exists():
        _put(run / f"slurm-{JOB}.log", case.batch)
        return status
    scene.attempt.failures.mkdir(parents=True, exist_ok=True)
    ending = agents.ending_of(scene, run, JOB, status)
    agents.write(scene.attempt.ending, ending)
    _put(run / f"slurm-{JOB}.log", _header(case) + case.batch + _closing(ending.why, run))
    return ending.status


def _with_ranks(scene: Scene, run: Path, state: str) -> int:
    """Everything from the agents' first line to the batch shell's last; the job's status."""
    case, attempt = scene.case, scene.attempt
    attempt.failures.mkdir(parents=True)
    _put(attempt.software, json.dumps({"node": "node1", **_SOFTWARE}))
    for node in range(case.nodes):
        _write_ranks(scene, node)
    _write_files(case, run)
    reports: list[Report] = []
    verdict = None
    if state not in _NOT_OVER:
        found = [agents.report_of(scene, node) for node in range(case.nodes)]
        reports = [report for report in found if report is not None]
        verdict = agents.verdict_of(scene, reports)
    if verdict is not None:
        agents.write(attempt.verdict, verdict)
    elif 0 in case.lost:
        for node in range(1, case.nodes):
            agents.record_lost_head(scene, node)
    ended_by_slurm = state in _BY_SLURM
    if ended_by_slurm and state != "NODE_FAIL":
        _put(run / "stop-requested", "warning\n")
    _write_orders(scene, verdict, stopping=ended_by_slurm and state != "NODE_FAIL")
    for node in range(case.nodes):
        _write_events(scene, node, reports)
        _write_samples(scene, node)
    _write_node_logs(scene, run, verdict)
    return _end(scene, run, state, verdict)


def _end(scene: Scene, run: Path, state: str, verdict: AttemptVerdict | None) -> int:
    case = scene.case
    status, _ = agents.said(verdict.trouble if verdict else None)
    log = _header(case) + case.batch + _srun(case, status)
    if state in (*_BY_SLURM, *_NOT_OVER):
        _put(run / f"slurm-{JOB}.log", log)
        return int(case.slurm.split("|")[1].partition(":")[0])
    if verdict is None:
        status = int(case.slurm.split("|")[1].partition(":")[0]) or 1
    ending = agents.ending_of(scene, run, JOB, status)
    agents.write(scene.attempt.ending, ending)
    os.utime(scene.attempt.ending, (ENDED_S, ENDED_S))
    _put(run / f"slurm-{JOB}.log", log + (_closing(ending.why, run) if ending.status else ""))
    return ending.status


def _header(case: Case) -> str:
    names = " ".join(case.node_name(node) for node in range(case.nodes))
    if case.nodes == 1:
        return f"fsdpkit: one node ({names})\n"
    return f"fsdpkit: {case.nodes} nodes ({names}), head node1 at 10.99.7.1:14711\n"


def _closing(why: str, run: Path) -> str:
    return f"fsdpkit: {why}\nfsdpkit: to go on: fsdpkit resume /scratch/ada/runs/{run.name}\n"


def _srun(case: Case, status: int) -> str:
    """What srun says of agents that ended with this status, unless the case knows better."""
    if not status or re.search(r"^srun: error: \S+: tasks? ", case.batch, re.MULTILINE):
        return ""
    lines = [
        f"srun: error: {case.node_name(node)}: task {node}: Exited with exit code {status}"
        for node in range(case.nodes)
        if node not in case.lost
    ]
    lines.insert(1, f"srun: launch/slurm: _step_signal: Terminating StepId={JOB}.0")
    return "".join(f"{line}\n" for line in lines)


def _write_ranks(scene: Scene, node: int) -> None:
    for rank in range(node * scene.case.gpus, (node + 1) * scene.case.gpus):
        one = scene.case.rank(rank)
        _put(scene.attempt.rank_file(rank, "out", 0), one.out)
        _put(scene.attempt.rank_file(rank, "err", 0), one.err)
        if rank in scene.case.stacks:
            _put(scene.attempt.rank_file(rank, "stacks", 0), scene.case.stacks[rank])


def _write_events(scene: Scene, node: int, reports: Sequence[Report]) -> None:
    case, name = scene.case, scene.case.node_name(node)
    pids = {str(node * case.gpus + i): _pid(i) for i in range(case.gpus)}
    events: list[dict[str, Any]] = [
        {
            "time_s": LAUNCHED_S - 2.0,
            "event": "node-ready",
            "node": name,
            "pid": 4000,
            "run_directory_free_gb": 5120.0,
            "software": _SOFTWARE,
            "memory_available_gb": 480.0,
            "clock_offset_s": 0.0,
            "head_address": "10.99.7.1" if case.nodes > 1 else None,
            "port": 14711 if node == 0 and case.nodes > 1 else None,
            "gpus": case.gpus,
            "gpu_memory_used_mib": None,
            "preflight_s": 9.15,
        },
        {"time_s": LAUNCHED_S, "event": "ranks-starting", "launch": 0},
        {
            "time_s": LAUNCHED_S + 2.0,
            "event": "ranks-started",
            "launch": 0,
            "pids": pids,
            "forked": case.gpus,
        },
    ]
    for report in reports:
        if report.node == node:
            events.append(_ended_event(report))
            told = {"time_s": FIRST_END_S + 5.0, "event": "node-ended", "node": name}
            events.append({**told, "seconds": LASTED_S + 25.0})
    lines = (json.dumps(event, separators=(",", ":")) for event in events)
    _put(scene.attempt.node_events(node), "".join(f"{line}\n" for line in lines))


def _ended_event(report: Report) -> dict[str, Any]:
    failure = report.failure
    at_s = failure.time_ns / 1e9 + 0.4 if failure else FIRST_END_S + 4.0
    event: dict[str, Any] = {"event": f"ranks-{report.outcome}", "launch": 0, "step": report.step}
    if failure is not None:
        event |= {"rank": failure.rank, "status": failure.status, "message": failure.words}
    return {"time_s": round(at_s, 3), **event}


def _write_samples(scene: Scene, node: int) -> None:
    share = scene.case.memory_share.get(node, 0.2)
    lines = []
    for place in range(5):
        sample = {
            "time_s": FIRST_END_S - 45.0 + 10.0 * place,
            "cpu_percent": 38.5,
            "load_1min": 12.4,
            "memory_used_bytes": int(_MEMORY_BYTES * share * (0.8 + 0.05 * place)),
            "memory_total_bytes": _MEMORY_BYTES,
            "processes": 1 + scene.case.gpus,
            "processes_rss_bytes": int(_MEMORY_BYTES * share * (0.7 + 0.05 * place)),
            "network_sent_bytes": 56977729 + 1000 * place,
            "network_received_bytes": 56726557 + 1000 * place,
        }
        lines.append(json.dumps(sample, separators=(",", ":")) + "\n")
    _put(scene.attempt.node_samples(node), "".join(lines))


def _write_orders(scene: Scene, verdict: AttemptVerdict | None, *, stopping: bool) -> None:
    case = scene.case
    names = [case.node_name(node) for node in range(case.nodes)]
    orders: list[dict[str, Any]] = [
        {"time_s": LAUNCHED_S, "event": "launch", "launch": 0, "nodes": names, "delay_s": 0}
    ]
    if 0 not in case.lost:
        for node in case.lost:
            told = {"event": "node-lost", "node": names[node]}
            orders.append({"time_s": FIRST_END_S + RETRY.lost_s, **told})
    if stopping:
        orders.append({"time_s": FIRST_END_S + 1.0, "event": "stop-requested"})
    if verdict is not None and (trouble := verdict.trouble):
        why = {"cause": trouble.cause, "message": trouble.message, "step": trouble.step}
        orders.append({"time_s": FIRST_END_S + 3.5, "event": "trouble", **why})
    lines = (json.dumps(order, separators=(",", ":")) for order in orders)
    _put(scene.attempt.dir / "orders.jsonl", "".join(f"{line}\n" for line in lines))


def _write_node_logs(scene: Scene, run: Path, verdict: AttemptVerdict | None) -> None:
    case = scene.case
    for node in range(case.nodes):
        if case.before_ranks:
            if node in case.node_logs:
                _put(run / "submitit" / f"{JOB}_{node}_log.err", case.node_logs[node])
            continue
        err = "".join(f"{line}\n" for line in _agent_lines(scene, node, verdict))
        first = case.rank(0)
        shown_out, shown_err = (_as_rank_0(first.out), _as_rank_0(first.err))
        if node:
            shown_out = shown_err = ""
        err = shown_err + err
        out = (
            f"fsdpkit: node {node} ({case.node_name(node)}) at 10.99.7.{node + 1}, sockets on ib0\n"
            f"fsdpkit: {case.node_name(node)}: ready, torch {_SOFTWARE['torch']}, 5120 GB free, "
            f"{case.gpus} GPUs\n"
        )
        _put(run / "submitit" / f"{JOB}_{node}_log.out", out + shown_out)
        _put(run / "submitit" / f"{JOB}_{node}_log.err", err)


def _as_rank_0(text: str) -> str:
    """As torchelastic repeats it, line by line, with the prefix that it was given."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return "".join(f"rank 0: {line}\n" for line in lines)


def _agent_lines(scene: Scene, node: int, verdict: AttemptVerdict | None) -> Iterator[str]:
    """torchelastic's lines about this node's ranks, what the case adds, the agent's last."""
    case, ended = scene.case, scene.ended(node)
    over = verdict is not None or bool(ended)
    stamp = datetime.fromtimestamp(FIRST_END_S, timezone.utc).strftime("%m%d %H:%M:%S.%f")
    where = "torch/distributed/elastic/multiprocessing/api.py"
    if over and node not in case.lost and not agents._all_done(case):
        for local in range(case.gpus):
            if node * case.gpus + local not in ended:
                told = f"Sending process {_pid(local)} closing signal SIGKILL"
                yield f"W{stamp} 4000 {where}:1028] {told}"
        if ended:
            rank = min(ended)
            status = ended[rank].status or 0
            code = 128 - status if status > 128 else status
            local = rank % case.gpus
            yield (
                f"E{stamp} 4000 {where}:1002] failed (exitcode: {code}) local_rank: {local} "
                f"(pid: {_pid(local)}) of binary: /opt/venv/bin/python"
            )
    if node in case.node_logs:
        yield case.node_logs[node].removesuffix("\n")
    if verdict is not None and verdict.trouble is not None and node not in case.lost:
        yield f"fsdpkit: {verdict.trouble.message}" + (f"; {verdict.why}" if verdict.why else "")


def _pid(local: int) -> int:
    return 4100 + local


def _scheduler(case: Case, run: Path, state: str, status: int) -> dict[str, str]:
    """What squeue, sacct and scontrol print, in the formats that fsdpkit asks for."""
    parts = [*case.slurm.split("|"), ""]
    full, exit_code = parts[0], parts[1]
    nodes = "node1" if case.nodes == 1 else f"node[1-{case.nodes}]"
    started, ended = f"{BEGAN_S:.0f}", f"{ENDED_S:.0f}"
    reason = parts[2] or _REASONS.get(state, "None")
    derived = "0:0"
    if state == "FAILED" and status:
        exit_code, derived = f"{status & 127}:0", f"{status}:0"
    if state == "PENDING":
        nodes, started, ended = "None assigned", "Unknown", "Unknown"
    elif state in _NOT_OVER:
        ended = "Unknown"
    submitted = f"{SUBMITTED_S:.0f}"
    shown = "" if state == "PENDING" else nodes
    times = f"{submitted}|{'N/A' if started == 'Unknown' else started}"
    scontrol = (
        f"JobId={JOB} JobName=train UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A "
        f"Priority=4294901747 Nice=0 Account=pas1234 QOS=normal JobState={state} Reason={reason} "
        f"Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 "
        f"ExitCode={f'{status}:0' if state == 'FAILED' else exit_code} "
        f"RunTime=00:16:00 TimeLimit=01:00:00 TimeMin=N/A SubmitTime={submitted} "
        f"EligibleTime={submitted} AccrueTime={submitted} StartTime={started} EndTime={ended} "
        f"Deadline=N/A PreemptTime=None Partition=gpu NodeList={shown or '(null)'} "
        f"NumNodes={case.nodes} NumTasks={case.nodes} "
        f"Command=/scratch/ada/runs/{run.name}/job.sbatch WorkDir=/home/ada "
        f"Comment=fsdpkit:{run.name}\n"
    )
    last = "N/A" if ended == "Unknown" else ended
    return {
        "squeue": f"{JOB}|{state}|{reason}|{shown}|{times}|{last}\n",
        "sacct": f"{JOB}|{full}|{exit_code}|{derived}|None|{nodes}|{submitted}|{started}|{ended}\n",
        "scontrol": scontrol,
    }


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
