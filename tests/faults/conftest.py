"""The cluster of the fault matrix, one undisturbed run, and order after every fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require_slurm
from tests.faults.trial import CLUSTER, Bed
from tests.slurm_cluster import SlurmCluster


@pytest.fixture(scope="session")
def fault_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    require_slurm()
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), **CLUSTER) as cluster:
        yield Bed(cluster, tmp_path_factory.mktemp("faults"))


@pytest.fixture
def bed(fault_bed: Bed) -> Iterator[Bed]:
    yield fault_bed
    fault_bed.mend()


@pytest.fixture
def undisturbed(bed: Bed) -> dict[int, float]:
    """The loss of every step of the light trainer when nothing happens."""
    return bed.undisturbed()
