"""sbatch's own spellings, with what stands for each here (sbatch_spellings.txt). Needs the standard
library alone: the laptop of a person who submits by `--host` answers them, too.
"""

from __future__ import annotations

from pathlib import Path

_ROWS = [
    row.split(maxsplit=2)
    for row in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    if row and not row.startswith("#")
]
_MEANS = {name: means for _, name, *rest in _ROWS for means in rest}

LONG_OPTIONS = frozenset(name for _, name, *_ in _ROWS)
LETTERS = {letter: name for letter, name, *_ in _ROWS if letter != "-"}
"""Short options of sbatch, each with its long one."""
KEYS = {name: means[2:] for name, means in _MEANS.items() if means.startswith("= ")}
"""By sbatch's long option, the job's key that stands for it."""
OTHERWISE = {
    name: _MEANS[means[3:]] if means.startswith("as ") else means
    for name, means in _MEANS.items()
    if name not in KEYS
}
"""By sbatch's long option, what stands for it where no key does."""

OF_OTHERS = {
    "fsdpkit submit FILE.toml": ("f", "file", "config", "job"),
    "--set environment.variables.NAME=VALUE": ("e", "env"),
    "account": ("project",),
    "gpus-per-node": ("gpu", "ngpus", "nproc-per-node", "num-gpus"),
    "job-name": ("name",),
    "nodes": ("nnodes", "node", "num-machines", "num-nodes"),
    "ntasks": ("num-processes",),
    "partition": ("queue",),
    "time": ("walltime",),
}
"""Options of other launchers, by that of sbatch which says the same, or what does here."""
