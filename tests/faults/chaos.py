"""Faults drawn at random: what befalls which part of a run of which shape, when, and what then.

A draw is made from its number alone, so that whatever is found can be had again. It has one fault
or two: the second together with the first, while the run gets over it, or in a later phase. Nodes
that were lost and cables that were out come back after a while, as if somebody had mended them;
nobody looks after the run itself. Afterwards it must stand as if nothing had happened, or have
ended with a diagnosis that is true, or wait for its owner's word and say so; `judge` says which.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from fsdpkit.scheduling.states import JobState
from tests.faults.injectors import tear_newest_checkpoint
from tests.faults.trial import HELD_AT, PHASES, STEPS, Bed, Phase, Trial, TrialError
from tests.slurm_cluster import FINISHED, ClusterError

NODES = 3
"""Of the cluster."""
HELD = "HELD"
"""Of a job that Slurm requeued and keeps from starting until its owner releases it."""
ENDLESS_S = 300.0
"""A run that has not ended so long after everything was mended never will."""
_LOOK_S = 0.2
_ASK_S = 1.5
_SETS = ("retry.hang_s=25",)

When = Literal["together", "meanwhile", "later"]


@dataclass(frozen=True)
class Shape:
    nodes: int
    ranks: int
    """On each node."""
    spare: int = 0

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    def __str__(self) -> str:
        return f"{self.nodes} × {self.ranks}" + (f" + {self.spare}" if self.spare else "")


SHAPES = (
    Shape(2, 1),
    Shape(2, 2),
    Shape(2, 4),
    Shape(3, 1),
    Shape(3, 2),
    Shape(1, 2),
    Shape(2, 1, spare=1),
    Shape(2, 2, spare=1),
)


@dataclass(frozen=True)
class Strike:
    """A fault and what it hits; which of the two counts depends on the fault."""

    fault: str
    rank: int
    node: str
    lasts_s: float
    """Until it is mended, where it can be."""

    def __str__(self) -> str:
        target = {"rank": f" {self.rank}", "node": f" {self.node}", "job": ""}
        kind = FAULTS[self.fault]
        lasting = f" for {self.lasts_s:.0f} s" if kind.lasts else ""
        return f"{self.fault}{target[kind.hits]}{lasting}"


@dataclass(frozen=True)
class Draw:
    number: int
    shape: Shape
    phase: Phase
    first: Strike
    second: Strike | None
    when: When
    delay_s: float
    """From the first to the second, `meanwhile`."""
    later: Phase

    @property
    def strikes(self) -> tuple[Strike, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)

    def __str__(self) -> str:
        told = f"{self.number}: {self.shape}, {self.first} in {self.phase}"
        if self.second is None:
            return told
        when = {
            "together": "together with",
            "meanwhile": f"{self.delay_s:.1f} s later",
            "later": f"in {self.later}",
        }
        return f"{told}; {when[self.when]} {self.second}"


@dataclass
class Struck:
    """A trial under a draw, and what is still to be mended."""

    draw: Draw
    trial: Trial
    mendings: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    over: bool = False
    """Whether the job has ended, and everything is mended at once."""

    def mend_after(self, seconds: float, action: Callable[[], object]) -> None:
        self.mendings.append((time.monotonic() + seconds, action))

    def mend_due(self, *, all_of_them: bool = False) -> None:
        now, self.over = time.monotonic(), all_of_them
        due = [one for one in self.mendings if all_of_them or one[0] <= now]
        self.mendings = [one for one in self.mendings if one not in due]
        for _, action in sorted(due, key=lambda one: one[0]):
            action()


# What can befall a run


@dataclass(frozen=True)
class Fault:
    """causes: what `diagnose` may truly call it if the job ends of it."""

    does: Callable[[Struck, Strike], object]
    hits: Literal["rank", "node", "job"]
    causes: frozenset[str]
    ends: bool = False
    """Whether the job may end by this fault alone."""
    lasts: bool = False
    nodes: int = 1
    """The fewest that a run must have for it to be noticed before the time limit."""
    weight: int = 2


def _signal_rank(name: str) -> Callable[[Struck, Strike], None]:
    def send(struck: Struck, strike: Strike) -> None:
        struck.trial.rank(strike.rank).send_signal(signal.Signals[name])

    return send


def _suspend_rank(struck: Struck, strike: Strike) -> None:
    struck.trial.rank(strike.rank).suspend()


def _pause(find: Callable[[Struck, Strike], psutil.Process]) -> Callable[[Struck, Strike], None]:
    """Stop a process for a while that is too short to be taken for its end."""

    def pause(struck: Struck, strike: Strike) -> None:
        process = find(struck, strike)
        process.suspend()
        struck.mend_after(min(strike.lasts_s, 4), lambda: _resume(process))

    return pause


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


def _agent(struck: Struck, strike: Strike) -> psutil.Process:
    return struck.trial.agent(strike.node)


def _rank(struck: Struck, strike: Strike) -> psutil.Process:
    return struck.trial.rank(strike.rank)


def _lose_node(struck: Struck, strike: Strike) -> None:
    cluster = struck.trial.bed.cluster
    cluster.kill_node(strike.node)
    struck.mend_after(strike.lasts_s, lambda: _bring_back(struck, strike.node))


def _bring_back(struck: Struck, node: str) -> None:
    """Once Slurm has seen that it is gone: a real one would see by its time of boot that it was."""
    cluster = struck.trial.bed.cluster
    try:
        seen = "DOWN" in cluster.nodes()[node]
    except ClusterError:
        seen = False
    if not (seen or struck.over):
        struck.mend_after(2, lambda: _bring_back(struck, node))
        return
    cluster.start_node(node)
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


def _cut(*, carrier: bool) -> Callable[[Struck, Strike], None]:
    def cut(struck: Struck, strike: Strike) -> None:
        cluster = struck.trial.bed.cluster
        cluster.cut(strike.node, carrier=carrier)

        def join() -> None:
            if cluster.network.running(strike.node):
                cluster.join(strike.node)
                cluster.run(["scontrol", "update", f"NodeName={strike.node}", "State=RESUME"])

        struck.mend_after(strike.lasts_s, join)

    return cut


def _stop_controller(struck: Struck, strike: Strike) -> None:
    cluster = struck.trial.bed.cluster
    cluster.stop_controller()
    struck.mend_after(strike.lasts_s, cluster.start_controller)


def _restart_slurmd(struck: Struck, strike: Strike) -> None:
    cluster = struck.trial.bed.cluster
    pid = cluster.places.pid_file(f"slurmd.{strike.node}").read_text().strip()
    cluster.node_exec(strike.node, ["kill", pid])
    struck.mend_after(strike.lasts_s, lambda: cluster.start_node(strike.node))


def _slurm(*words: str) -> Callable[[Struck, Strike], None]:
    def tell(struck: Struck, _: Strike) -> None:
        done = struck.trial.bed.cluster.run([*words, struck.trial.job_id])
        assert done.returncode == 0, done.stderr

    return tell


def _preempt(grace_s: int) -> Callable[[Struck, Strike], None]:
    """A more important job wants one of the nodes, for a moment."""

    def preempt(struck: Struck, strike: Strike) -> None:
        cluster = struck.trial.bed.cluster
        cluster.run(["scontrol", "update", "PartitionName=main", f"GraceTime={grace_s}"])
        words = ["--partition=high", f"--nodelist={strike.node}", "--exclusive"]
        cluster.submit(*words, "--account=pas1234", "--output=/dev/null", "--wrap=true")

    return preempt


def _kill_batch_shell(struck: Struck, _: Strike) -> None:
    place = f"job{int(struck.trial.job_id):05d}/slurm_script"
    _process(struck, lambda line, _: any(word.endswith(place) for word in line)).kill()


def _kill_srun(struck: Struck, _: Strike) -> None:
    run = str(struck.trial.dir)

    def is_its(line: list[str], process: psutil.Process) -> bool:
        return line[0].endswith("srun") and process.environ().get("FSDPKIT_RUN_DIR") == run

    _process(struck, is_its).kill()


def _process(struck: Struck, wanted: Callable[[list[str], psutil.Process], bool]) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if line and wanted(line, process):
                return process
        except psutil.Error:
            continue
    raise struck.trial.error("no such process")


def _raise(error: str, message: str, *, once: bool) -> Callable[[Struck, Strike], None]:
    def ask(struck: Struck, strike: Strike) -> None:
        wanted = {
            "rank": strike.rank,
            "steps": [HELD_AT["training"]],
            "error": error,
            "message": message,
            "once": once,
        }
        draft = struck.trial.directory / ".raise"
        draft.write_text(json.dumps(wanted))
        draft.rename(struck.trial.directory / "raise.json")

    return ask


def _cancel(*words: str) -> Callable[[Struck, Strike], None]:
    def cancel(struck: Struck, _: Strike) -> None:
        struck.trial.bed.fsdpkit("cancel", str(struck.trial.dir), *words)

    return cancel


def _tear(struck: Struck, _: Strike) -> None:
    if struck.trial.saved():
        tear_newest_checkpoint(struck.trial)


_KILLED = frozenset({"exception", "unknown", "host-out-of-memory"})
_LOST = frozenset({"node-failure", "unknown", "connection-reset"})
_WARNED = frozenset({"time-limit", "preemption"})
_NONE: frozenset[str] = frozenset()

FAULTS = {
    "SIGKILL to rank": Fault(_signal_rank("SIGKILL"), "rank", _KILLED, weight=4),
    "SIGSEGV to rank": Fault(_signal_rank("SIGSEGV"), "rank", _KILLED),
    "SIGTERM to rank": Fault(_signal_rank("SIGTERM"), "rank", _KILLED),
    "hang of rank": Fault(_suspend_rank, "rank", frozenset({"hang"})),
    "pause of rank": Fault(_pause(_rank), "rank", _NONE, lasts=True),
    "exception in rank": Fault(
        _raise("RuntimeError", "a sample that cannot be read", once=True),
        "rank",
        frozenset({"exception"}),
        weight=3,
    ),
    "exception in rank each time": Fault(
        _raise("RuntimeError", "a sample that cannot be read", once=False),
        "rank",
        frozenset({"exception"}),
        ends=True,
    ),
    "out of memory in rank": Fault(
        _raise("OutOfMemoryError", "CUDA out of memory.", once=False),
        "rank",
        frozenset({"gpu-out-of-memory"}),
        ends=True,
    ),
    "kill of agent on": Fault(
        lambda struck, strike: _agent(struck, strike).kill(), "node", _LOST | _KILLED, weight=3
    ),
    "pause of agent on": Fault(_pause(_agent), "node", _NONE, lasts=True),
    "stop of agent on": Fault(
        lambda struck, strike: _agent(struck, strike).suspend(), "node", _LOST, nodes=2
    ),
    "loss of": Fault(_lose_node, "node", _LOST, lasts=True, weight=4),
    "cable out of": Fault(_cut(carrier=False), "node", _LOST, lasts=True, weight=4),
    "switch lost": Fault(_cut(carrier=True), "node", _LOST, lasts=True, weight=3),
    "slurmd down on": Fault(_restart_slurmd, "node", _LOST, lasts=True),
    "slurmctld down": Fault(_stop_controller, "job", _NONE, lasts=True),
    "warning": Fault(_slurm("scancel", "--batch", "--signal=USR1"), "job", _WARNED, weight=3),
    "SIGTERM to steps": Fault(_slurm("scancel", "--signal=TERM"), "job", _WARNED),
    "scancel --signal=KILL": Fault(
        _slurm("scancel", "--signal=KILL"), "job", frozenset({"cancelled"}), ends=True
    ),
    "preemption at once for": Fault(_preempt(0), "node", frozenset({"preemption"})),
    "preemption with grace for": Fault(_preempt(20), "node", frozenset({"preemption"})),
    "requeue by an operator": Fault(
        _slurm("scontrol", "requeue"), "job", frozenset({"preemption", "cancelled"})
    ),
    "kill of srun": Fault(_kill_srun, "job", _KILLED | _LOST | {"cancelled"}),
    "kill of batch shell": Fault(_kill_batch_shell, "job", _KILLED | {"cancelled"}, ends=True),
    "torn newest checkpoint": Fault(_tear, "job", _NONE, weight=3),
    "cancel": Fault(_cancel(), "job", frozenset({"cancelled"}), ends=True),
    "cancel --save": Fault(_cancel("--save"), "job", frozenset({"cancelled"}), ends=True),
}


def draw(number: int) -> Draw:
    """The draw of this number."""
    dice = random.Random(number)
    shape = dice.choice(SHAPES)

    def strike() -> Strike:
        possible = {name: one for name, one in FAULTS.items() if shape.nodes >= one.nodes}
        (name,) = dice.choices([*possible], [one.weight for one in possible.values()])
        rank, node = dice.randrange(shape.world), f"node{dice.randint(1, shape.nodes)}"
        return Strike(name, rank, node, round(dice.choice([2, 6, 12, 30]) * dice.uniform(0.8, 1.2)))

    phase = dice.choices(PHASES, [2, 5, 2, 2])[0]
    first, second = strike(), strike() if dice.random() < 0.6 else None
    later = [one for one in PHASES if HELD_AT[one] > HELD_AT[phase]]
    when: When = dice.choice(["together", "meanwhile", "later"] if later else ["together"])
    delay_s = round(dice.uniform(0.1, 9), 1)
    return Draw(
        number, shape, phase, first, second, when, delay_s, dice.choice(later) if later else phase
    )


# How it goes


@dataclass(frozen=True)
class Outcome:
    """What became of a draw. wrong: None if it is as it should be."""

    number: int
    what: str
    state: str
    end: Literal["undisturbed", "told", "wrong"]
    cause: str
    attempts: int
    seconds: float
    wrong: str = ""


def run(one: Draw, bed: Bed, undisturbed: dict[int, float]) -> Outcome:
    """Make the draw's run, break it, and judge. undisturbed: the losses of its shape by step."""
    began_s = time.monotonic()
    trial = bed.submit(
        hold=one.phase,
        nodes=one.shape.nodes,
        gpus=one.shape.ranks,
        spare=one.shape.spare,
        sets=_SETS,
    )
    struck = Struck(one, trial)
    state = cause = ""
    try:
        strike(struck)
        state = wait_ended(struck)
        struck.mend_due(all_of_them=True)
        cause, told = judge(struck, state, undisturbed)
        wrong = ""
    except (AssertionError, ClusterError, psutil.Error) as error:
        told, wrong = False, str(error) or repr(error)
    try:
        struck.mend_due(all_of_them=True)
    except (AssertionError, ClusterError, psutil.Error) as error:
        wrong = wrong or f"it could not be mended: {error}"
    return Outcome(
        number=one.number,
        what=str(one),
        state=state,
        end="wrong" if wrong else "told" if told else "undisturbed",
        cause=cause,
        attempts=len(trial.task.attempts()),
        seconds=round(time.monotonic() - began_s, 1),
        wrong=wrong,
    )


def strike(struck: Struck) -> None:
    """Both faults at their times; then nothing holds the run any more."""
    one, trial = struck.draw, struck.trial
    wait_held(struck, one.phase)
    hit(struck, one.first)
    if one.second is not None and one.when == "together":
        hit(struck, one.second)
    if one.second is not None and one.when == "meanwhile":
        until_s = time.monotonic() + one.delay_s
        while time.monotonic() < until_s:
            struck.mend_due()
            time.sleep(_LOOK_S)
        hit(struck, one.second)
    if one.second is not None and one.when == "later":
        (trial.directory / f"hold-{one.later}").write_text(str(HELD_AT[one.later]))
        trial.release()
        if wait_held(struck, one.later, patience_s=90):
            hit(struck, one.second)
        (trial.directory / f"hold-{one.later}").unlink()
    trial.release()


def hit(struck: Struck, one: Strike) -> None:
    """What it was to hit may be gone by now, of the other fault: then there is nothing to hit."""
    try:
        FAULTS[one.fault].does(struck, one)
    except (TrialError, ClusterError, psutil.Error, OSError, AssertionError):
        if one is struck.draw.first:
            raise


def wait_held(struck: Struck, phase: Phase, patience_s: float = 300) -> bool:
    """Until all ranks wait in the phase; False if the run ended before, or never came there."""
    trial, asked_s = struck.trial, time.monotonic()
    until_s = asked_s + patience_s
    ranks = 1 if phase == "checkpointing" else struck.draw.shape.world
    files = [trial.directory / f"at-{phase}-rank-{rank}" for rank in range(ranks)]
    while not all(file.exists() for file in files):
        struck.mend_due()
        now = time.monotonic()
        if now > until_s:
            return False
        if now - asked_s > _ASK_S:
            asked_s = now
            if _state(trial) in FINISHED:
                return False
        time.sleep(_LOOK_S)
    return True


def wait_ended(struck: Struck) -> str:
    """The state in which the job ended for good, or HELD. Raises TrialError if it never did."""
    trial = struck.trial
    mended_s = time.monotonic()
    while (state := _state(trial)) not in FINISHED:
        struck.mend_due()
        if state == HELD and not struck.mendings:
            return state
        if struck.mendings:
            mended_s = time.monotonic()
        if time.monotonic() - mended_s > ENDLESS_S:
            raise trial.error(f"{state or 'not to be asked'} for ever")
        time.sleep(_ASK_S)
    return state


def _state(trial: Trial) -> str:
    """Slurm's, or HELD; empty while it cannot be asked."""
    try:
        job = trial.job()
    except ClusterError:
        return ""
    held = JobState(job["JobState"], "scontrol", reason=job["Reason"]).held
    return HELD if held else job["JobState"]


def judge(struck: Struck, state: str, undisturbed: dict[int, float]) -> tuple[str, bool]:
    """The cause that `diagnose` names, and whether it is a failure, told truly; False: all is as if
    nothing had happened. Raises AssertionError with what is wrong."""
    one, trial = struck.draw, struck.trial
    if state == HELD:
        check_held(trial)
        go_on(trial, undisturbed)
        return "held", True
    trial.wait_gone()
    shown = trial.bed.fsdpkit("diagnose", str(trial.dir), "--json")
    found = json.loads(shown.stdout)
    cause = str(found["cause"])
    kinds = [FAULTS[strike.fault] for strike in one.strikes]
    try:
        assert trial.damage() == [] or any("torn" in strike.fault for strike in one.strikes)
        if state == "COMPLETED":
            assert trial.losses() == undisturbed, "other losses"
            assert max(trial.saved()) == STEPS, "no last checkpoint"
            assert cause == "done", f"diagnose: {found['sentence']}"
            return cause, False
        assert any(kind.ends for kind in kinds) or len(kinds) == 2, "it was to go on"
        check_told(one, found)
        go_on(trial, undisturbed)
    except AssertionError as error:
        raise trial.error(f"{one}: {error}; diagnose: {found['sentence']}") from error
    return cause, True


def check_held(trial: Trial) -> None:
    """Whoever looks is told that the job waits for its owner, and what to do."""
    shown = trial.bed.fsdpkit("status", str(trial.dir), "--json")
    waiting = json.loads(shown.stdout)["waiting"]
    assert waiting["never"], f"status: {waiting}"
    assert f"fsdpkit resume {trial.dir.name}" in waiting["action"], f"status: {waiting}"


def check_told(one: Draw, found: dict[str, Any]) -> None:
    """The cause is that of a fault, and rank and node are among those that were hit."""
    true = frozenset[str]().union(*(FAULTS[strike.fault].causes for strike in one.strikes))
    assert found["cause"] in true, f"the cause is not {found['cause']}"
    nodes, ranks = set[str](), set[int]()
    for strike in one.strikes:
        if FAULTS[strike.fault].hits == "rank":
            ranks.add(strike.rank)
        if FAULTS[strike.fault].hits == "node":
            nodes.add(strike.node)
    on_nodes = any(FAULTS[strike.fault].hits != "rank" for strike in one.strikes)
    if found["rank"] is not None and not on_nodes:
        assert found["rank"] in ranks, f"rank {found['rank']} was not hit"
    if found["rank"] is None and found["node"] is not None and nodes:
        assert found["node"] in nodes, f"{found['node']} was not hit"


def go_on(trial: Trial, undisturbed: dict[int, float]) -> None:
    """What the run has saved takes it to its end, when it is resumed by hand."""
    (trial.directory / "raise.json").unlink(missing_ok=True)
    trial.bed.mend()
    done = trial.bed.fsdpkit("resume", str(trial.dir), "--wait")
    assert done.returncode == 0, f"resume: {done.stdout}{done.stderr}"
    assert trial.losses() == undisturbed, "other losses after resume"


def undisturbed_of(bed: Bed, shapes: Sequence[Shape] = SHAPES) -> dict[int, dict[int, float]]:
    """The losses of quiet runs by how many ranks they have."""
    found: dict[int, dict[int, float]] = {}
    for shape in shapes:
        if shape.world not in found:
            trial = bed.submit(nodes=shape.nodes, gpus=shape.ranks)
            assert trial.wait_end()["JobState"] == "COMPLETED", trial.error("undisturbed")
            found[shape.world] = trial.losses()
    return found
