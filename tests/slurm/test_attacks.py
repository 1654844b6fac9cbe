"""What another user of the cluster can do to a run from the network: nothing that it believes.

Sam attacks a run of alex's from a machine of the same network, and from a node. The run is a light
one, held at a step; it is attacked, loses a rank, so that its agents meet once more, and is
attacked again. What then has to be true: no command of sam's ran, and the run ended with the losses
of an undisturbed one; where the store itself was destroyed by force, it may end with an error that
a diagnosis explains, but never as a success that it was not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.attackers.attacker import Attacker
from tests.attackers.bed import PersonBed
from tests.faults.trial import Trial, TrialError
from tests.slurm.conftest import Person, everything_said
from tests.slurm_cluster import FINISHED, SlurmCluster
from tests.slurm_cluster.machines import ClusterError, poll

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.xdist_group("attacks")]


class Harmed(Exception):
    """The attack succeeded; an error of the test itself is another one."""


believed = pytest.mark.xfail(strict=True, raises=Harmed, reason="what is in the store is believed")
"""Take the mark off with the change that makes the attack fail; until then it succeeds."""


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


def listening(trial: Trial, node: str) -> list[tuple[str, int]]:
    """Where the run's agent on this node takes connections; anybody there can find that out."""
    try:
        status = Path(f"/proc/{trial.agent(node).pid}/status").read_text()
    except (TrialError, FileNotFoundError):
        return []  # it is over
    own = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
    lines = trial.bed.cluster.node_exec(node, ["ss", "-Hltnp"]).stdout.splitlines()
    pairs = [line.split()[3].rpartition(":") for line in lines if f"pid={own}," in line]
    return [(address, int(port)) for address, _, port in pairs]


@contextmanager
def told_as_harm() -> Iterator[None]:
    try:
        yield
    except (AssertionError, ClusterError) as error:
        raise Harmed(str(error)) from error


def disturb(trial: Trial, attack: Callable[[], Any]) -> None:
    """Attack, make the agents meet again, attack in the meantime and afterwards; then let it go.

    An attack may end the run at any time. Raises Harmed if it neither ends nor goes on.
    """
    trial.wait_held()
    file = trial.directory / "rank-1"
    before = file.read_text()
    assert attack() is not None, "the attack did not get through to anything"
    with contextlib.suppress(TrialError, psutil.NoSuchProcess):
        trial.rank(1).kill()

    def is_met_again() -> bool:
        if len(trial.launches()) > 1:
            attack()
        return file.read_text() != before or trial.job()["JobState"] in FINISHED

    attack()
    with told_as_harm():
        poll(is_met_again, 60, "the second launch")
    attack()
    trial.release()


@told_as_harm()
def check_unharmed(trial: Trial, undisturbed: dict[int, float]) -> None:
    job = trial.wait_end()
    print(job["JobState"], len(trial.losses()), trial.launches(), trial.ending())
    assert trial.losses() == undisturbed, f"{job['JobState']} after {len(trial.losses())} steps"
    assert job["JobState"] == "COMPLETED", everything_said(trial.dir)
    assert len(trial.launches()) == 2, "its agents were ended, and Slurm had to queue it again"


@told_as_harm()
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
    print(told)
    assert told["cause"] not in ("done", "running", "unknown"), told


@told_as_harm()
def check_not_run(trial: Trial, marker: Path) -> None:
    trial.wait_end()
    assert not marker.exists(), f"a planted command ran as {marker.read_text()}"


FORGERIES = (
    *("forge_end", "forge_orders", "forge_reports", "forge_nonsense"),
    *("forge_counters", "replay"),
)
# Strict it is not: whether an agent waits for a key in the moment it is gone is chance.
stuck = pytest.mark.xfail(raises=Harmed, reason="agents wait minutes for a key that was deleted")
FORCE = (
    *("mutate", "exchange", "overwrite", "flood", "idle", "slow", "noise"),
    pytest.param("delete", marks=stuck),
)
ONE_NODE = ("--nodes", "1", "--gpus", "2")


@believed
@pytest.mark.parametrize("attack", FORGERIES)
def test_what_is_not_signed_is_not_believed(
    attack: str, bed: PersonBed, sam_outside: Attacker, undisturbed: dict[int, float]
) -> None:
    trial = bed.start()
    where = endpoint(trial)
    trial.wait_held()
    disturb(trial, lambda: sam_outside.does(attack, *where))
    check_unharmed(trial, undisturbed)


@believed
@pytest.mark.parametrize("shape", ["a spare node", "an array task", "from a node"])
def test_nor_is_it_in_a_run_of_another_shape(
    shape: str,
    bed: PersonBed,
    sam_outside: Attacker,
    sam_inside: Attacker,
    undisturbed: dict[int, float],
) -> None:
    if shape == "an array task":
        trial = bed.start_array_task()
    else:
        trial = bed.start(*(("--spare", "1") if shape == "a spare node" else ()))
    attacker = sam_inside if shape == "from a node" else sam_outside
    where = endpoint(trial)
    disturb(trial, lambda: attacker.does("forge_end", *where))
    check_unharmed(trial, undisturbed)


@pytest.mark.parametrize("attack", FORCE)
def test_force_harms_in_plain_sight_or_not_at_all(
    attack: str, bed: PersonBed, sam_outside: Attacker, undisturbed: dict[int, float]
) -> None:
    trial = bed.start()
    where = endpoint(trial)
    try:
        disturb(trial, lambda: sam_outside.does(attack, *where))
        check_harmed_in_plain_sight(bed, trial, undisturbed)
    finally:
        sam_outside.does("let_go", *where)


@believed
def test_no_code_is_run_that_somebody_planted(
    bed: PersonBed, sam_outside: Attacker, undisturbed: dict[int, float], marker: Path
) -> None:
    trial = bed.start()
    where = endpoint(trial)
    disturb(trial, lambda: sam_outside.does("plant_pickle", *where, str(marker)))
    check_not_run(trial, marker)
    check_harmed_in_plain_sight(bed, trial, undisturbed)


@believed
def test_a_run_of_one_node_listens_to_that_node_only(bed: PersonBed) -> None:
    trial = bed.start(*ONE_NODE)
    trial.wait_held()
    found = listening(trial, "node1")
    trial.release()
    assert trial.wait_end()["JobState"] == "COMPLETED"
    with told_as_harm():
        assert {address for address, _ in found} <= {"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"}, (
            found
        )


@believed
def test_no_code_is_run_that_a_neighbour_on_the_only_node_planted(
    bed: PersonBed, sam_inside: Attacker, undisturbed: dict[int, float], marker: Path
) -> None:
    trial = bed.start(*ONE_NODE)
    trial.wait_held()

    def attack() -> list[Any]:
        ports = [port for _, port in listening(trial, "node1")]
        return [sam_inside.does("plant_pickle", "127.0.0.1", p, str(marker)) for p in ports]

    disturb(trial, attack)
    check_not_run(trial, marker)
    check_harmed_in_plain_sight(bed, trial, undisturbed)
