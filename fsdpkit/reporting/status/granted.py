"""What Slurm granted compared with the request: a plugin, an administrator or the user may have
changed the job after it was rendered, and Slurm rounds and chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import read_json, read_text


class GrantedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Something that Slurm has otherwise than was asked for."""

    what: str
    asked: str
    granted: str


def said(details: Mapping[str, str], name: str) -> str | None:
    """A field of `scontrol show job`, None where Slurm has nothing to say."""
    value = details.get(name)
    return None if value in (None, "", "(null)", "N/A", "None") else value


def asked_for(paths: RunPaths) -> dict[str, str]:
    """What sbatch was asked for, by Slurm's names for what it shows; empty if it cannot be read."""
    try:
        resources = read_json(paths.job)["resources"]
        nodes = resources["nodes"] + resources.get("spare", 0)
        asked = {"NumNodes": str(nodes), "gres/gpu": str(nodes * resources["gpus"])}
        asked["TimeLimit"] = str(resources["time"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    try:
        script = read_text(paths.script)
    except OSError:
        script = ""
    for key, name in (("partition", "Partition"), ("account", "Account"), ("qos", "QOS")):
        # A quoted value is skipped: it is not worth parsing shell grammar here.
        match = re.search(rf"^#SBATCH --{key}=([^\s\"'\\]+)$", script, re.MULTILINE)
        if value := resources.get(key) or (match and match[1]):
            asked[name] = str(value)
    if not re.search(r"^#SBATCH --(gpus|gres)", script, re.MULTILINE):
        del asked["gres/gpu"]  # this site grants GPUs without a request
    return asked


_NAMES = {
    "NumNodes": "nodes",
    "gres/gpu": "GPUs",
    "TimeLimit": "time limit",
    "Partition": "partition",
    "Account": "account",
    "QOS": "QOS",
}


def differences(asked: Mapping[str, str], details: Mapping[str, str]) -> list[GrantedDifference]:
    """Where what scontrol shows is not what was asked for: a plugin, an administrator or the user
    has changed it, or Slurm rounded. What either side does not say is no difference."""
    granted = {**details, **_tres(details)}
    found = []
    for key, name in _NAMES.items():
        ours, theirs = asked.get(key), said(granted, key)
        if ours is not None and theirs is not None and not _same(key, ours, theirs):
            found.append(GrantedDifference(what=name, asked=ours, granted=theirs))
    return found


def _tres(details: Mapping[str, str]) -> dict[str, str]:
    """`cpu=8,node=2,gres/gpu=4`, of what is allocated or else of what is to be."""
    for name in ("AllocTRES", "TRES", "ReqTRES"):
        if text := said(details, name):
            pairs = (part.partition("=") for part in text.split(","))
            return {key: value for key, _, value in pairs}
    return {}


def _same(key: str, asked: str, granted: str) -> bool:
    if key == "TimeLimit":
        from fsdpkit.config.units import parse_time_s

        try:  # Slurm counts in minutes
            return -(-parse_time_s(asked) // 60) == -(-parse_time_s(granted) // 60)
        except ValueError:
            return False
    if key == "NumNodes":
        return asked == granted.partition("-")[0]  # `2-2` while it is pending
    return granted in asked.split(",")  # of several partitions Slurm chooses one
