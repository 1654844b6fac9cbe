"""What another user of the cluster can do to a run from the network: nothing that it believes.

Sam attacks runs of alex's from a machine of the same network, and from a node. Each run is
attacked in many ways and looked at by many tests, for a run costs more than they do. What has to be
true: no command of sam's ran, and the run ended with the losses of an undisturbed one; where the
ranks' store was destroyed by force, it may end with an error that a diagnosis explains, but never
as a success that it was not.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tests.attackers.assault import Assault, Listener, Seen, endpoint, listeners, secret_of
from tests.attackers.attacker import Attacker
from tests.attackers.attacks import AT_THE_DOOR, IN_THE_STORE
from tests.attackers.bed import PersonBed
from tests.conftest import ROOT
from tests.faults.trial import LIGHT, T5, Trial, TrialError
from tests.slurm.conftest import Person, everything_said
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.xdist_group("attacks")]

EARLY = ROOT / "tests" / "attackers" / "early_trainer.py"
LEFT_STANDING = 256 + 1024
"""At the end: as many as fsdpkit.launching.head_port keeps, and as many as may wait behind them."""
SHORT = ("training.timeout_s=20", "training.startup_timeout_s=40", "retry.restarts=2")
"""Torch's own limits, and fewer launches: what is destroyed ends soon."""
NODES, TWO_RANKS = ("node1", "node2"), ("--gpus", "2")


@pytest.fixture(scope="module")
def bed(alex: Person) -> Iterator[PersonBed]:
    bed = PersonBed.of(alex)
    yield bed
    bed.mend()


@pytest.fixture(scope="module")
def sam_outside(shared_cluster: SlurmCluster) -> Iterator[Attacker]:
    with shared_cluster.outsider("sam") as session, Attacker(session) as attacker:
        yield attacker


@pytest.fixture(scope="module")
def sam_inside(shared_cluster: SlurmCluster) -> Iterator[Attacker]:
    """On a node where a job of alex's runs, too."""
    with Attacker(shared_cluster.as_user("sam", on="node1")) as attacker:
        yield attacker


@pytest.fixture(scope="module")
def marker(shared_cluster: SlurmCluster) -> Path:
    """A file that a planted command makes, which whoever runs it can write."""
    directory = shared_cluster.root / "markers"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o1777)
    return directory / "attacks"


def kill_a_rank(trial: Trial, attempt: int = 0) -> None:
    """Its agents start another launch."""
    launches = len(trial.launches(attempt))
    with contextlib.suppress(TrialError, psutil.NoSuchProcess):
        trial.rank(1).kill()
    trial.until(lambda: len(trial.launches(attempt)) > launches, "the order to launch again")


# At the agents' port


@dataclass
class AtTheDoor:
    """A run of two nodes of two ranks attacked at its agents' port: an array task with a spare
    node, which is queued again, and then loses a rank."""

    trial: Trial
    assault: Assault
    first_tried: Counter[str]
    """Before it was queued again."""
    seen: Seen
    second_secret: str
    undisturbed: dict[int, float]
    said_by_slurm: str


@pytest.fixture(scope="module")
def at_the_door(bed: PersonBed, sam_outside: Attacker, sam_inside: Attacker) -> AtTheDoor:
    quiet = bed.start("--nodes", "1", "--gpus", "4", trainer=LIGHT)
    quiet.release()
    assert quiet.wait_end()["JobState"] == "COMPLETED", everything_said(quiet.dir)
    undisturbed = quiet.losses()
    trial = bed.start_array_task("--spare", "1", *TWO_RANKS)
    where, number = endpoint(trial), trial.job()["JobId"]
    outside = Assault(sam_outside, {"forge": (f"{number}_0",)})
    inside = replace(outside, attacker=sam_inside)
    try:
        outside.attack("hurry", *where)  # while the agents meet, and from then on
        trial.wait_held()
        inside.tries("forge", "echo", at=where)
        seen = Seen.of(trial, bed.cluster.as_user("sam", on="node1"))
        first_tried = Counter(outside.tried)
        trial.forget("training")
        bed.cluster.run(["scontrol", "requeue", trial.job_id], check=True)
        where = endpoint(trial, 1)
        outside.words["forge"] = (f"{number}_1", seen.secret)
        trial.until(lambda: outside.attack("forge", *where), "the second attempt's port")
        outside.attack("hurry", *where)
        second_secret = secret_of(trial, seen.secret)
        trial.until(lambda: trial.reached("training"), "ranks that train")
        once = [each.__name__ for each in AT_THE_DOOR if each.__name__ != "hurry"]
        outside.tries(*once, at=where)
        kill_a_rank(trial, attempt=1)
        inside.tries("forge", "echo", at=where)  # while they start another launch
        said = bed.cluster.run(["scontrol", "show", "job", "-dd", trial.job_id]).stdout
        trial.release()
        trial.wait_end()
    finally:
        outside.over()
        bed.mend()
    return AtTheDoor(trial, outside, first_tried, seen, second_secret, undisturbed, said)


def test_whoever_does_not_know_the_secret_is_turned_away(at_the_door: AtTheDoor) -> None:
    """Forged claims, orders and reports, other protocols, half a claim, two thousand that say
    nothing, hundreds a second that come and go: while the agents meet, while ranks train, and while
    they are started again."""
    trial, assault = at_the_door.trial, at_the_door.assault
    assert {*assault.tried} == {attack.__name__ for attack in AT_THE_DOOR}
    assert all(assault.tried.values()), assault.tried
    assert not any(assault.believed.values()), assault.believed
    assert [line["event"] for line in trial.orders(0)].count("stranger") == 1
    (refused,) = [line for line in trial.orders(1) if line["event"] == "strangers"]
    tried = assault.tried - at_the_door.first_tried - Counter(assault.on_their_own)
    reached = tried.total() - tried["record"] - LEFT_STANDING
    assert refused["connections"] >= reached, "not all came as far as the door"


def test_an_attacked_run_ends_as_an_undisturbed_one(at_the_door: AtTheDoor) -> None:
    trial = at_the_door.trial
    assert trial.wait_end()["JobState"] == "COMPLETED", everything_said(trial.dir)
    assert trial.losses() == at_the_door.undisturbed
    assert (len(trial.attempts()), len(trial.launches(1))) == (2, 2), "Slurm queued it again"


def test_the_secret_of_the_attempt_before_opens_nothing(at_the_door: AtTheDoor) -> None:
    assert at_the_door.second_secret != at_the_door.seen.secret
    forged = at_the_door.assault.tried["forge"] - at_the_door.first_tried["forge"]
    assert forged, "nobody tried it"
    assert not at_the_door.assault.believed["forge"]


def test_the_secret_of_cold_ranks_is_known_to_what_starts_the_agents_alone(
    at_the_door: AtTheDoor,
) -> None:
    """To srun and, in a job with spare nodes, to each node's shell, which outlives its agent."""
    check_secret(at_the_door.seen, {"srun", "/usr/bin/bash"})
    shells = [line for line in at_the_door.seen.elsewhere if line.startswith("/usr/bin/bash")]
    assert len(shells) == 3, "one on each node"
    assert all(line.startswith("/usr/bin/bash -p -s -- ") for line in shells), shells


def test_the_secret_is_in_no_file_and_slurm_does_not_know_it(at_the_door: AtTheDoor) -> None:
    for secret in (at_the_door.seen.secret, at_the_door.second_secret):
        assert secret not in at_the_door.said_by_slurm
        for path in at_the_door.trial.dir.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def check_secret(seen: Seen, starters: set[str]) -> None:
    """Not to ranks, nor to the server that they are forked from."""
    assert {line.split()[0] for line in seen.elsewhere} == starters, seen.elsewhere
    assert not seen.shown
    assert "fsdpkit.launching.agent" in seen.by_sam, "sam looked somewhere else"
    assert seen.secret not in seen.by_sam


# Undisturbed


@dataclass
class Undisturbed:
    """A run of T5 with forked ranks, looked at and left alone."""

    losses: dict[int, float]
    seen: Seen
    found: list[Listener]


@pytest.fixture(scope="module")
def undisturbed_t5(bed: PersonBed) -> Undisturbed:
    trial = bed.start(trainer=T5)
    trial.wait_held()
    seen = Seen.of(trial, bed.cluster.as_user("sam", on="node1"))
    found = [each for node in NODES for each in listeners(trial, node)]
    trial.release()
    assert trial.wait_end()["JobState"] == "COMPLETED", everything_said(trial.dir)
    return Undisturbed(trial.losses(), seen, found)


def test_the_secret_of_forked_ranks_is_known_to_agents_and_to_srun_alone(
    undisturbed_t5: Undisturbed,
) -> None:
    check_secret(undisturbed_t5.seen, {"srun"})


def test_all_that_listens_does_so_at_the_nodes_own_address(
    bed: PersonBed, undisturbed_t5: Undisturbed
) -> None:
    """(srun and slurmstepd listen, too; they are Slurm's.)"""
    found, addresses = undisturbed_t5.found, bed.cluster.places.addresses
    assert {each.host for each in found if each.who == "agent"} == {addresses["node1"]}
    assert len([each for each in found if each.who == "agent"]) == 2  # their port, the store
    assert all(each.host in (addresses[each.node], "127.0.0.1") for each in found), found


# In the ranks' store


@dataclass
class InTheStore:
    trial: Trial
    assault: Assault
    stores: list[int]
    """One for each launch that was attacked."""


@pytest.fixture(scope="module")
def in_the_store(
    bed: PersonBed,
    sam_outside: Attacker,
    marker: Path,
) -> InTheStore:
    """Before the ranks meet in it, while they do, after it, and in that of the next launch."""
    trial = bed.start(trainer=EARLY, hold="start-up", then="training", sets=SHORT)
    host, port = endpoint(trial)
    words = dict.fromkeys(("plant_pickle", "spoil"), (str(marker),))
    assault = Assault(sam_outside, words)
    try:
        trial.wait_held()
        stores = assault.find_stores(host, port)
        assault.tries("plant_pickle", "spoil", at=(host, stores[-1]))
        trial.release()
        trial.until(lambda: trial.reached("training") or len(trial.launches()) > 1, "a launch")
        assault.over()
        trial.until(lambda: trial.reached("training"), "ranks that train")
        stores += {*assault.find_stores(host, port)} - {*stores}
        here = host, stores[-1]
        assault.tries(
            "plant_pickle", "flood", "overwrite", "delete", "noise", "slow", "idle", at=here
        )
        kill_a_rank(trial)
        trial.until(lambda: {*assault.find_stores(host, port)} - {*stores}, "the next store")
        stores += {*assault.find_stores(host, port)} - {*stores}
        for name in ("plant_pickle", "overwrite"):
            assault.attack(name, host, stores[-1])
        trial.release()
        trial.wait_end()
    finally:
        assault.over()
        bed.mend()
    return InTheStore(trial, assault, stores)


def test_nothing_in_the_ranks_store_is_run(in_the_store: InTheStore, marker: Path) -> None:
    """It is torch's and knows no secret; nothing in it is unpickled."""
    tried = in_the_store.assault.tried
    assert {*tried} == {attack.__name__ for attack in IN_THE_STORE}
    assert all(tried.values()), tried
    assert len(in_the_store.stores) >= 2, "not every launch had a store of its own that was found"
    assert not marker.exists(), f"a planted command ran as {marker.read_text()}"


def test_force_on_the_ranks_store_harms_in_plain_sight_or_not_at_all(
    bed: PersonBed, in_the_store: InTheStore, undisturbed_t5: Undisturbed
) -> None:
    check_harmed_in_plain_sight(bed, in_the_store.trial, undisturbed_t5.losses)


def check_harmed_in_plain_sight(
    bed: PersonBed, trial: Trial, undisturbed: dict[int, float]
) -> None:
    """Either nothing happened to it, or it failed and says why."""
    job = trial.wait_end()
    ending = trial.ending(trial.task.attempts()[-1])
    print(job["JobState"], len(trial.losses()), trial.launches(), trial.troubles(), ending)
    if job["JobState"] == "COMPLETED":
        assert trial.losses() == undisturbed, "a false success"
        return
    assert job["JobState"] == "FAILED"
    told = bed.answer(trial, "diagnose")
    assert told["cause"] not in ("done", "running", "unknown"), told


# One node


def test_on_one_node_all_listen_at_loopback_where_only_its_users_come(
    bed: PersonBed,
    sam_outside: Attacker,
    sam_inside: Attacker,
    undisturbed_t5: Undisturbed,
    marker: Path,
) -> None:
    """Those on the node itself can do to the ranks' store what others can on several nodes."""
    trial = bed.start("--nodes", "1", "--gpus", "2", trainer=T5, sets=SHORT)
    inside = Assault(sam_inside, {"plant_pickle": (str(marker),)})
    trial.wait_held()
    found = listeners(trial, "node1")
    address = bed.cluster.places.addresses["node1"]
    from_outside = Assault(sam_outside).find_stores(address)
    stores = inside.find_stores("127.0.0.1")
    for store in stores:
        inside.tries("plant_pickle", "overwrite", at=("127.0.0.1", store))
    trial.release()
    trial.wait_end()
    bed.mend()
    assert {each.host for each in found} == {"127.0.0.1"}
    assert from_outside == []
    assert stores
    assert {*stores} <= {each.port for each in found}
    assert not marker.exists(), f"a planted command ran as {marker.read_text()}"
    check_harmed_in_plain_sight(bed, trial, undisturbed_t5.losses)
