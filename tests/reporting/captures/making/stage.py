"""Where captures are made: a real cluster, submissions of small trainings, what can be broken.

A scenario is a function that submits a run on a `Stage`, breaks something and returns the trial
once it is as it should be copied. The expectation beside it is what a careful person says after
reading everything, not what a program finds.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.trial import Bed, Trial, TrialError
from tests.slurm.conftest import PROFILE
from tests.slurm_cluster import SlurmCluster

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
T5 = PROGRAMS / "t5_trainer.py"
LINEAR = PROGRAMS / "linear_trainer.py"
HOLD_AT = 3
"""Steps done when a held training is broken; a checkpoint of step 2 is there."""

QUICK = ("retry.backoff_s=0.5", "retry.lost_s=8", "parameters.wait_s=10")
TINY_T5 = (
    *("training.steps=8", "training.checkpoint.every_steps=2", "training.batch_size=2"),
    *("training.metrics.every_steps=1", "training.evaluation.batches=0"),
)
STOP = tuple(
    f"retry.on_{case}=stop"
    for case in ("crash", "hang", "node_failure", "time_limit", "preemption", "out_of_memory")
)
BY_NAME = '\n[rendezvous]\naddress = "hostname"\njoin_timeout_s = 15\nread_timeout_s = 15\n'
IMPATIENT = "\n[rendezvous]\njoin_timeout_s = 15\nread_timeout_s = 15\n"
FEW_PORTS = "\n[rendezvous]\nport_base = 12000\nport_span = 16\n"
PROFILES = {
    "byname": PROFILE + BY_NAME,
    "impatient": PROFILE + IMPATIENT,
    "fewports": PROFILE + FEW_PORTS,
}


@dataclass(frozen=True)
class Scenario:
    """One capture to be made, and what is to be said of it."""

    name: str
    make: Callable[[Stage], Trial]
    cause: str
    rank: int | None
    node: str | None
    undecided: tuple[str, ...]
    """Of `rank` and `node`, those that a person would not commit to."""
    source: str | None
    """Where the words of a log stand that was not produced here."""
    unfinished: bool
    """The capture is of a run that has not ended."""
    cluster: tuple[tuple[str, object], ...]
    """Options of the cluster that it needs."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str,
    cause: str,
    *,
    rank: int | None = None,
    node: str | None = None,
    undecided: Sequence[str] = (),
    source: str | None = None,
    unfinished: bool = False,
    cluster: Mapping[str, object] | None = None,
) -> Callable[[Callable[[Stage], Trial]], Callable[[Stage], Trial]]:
    """Registers a function as the maker of the capture `name`; its docstring says what was done."""

    def register(make: Callable[[Stage], Trial]) -> Callable[[Stage], Trial]:
        SCENARIOS[name] = Scenario(
            name,
            make,
            cause,
            rank,
            node,
            tuple(undecided),
            source,
            unfinished,
            tuple((cluster or {}).items()),
        )
        return make

    return register


@dataclass
class Stage:
    """A cluster, and submissions to it with settings that end soon."""

    cluster: SlurmCluster
    directory: Path
    bed: Bed = field(init=False)
    before: dict[str, str] = field(default_factory=dict)
    """What Slurm said before something was broken, where a scenario asked."""
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What is to be done once the capture is made."""
    count: int = 0

    def __post_init__(self) -> None:
        self.bed = Bed(self.cluster, self.directory)
        for name, text in PROFILES.items():
            (self.directory / "centre" / "site" / "profiles" / f"{name}.toml").write_text(text)

    def t5(self, plan: Mapping[str, Any] | None = None, **options: Any) -> Trial:
        """T5 on two nodes of one rank, as small as it gets; plan: see programs/t5_trainer.py."""
        sets = (*TINY_T5, *options.pop("sets", ()))
        return self.submit(T5, (), plan or {}, sets=sets, **options)

    def linear(self, *args: str, **options: Any) -> Trial:
        """The trainer of programs/linear_trainer.py, or `entry`, with these arguments."""
        return self.submit(options.pop("entry", LINEAR), args, {}, **options)

    def submit(
        self,
        entry: Path,
        args: Sequence[str],
        plan: Mapping[str, Any],
        *,
        sets: Sequence[str] = (),
        words: Sequence[str] = (),
        nodes: int = 2,
        gpus: int = 1,
        time: str = "15",
        account: str = "pas1234",
        runs: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Trial:
        self.count += 1
        directory = self.directory / f"run-{self.count}"
        directory.mkdir()
        (directory / "plan.json").write_text(json.dumps(plan))
        if "hold" in plan:
            (directory / "hold-training").touch()
        argv = ["submit", *([] if entry == T5 else [str(entry)])]
        argv += ["--nodes", str(nodes), "--gpus", str(gpus), "--account", account]
        argv += ["--time", time, "--json", "--runs", str(runs or directory / "runs"), *words]
        given = {"FAULTS_DIR": str(directory), **(variables or {})}
        table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items())
        own = [f"entry={entry}"] if entry == T5 else []
        for one in (*QUICK, *own, *sets, f"environment.variables={{{table}}}"):
            argv += ["--set", one]
        done = self.bed.fsdpkit(*argv, *(["--", *args] if args else []))
        if done.returncode:
            raise TrialError(done.stderr)
        answer = json.loads(done.stdout)
        return Trial(
            self.bed,
            directory,
            Path(answer["dir"]),
            str(answer["job_id"]),
            None,
        )

    def strike(self, trial: Trial, inject: Callable[[Trial], object]) -> Trial:
        """Break a training that is held, and let what is left go on."""
        for rank in (0, 1):
            at = trial.directory / f"at-training-rank-{rank}"
            trial.until(at.exists, f"rank {rank} at step {HOLD_AT}")
        trial.until(trial.saved, "a checkpoint")
        self.look(trial)
        inject(trial)
        (trial.directory / "hold-training").unlink()
        return trial

    def look(self, trial: Trial) -> None:
        """Keep what Slurm says now as what it said before."""
        from .copying import slurm_said

        self.before = slurm_said(self.cluster, trial.job_id)

    def slurm(self, *words: str) -> str:
        """A command of the login node that must succeed."""
        done = self.cluster.run(list(words))
        if done.returncode:
            raise TrialError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Jobs that are submitted inside wait until its end, so that things can change."""
        self.partition("State=DOWN")
        try:
            yield
        finally:
            self.partition("State=UP")

    def partition(self, *settings: str) -> None:
        """Other settings for the partition in which all jobs are."""
        self.slurm("scontrol", "update", "PartitionName=main", *settings)

    # What is undone once the capture is made

    def on_node(self, node: str, there: Sequence[str], back: Sequence[str]) -> None:
        """A change on one node."""
        made = self.cluster.node_exec(node, list(there))
        if made.returncode:
            raise TrialError(f"{' '.join(there)} on {node}: {made.stderr}")
        self.undo.callback(self.cluster.node_exec, node, list(back))

    def hide(self, node: str, place: Path) -> None:
        """On that node alone the directory is empty."""
        mount = ["mount", "-t", "tmpfs", "tmpfs", str(place)]
        self.on_node(node, mount, ["umount", "--lazy", str(place)])

    def bind(self, node: str, source: Path, place: Path | str) -> None:
        """On that node alone, something else in this place."""
        mount = ["mount", "--bind", str(source), str(place)]
        self.on_node(node, mount, ["umount", "--lazy", str(place)])

    def hosts(self, node: str, name: str, address: str | None) -> None:
        """On that node a name is this address, or nothing."""
        file = self.cluster.root / "hosts" / node
        text = file.read_text()
        self.undo.callback(file.write_text, text)
        lines = [line for line in text.splitlines() if line.split("\t")[1:] != [name]]
        if address is not None:
            lines.append(f"{address}\t{name}")
        file.write_text("\n".join(lines) + "\n")  # in place: the node sees this very file

    def process(self, node: str, *argv: str) -> None:
        """A program that runs on a node; it prints a line when it is ready."""
        enter = self.cluster.network.machine(node).enter()
        program = subprocess.Popen([*enter, *argv], stdout=subprocess.PIPE, text=True)
        self.undo.callback(program.wait)
        self.undo.callback(program.kill)
        assert program.stdout is not None
        program.stdout.readline()
