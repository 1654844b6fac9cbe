"""One run on a real cluster, to be broken in a chosen phase, and what is known of it afterwards.

A `Bed` is a cluster and a directory in which trials are made; a `Trial` is one submission of a
trainer on two nodes of one rank: T5, or a light one where torch decides nothing. Tests and
benchmarks/faults.py share both. Nothing sleeps for a fixed time: what is waited for is a file or an
answer of Slurm, for minutes on a slow machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil

from fsdpkit.runs.checkpoints import checkpoints_in, problems_of, step_of
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import AttemptPaths, RunPaths, TaskPaths
from tests.conftest import Completed
from tests.slurm.conftest import Person, everything_said
from tests.slurm_cluster import FINISHED, JobInfo, SlurmCluster
from tests.slurm_cluster.machines import poll

Phase = Literal["start-up", "training", "checkpointing", "shutdown"]
PHASES: tuple[Phase, ...] = ("start-up", "training", "checkpointing", "shutdown")
Answer = TypeVar("Answer")

T5 = Path(__file__).resolve().parent / "trainer.py"
LIGHT = T5.with_name("light_trainer.py")
STEPS, SAVE_EVERY = 20, 5
HELD_AT: Mapping[Phase, int] = {
    "start-up": 0,
    "training": 12,
    "checkpointing": 10,
    "shutdown": STEPS,
}
"""Steps done when a phase is held; in checkpointing, the checkpoint that has no name yet."""
SETTINGS = (
    f"training.steps={STEPS}",
    f"training.checkpoint.every_steps={SAVE_EVERY}",
    "training.batch_size=2",
    "training.model.num_layers=1",
    "training.model.num_decoder_layers=1",
    "training.metrics.every_steps=1",
    "training.evaluation.batches=0",
    "training.data.limit=200",
    "retry.backoff_s=0.5",
    "retry.lost_s=8",
    "parameters.wait_s=10",
)
PATIENCE_S = 300.0
"""How long anything may take on a machine that does other things as well."""
ASK_SLURM_S = 2.0
"""Between two questions to Slurm, which cost more than a look at a file."""


class TrialError(AssertionError):
    """What was waited for did not come; the message has all that the run said."""


@dataclass
class Bed:
    """A cluster, and an empty directory that its nodes share. Every trial has runs of its own."""

    cluster: SlurmCluster
    directory: Path
    _trials: int = 0
    _undisturbed: dict[Path, dict[int, float]] = field(default_factory=dict)
    _person: Person = field(init=False)

    def __post_init__(self) -> None:
        self._person = Person.at(self.cluster, self.directory)

    def fsdpkit(self, *words: str) -> Completed:
        """The command line of a person on the login node."""
        return self._person.fsdpkit(*words)

    def submit(
        self,
        *,
        trainer: Path = LIGHT,
        hold: Phase | None = None,
        at: int | None = None,
        sets: Sequence[str] = (),
        nodes: int = 2,
        gpus: int = 1,
        spare: int = 0,
        breaks: Mapping[str, Any] | None = None,
        runs: Path | None = None,
    ) -> Trial:
        """Submit a run that waits in the phase `hold`. at: steps that are done then, if not as
        HELD_AT has it. breaks: content of `raise.json`."""
        directory = self._new_directory()
        if hold is not None:
            at = HELD_AT[hold] if at is None else at
            (directory / f"hold-{hold}").write_text(str(at))
        if breaks is not None:
            (directory / "raise.json").write_text(json.dumps(breaks))
        words = ("--spare", str(spare), "--runs", str(runs or directory / "runs"))
        words += ("--nodes", str(nodes), "--gpus", str(gpus))
        run, job_id = self._submit(trainer, directory, words, sets)
        return Trial(self, directory, run, job_id, hold, at=at)

    def submit_array(self, tasks: int, *, hold: Phase) -> list[Trial]:
        """Submit an array; each of its tasks is a trial that waits in the phase by itself."""
        directory = self._new_directory()
        for number in range(tasks):
            (directory / str(number)).mkdir()
            (directory / str(number) / f"hold-{hold}").write_text(str(HELD_AT[hold]))
        words = ("--nodes", "2", "--gpus", "1", "--array", f"0-{tasks - 1}")
        words += ("--runs", str(directory / "runs"))
        run, job_id = self._submit(LIGHT, directory, words)
        return [
            Trial(self, directory / str(number), run, f"{job_id}_{number}", hold, number)
            for number in range(tasks)
        ]

    def _new_directory(self) -> Path:
        self._trials += 1
        directory = self.directory / f"trial-{self._trials}"
        directory.mkdir()
        return directory

    def _submit(
        self, trainer: Path, directory: Path, words: Sequence[str], sets: Sequence[str] = ()
    ) -> tuple[Path, str]:
        """The run's directory and its job's id."""
        variables = f"{{FAULTS_DIR = {json.dumps(str(directory))}}}"
        cold = ("launch.warm=off",) if trainer == LIGHT else ()  # nothing to import
        assigned = (
            *SETTINGS,
            *cold,
            *sets,
            f"entry={trainer}",
            f"environment.variables={variables}",
        )
        done = self.fsdpkit(
            *("submit", "--nodes", "2", "--gpus", "1", *words),
            *("--account", "pas1234", "--time", "15", "--json"),
            *(word for assignment in assigned for word in ("--set", assignment)),
        )
        if done.returncode:
            raise TrialError(done.stderr)
        answer = json.loads(done.stdout)
        return Path(answer["dir"]), str(answer["job_id"])

    def undisturbed(self, trainer: Path = LIGHT) -> dict[int, float]:
        """The loss of every step when nothing happens; one run for all who ask, on one node."""
        if trainer not in self._undisturbed:
            trial = self.submit(trainer=trainer, nodes=1, gpus=2)
            if trial.wait_end()["JobState"] != "COMPLETED":
                raise trial.error("the undisturbed run did not complete")
            self._undisturbed[trainer] = trial.losses()
        return self._undisturbed[trainer]

    def process(self, node: str, number: int) -> psutil.Process:
        """The process that has this number on the node, where numbers are the node's own."""
        space = os.readlink(f"/proc/{self.cluster.network.machine(node).init.pid}/ns/pid")
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                inner = next(s for s in status.splitlines() if s.startswith("NSpid:")).split()[-1]
                if int(inner) == number and os.readlink(f"/proc/{process.pid}/ns/pid") == space:
                    return process
        raise TrialError(f"no process {number} on {node}")

    def mend(self) -> None:
        """Jobs ended, daemons, nodes and cables back: as before the trial."""
        cluster = self.cluster
        cluster.start_controller()
        cluster.run(["scancel", "--user=root"])
        for node in cluster.options.node_names:
            if cluster.network.running(node):
                cluster.join(node)
            cluster.start_node(node)
            # Slurm drains a node whose step did not end in time, as one that was cut off.
            cluster.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        cluster.run(["scontrol", "update", "PartitionName=main", "GraceTime=0"])
        cluster.wait_idle(PATIENCE_S)


def _same_text(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_text() == other.read_text()


@dataclass
class Trial:
    """One run, or one task of an array.

    directory: where its ranks look for what to wait for (tests/faults/trainer.py)."""

    bed: Bed
    directory: Path
    dir: Path
    job_id: str
    held: Phase | None
    array_task: int | None = None
    then: Phase | None = None
    """Where it is held next."""
    at: int | None = None
    """Steps done where it is held, if not as HELD_AT has it."""
    good: list[int] = field(default_factory=list)
    """Steps of the checkpoints that were whole when the fault came."""
    broken_s: float = 0.0
    """When it came, Unix time."""

    # Until the fault

    def until(self, question: Callable[[], Answer | None], what: str) -> Answer:
        """Ask until the answer is true. Raises TrialError if the job ends first, or too late."""
        began = asked = time.monotonic()
        while not (answer := question()):
            now = time.monotonic()
            ended = False
            if now - asked > ASK_SLURM_S:
                asked, ended = now, self.job()["JobState"] in FINISHED
            if ended or now - began > PATIENCE_S:
                if answer := question():
                    return answer
                raise self.error(f"{what}: {'the job has ended' if ended else 'it never came'}")
            time.sleep(0.05)
        return answer

    def error(self, what: str) -> TrialError:
        job = " ".join(f"{k}={self.job().get(k)}" for k in ("JobState", "Reason", "ExitCode"))
        told = "\n".join(f"== {path}\n{path.read_text()}" for path in self._told())
        return TrialError(f"{what}; {job}\n{told}\n{everything_said(self.dir)}")

    def _told(self) -> list[Path]:
        names = ("orders.jsonl", "verdict.json", "ending.json", "failures/*")
        return [path for name in names for path in sorted(self.dir.glob(f"attempt-*/{name}"))]

    def wait_held(self) -> None:
        """Until all ranks are where they were asked to wait, and older checkpoints are whole."""
        phase = self.held
        assert phase is not None
        self._wait_for_held_ranks(f"at-{phase}")
        at = HELD_AT[phase] if self.at is None else self.at
        first_unsaved = at + (phase != "checkpointing")
        due = [*range(SAVE_EVERY, min(first_unsaved, STEPS), SAVE_EVERY)]
        # Only the last: as soon as a newer one has its name, older ones go.
        newest = max(due, default=0)
        self.until(lambda: max(self.saved(), default=0) >= newest, f"checkpoints {due}")

    def reached(self, phase: Phase) -> bool:
        """Whether both ranks have come so far."""
        return all((self.directory / f"at-{phase}-rank-{rank}").exists() for rank in (0, 1))

    def forget(self, phase: Phase) -> None:
        """That any rank has come so far."""
        for path in self.directory.glob(f"at-{phase}-rank-*"):
            path.unlink()

    def wait_warned(self) -> None:
        """Until all ranks that wait have heard from their agents that they are to stop."""
        self._wait_for_held_ranks("warned")

    def _wait_for_held_ranks(self, what: str) -> None:
        for rank in (0,) if self.held == "checkpointing" else (0, 1):
            newest, said = (self.directory / f"{name}rank-{rank}" for name in ("", f"{what}-"))
            self.until(partial(_same_text, newest, said), said.name)

    def strike(self, inject: Callable[[Trial], None]) -> None:
        """Break it where it is held, then let the ranks that are left go on."""
        self.injure(inject)
        self.release()

    def injure(self, inject: Callable[[Trial], None]) -> None:
        """Break it where it is held, and leave the ranks there."""
        if self.held is not None:
            self.wait_held()
        self.good, self.broken_s = self.saved(), time.time()
        inject(self)

    def go_on_to(self, phase: Phase, at: int, *, anew: bool = False) -> None:
        """Let the ranks go as far as another phase, or another step of the same. anew: those that
        are started next; these may get there, too, before they end."""
        self.forget(phase)
        for path in self.directory.glob("rank-*") if anew else ():
            path.unlink()
        draft = self.directory / ".hold"
        draft.write_text(str(at))
        draft.rename(self.directory / f"hold-{phase}")
        if phase != self.held:
            self.release()
        self.held, self.at = phase, at

    def release(self) -> None:
        if self.held is not None:
            (self.directory / f"hold-{self.held}").unlink(missing_ok=True)
            if self.then is not None:
                self.held, self.then = self.then, None

    # What runs where

    def rank(self, rank: int) -> psutil.Process:
        """The process of this rank in the newest launch, by its own account."""
        file = self.directory / f"rank-{rank}"
        node, number = self.until(lambda: file.exists() and file.read_text().split(), file.name)
        return self.bed.process(node, int(number))

    def agent(self, node: str) -> psutil.Process:
        for process, environ in self.agents():
            if environ.get("SLURMD_NODENAME") == node:
                return process
        raise self.error(f"no agent on {node}")

    def agents(self) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """With their environments as they were started."""
        for process, line, environ in self._processes():
            if "fsdpkit.launching.agent" in line:
                yield process, environ

    def _processes(self) -> Iterator[tuple[psutil.Process, list[str], dict[str, str]]]:
        """The run's agents and ranks on all nodes, with command lines and environments."""
        for process in psutil.process_iter():
            try:
                line, environ = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            mine = environ.get("FSDPKIT_TASK_DIR") == str(self.task.dir)
            if mine and line and "python" in Path(line[0]).name:
                yield process, line, environ

    def wait_gone(self) -> None:
        """Until no agent and no rank is left on any node, whether it can be reached or not."""
        poll(lambda: not [*self._processes()], PATIENCE_S, f"end of all processes of {self.dir}")

    # What Slurm says

    def job(self) -> JobInfo:
        return self.bed.cluster.jobs(self.job_id)[0]

    def wait_end(self) -> JobInfo:
        """The job as Slurm has it when it is over, and does not come back."""
        return self.bed.cluster.wait_job(self.job_id, timeout_s=PATIENCE_S)

    # What the run says

    @property
    def task(self) -> TaskPaths:
        return RunPaths(self.dir).task(self.array_task)

    def attempts(self) -> list[AttemptPaths]:
        return [self.task.attempt(number) for number in self.task.attempts()]

    def steps(self) -> list[int]:
        """Every step in the order in which it was logged; a step that was repeated stands twice."""
        return [line["step"] for line in self.logged()]

    def logged(self) -> list[dict[str, Any]]:
        return [line for line in read_json_lines(self.task.metrics) if "loss" in line]

    def losses(self) -> dict[int, float]:
        """By step, the last that was logged."""
        return {line["step"]: line["loss"] for line in self.logged()}

    def saved(self) -> list[int]:
        """Steps of the checkpoints that have a name."""
        return sorted(step_of(path) or 0 for path in checkpoints_in(self.task.checkpoints))

    def damage(self) -> list[str]:
        """What is wrong with checkpoints that have a name."""
        return [wrong for p in checkpoints_in(self.task.checkpoints) for wrong in problems_of(p)]

    def resumed_after(self) -> list[int]:
        """After which steps the ranks began anew: of each launch but the first, from rank 0."""
        found = []
        for attempt in self.attempts():
            outputs = sorted(attempt.dir.glob("rank-0*.out"), key=lambda path: path.stat().st_mtime)
            for output in outputs:
                lines = [s for s in output.read_text().splitlines() if s.startswith("resumed ")]
                found += [int(line.split()[-1]) for line in lines]
        return found

    def orders(self, attempt: int = 0) -> list[dict[str, Any]]:
        """What the head node's agent decided."""
        return [*read_json_lines(self.task.attempt(attempt).dir / "orders.jsonl")]

    def launches(self, attempt: int = 0) -> list[list[str]]:
        """The nodes of each launch of ranks."""
        return [line["nodes"] for line in self.orders(attempt) if line["event"] == "launch"]

    def troubles(self, attempt: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.orders(attempt) if line["event"] == "trouble"]

    def ending(self, attempt: int = 0) -> dict[str, Any] | None:
        """`ending.json`; None where the batch shell had no time to write it."""
        path = self.task.attempt(attempt).ending
        return dict(json.loads(path.read_text())) if path.exists() else None

    def batch_log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.dir.glob("slurm-*.log"))
