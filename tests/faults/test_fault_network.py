"""Hiccups of the network, one after the other, and a port that somebody takes: the run goes on."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.faults import injectors as by
from tests.faults.conftest import LOST_LANE
from tests.faults.outcomes import Losses
from tests.faults.trial import HELD_AT, STEPS, Bed, Trial
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, LOST_LANE]


def hiccup(trial: Trial, node: str, attempt: int) -> None:
    """The node's cable is out until the agents have noticed, then in again."""
    hold = trial.directory / "hold-training"
    at = [trial.directory / f"at-training-rank-{rank}" for rank in (0, 1)]
    for file in at:
        trial.until(file.exists, file.name)
        file.unlink()
    trial.bed.cluster.cut(node)
    hold.unlink()
    verdict = trial.task.attempt(attempt).verdict
    trial.until(verdict.exists, f"verdict of attempt {attempt}")
    hold.write_text(str(HELD_AT["training"]))
    trial.bed.cluster.join(node)


def test_two_hiccups_leave_enough_nodes_to_go_on_with(bed: Bed, undisturbed: Losses) -> None:
    """On three nodes, of which the job needs two. The second hits the head node."""
    trial = bed.submit(hold="training")
    hiccup(trial, by.LEFT, 0)
    hiccup(trial, by.HEAD, 1)
    trial.until((trial.directory / "at-training-rank-0").exists, "the third attempt's ranks")
    trial.release()
    job = trial.wait_end()
    trial.wait_gone()
    try:
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
        assert trial.losses() == undisturbed
        endings = [trial.ending(n) or {} for n in trial.task.attempts()]
        assert [one["avoid"] for one in endings] == [[by.LEFT], [by.HEAD], []]
        assert [one["left_out"] for one in endings] == [[by.LEFT], [by.HEAD], []]
        assert job["ExcNodeList"] == by.HEAD
        assert not re.search(r"Killed +sleep", trial.batch_log())
    except AssertionError as error:
        raise trial.error(str(error)) from error

    again = bed.submit(runs=trial.dir.parent)
    assert bed.cluster.wait_job(again.job_id, states=["RUNNING", "COMPLETED"])


def test_a_head_node_that_two_others_no_longer_hear_is_the_one_to_avoid(bed: Bed) -> None:
    """Its cable stays in, so that it cannot know: those that it lost say so. The job needs all
    three nodes, so none is left out, and it goes on as soon as the network does."""
    trial = bed.submit(hold="training", nodes=3)
    for rank in range(3):
        trial.until((trial.directory / f"at-training-rank-{rank}").exists, f"rank {rank}")
    trial.bed.cluster.cut(by.HEAD, carrier=True)
    trial.release()
    first = trial.task.attempt(0)
    trial.until(first.verdict.exists, "verdict")
    # A network that is back before both have noticed leaves the head without two accusers.
    trial.until(lambda: len([*first.failures.glob("*")]) > 1, "the word of both other nodes")
    trial.bed.cluster.join(by.HEAD)
    job = trial.wait_end()
    try:
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
        assert [*trial.losses()] == [*range(1, STEPS + 1)]
        ending, second = (trial.ending(n) or {} for n in trial.task.attempts())
        assert (ending["action"], ending["avoid"]) == ("requeue", [by.HEAD])
        assert (ending["left_out"], second["cause"]) == ([], "done")
        assert job["ExcNodeList"] == "(null)"
    except AssertionError as error:
        raise trial.error(str(error)) from error


TAKE = """
import socket, sys, time
taken = socket.socket()
taken.bind(("", int(sys.argv[1])))
print("taken", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def port_taken(cluster: SlurmCluster, node: str, port: int) -> Iterator[None]:
    """Bound by another program that does not listen, so that the batch shell does not see it."""
    words = [*cluster.network.machine(node).enter(), sys.executable, "-c", TAKE, str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "taken\n"
            yield
        finally:
            process.kill()


def test_a_port_that_is_taken_after_it_was_found_free_costs_an_attempt(
    bed: Bed, undisturbed: Losses
) -> None:
    """The head's agent finds it so, and blames no node; the check before training is off."""
    partition = ["scontrol", "update", "PartitionName=main"]
    bed.cluster.run([*partition, "State=DOWN"])
    try:
        trial = bed.submit(sets=["parameters.preflight=false"])
        with port_taken(bed.cluster, by.HEAD, 10000 + int(trial.job_id) % 20000):
            bed.cluster.run([*partition, "State=UP"])
            job = trial.wait_end()
    finally:
        bed.cluster.run([*partition, "State=UP"])
    try:
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
        assert trial.losses() == undisturbed
        first, second = (trial.ending(n) or {} for n in trial.task.attempts())
        assert (first["action"], first["avoid"], second["cause"]) == ("requeue", [], "done")
        assert "is taken on the head node" in first["why"]
    except AssertionError as error:
        raise trial.error(str(error)) from error
