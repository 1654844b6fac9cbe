"""What another user of the cluster can do to a run from the network: nothing that it believes.

Sam attacks a run of alex's from a machine of the same network, and from a node. The run is held at
a step; it is attacked, loses a rank, so that its agents start another launch, and is attacked
again. What then has to be true: no command of sam's ran, and the run ended with the losses of an
undisturbed one; where the ranks' store was destroyed by force, it may end with an error that a
diagnosis explains, but never as a success that it was not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.attackers.attacker import Attacker
from tests.attackers.bed import PersonBed
from tests.faults.trial import T5, Trial, TrialError
from tests.slurm.conftest import Person, everything_said
from tests.slurm_cluster import FINISHED, SlurmCluster
from tests.slurm_cluster.machines import poll

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.xdist_group("attacks")]


@pytest.fixture(scope="module")
def module_bed(alex: Person) -> PersonBed:
    return PersonBed.of(alex)


@pytest.fixture
def bed(module_bed: PersonBed) -> Iterator[PersonBed]:
    yield module_bed
    module_bed.mend()


@pytest.fixture(scope="module")
def undisturbed(module_bed: PersonBed) -> dict[int, float]:
    return module_bed.undisturbed()


@pytest.fixture(scope="module")
def sam_outside(shared_cluster: SlurmCluster) -> Iterator[Attacker]:
    with shared_cluster.outsider("sam") as session, Attacker(session) as attacker:
        yield attacker


@pytest.fixture(scope="module")
def sam_inside(shared_cluster: SlurmCluster) -> Iterator[Attacker]:
    """On a node where a job of alex's runs, too."""
    with Attacker(shared_cluster.as_user("sam", on="node1")) as attacker:
        yield attacker


@pytest.fixture
def marker(shared_cluster: SlurmCluster, request: pytest.FixtureRequest) -> Path:
    """A file that a planted command makes, which whoever runs it can write."""
    directory = shared_cluster.root / "markers"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o1777)
    return directory / re.sub(r"\W+", "-", request.node.name)


def endpoint(trial: Trial) -> tuple[str, int]:
    """Where the run's agents meet, which is in a log, and follows from the job's id."""
    name = "slurm-*.log" if trial.array_task is None else f"slurm-*_{trial.array_task}.log"

    def found() -> re.Match[str] | None:
        said = "".join(path.read_text() for path in sorted(trial.dir.glob(name)))
        return re.search(r"head \S+ at ([\d.]+):(\d+)", said)

    host, port = trial.until(found, "the head node's address").groups()
    return host, int(port)


def listening(trial: Trial, node: str) -> dict[str, str]:
    """Where the run's processes on this node take connections, and the process's command."""
    lines = trial.bed.cluster.node_exec(node, ["ss", "-Hltnp"]).stdout.splitlines()
    inside = {own_number(p): p for p in trial_processes(trial, node)}
    found = {}
    for line in lines:
        for number, process in inside.items():
            if f"pid={number}," in line:
                found[line.split()[3]] = " ".join(process.cmdline())[:200]
    return found


def trial_processes(trial: Trial, node: str) -> list[psutil.Process]:
    agent = trial.agent(node)
    return [agent, *agent.children(recursive=True)]


def own_number(process: psutil.Process) -> str:
    """The process's number in its node's namespace."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]


def disturb(trial: Trial, attack: Callable[[], Any]) -> None:
    """Attack, make the agents meet again, attack in the meantime and afterwards; then let it go."""
    trial.wait_held()
    file = trial.directory / "rank-1"
    before = file.read_text()
    attack()
    with contextlib.suppress(TrialError, psutil.NoSuchProcess):
        trial.rank(1).kill()

    poll(lambda: len(trial.launches()) > 1, 120, "the order to launch again")
    attack()
    poll(
        lambda: file.read_text() != before or trial.job()["JobState"] in FINISHED,
        120,
        "the second launch",
    )
    trial.release()


def check_unharmed(trial: Trial, undisturbed: dict[int, float]) -> None:
    job = trial.wait_end()
    assert trial.losses() == undisturbed, f"{job['JobState']} after {len(trial.losses())} steps"
    assert job["JobState"] == "COMPLETED", everything_said(trial.dir)
    assert len(trial.launches()) == 2, "its agents were ended, and Slurm had to queue it again"


def check_harmed_in_plain_sight(
    bed: PersonBed, trial: Trial, undisturbed: dict[int, float]
) -> None:
    """Either nothing happened to it, or it failed and says why."""
    job = trial.wait_end()
    ending = trial.ending(trial.task.attempts()[-1])
    print(job["JobState"], len(trial.losses()), trial.launches(), ending)
    if job["JobState"] == "COMPLETED":
        assert trial.losses() == undisturbed, "a false success"
        return
    assert job["JobState"] == "FAILED"
    told = bed.answer(trial, "diagnose")
    assert told["cause"] not in ("done", "running", "unknown"), told


AT_THE_DOOR = ("forge", "echo", "speak_torch", "noise", "slow", "idle")
UNANSWERED = ("forge", "echo", "speak_torch")
SHAPES = ("two nodes", "a spare node", "an array task, from a node")


@pytest.mark.parametrize("shape", SHAPES)
def test_whoever_does_not_know_the_secret_is_turned_away(
    shape: str,
    bed: PersonBed,
    sam_outside: Attacker,
    sam_inside: Attacker,
    undisturbed: dict[int, float],
) -> None:
    """Forged claims, orders and reports, other protocols, half a claim, two thousand that say
    nothing: at the first launch, while the agents start another, and after it."""
    if "array task" in shape:
        trial = bed.start_array_task()
    else:
        trial = bed.start(*(("--spare", "1") if shape == "a spare node" else ()))
    attacker = sam_inside if "from a node" in shape else sam_outside
    where = endpoint(trial)
    answered: dict[str, int] = {}

    def attack() -> None:
        for name in AT_THE_DOOR if shape == "two nodes" else ("forge", "idle"):
            did = attacker.does(name, *where)
            assert did is not None, f"{name} was not tried"
            answered[name] = max(did, answered.get(name, 0))

    try:
        disturb(trial, attack)
        check_unharmed(trial, undisturbed)
    finally:
        attacker.does("let_go", *where)
    assert not [name for name in UNANSWERED if answered.get(name)], answered
    refused = [line for line in trial.orders() if line["event"] == "strangers"]
    assert refused[0]["connections"] > 1000


@pytest.fixture(scope="module")
def undisturbed_t5(module_bed: PersonBed) -> dict[int, float]:
    return module_bed.undisturbed(T5)


@pytest.mark.parametrize("attacks", [["plant_pickle"], ["flood", "overwrite", "delete"]])
def test_force_on_the_ranks_store_harms_in_plain_sight_or_not_at_all(
    attacks: list[str],
    bed: PersonBed,
    sam_outside: Attacker,
    undisturbed_t5: dict[int, float],
    marker: Path,
) -> None:
    """It is torch's and knows no secret; nothing in it is unpickled."""
    trial = bed.start(trainer=T5)
    host, port = endpoint(trial)
    words = [str(marker)] if "plant_pickle" in attacks else []
    done = []

    def strike() -> None:
        for found in sam_outside.does("find_stores", host, port):
            done.extend(sam_outside.does(attack, host, found, *words) for attack in attacks)

    disturb(trial, strike)
    assert any(done), "no store was found, or none gave way"
    check_harmed_in_plain_sight(bed, trial, undisturbed_t5)
    assert not marker.exists(), f"a planted command ran as {marker.read_text()}"


def test_all_that_listens_does_so_at_the_jobs_own_address(
    bed: PersonBed, sam_outside: Attacker, sam_inside: Attacker
) -> None:
    """On one node at loopback. (srun and slurmstepd listen, too; they are Slurm's.)"""
    trial = bed.start(trainer=T5)
    host, port = endpoint(trial)
    trial.wait_held()
    found = {**listening(trial, "node1"), **listening(trial, "node2")}
    trial.release()
    assert trial.wait_end()["JobState"] == "COMPLETED"
    assert f"{host}:{port}" in found
    everywhere = {where for where in found if where.startswith(("0.0.0.0:", "*:", "[::]:"))}
    assert not everywhere, found

    trial = bed.start("--nodes", "1", "--gpus", "2", trainer=T5)
    trial.wait_held()
    alone = listening(trial, "node1")
    stores = sam_outside.does("find_stores", host, 1)
    trial.release()
    assert trial.wait_end()["JobState"] == "COMPLETED"
    assert alone
    assert {where.rpartition(":")[0] for where in alone} <= {"127.0.0.1", "[::1]"}, alone
    assert stores == []


def test_the_secret_is_known_to_agents_alone(bed: PersonBed, shared_cluster: SlurmCluster) -> None:
    trial = bed.start()
    trial.wait_held()
    processes = [*trial_processes(trial, "node1"), *trial_processes(trial, "node2")]
    known = {p.pid: p.environ().get("FSDPKIT_SECRET") for p in processes}
    agents = {trial.agent(node).pid for node in ("node1", "node2")}
    (secret,) = {known[pid] for pid in agents}
    assert secret is not None
    assert len(secret) == 64
    others = {pid for pid, found in known.items() if found is not None} - agents
    forked = {p.pid for p in processes if "fsdpkit-fork-server" in " ".join(p.cmdline())}
    assert others <= forked, [" ".join(psutil.Process(pid).cmdline()) for pid in others]
    assert not [p for p in psutil.process_iter() if secret in " ".join(p.cmdline())]
    sam = shared_cluster.as_user("sam", on="node1")
    looked = sam.run(["cat", f"/proc/{own_number(trial.agent('node1'))}/environ"])
    assert looked.returncode != 0
    trial.release()
    assert trial.wait_end()["JobState"] == "COMPLETED"
    for path in trial.dir.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    assert secret not in shared_cluster.run(["scontrol", "show", "job", trial.job_id]).stdout
