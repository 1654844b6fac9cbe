"""What SECURITY.md says was tried is what the attacks' file has, and the attacks can succeed."""

from __future__ import annotations

from fsdpkit.launching.board import Board
from fsdpkit.launching.gate import Gate
from fsdpkit.launching.signing import Keys
from tests.attackers.attacks import AT_THE_DOOR, IN_THE_STORE, forge
from tests.attackers.results import DOOR, PAGE, STORE, of_file, tables, within


def test_the_page_has_what_was_found() -> None:
    page = PAGE.read_text("utf-8")
    assert tables(of_file()) in page, "run python -m tests.attackers.results"
    assert within(page, of_file()) == page


def test_all_attacks_were_tried_and_none_was_believed() -> None:
    results = of_file()
    assert {*results.attacks[DOOR]} == {attack.__name__ for attack in AT_THE_DOOR}
    assert {*results.attacks[STORE]} == {attack.__name__ for attack in IN_THE_STORE}
    for kinds in results.attacks.values():
        for name, kind in kinds.items():
            assert kind.tried, name
            assert kind.runs, name
            assert not kind.believed, name
    assert not any(kind.harmful for kind in results.attacks[DOOR].values())
    assert all(run.undisturbed_losses for run in results.runs if run.state == "COMPLETED")


def test_whoever_knows_the_secret_is_believed() -> None:
    """So that it is the secret that the forger lacks, and nothing else."""
    secret = bytes(range(32))
    gate = Gate(Board(3), Keys(secret, "7_1"))
    port = gate.open("127.0.0.1", 0)
    try:
        assert forge("127.0.0.1", port, "7_1")[1] == 0
        tried, believed = forge("127.0.0.1", port, "7_1", secret.hex())
        assert (tried > believed, believed) == (True, 2)  # of two other nodes
    finally:
        gate.close()
