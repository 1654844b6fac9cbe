"""How captures are made: a stage (cluster and submissions), scenarios by what breaks, copying."""

from . import by_slurm, in_memory, in_programs, in_storage, on_nodes
from .copying import CAPTURES, capture, finish
from .stage import SCENARIOS, Stage

__all__ = [
    "CAPTURES",
    "SCENARIOS",
    "Stage",
    "by_slurm",
    "capture",
    "finish",
    "in_memory",
    "in_programs",
    "in_storage",
    "on_nodes",
]
