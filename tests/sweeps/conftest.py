"""Sweeps on the real cluster: its fixtures are those of the tests of Slurm."""

from __future__ import annotations

from tests.slurm.conftest import alex, on_slurm, sam, shared_cluster

__all__ = ["alex", "on_slurm", "sam", "shared_cluster"]
