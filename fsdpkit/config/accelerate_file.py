"""A configuration of Accelerate, as far as a submission looks at it: what kind of training it is
for. The job's own environment reads it whole, on the nodes (launching/accelerate_variables.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.bounded import TOML_BYTES, read_bytes
from fsdpkit.config.job import Resources
from fsdpkit.errors import ConfigError

_SCALAR = re.compile(r"^([A-Za-z_]\w*)[ \t]*:[ \t]*(\S.*?)?[ \t]*(?:#.*)?\r?$", re.MULTILINE)
"""Of YAML, a key with its value on the same line: `accelerate config` writes no other."""
_ELSEWHERE = {
    "AMAZON_SAGEMAKER": "starts a job of Amazon's, not one of Slurm's",
    "MEGATRON_LM": "lays out ranks in its own way, which fsdpkit does not start",
    "TPU": "is for TPUs",
    "XLA": "is for TPUs",
}


def check_accelerate_file(path: Path, what: str) -> None:
    """Raises ConfigError for what is no such file, or is for something that Slurm does not run."""
    given = _scalars(path, what)
    if not (kind := given.get("distributed_type")):
        raise ConfigError(
            f"{what}: {path} has no distributed_type, which a file of `accelerate config` has"
        )
    for value in (given.get("compute_environment", ""), kind):
        if why := _ELSEWHERE.get(value.upper()):
            raise ConfigError(f"{what}: {path}: {value} {why}")


def unused_of(path: Path, resources: Resources, what: str) -> Iterator[str]:
    """Sentences about numbers of the file in whose place the job's own count."""
    given = _scalars(path, what)
    for key, number in (("num_machines", resources.nodes), ("num_processes", resources.ranks)):
        if (value := given.get(key, "")).isdecimal() and value != str(number):
            yield f"{path.name} has {key} = {value}; the job's own number counts, {number}"


def _scalars(path: Path, what: str) -> dict[str, str]:
    try:
        text = read_bytes(path, TOML_BYTES, links=True).decode()
        if path.suffix == ".json":
            found = json.loads(text)
            return {str(key): str(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error}") from error
    return {key: value.strip("'\"") for key, value in _SCALAR.findall(text)}
