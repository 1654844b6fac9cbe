"""When each operation of a step runs: a simulation of the host, the GPU and its process groups.

Three kinds of clocks. The host issues operations one after the other, a kernel at a time, and waits
for nothing but what `work.py` says it must. The GPU computes in that order. Each process group
sends its messages in that order, beside the computing. An operation starts when it was issued, when
what was before it on its own clock is done, and when what it depends on is there; the dependencies
are those of FSDP, as torch 2.13's `_fsdp_param_group.py` has them:

- A gather in forward waits until the unit gathered `gathers_ahead` before it is computed with, when
  FSDP2 frees that one's buffer, and FSDP1's limit_all_gathers no longer has the host wait; one in
  backward until the unit before it is.
- A unit's computations wait for its last gather.
- What reduces gradients waits for the computations issued before it; a hybrid's all-reduce also for
  its unit's reduce-scatter.
- The optimizer waits for all that was sent.

Groups that share links slow one another by no more than the links: messages of two groups at once
are counted at their full rates where one is inside a node and the other between nodes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from fsdpkit.planning.efficiency import Rates, product_rate
from fsdpkit.planning.work import Collective, Computation, Copy, StepWork

Cause = Literal["compute", "memory", "network", "in-node links", "launches", "host copies"]


@dataclass(frozen=True)
class SimulatedStep:
    """One simulated step; seconds."""

    step_s: float
    by_cause: dict[Cause, float]
    """The step's time by what the GPU did or waited for; adds up to `step_s`."""


def simulate(work: StepWork, rates: Rates) -> SimulatedStep:
    """One step after another like it: nothing of the step before is still on the way."""
    clocks = _Clocks(work, rates)
    for operation in work.operations:
        if isinstance(operation, Computation):
            clocks.compute(operation)
        elif isinstance(operation, Collective):
            clocks.send(operation)
        else:
            clocks.copy(operation)
    return clocks.finish()


def collective_s(message: Collective, rates: Rates, ranks_per_node: int) -> float:
    """Of one message when nothing else is on the way: latency of the hops, and its bytes over the
    slowest link of a ring; groups with ranks on the same nodes share what joins the nodes."""
    n, inside = message.group_size, message.group_per_node
    if n <= 1 or message.bytes == 0:
        return 0.0
    nodes = -(-n // inside)
    twice = 2 if message.kind == "all_reduce" else 1
    moved = twice * message.bytes * (n - 1) / n
    in_node_s = moved / rates.in_node_bytes if inside > 1 else 0.0
    sharing = max(1, ranks_per_node // inside)
    between_s = moved * sharing / rates.node_bytes if nodes > 1 else 0.0
    hops = twice * (n - nodes), twice * (nodes if nodes > 1 else 0)
    latency_s = hops[0] * rates.in_node_latency_s + hops[1] * rates.network_latency_s
    if message.kind == "all_reduce" and nodes > 1:
        # NCCL takes trees where they are faster: there and back by doubling.
        tree_s = 2 * (nodes - 1).bit_length() * rates.network_latency_s
        tree_s += 2 * (inside - 1) * rates.in_node_latency_s
        latency_s = min(latency_s, tree_s)
    return latency_s + max(in_node_s, between_s)


def computation_s(one: Computation, rates: Rates) -> tuple[float, Cause]:
    """Its kernels one after the other, each by the roofline; and which side of it bounds them."""
    if one.on_host:
        return one.bytes / rates.host_bytes, "host copies"
    kernels = max(1, one.kernels)
    if one.kind == "matmul":
        compute_s = one.flops / product_rate(rates, max(one.flops, 1) / kernels, one.dtype)
    else:
        biased = one.kind == "biased attention"
        share = rates.biased_attention_share if biased else rates.attention_share
        compute_s = one.flops / (rates.peak_flops * share)
    times: dict[Cause, float] = {
        "compute": compute_s,
        "memory": one.bytes / rates.memory_bytes,
        "launches": kernels * rates.kernel_s,
    }
    cause = max(times, key=lambda each: times[each])
    return times[cause], cause


@dataclass
class _Clocks:
    work: StepWork
    rates: Rates
    host: float = 0.0
    gpu: float = 0.0
    groups: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    there: dict[str, tuple[float, Cause]] = field(default_factory=dict)
    """When the last gather or copy of a unit arrives, until something is computed with it."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Of the gathers of units that nothing is computed with yet, each one's number in the step."""
    gathers: int = 0
    used: dict[int, float] = field(default_factory=dict)
    """When what a gather brought was first computed with, by the gather's number."""
    reduced: dict[str | None, float] = field(default_factory=dict)
    by_cause: dict[Cause, float] = field(default_factory=lambda: defaultdict(float))
    last_sent: tuple[float, Cause] = (0.0, "network")

    def compute(self, one: Computation) -> None:
        seconds, cause = computation_s(one, self.rates)
        issued = self.host + self.rates.launch_s
        self.host += max(1, one.kernels) * self.rates.launch_s
        waits: list[tuple[float, Cause]] = [(issued, "launches")]
        if one.phase == "optimizer":
            waits.append(self.last_sent)
        if one.unit in self.there:
            waits.append(self.there.pop(one.unit))
        start = self._wait(waits)
        if one.unit in self.numbers:
            self.used[self.numbers.pop(one.unit)] = start
        # The last kernel starts no sooner than it was launched.
        end = max(start + seconds, self.host + seconds / max(1, one.kernels))
        self.by_cause[cause] += seconds
        self.by_cause["launches"] += max(0.0, end - start - seconds)
        self.gpu = end

    def _wait(self, waits: list[tuple[float, Cause]]) -> float:
        """Let the GPU stand still until all are there; the last one is why."""
        until, cause = max(waits)
        if until > self.gpu:
            self.by_cause[cause] += until - self.gpu
            self.gpu = until
        return self.gpu

    def send(self, message: Collective) -> None:
        self.host += self.rates.collective_s
        group = (message.group_size, message.group_per_node)
        seconds = collective_s(message, self.rates, self.work.ranks_per_node)
        between = message.group_size > message.group_per_node
        cause: Cause = "network" if between else "in-node links"
        start = max(self.host, self.groups[group])
        unit = message.unit
        gathers = message.kind == "all_gather" and unit is not None
        if gathers and message.phase != "optimizer":
            start = max(start, self._room(message), self.there.get(unit or "", (0.0, ""))[0])
        else:
            start = max(start, self.gpu, self.reduced.get(unit, 0.0))
        end = self.groups[group] = start + seconds
        if seconds:
            self.last_sent = max(self.last_sent, (end, cause))
        if message.phase == "optimizer":
            self._wait([(end, cause)])
        elif gathers:
            self.there[unit or ""] = (end, cause)
            self.numbers[unit or ""] = self.gathers
            self.gathers += 1
        elif message.kind == "reduce_scatter":
            self.reduced[unit] = end

    def _room(self, message: Collective) -> float:
        """When a gather may start for what was gathered before it. What is gathered ahead by name
        is issued before anything is computed with those, and waits for none."""
        ahead = self.work.gathers_ahead
        if ahead is None:
            return 0.0
        allowed = ahead if message.phase == "forward" else max(1, ahead - 1)
        return self.used.get(self.gathers - allowed, 0.0)

    def copy(self, one: Copy) -> None:
        """Each direction has a clock of its own."""
        self.host += self.rates.launch_s
        key = (-1, 0 if one.to == "gpu" else 1)
        start = max(self.host, self.groups[key])
        if one.to == "host":
            start = max(start, self.gpu, self.reduced.get(one.unit, 0.0))
        end = self.groups[key] = start + one.bytes / self.rates.host_copy_bytes
        if one.to == "gpu":
            self.there[one.unit] = (end, "host copies")
        else:
            self.last_sent = max(self.last_sent, (end, "host copies"))

    def finish(self) -> SimulatedStep:
        self._wait([self.last_sent])
        self._wait([(self.host, "launches")])
        return SimulatedStep(self.gpu, dict(self.by_cause))
