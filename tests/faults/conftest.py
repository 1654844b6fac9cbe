"""The cluster of the fault matrix, one undisturbed run, and order after every fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.trial import Bed
from tests.slurm_cluster import SlurmCluster


@pytest.fixture(scope="session")
def fault_bed(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    return Bed(slurm_cluster, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def undisturbed(fault_bed: Bed) -> dict[int, float]:
    """The loss of every step when nothing happens, on two nodes of one rank."""
    return fault_bed.undisturbed()


@pytest.fixture
def bed(fault_bed: Bed) -> Iterator[Bed]:
    yield fault_bed
    fault_bed.mend()
