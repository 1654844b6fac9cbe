"""The cluster of the fault matrix, one undisturbed run, and order after every fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require_slurm
from tests.faults.trial import Bed
from tests.slurm_cluster import SlurmCluster

LANE = pytest.mark.xdist_group("faults")
LOST_LANE = pytest.mark.xdist_group("lost-nodes")
"""Where nothing computes most of the time."""


@pytest.fixture(scope="session")
def fault_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    require_slurm()
    # Slurm kills the batch shell of a job that is queued again after kill_wait_s. A shorter
    # node_timeout_s would let it find a lost node before our agents have decided.
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), kill_wait_s=2) as cluster:
        yield Bed(cluster, tmp_path_factory.mktemp("faults"))


@pytest.fixture
def bed(fault_bed: Bed) -> Iterator[Bed]:
    yield fault_bed
    fault_bed.mend()


@pytest.fixture
def undisturbed(bed: Bed) -> dict[int, float]:
    """The loss of every step of the light trainer when nothing happens."""
    return bed.undisturbed()
