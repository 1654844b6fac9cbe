"""Was it worth the GPUs: what was measured beside the account, and what to do, where that is sure.

A hint states the numbers that it rests on. There is none of short runs, of nodes without samples,
or of what failed before it trained: a wrong hint costs more GPU-hours than none saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fsdpkit.config.units import roughly
from fsdpkit.reporting.words import number
from fsdpkit.runs.account import Account, Measured, Use
from fsdpkit.runs.uses import Uses

_STEADY_S = 900.0
"""So long must nodes have trained, or run a program that logs no steps."""
_SAMPLED = 0.9
"""Of that time, by samples."""
_LITTLE, _MUCH, _MOST = 0.4, 0.2, 0.5
"""Of what was asked for; of the time that ranks ran, as the next."""
_WAITS: tuple[Use, ...] = ("loading", "waiting", "unused")
_WORK: tuple[Use, ...] = ("training", *_WAITS, "unknown")
"""What ranks did, whether they logged steps or not."""


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about what was measured."""

    measured: str
    then: str

    @property
    def sentence(self) -> str:
        return f"{self.measured}: {self.then}"


def hints(accounts: Sequence[Account], job: Mapping[str, Any], *, done: bool) -> list[Hint]:
    """What is sure of a training. job: what is in job.json; done: whether it reached its goal."""
    steady = [one for one in accounts if _is_steady(one)]
    if not steady:
        return []
    told = job.get("resources")
    resources: Mapping[str, Any] = told if isinstance(told, dict) else {}
    found = [*_of_steps(Uses(steady), steady[-1], job), *_of_gpus(steady)]
    return [*found, *_of_host(steady, resources), *(_of_time(accounts[-1]) if done else ())]


def _is_steady(one: Account) -> bool:
    """Whether it ran long enough, and all its nodes were sampled meanwhile."""
    worked_s = sum(one.used_s.get(use, 0.0) for use in _WORK)
    measured = one.measured
    return (
        worked_s >= _STEADY_S * one.nodes
        and measured is not None
        and measured.nodes >= one.nodes
        and measured.gpu_s >= _SAMPLED * worked_s * one.gpus
        and one.gpus > 0
    )


def _of_steps(uses: Uses, newest: Account, job: Mapping[str, Any]) -> Iterator[Hint]:
    shares = {part.use: part.share for part in uses.parts}
    worked = sum(shares.get(use, 0.0) for use in _WORK)
    loading, waiting, unused = (shares.get(one, 0.0) / worked for one in _WAITS)
    if loading >= _MUCH and newest.measured is not None:
        share = _cores(newest.measured)
        cores = "" if share is None else f", with {share:.0%} of the cores in use"
        told = f"ranks waited for data in {loading:.0%} of the time they ran{cores}"
        yield Hint(measured=told, then=_more_workers(job, newest))
    if waiting >= _MUCH:
        told = f"ranks waited for the slowest in {waiting:.0%} of the time they ran"
        yield Hint(measured=told, then="the report's figure of ranks shows which, and where")
    if unused >= _MOST:
        told = f"no kernel ran on the GPUs in {unused:.0%} of the time that ranks ran"
        yield Hint(measured=told, then="fsdpkit stacks shows where the ranks of one that runs are")


def _cores(one: Measured) -> float | None:
    """The share of the cores' time that processes used, 0 to 1."""
    return None if one.cpu_s is None or not one.core_s else min(1.0, one.cpu_s / one.core_s)


def _more_workers(job: Mapping[str, Any], newest: Account) -> str:
    training = job.get("training")
    data = training.get("data") if isinstance(training, dict) else None
    workers = data.get("workers") if isinstance(data, dict) else None
    if isinstance(workers, int):
        return f"raise training.data.workers (now {workers} for each of {newest.gpus} GPUs)"
    return "give its DataLoader more workers (num_workers), or data that is prepared"


def _of_gpus(steady: Sequence[Account]) -> Iterator[Hint]:
    """All attempts together: the least that any of them would have needed is the most they used."""
    measured = [one.measured for one in steady if one.measured]
    used = max((one.gpu_memory_bytes or 0 for one in measured), default=0)
    total = min((one.gpu_memory_total_bytes or 0 for one in measured), default=0)
    if 0 < used <= _LITTLE * total:
        told = f"used {_of(used, total)} of a GPU's memory at most"
        several = steady[-1].nodes * steady[-1].gpus > 1
        half = ", or half the GPUs would hold it" if several else ""
        yield Hint(measured=told, then=f"the batch could grow{half}")


def _of_host(steady: Sequence[Account], resources: Mapping[str, Any]) -> Iterator[Hint]:
    """Only of what the job itself asked for: else it is the centre's share of a node."""
    measured = [one.measured for one in steady if one.measured]
    used = max((one.memory_bytes or 0 for one in measured), default=0)
    total = min((one.memory_total_bytes or 0 for one in measured), default=0)
    if str(resources.get("memory") or "0") != "0" and 0 < used <= _LITTLE * total:
        told = f"used {_of(used, total)} of a node's memory at most"
        yield Hint(measured=told, then="ask for less memory (resources.memory)")
    share = max((_cores(one) or 1.0 for one in measured), default=1.0)
    if resources.get("cpus_per_gpu") and share <= _MUCH:
        told = f"its processes used {share:.0%} of the cores' time"
        yield Hint(measured=told, then="ask for fewer cores (resources.cpus_per_gpu)")


def _of_time(last: Account) -> Iterator[Hint]:
    took_s, asked_s = last.ended_s - last.began_s, last.asked_s or 0.0
    if asked_s >= 7200 and took_s <= _LITTLE * asked_s:
        told = f"asked for {roughly(asked_s)}, took {roughly(took_s)}"
        yield Hint(measured=told, then="a job with a shorter time limit can start earlier")


def figures(uses: Uses) -> list[tuple[str, str]]:
    """What was measured beside the account, by name, as far as it is known."""
    accounts, row = uses.accounts, uses.row
    measured = [one.measured for one in accounts if one.measured]
    fullest = max(measured, key=lambda one: one.gpu_memory_bytes or 0, default=Measured())
    host = max(measured, key=lambda one: one.memory_bytes or 0, default=Measured())
    cores = max((_cores(one) or 0.0 for one in measured), default=0.0)
    tflops = next((one.tflops_per_gpu for one in reversed(accounts) if one.tflops_per_gpu), None)
    asked_s = accounts[-1].asked_s
    took = roughly(accounts[-1].ended_s - accounts[-1].began_s)
    busy, active, sampled = row.busy_share, row.active_share, row.measured_share
    found = [
        ("GPU", next((one.gpu for one in reversed(accounts) if one.gpu), None)),
        ("GPUs busy", busy is not None and f"{busy:.0%} of their time, waiting for ranks included"),
        ("Multiprocessors worked", active is not None and f"{active:.0%}"),
        ("Sampled", busy is not None and f"{sampled:.0%} of the time of all GPUs"),
        ("Speed", tflops and f"{number(tflops)} TFLOP/s per GPU"),
        ("GPU memory, at most", _of(fullest.gpu_memory_bytes, fullest.gpu_memory_total_bytes)),
        ("A node's memory, at most", _of(host.memory_bytes, host.memory_total_bytes)),
        ("Cores used", cores and f"{cores:.0%} of their time"),
        ("Energy", uses.kwh and f"{number(uses.kwh)} kWh"),
        ("Time limit", asked_s and f"{took} of {roughly(asked_s)} used"),
    ]
    return [(name, words) for name, words in found if words]


def _of(used: float | None, total: float | None) -> str:
    """As Slurm and makers of GPUs count."""
    of = f" of {total / 2**30:.0f}" if total else ""
    return "" if used is None else f"{used / 2**30:.1f}{of} GiB"
