"""`[billing]` of a site profile: what a centre charges for an hour of a job.

Rates are written as Slurm's TRESBillingWeights (slurm.conf), so that what a centre has there can be
copied, and what a live Slurm says is read the same way.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec

from fsdpkit.config.fields import Text, doc
from fsdpkit.config.loading import parsed

Counting = Literal["sum", "max", "max+gres"]

_WEIGHT = re.compile(r"([A-Za-z][\w/:.-]*)=(\d*\.?\d+(?:[eE]-?\d+)?)([KMGTP]?)")
_MEGABYTES = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}


class HourlyRates(NamedTuple):
    """What an hour costs."""

    weights: Mapping[str, float]
    """By resource, in lower case: cpu, mem (for each megabyte), node, gres/gpu, gres/gpu:a100."""
    counting: Counting
    unit: str
    source: str
    """Where they are from, for people."""

    def per_hour(self, node: Mapping[str, float | None], nodes: int) -> float | None:
        """What an hour of so many such nodes costs; None where an amount that counts is not known.
        node: amounts of one node by the names of the weights; what is absent is not used."""
        charged: dict[str, float] = {}
        for name, weight in self.weights.items():
            amount = node.get(name, 0.0)
            if amount is None and weight:
                return None
            charged[name] = (amount or 0.0) * weight
        gres = sum(each for name, each in charged.items() if name.startswith("gres/"))
        if self.counting == "sum":
            return nodes * sum(charged.values())
        if self.counting == "max":
            return nodes * max(charged.values(), default=0.0)
        others = [each for name, each in charged.items() if not name.startswith("gres/")]
        return nodes * (max(others, default=0.0) + gres)


def parse_weights(text: str) -> dict[str, float]:
    """`CPU=1.0,Mem=0.25G,GRES/gpu=2.0`: for each unit of a resource, for memory a megabyte. Raises
    ValueError for anything else."""
    found: dict[str, float] = {}
    for word in text.split(","):
        match = _WEIGHT.fullmatch(word.strip())
        name = match[1].lower() if match else ""
        if match is None or (match[3] and name != "mem"):
            raise ValueError(f"{word[:60]!r} is no weight, as Mem=0.25G or GRES/gpu=2 are")
        found[name] = float(match[2]) / _MEGABYTES[match[3]]
    return found


def counting_of(priority_flags: str) -> Counting:
    """How Slurm adds up by its PriorityFlags."""
    flags = priority_flags.upper().split(",")
    if "MAX_TRES" in flags:
        return "max"
    return "max+gres" if "MAX_TRES_GRES" in flags else "sum"


class Billing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the centre charges; unset: as Slurm's TRESBillingWeights have it, where it is asked."""

    weights: Annotated[
        Text | None,
        doc(
            "What an hour costs by resource, written as Slurm's TRESBillingWeights, "
            "such as GRES/gpu=4 or CPU=1,Mem=0.25G."
        ),
    ] = None
    partitions: Annotated[
        dict[str, Text], doc("Weights of single partitions, by their tables' names.")
    ] = {}
    counting: Annotated[
        Counting,
        doc(
            "`sum` of all resources; of each node the largest alone, `max` (Slurm's "
            "MAX_TRES); or the largest and GPUs besides, `max+gres` (MAX_TRES_GRES)."
        ),
    ] = "sum"
    unit: Annotated[Text, doc("Name of what is charged, such as SU or node-hours.")] = (
        "billing units"
    )
    source: Annotated[Text | None, doc("Document that has these rates.")] = None
    balance: Annotated[
        list[Text],
        doc(
            "Command and its arguments that show what an account has left; {account} "
            "is the job's account. No shell reads it."
        ),
    ] = []

    def __post_init__(self) -> None:
        for key, text in {"weights": self.weights, **self.partitions}.items():
            parsed(key, parse_weights, text)
        if (self.weights or self.partitions) and not self.source:
            raise ValueError("source: name the document that has these weights")

    def rates(self, partition: str | None) -> HourlyRates | None:
        """Those of a partition, by its table's name; None where the profile has none."""
        text = self.partitions.get(partition or "", self.weights)
        if text is None:
            return None
        return HourlyRates(parse_weights(text), self.counting, self.unit, self.source or "")
