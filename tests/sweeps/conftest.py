"""Sweeps on the real cluster: its fixtures are those of the tests of Slurm."""

from __future__ import annotations

from tests.slurm.conftest import on_slurm

__all__ = ["on_slurm"]
